"""A federation over Flower: transport, door and kits in this process, and at night Flower's own programs over TLS.

The tests at night need the extra ``flower`` in an environment of its own: ``make flower-test``. Every process is
ended by its id; servers listen on the loopback address only.
"""

import itertools
import json
import os
import signal
import subprocess
import threading
from importlib.util import find_spec
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import psutil
import pytest

pytest.importorskip("cryptography")

import resolvent as rv
from federation.parts import Federation, quadratic
from federation.rehearsals import SITES, check_late_replies, check_private_sums, check_refit, two_sites
from resolvent.errors import InputError
from resolvent.federation.engines.flower import adapter
from resolvent.federation.engines.flower import programs as flower_programs
from resolvent.federation.engines.flower.adapter import FlowerTransport, RelayedGrid, answer_of_site, sealed
from resolvent.federation.engines.flower.door import DOOR_FILE, Door
from resolvent.federation.engines.flower.kits import make_flower_kits
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.lead.lead import federate
from resolvent.federation.lead.rehearsal import LEAD, compare_with_simulation
from resolvent.federation.protocol.connections import SecondSessions
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.exchange import RoundRules
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote, kit_note
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.transport import TransportError, signed_reply

pytestmark = pytest.mark.xdist_group("flower")
PARTIES = ("a", "b", "c", *(f"site {k}" for k in range(5)))  # the last ones are those of federation.parts


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_flower_kits(tmp_path_factory.mktemp("kits"), name="x", address="y", sites=PARTIES, lead=LEAD)


class App:
    """The ServerApp and the nodes of a run, as the other end of the lead's connection.

    Args:
        nodes: node -> the function that answers its messages.
        delays: number of a message, in the order of sending -> number of requests for replies after which its reply is
            there; None: never.
        errors: numbers of messages that Flower cannot deliver.
    """

    def __init__(self, nodes, delays=None, errors=()):
        self.nodes, self.delays, self.errors = nodes, delays or {}, {*errors}
        self.replies, self.out, self.to, self.count = {}, [], None, itertools.count()

    def send_bytes(self, content):
        if self.to is not None:
            node, self.to, k = self.to, None, next(self.count)
            try:
                reply = None if k in self.errors else self.nodes[node](content)
            except Exception:
                reply = None
            if self.delays.get(k, 0) is not None:
                self.replies[str(k)] = [self.delays.get(k, 0), reply]
            self.out.append(json.dumps([str(k)]).encode())
            return
        order = json.loads(content)
        self.to = order.get("to")
        if "replies to" in order:
            ready = [k for k in order["replies to"] if k in self.replies and self.replies[k][0] <= 0]
            for k in order["replies to"]:
                if k in self.replies:
                    self.replies[k][0] -= 1
            replies = {k: self.replies.pop(k)[1] for k in ready}
            self.out += [json.dumps([[k, reply is None] for k, reply in replies.items()]).encode(),
                         *(reply or b"" for reply in replies.values())]
        elif self.to is None:
            self.out.append(json.dumps([*self.nodes]).encode())

    def poll(self, seconds):
        return bool(self.out)

    def recv_bytes(self):
        return self.out.pop(0)


def grid_of(kits, handlers, **settings):
    nodes = {100 + k: answer_of_site(KitNote(kits[site]), handle) for k, (site, handle) in enumerate(handlers.items())}
    return RelayedGrid(KitNote(kits[LEAD]), App(nodes, **settings))


def transport_of(kits, handlers, **settings):
    nodes = {site: 100 + k for k, site in enumerate(handlers)}
    return FlowerTransport(grid_of(kits, handlers, **settings), nodes, KitNote(kits[LEAD]).verify_site)


@pytest.mark.parametrize("algorithm", [
    pytest.param(lambda: rv.scaffold(rv.solvers.GD(0.05, steps=3)), id="party states"),
    pytest.param(lambda: rv.combinators.Compressed(rv.feddane(rv.solvers.GD(0.05)), rv.codecs.QSGD(4)), id="codec")])
def test_a_run_over_flower_is_that_of_the_transport_in_process(algorithm, kits, tmp_path):
    records = []
    for number, transport in enumerate((InProcess, lambda handlers: transport_of(kits, handlers))):
        with Federation(algorithm(), quadratic(double=False), tmp_path / str(number), rounds=2,
                        transport=transport) as federation:
            records.append(federation.run().record)
    first, second = records
    assert first.bytes_up == second.bytes_up
    assert first.counted == second.counted
    for leaf, expected in zip(jax.tree.leaves(second.state), jax.tree.leaves(first.state), strict=True):
        np.testing.assert_array_equal(leaf, expected)


def echo(data):
    return b"reply to " + bytes(data)


def test_bytes_of_every_length_travel_unchanged(kits):
    transport = transport_of(kits, {"a": echo, "b": lambda data: data[::-1]})
    for content in (b"", b"\x00", b"\n", bytes(range(256)) * 5000):
        replies = transport.broadcast({"a": content, "b": content}, deadline=None, quorum=2, grace=0)
        assert replies == {"a": b"reply to " + content, "b": content[::-1]}


def test_a_reply_after_the_wait_is_late(kits):
    transport = transport_of(kits, {"a": echo, "b": echo}, delays={1: 3})
    assert transport.broadcast({"a": b"1", "b": b"1"}, deadline=None, quorum=1, grace=0) == {"a": b"reply to 1"}
    late = [*itertools.chain.from_iterable(transport.late_replies() for _ in range(4))]
    assert late == [("b", b"reply to 1")]


def test_a_failed_node_and_a_failed_party_have_no_reply(kits):
    def fail(data):
        raise ValueError("a value of the table")

    transport = transport_of(kits, {"a": echo, "b": echo, "c": fail}, errors={1})
    assert transport.broadcast(dict.fromkeys("abc", b"1"), deadline=600, quorum=3, grace=0) == {"a": b"reply to 1"}
    assert transport.failed == {"b", "c"}
    assert transport.broadcast({"b": b"2"}, deadline=600, quorum=1, grace=0) == {"b": b"reply to 2"}
    assert transport.failed == {"c"}


def test_a_serverapp_that_ends_or_says_nothing_is_an_error_of_the_transport(kits, monkeypatch):
    monkeypatch.setattr(adapter, "_PATIENCE", 0.1)
    transport = transport_of(kits, {"a": echo})
    for broken, reason in (("send_bytes", "OSError"), ("poll", "has said nothing"), ("recv_bytes", "EOFError")):
        app = App({100: echo})
        error = {"send_bytes": OSError, "recv_bytes": EOFError}.get(broken)

        def fail(*arguments, error=error):
            if error is not None:
                raise error
            return False

        setattr(app, broken, fail)
        transport._grid._connection = app
        with pytest.raises(TransportError, match=reason):
            transport.broadcast({"a": b"1"}, deadline=600, quorum=1, grace=0)


def test_a_quorum_and_a_deadline_end_the_wait(kits, tmp_path):
    with Federation(rv.fedavg(rv.solvers.GD(0.05)), quadratic(double=False), tmp_path, rounds=1,
                    rules=RoundRules(quorum=3, deadline=0.3, retries=0),
                    transport=lambda handlers: transport_of(kits, handlers, delays={12: None})) as federation:
        reports = federation.run().reports
    (phase,) = [report for report in reports if isinstance(report, PhaseReport)]
    assert phase.counted == (0, 1, 3, 4)  # the first ten messages are those of the start and of an evaluation


# Signatures: nobody between lead and site can send or change anything


def test_a_site_acts_on_messages_of_the_lead_only(kits, tmp_path):
    acted = []
    answer = answer_of_site(KitNote(kits["a"]), lambda message: acted.append(message) or b"")
    other = make_flower_kits(tmp_path, name="x", address="y", sites=PARTIES, lead=LEAD)
    signed = adapter._signed_message(b"work")
    for message in (b"work", b"\nwork", b"{}\nwork", sealed(KitNote(kits["b"]).sign(signed), b"work"),
                    sealed(KitNote(other[LEAD]).sign(signed), b"work"), sealed(KitNote(kits[LEAD]).sign(signed), b"w")):
        with pytest.raises(InputError, match="sign"):
            answer(message)
    assert acted == []
    answer(sealed(KitNote(kits[LEAD]).sign(signed), b"work"))
    assert acted == [b"work"]


def test_a_reply_counts_only_with_the_signature_of_its_site(kits):
    transport = transport_of(kits, {"a": echo, "b": echo})
    app = transport._grid._connection
    for forged in (lambda data: b"reply", lambda data: app.nodes[101](data),
                   lambda data: sealed(KitNote(kits["a"]).sign(signed_reply("a", b"x")), b"y")):
        app.nodes[100] = forged
        assert transport.broadcast(dict.fromkeys("ab", b"1"), deadline=600, quorum=2, grace=0) == {"b": b"reply to 1"}
        assert "its reply does not count" in transport.reasons()["a"]


def test_nodes_say_which_site_they_have_and_a_copied_kit_is_a_second_session(kits, monkeypatch):
    grid, sessions = grid_of(kits, {"a": echo, "b": echo}), SecondSessions(kits[LEAD])
    app = grid._connection
    assert grid.nodes() == {"a": 100, "b": 101}
    app.nodes[102] = lambda data: b"none of ours"
    app.nodes[103] = app.nodes.pop(100)  # the SuperNode of a was started again
    assert grid.nodes() == {"a": 103, "b": 101}
    assert sessions.new() == []
    monkeypatch.setattr(adapter, "folder_id", lambda kit: "another folder")
    app.nodes[104] = answer_of_site(KitNote(kits["b"]), echo)
    assert grid.nodes() == {"a": 103, "b": 101}
    assert sessions.new() == [("b", False)]


def test_an_old_answer_introduces_no_node(kits):
    """Somebody who has seen the answer of a site to another question repeats it."""
    seen, grid = [], grid_of(kits, {"a": echo})
    answer = grid._connection.nodes[100]
    grid._connection.nodes[100] = lambda data: seen.append(answer(data)) or seen[-1]
    assert grid.nodes() == {"a": 100}
    again = grid_of(kits, {})
    again._connection.nodes[7] = lambda data: seen[0]
    assert again.nodes() == {}


def test_a_node_whose_question_was_lost_is_asked_again(kits, monkeypatch):
    grid = grid_of(kits, {"a": echo}, delays={0: None})
    assert grid.nodes() == grid.nodes() == {}
    monkeypatch.setattr(adapter, "_PATIENCE", 0.0)
    assert grid.nodes() == {"a": 100}


# The door


def test_a_door_opens_to_those_who_know_the_secret(tmp_path):
    with Door(tmp_path) as door:
        file = tmp_path / DOOR_FILE
        assert file.stat().st_mode & 0o077 == 0
        known = json.loads(file.read_text())
        with pytest.raises(AuthenticationError):
            Client(("127.0.0.1", known["port"]), authkey=b"a guess")
        received = []

        def relay():
            with Client(("127.0.0.1", known["port"]), authkey=bytes.fromhex(known["secret"])) as connection:
                connection.send_bytes(b"question")
                received.append(connection.recv_bytes())

        thread = threading.Thread(target=relay)
        thread.start()
        with door.connection(600) as connection:
            connection.send_bytes(b"answer to " + connection.recv_bytes())
        thread.join()
        assert received == [b"answer to question"]
        with pytest.raises(TimeoutError), door.connection(0.01):
            pass
        with pytest.raises(InputError, match=f"port {known['port']} .* remove .*{DOOR_FILE}"):
            Door(tmp_path)
    with Door(tmp_path):  # the same one again: who has a copy of the file need not get another
        assert json.loads(file.read_text()) == known


# Kits


def test_kits_have_the_key_of_their_participant_only(kits, tmp_path):
    made = make_flower_kits(tmp_path, name="hearts", address="hospitals", sites=SITES, lead=LEAD)
    assert {*made} == {LEAD, *SITES}
    for name, kind in ((LEAD, "person"), *((site, "site") for site in SITES)):
        startup = made[name] / "startup"
        assert {p.name for p in startup.iterdir()} == {"rootCA.pem", "kit.json", "client.key", "client.crt"}
        assert (startup / "client.key").stat().st_mode & 0o077 == 0
        note = kit_note(made[name], kind)
        assert (note.engine, note.kind, note.name, note.address) == ("flower", kind, name, "hospitals")
    assert {p.name for p in (made[LEAD] / "app").iterdir()} == {"pyproject.toml", "relay.py"}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [*make_flower_kits(tmp_path, name="hearts", address="hospitals", sites=(*SITES, "celle"), lead=LEAD)] == [
        "celle"]
    assert {path: path.read_bytes() for path in before} == before
    assert KitNote(made["aachen"]).verify_participant(b"x", KitNote(tmp_path / "celle").sign(b"x")) == "celle"


def test_a_site_that_was_started_again_takes_part_again(tmp_path, monkeypatch):
    """It has not prepared the run, and is connected. Without new rounds, the next failure ends the command."""
    def serve(job, experiment, transport, folder, results, watch, **settings):
        if not served:
            watch.observe(PhaseReport(0, 0, 1, (), (), {}, {}, ()))
        served.append(transport)
        transport.failed.add("berlin")
        return {"status": "stopped", "message": "berlin: no reply arrived in time"}

    served, notes = [], []
    monkeypatch.setattr(flower_programs, "serve_federation", serve)
    grid = SimpleNamespace(nodes=lambda: {"aachen": 1, "berlin": 2}, connected_sites=lambda: {*SITES})
    note = SimpleNamespace(kit=tmp_path, verify_site=None)
    experiment = SimpleNamespace(labels=("FedAvg",), seeds=(0,), rounds=1)
    server = flower_programs.FlowerServer(note, experiment, FederationJob("mine", "", SITES), tmp_path,
                                          lambda event: None, notes.append)
    assert server._follow(grid) is None
    assert notes == ["the run stopped: berlin: no reply arrived in time"]
    assert server._follow(grid)["status"] == "stopped"


# With Flower's own programs

STARTED_AGAIN = []  # processes that took the place of killed ones


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A SuperLink, SuperNodes and the processes of two sites, over TLS, and the kits."""
    if find_spec("flwr") is None:
        pytest.skip("flwr is not installed")
    with two_sites(tmp_path_factory.mktemp("federation"), "flower", rounds=3) as parts:
        yield parts
        for process in STARTED_AGAIN:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(600)


def run(federation, out, observe=print, rounds=3, **rules):
    """Run the experiment, and return the difference of its models to those of the simulation."""
    rehearsal, kits, folder = federation
    text = rehearsal.plan.text.replace("rounds: 3", f"rounds: {rounds}").replace("every: 3", f"every: {rounds}")
    experiment = experiment_from_text(text, "mine", policy=REHEARSAL)
    job = FederationJob("", experiment.text, SITES, **rules)
    federate(kit_note(kits[LEAD], "person"), experiment, folder / out, job, observe, notify=print)
    (parity,) = compare_with_simulation(rehearsal, experiment, folder / out, {site: kits[site] for site in SITES})
    return parity.difference


@pytest.mark.nightly
def test_models_over_tls_are_those_of_the_simulation(federation):
    assert run(federation, "run") == 0.0
    assert (federation[2] / "run" / "report.html").is_file()


def processes(*words):
    """The processes below this one whose command has all words."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if all(any(word in part for part in process.cmdline()) for word in words):
                found.append(process)
        except psutil.Error:
            pass
    return found


def kill_and_start_again(*words):
    """Kill a process that the rehearsal has started, with those that it has started, and start it again.

    The new one serves the tests that follow, too, and ends with the federation.
    """
    process = processes(*words)[0]
    command, folder, environment = process.cmdline(), process.cwd(), process.environ()
    for each in (process, *process.children(recursive=True)):
        each.kill()
    with (Path(folder) / "again.log").open("ab") as log:
        again = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=subprocess.STDOUT, start_new_session=True)
    STARTED_AGAIN.append(again)


@pytest.mark.nightly
def test_every_process_can_be_killed(federation):
    """ServerApp, a site's process, a SuperNode: every reply counts once, and the models are those of the simulation."""
    kills = {1: lambda: processes("flwr-serverapp")[0].kill(),
             2: lambda: kill_and_start_again("flower.programs", "berlin"),
             3: lambda: kill_and_start_again("flower-supernode", "berlin")}

    def observe(event):
        print(event)
        if isinstance(event, PhaseReport) and (kill := kills.pop(event.round + 1, None)):
            kill()

    assert run(federation, "killed", observe, rounds=5, deadline=60.0, retries=1) == 0.0
    assert kills == {}


@pytest.mark.nightly
def test_a_refit_gives_the_models_of_a_simulation_on_all_rows(federation):
    _, kits, folder = federation
    check_refit(folder, kits, KitNote(kits[LEAD]))


@pytest.mark.nightly
def test_private_fed_plus_in_secure_sums_is_the_simulation(federation):
    rehearsal, kits, folder = federation
    check_private_sums(rehearsal, kits, folder, KitNote(kits[LEAD]))


@pytest.mark.nightly
def test_a_run_with_a_quorum_is_that_of_the_simulation(federation):
    rehearsal, kits, folder = federation
    check_late_replies(rehearsal, kits, folder, KitNote(kits[LEAD]))
