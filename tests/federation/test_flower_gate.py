"""Other machines reach only those functions of Flower's SuperLink that nodes need."""

import asyncio

import pytest

from resolvent.federation.engines.flower import gate as flower_gate
from resolvent.federation.engines.flower.gate import Gate, RefusedNodes


def answer_of(scope):
    """The type of the application's or the gate's first answer, and its status."""
    sent = []

    async def application(scope, receive, send):
        await send({"type": "application"})

    async def send(message):
        sent.append(message)

    asyncio.run(Gate(application, RefusedNodes(dict, pytest.fail))(scope, None, send))
    return sent[0]["type"], sent[0].get("status")


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/",
                                  "/docs", "/v1/fleet", "/v1/fleetx/", "/V1/FLEET/pull-messages", "//v1/fleet/pull"])
def test_other_machines_reach_no_other_function(path):
    assert answer_of({"type": "http", "path": path, "client": ("10.0.0.7", 5000)}) == ("http.response.start", 403)


@pytest.mark.parametrize("client", [None, ("",), (), ("localhost", 1), ("::ffff:10.0.0.7", 1)])
def test_an_address_that_is_not_that_of_this_machine_is_another_machine(client):
    scope = {"type": "http", "path": "/v1/control/start-run", "client": client}
    assert answer_of(scope) == ("http.response.start", 403)


def test_nodes_pass_and_programs_of_the_same_machine_pass():
    assert answer_of({"type": "http", "path": "/v1/fleet/pull-messages", "client": ("10.0.0.7", 1)})[0] == "application"
    for address in ("127.0.0.1", "::1"):
        scope = {"type": "http", "path": "/v1/control/start-run", "client": (address, 1)}
        assert answer_of(scope)[0] == "application"
    assert answer_of({"type": "lifespan"})[0] == "application"


def test_no_socket_is_opened_for_other_machines():
    scope = {"type": "websocket", "path": "/v1/fleet/pull-messages", "client": ("10.0.0.7", 1)}
    assert answer_of(scope) == ("websocket.close", None)


def test_a_node_that_is_refused_longer_than_a_killed_one_is_a_second_one(monkeypatch):
    """The key of a node that was killed is refused for a minute. A node that is accepted ends the count."""
    reported, clock = [], [0.0]
    keys = {"aachen": "ssh-key A", "berlin": "ssh-key B"}
    nodes = RefusedNodes(lambda: keys, reported.append)
    monkeypatch.setattr(flower_gate.time, "monotonic", lambda: clock[0])

    def activate(key, status):
        parts = [{"type": "http.request", "body": b"\x0a" + key[:4], "more_body": True},
                 {"type": "http.request", "body": key[4:] + b"\x15"}]
        sent = []

        async def application(scope, receive, send):
            content = (await receive())["body"] + (await receive())["body"]
            assert content == b"\x0a" + key + b"\x15"
            await send({"type": "http.response.start", "status": status, "headers": []})

        async def receive():
            return parts.pop(0)

        async def send(message):
            sent.append(message["status"])

        scope = {"type": "http", "path": "/v1/fleet/activate-node", "client": ("10.0.0.7", 1)}
        asyncio.run(Gate(application, nodes)(scope, receive, send))
        assert sent == [status]

    for clock[0], key, status in ((0, b"ssh-key A", 412), (50, b"ssh-key A", 412), (60, b"ssh-key A", 200),
                                (70, b"ssh-key A", 412), (71, b"ssh-key B", 412), (140, b"ssh-key A", 412)):
        activate(key, status)
    assert reported == []
    for clock[0] in (145.5, 170.0):
        activate(b"ssh-key A", 412)
    assert reported == ["aachen"]
    keys["celle"] = "ssh-key C"  # a site that was added while the server runs
    for clock[0] in (200.0, 280.0):
        activate(b"ssh-key C", 412)
    assert reported == ["aachen", "celle"]
