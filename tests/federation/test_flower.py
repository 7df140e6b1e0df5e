"""A federation over Flower: its Grid and ClientApp in this process, the kits, and a rehearsal with TLS at night.

Needs the extra ``flower`` in an environment of its own: ``make flower-test``. Every process is bounded in time and
ended by its id; servers listen on the loopback address only.
"""

import contextlib
import itertools
import json
import socket
import ssl
from types import SimpleNamespace

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

import httpx
import psutil
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import Status
from flwr.proto.control_pb2 import StartRunRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory

import resolvent as rv
from federation.parts import Federation, quadratic
from federation.rehearsals import SITES, check_late_replies, check_private_sums, check_refit, two_sites
from resolvent.errors import InputError
from resolvent.federation.engines.flower import programs as federation_flower
from resolvent.federation.engines.flower.adapter import FlowerTransport, client_app
from resolvent.federation.engines.flower.kits import AUTHORITY_FILE, NODE_KEY, SITES_FILE, make_flower_kits
from resolvent.federation.engines.flower.start import forget_messages_of_ended_runs
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.engines.processes import running
from resolvent.federation.lead.engines import start_participant
from resolvent.federation.lead.lead import federate
from resolvent.federation.lead.rehearsal import compare_with_simulation
from resolvent.federation.protocol.connections import knows_connections
from resolvent.federation.protocol.exchange import RoundRules
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import SERVER_KIT, KitNote, kit_note
from resolvent.federation.protocol.names import REHEARSAL, SITE_FILE
from resolvent.federation.protocol.reports import PhaseReport
from resolvent.federation.protocol.transport import TransportError

pytestmark = [pytest.mark.xdist_group("flower"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]



def travelled(message):
    """A message after its objects were serialised and parsed, as between two machines."""
    contents = {number: item.deflate() for number, item in get_all_nested_objects(message).items()}
    number = get_object_tree(message).object_id
    copy = inflate_object_from_contents(number, contents)
    copy.metadata.__dict__["_message_id"] = number
    return copy


class DirectGrid(Grid):
    """A Grid whose nodes are ClientApps in this process.

    Attributes:
        delays: number of a message, in the order of sending -> number of requests for replies after which its reply is
            there; None: never.
    """

    def __init__(self, apps, delays=None, errors=()):
        self.apps, self.delays, self.errors = apps, delays or {}, set(errors)
        self.replies, self.count = {}, itertools.count()

    def set_run(self, run):
        raise NotImplementedError

    run = property(lambda self: None)
    get_node_ids = create_message = send_and_receive = set_run

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            k, node = next(self.count), message.metadata.dst_node_id
            received = travelled(message)
            context = Context(1, node, {}, RecordDict(), {}, "")
            failed = Message(Error(3, "the node is not available"), reply_to=received)
            reply = failed if k in self.errors else travelled(self.apps[node](message=received, context=context))
            assert context.state == RecordDict()  # a party's state is in its store
            number = received.metadata.message_id
            if self.delays.get(k, 0) is not None:
                self.replies[number] = [self.delays.get(k, 0), reply]
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids):
        ready = [number for number in message_ids if number in self.replies and self.replies[number][0] <= 0]
        for number in message_ids:
            if number in self.replies:
                self.replies[number][0] -= 1
        return [self.replies.pop(number)[1] for number in ready]


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Flower's messages need the identity of a task, which its processes set."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def transport_of(handlers, **settings):
    nodes = {site: 100 + k for k, site in enumerate(handlers)}
    grid = DirectGrid({nodes[site]: client_app(handle) for site, handle in handlers.items()}, **settings)
    return FlowerTransport(grid, nodes)


@pytest.mark.parametrize("algorithm", [
    pytest.param(lambda: rv.scaffold(rv.solvers.GD(0.05, steps=3)), id="party states"),
    pytest.param(lambda: rv.combinators.Compressed(rv.feddane(rv.solvers.GD(0.05)), rv.codecs.QSGD(4)), id="codec")])
def test_a_run_over_the_grid_is_that_of_the_transport_in_process(algorithm, tmp_path):
    records = []
    for transport in (InProcess, transport_of):
        with Federation(algorithm(), quadratic(double=False), tmp_path / transport.__name__, rounds=2,
                        transport=transport) as federation:
            records.append(federation.run().record)
    first, second = records
    assert first.bytes_up == second.bytes_up
    assert first.counted == second.counted
    for leaf, expected in zip(jax.tree.leaves(second.state), jax.tree.leaves(first.state), strict=True):
        np.testing.assert_array_equal(leaf, expected)


def echo(data):
    return b"reply to " + data


def test_bytes_of_every_length_travel_unchanged():
    transport = transport_of({"a": echo, "b": lambda data: data[::-1]})
    for content in (b"", b"\x00", bytes(range(256)) * 4000, bytes(range(256)) * 5000):  # the last one as an array
        replies = transport.broadcast({"a": content, "b": content}, deadline=None, quorum=2, grace=0)
        assert replies == {"a": b"reply to " + content, "b": content[::-1]}


def test_a_reply_after_the_wait_is_late():
    transport = transport_of({"a": echo, "b": echo}, delays={1: 3})
    assert transport.broadcast({"a": b"1", "b": b"1"}, deadline=None, quorum=1, grace=0) == {"a": b"reply to 1"}
    late = [*itertools.chain.from_iterable(transport.late_replies() for _ in range(4))]
    assert late == [("b", b"reply to 1")]


def test_a_failed_node_and_a_failed_party_have_no_reply(caplog):
    def fail(data):
        raise ValueError("a value of the table")

    transport = transport_of({"a": echo, "b": echo, "c": fail}, errors={1})
    assert transport.broadcast(dict.fromkeys("abc", b"1"), deadline=600, quorum=3, grace=0) == {"a": b"reply to 1"}
    assert transport.failed == {"b", "c"}
    assert transport.broadcast({"b": b"2"}, deadline=600, quorum=1, grace=0) == {"b": b"reply to 2"}
    assert transport.failed == {"c"}
    transport._grid.pull_messages = None
    with pytest.raises(TransportError, match="not callable"):
        transport.broadcast({"b": b"2"}, deadline=600, quorum=1, grace=0)
    reply = client_app(fail)(message=travelled(message_with(b"x")), context=Context(1, 1, {}, RecordDict(), {}, ""))
    assert "a value of the table" not in reply.error.reason


def message_with(content):
    from resolvent.federation.engines.flower.adapter import _record_of

    message = Message(_record_of(content), 7, "query")
    message.metadata.__dict__.update(_run_id=1, _src_node_id=1)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({"message": ConfigRecord({"message": 1})}),
                                     RecordDict({"message": ConfigRecord({"other": b"x"})})])
def test_a_message_of_another_form_is_not_answered(content):
    message = Message(content, 7, "query")
    message.metadata.__dict__.update(_run_id=1, _src_node_id=1)
    message.metadata.__dict__["_message_id"] = message.object_id
    reply = client_app(echo)(message=message, context=Context(1, 1, {}, RecordDict(), {}, ""))
    assert reply.has_error()


@pytest.mark.parametrize("has_objects", [False, True], ids=["before its objects", "before its confirmation"])
def test_a_site_forgets_a_message_whose_run_ends_during_its_transfer(has_objects):
    """Otherwise its process takes the message as its next task, and waits for objects that never arrive."""
    forget_messages_of_ended_runs()
    state = NodeStateFactory(store := ObjectStoreFactory()).state()
    state.store_run(Run.create_empty(1))
    message = message_with(b"x")
    contents = {number: item.deflate() for number, item in get_all_nested_objects(message).items()}

    def end_of_run(*arguments):
        raise RunNotRunningException

    received = start_client_internal._pull_and_store_message(
        state=state, object_store=store.store(), node_config={}, receive=lambda: (message, get_object_tree(message)),
        get_run=None, get_fab=None, trusted_entities=None, confirm_message_received=end_of_run,
        pull_object=(lambda run, number: contents[number]) if has_objects else end_of_run)
    assert received is None
    assert not state.get_messages_legacy()
    assert not state.get_tasks(statuses=[Status.PENDING])


def test_a_quorum_and_a_deadline_end_the_wait(tmp_path):
    with Federation(rv.fedavg(rv.solvers.GD(0.05)), quadratic(double=False), tmp_path, rounds=1,
                    rules=RoundRules(quorum=3, deadline=0.3, retries=0),
                    transport=lambda handlers: transport_of(handlers, delays={12: None})) as federation:
        reports = federation.run().reports
    (phase,) = [report for report in reports if isinstance(report, PhaseReport)]
    assert phase.counted == (0, 1, 3, 4)  # the first ten messages are those of the start and of an evaluation


# Kits


def test_kits_have_the_key_of_their_participant_only(tmp_path):
    kits = make_flower_kits(tmp_path, name="hearts", host="fed.example.org", port=8002, sites=SITES)
    assert {*kits} == {SERVER_KIT, *SITES}
    for site in SITES:
        assert {p.name for p in (kits[site] / "startup").iterdir()} == {
            AUTHORITY_FILE, NODE_KEY, "kit.json", "site.key", "site.pem"}
        assert all((kits[site] / "startup" / key).stat().st_mode & 0o077 == 0 for key in (NODE_KEY, "site.key"))
        note = KitNote(kits[site])
        assert (note.engine, note.kind, note.name, note.address) == ("flower", "site", site, "fed.example.org:8002")
    public = json.loads((kits[SERVER_KIT] / "startup" / SITES_FILE).read_text())
    assert [*public] == [*SITES]
    assert all("PRIVATE" not in key for key in public.values())
    with pytest.raises(InputError, match="the kit of a site"):
        kit_note(kits["aachen"], "server")
    more = make_flower_kits(tmp_path, name="hearts", host="fed.example.org", port=8002, sites=(*SITES, "celle"))
    assert [*more] == ["celle"]
    again = json.loads((kits[SERVER_KIT] / "startup" / SITES_FILE).read_text())
    assert {site: again[site] for site in SITES} == public
    for sites in (SITES, (*SITES, "celle")):  # celle is removed, and named again: it has the key of its kit
        assert make_flower_kits(tmp_path, name="hearts", host="fed.example.org", port=8002, sites=sites) == {}
    assert json.loads((kits[SERVER_KIT] / "startup" / SITES_FILE).read_text()) == again


def test_a_site_that_was_started_again_takes_part_again(tmp_path, monkeypatch):
    """It has not prepared the run, and is connected. Without new rounds, the next failure ends the command."""
    def serve(job, experiment, transport, folder, results, observe, **settings):
        if not served:
            observe({"event": "round"})
        served.append(transport)
        transport.failed.add("berlin")
        return {"status": "stopped", "message": "berlin: no reply arrived in time"}

    served, notes = [], []
    monkeypatch.setattr(federation_flower, "serve_federation", serve)
    link = SimpleNamespace(nodes=lambda: {"aachen": 1, "berlin": 2}, connected_sites=lambda: {*SITES},
                           open_run=contextlib.nullcontext)
    experiment = SimpleNamespace(labels=("FedAvg",), seeds=(0,), rounds=1)
    server = federation_flower.FlowerServer(SimpleNamespace(kit=tmp_path), experiment, FederationJob("mine", "", SITES),
                                            tmp_path, lambda event: None, notes.append)
    assert server._follow(link) is None
    assert notes == ["the run stopped: berlin: no reply arrived in time"]
    assert server._follow(link)["status"] == "stopped"


# With processes and TLS


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A rehearsal's server and two sites, and the kits."""
    with two_sites(tmp_path_factory.mktemp("federation"), "flower", rounds=3) as parts:
        yield parts


@pytest.mark.nightly
def test_models_over_tls_with_authenticated_nodes_are_those_of_the_simulation(federation):
    rehearsal, kits, folder = federation
    job = FederationJob("", rehearsal.plan.text, SITES, rehearsal=True)
    federate(KitNote(kits[SERVER_KIT]), rehearsal.plan, folder / "run", job, print, notify=print)
    (parity,) = compare_with_simulation(rehearsal, rehearsal.plan, folder / "run",
                                        {site: kits[site] for site in SITES})
    assert parity.is_equal, parity
    assert (folder / "run" / "report.html").is_file()


@pytest.mark.nightly
def test_a_refit_gives_the_models_of_a_simulation_on_all_rows(federation):
    _, kits, folder = federation
    check_refit(folder, kits, KitNote(kits[SERVER_KIT]))


@pytest.mark.nightly
def test_private_fed_plus_in_secure_sums_is_the_simulation(federation):
    rehearsal, kits, folder = federation
    check_private_sums(rehearsal, kits, folder, KitNote(kits[SERVER_KIT]))


@pytest.mark.nightly
def test_a_run_with_a_quorum_is_that_of_the_simulation(federation):
    """The server asks Flower for replies at intervals in which both sites answer, so that none has to be late."""
    rehearsal, kits, folder = federation
    check_late_replies(rehearsal, kits, folder, KitNote(kits[SERVER_KIT]))


@pytest.mark.nightly
def test_the_server_accepts_encrypted_connections_on_loopback_only(federation):
    _, kits, _ = federation
    port = int(KitNote(kits[SERVER_KIT]).address.rpartition(":")[2])
    listeners = [c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
    assert listeners
    assert {*listeners} <= {"127.0.0.1", "::1"}
    with (socket.create_connection(("127.0.0.1", port), timeout=600) as plain,
          contextlib.suppress(ConnectionResetError)):
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert plain.recv(1000)[:1] in (b"", b"\x15")  # the connection ends, or a TLS alert
    with pytest.raises(httpx.ConnectError):  # the certificate of another authority
        httpx.get(f"https://127.0.0.1:{port}/", verify=ssl.create_default_context())


@pytest.mark.nightly
def test_a_node_of_another_federation_is_refused(federation, tmp_path):
    """It has the certificate of the authority, and a key that the server does not know."""
    rehearsal, kits, folder = federation
    host, _, port = KitNote(kits["aachen"]).address.rpartition(":")
    others = make_flower_kits(tmp_path / "others", name="rehearsal", host=host, port=int(port), sites=SITES)
    certificate = (kits["aachen"] / "startup" / AUTHORITY_FILE).read_bytes()
    (others["aachen"] / "startup" / AUTHORITY_FILE).write_bytes(certificate)
    site_file = folder / "work" / "sites" / "aachen" / "site.yaml"
    with running(start_participant(KitNote(others["aachen"]), {SITE_FILE: str(site_file), REHEARSAL: "1"})) as site:
        site.wait(20)  # until it ends: a site that is refused may wait
        assert not knows_connections(others["aachen"])
    assert rehearsal.sites


@pytest.mark.nightly
def test_a_run_of_another_person_runs_no_code(federation, tmp_path):
    """A person on the server's machine can start a run of Flower with code; no process opens its bundle."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.supercore.fab import Fab

    from resolvent.federation.engines.flower import link as flower_link

    _, kits, _ = federation
    mark = tmp_path / "mark"
    code = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n".encode()
    project = flower_link._PROJECT.replace("none:none", "evil:app").encode()
    bundle, _ = build_fab_from_files({"pyproject.toml": project, "evil.py": code + b"app = None\n"})
    with flower_link.SuperLink(KitNote(kits[SERVER_KIT])) as link:
        link._control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", bundle, {})), federation="@none/default"))
        with link.open_run() as grid:  # the program skips the run that it did not start
            node = link.nodes()["aachen"]
            (reply,) = FlowerTransport(grid, {"aachen": node}).broadcast(
                {"aachen": b"request\n{}"}, deadline=30, quorum=1, grace=0).items() or [None]
    assert not mark.exists()
    assert reply is None or b"refused" in reply[1]
