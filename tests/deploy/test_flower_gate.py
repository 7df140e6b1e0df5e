"""Other machines reach only those functions of Flower's SuperLink that nodes need."""

import asyncio

import pytest

from resolvent.deploy.flower_gate import Gate


def answer_of(scope):
    """The type of the application's or the gate's first answer, and its status."""
    sent = []

    async def application(scope, receive, send):
        await send({"type": "application"})

    async def send(message):
        sent.append(message)

    asyncio.run(Gate(application)(scope, None, send))
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
