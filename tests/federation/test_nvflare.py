"""A federation over NVIDIA FLARE on this machine: processes, certificates, and a process that is killed.

Needs the extra ``nvflare`` in an environment of its own: ``make federation-test``. Every process is bounded in time and
ended by its id; servers listen on the loopback address only.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from ruamel.yaml import YAML

pytest.importorskip("nvflare")

import numpy as np
import psutil
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.streaming.download_service import DownloadStatus, ProduceRC
from nvflare.fuel.utils import fobs

from federation.rehearsals import SITES, check_late_replies, check_private_sums, check_refit, two_sites
from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.errors import InputError
from resolvent.federation.engines.nvflare import adapter as nvflare
from resolvent.federation.engines.nvflare import stream as nvflare_stream
from resolvent.federation.engines.nvflare.jobs import job_text
from resolvent.federation.engines.nvflare.lead import open_session
from resolvent.federation.engines.nvflare.processes import start_engine
from resolvent.federation.engines.nvflare.programs import FederationServer, FederationSite
from resolvent.federation.engines.nvflare.provisioning import make_kits
from resolvent.federation.engines.processes import ENGINE_LOG, running
from resolvent.federation.lead.key_changes import check_not_revoked, revoke_key, rotate_key
from resolvent.federation.lead.lead import FederationEndedError, federate
from resolvent.federation.lead.rehearsal import compare_with_simulation
from resolvent.federation.protocol.connections import SecondSessions, knows_connections
from resolvent.federation.protocol.events import PhaseReport, Revocation, SecondSession, StartReport, Waiting
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import SERVER_KIT, KitNote, kit_note
from resolvent.federation.protocol.names import ALLOWED_CLASSES, SERVER_CLASS, SITE_CLASS, SITE_FILE
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.transport import signed_reply
from resolvent.federation.protocol.wire import EncodedMessage, Message

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("nvflare"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]

NOT_COPIED = ("runs", "engine*", "*.lock", "*-*-*", "signs.json", "second_sessions.jsonl")
MEMBER, LEAD = "eye@example.org", "lead@example.org"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A rehearsal's server and two sites, and the kits."""
    with two_sites(tmp_path_factory.mktemp("federation"), "nvflare", rounds=10) as parts:
        yield parts


def worker_of(kit):
    """The process of the job of a participant."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(kit) in line and any(name in " ".join(line) for name in ("worker_process", "runner_process")):
            return process
    return None


def test_a_killed_worker_changes_no_model(federation):
    """The lead's watchdog starts the job again; the models are those of the simulation."""
    rehearsal, kits, folder = federation
    killed, notes = [], []

    def kill(event):
        if isinstance(event, PhaseReport) and event.round >= 3 and not killed:
            process = worker_of(kits["berlin"])
            if process is not None:
                process.send_signal(signal.SIGKILL)
                killed.append(process.pid)

    job = FederationJob("", rehearsal.plan.text, SITES)
    federate(kit_note(kits[LEAD], "person"), rehearsal.plan, folder / "run", job, kill, notify=notes.append)
    assert killed
    assert any("started again" in note for note in notes)
    (parity,) = compare_with_simulation(rehearsal, rehearsal.plan, folder / "run",
                                        {site: kits[site] for site in SITES})
    assert parity.is_equal, parity
    assert (folder / "run" / "report.html").is_file()


def test_a_stopped_run_continues(federation):
    """A site cannot write its disk: the run stops, and the same command continues it when there is room."""
    rehearsal, kits, folder = federation
    obstacles, resumed = [], []

    def fill_disk(event):
        if isinstance(event, PhaseReport) and event.round >= 3 and not obstacles:
            run = max(path.parent for path in (kits["berlin"] / "runs").glob("*/encoding.json"))
            folder = run / "stores" / "00" / ".party.record.partial"
            while not obstacles:  # in the place of the file that the record is written to first, when it is not there
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    obstacles.append(folder)

    def follow(event):
        if isinstance(event, StartReport):
            resumed.append(event.resumed)

    # The lead hears of a round up to half a second later: enough rounds must be left.
    text = re.sub(r"(rounds|evaluate_every): 10\b", r"\1: 60", rehearsal.plan.text)
    experiment = experiment_from_text(text, "mine", policy=replace(REHEARSAL, continues_runs=True))
    job = FederationJob("", text, SITES, retries=0)
    arguments = kit_note(kits[LEAD], "person"), experiment, folder / "stopped", job
    for _ in range(2):
        with pytest.raises(FederationEndedError, match=r"berlin: refused \(storage\)"):
            federate(*arguments, fill_disk, notify=print)
    obstacles[0].rmdir()
    federate(*arguments, follow, notify=print)
    assert resumed[0] >= 4
    (parity,) = compare_with_simulation(rehearsal, experiment, folder / "stopped",
                                        {site: kits[site] for site in SITES})
    assert parity.is_equal, parity


def test_a_refit_gives_the_models_of_a_simulation_on_all_rows(federation):
    _, kits, folder = federation
    check_refit(folder, kits, kit_note(kits[LEAD], "person"))


def start_copy(kit):
    """Start a copy of a kit until it is refused; returns whether it was connected before."""
    with running(start_engine(KitNote(kit), ALLOWED_CLASSES, {})) as site:
        site.wait_for(lambda: (kit / "second_sessions.jsonl").exists(), 600)
        assert SecondSessions(kit).new() == []  # those from now on
        return knows_connections(kit)


def test_a_copy_of_a_kit_is_refused(federation, tmp_path):
    """The server, both processes and the lead hear of it; the run continues with the first process.

    Meanwhile the other site does not answer, and the lead hears for whom the run waits.
    """
    rehearsal, kits, folder = federation
    copy, has_waited = tmp_path / "copy", threading.Event()
    events, waits, outputs, threads = [], [], [], []
    shutil.copytree(kits["aachen"], copy, ignore=shutil.ignore_patterns(*NOT_COPIED))

    def disturb(process):
        process.send_signal(signal.SIGSTOP)
        try:
            outputs.append(start_copy(copy))
            has_waited.wait(600)
        finally:
            process.send_signal(signal.SIGCONT)

    def observe(event):
        events.append(event)
        if isinstance(event, PhaseReport) and not threads:
            threads.append(threading.Thread(target=disturb, args=(worker_of(kits["berlin"]),)))
            threads[0].start()
        if isinstance(event, Waiting) and event.message == "work" and "berlin" in event.missing:
            waits.append(event.text)
            has_waited.set()

    # The lead hears of a round up to half a second later: enough rounds must be left.
    text = re.sub(r"(rounds|evaluate_every): 10\b", r"\1: 200", rehearsal.plan.text)
    experiment = experiment_from_text(text, "mine")
    try:
        federate(kit_note(kits[LEAD], "person"), experiment, folder / "copied", FederationJob("", text, SITES), observe,
                 notify=print)
    finally:
        has_waited.set()
        threads[0].join()
    assert SecondSession("aachen") in events
    assert re.fullmatch(r"waiting for .*berlin: the reply of Scaffold, round \d+ of 200, phase 1 \([01] of 2 have .*\)",
                        waits[0])
    assert outputs == [False]
    assert '"aachen"' in (kits[SERVER_KIT] / "second_sessions.jsonl").read_text()


def address_of(kit):
    host, port = KitNote(kit).address.split(":")
    return host, int(port)


def test_the_server_listens_on_the_loopback_address_only(federation):
    _, kits, _ = federation
    _, port = address_of(kits[SERVER_KIT])
    listeners = [c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
    assert listeners
    assert {*listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_connection_without_encryption_or_certificate_is_refused(federation):
    _, kits, _ = federation
    with (socket.create_connection(address_of(kits[SERVER_KIT]), timeout=600) as plain,
          contextlib.suppress(ConnectionResetError)):
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert plain.recv(1000)[:1] in (b"", b"\x15")  # the connection ends, or a TLS alert
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    refused = False
    try:
        with (socket.create_connection(address_of(kits[SERVER_KIT]), timeout=600) as connection,
              context.wrap_socket(connection) as encrypted):
            encrypted.sendall(b"hello")
            refused = encrypted.recv(1000) == b""
    except OSError:  # ssl.SSLError is one: the server wants a certificate
        refused = True
    assert refused


def test_a_hundred_connections_that_say_nothing_keep_nobody_out(federation):
    """Half of them begin a handshake; the lead connects beside them."""
    _, kits, _ = federation
    with contextlib.ExitStack() as stack:
        for number in range(100):
            idle = stack.enter_context(socket.create_connection(address_of(kits[SERVER_KIT]), timeout=600))
            if number % 2:
                idle.sendall(b"\x16\x03\x01\x02\x00\x01")
        with open_session(kit_note(kits[LEAD], "person")) as session:
            assert session.connected_sites() == {*SITES}


def test_a_certificate_of_another_federation_is_refused(federation, tmp_path):
    _, kits, _ = federation
    _, port = address_of(kits[SERVER_KIT])
    others = make_kits(tmp_path / "others", name="rehearsal", host="localhost", port=port, sites=SITES, lead=LEAD)
    with pytest.raises(InputError, match="no connection to the server"), open_session(kit_note(others[LEAD], "person")):
        pass
    with running(start_engine(kit_note(others["aachen"], "site"), ALLOWED_CLASSES, {})) as site:
        site.wait(6)  # until it ends: a site that is refused may wait
        assert not knows_connections(others["aachen"])


def test_a_site_cannot_join_under_the_name_of_another(federation, tmp_path):
    rehearsal, kits, _ = federation
    kit = tmp_path / "kit"
    shutil.copytree(kits["aachen"], kit, ignore=shutil.ignore_patterns(*NOT_COPIED))
    path = kit / "startup" / "fed_client.json"
    content = json.loads(path.read_text())
    content["client"]["fqsn"] = "berlin"
    path.write_text(json.dumps(content))
    with running(start_engine(KitNote(kit), ALLOWED_CLASSES, {})) as site:
        site.wait(8)  # until it ends: a site that is refused may wait
        assert not knows_connections(kit)
    assert rehearsal.sites


def test_a_member_may_not_start_an_experiment(federation):
    """The member's kit is made later by the same authority, as for a person who joins."""
    rehearsal, kits, folder = federation
    _, port = address_of(kits[SERVER_KIT])
    members = make_kits(folder / "work" / "kits", name="rehearsal", host="localhost", port=port, sites=SITES, lead=LEAD,
                        members=(MEMBER,))
    assert list(members) == [MEMBER]
    job = FederationJob("x", rehearsal.plan.text, SITES)
    with open_session(kit_note(members[MEMBER], "person")) as session:
        assert session.connected_sites() >= {*SITES}
        with pytest.raises(InputError, match="the server refuses the job"):
            session.submit("mine", job.plain(), SERVER_CLASS, SITE_CLASS)


@pytest.mark.nightly
def test_an_experiment_beyond_the_limits_is_refused_at_the_site_with_a_message_at_the_lead(federation, tmp_path):
    rehearsal, kits, folder = federation
    site_file = folder / "work" / "sites" / "berlin" / "site.yaml"
    before = site_file.read_text()
    settings = YAML(typ="safe").load(before)
    site_file.write_text(write_yaml({**settings, "limits": {**settings["limits"], "max_rounds": 3}}))
    job = FederationJob("", rehearsal.plan.text, SITES)
    try:
        with pytest.raises(InputError, match=r"berlin: refused \(limits\): the site allows at most 3 rounds"):
            federate(kit_note(kits[LEAD], "person"), rehearsal.plan, tmp_path / "run", job, print, notify=print)
    finally:
        site_file.write_text(before)
    assert SITE_FILE.startswith("RESOLVENT")


@pytest.mark.nightly
def test_private_fed_plus_in_secure_sums_is_the_simulation(federation):
    rehearsal, kits, folder = federation
    check_private_sums(rehearsal, kits, folder, kit_note(kits[LEAD], "person"))


@pytest.mark.nightly
def test_late_replies_count_and_are_those_of_the_simulation(federation):
    rehearsal, kits, folder = federation
    assert check_late_replies(rehearsal, kits, folder, kit_note(kits[LEAD], "person"))


@pytest.mark.nightly
def test_a_job_that_names_another_class_is_not_run(federation):
    """The class is installed, and not among those that the site allows."""
    rehearsal, kits, _ = federation
    job = FederationJob("x", rehearsal.plan.text, SITES)
    with open_session(kit_note(kits[LEAD], "person")) as session:
        number = session.submit("mine", job.plain(), SERVER_CLASS,
                                "resolvent.federation.engines.nvflare.sessions.SiteSession")
        end = time.monotonic() + 600
        while not session.state(number).is_done and time.monotonic() < end:
            time.sleep(0.5)
        assert session.state(number).text != "FINISHED:COMPLETED"


@pytest.mark.parametrize(("data", "number"), [({"since": 1}, 1), ({"since": "1"}, 0), ({"since": -1}, 0), ([], 0),
                                              ({"since": True}, 0)])
def test_a_request_for_progress_is_checked(data, number):
    server = FederationServer(job_text({}))
    for site in SITES * 2:
        server.report(Revocation(site))
    server.report(Waiting("server"))  # it is asked for, and not kept
    answer = server._answer_progress("", data, None)
    assert answer == {"events": [Revocation(site).plain() for site in (SITES * 2)[number:]], "waiting": []}


def test_a_large_message_is_streamed_and_its_bytes_are_free_afterwards(monkeypatch):
    monkeypatch.setattr(nvflare, "_MAX_VALUE", 10)
    monkeypatch.setattr(nvflare_stream, "_BLOCK", 4)
    encoded = EncodedMessage(Message("work", "run", arrays={"a": np.arange(9.0), "b": np.arange(5, dtype=np.int8)}))
    for parts in ([bytes(10)], [bytes(range(11))], encoded.parts):
        sent, content = nvflare.shareable_of(parts), b"".join(parts)
        assert isinstance(sent["message"], nvflare_stream.LargeMessage) == (len(content) > 10)
        assert nvflare.message_of(fobs.loads(fobs.dumps(sent))) == content
    source, target, state = nvflare_stream._Source(sent["message"]), nvflare_stream._Target(), None
    while (part := source.produce(state, "site"))[0] == ProduceRC.OK:
        _, block, state = part
        assert target.consume("", state, block) == state
    assert part[0] == ProduceRC.EOF
    assert bytes(target.content) == bytes(encoded)
    for status, left in ((DownloadStatus.FAILED, bytes(encoded)), (DownloadStatus.SUCCESS, b"")):
        source.downloaded_to_one("site", status)
        assert sent["message"].joined() == left
    assert source.produce(None, "site")[0] == ProduceRC.ERROR


@pytest.mark.parametrize("value", [None, 1, [b"x"], "text"])
def test_a_shareable_without_bytes_has_no_message(value):
    assert nvflare.message_of(Shareable({"message": value})) is None


@pytest.mark.parametrize(("state", "block"), [({"start": -1}, None), ({"start": "0"}, None), ({}, "text"),
                                              ({}, bytes(9))])
def test_a_request_for_a_block_and_a_block_are_checked(state, block, monkeypatch):
    monkeypatch.setattr(nvflare_stream, "MAX_BYTES", 8)
    if block is None:
        assert nvflare_stream._Source(nvflare_stream.LargeMessage([b"12"])).produce(state, "")[0] == ProduceRC.ERROR
    else:
        with pytest.raises(ValueError, match="a block is not bytes, or the message has more than 8 bytes"):
            nvflare_stream._Target().consume("", state, block)


def test_a_process_ends_soon_after_its_parent(tmp_path):
    """The middle process starts one that would run for an hour, and ends."""
    child = ("import os, time; from resolvent.federation.engines.processes import end_without_parent; "
             "end_without_parent(); print(os.getpid(), flush=True); time.sleep(3600)")
    parent = f"import subprocess, sys; sys.stdout.write(str(subprocess.Popen([sys.executable, '-c', {child!r}], " \
             "stdout=subprocess.PIPE).stdout.readline().decode()))"
    number = int(subprocess.run([sys.executable, "-c", parent], check=True, capture_output=True).stdout)
    end = time.monotonic() + 600
    while psutil.pid_exists(number) and time.monotonic() < end:
        time.sleep(0.1)
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


def test_all_processes_of_a_kit_end_with_its_command(tmp_path):
    """The sites of a killed command would keep their connections."""
    kits = make_kits(tmp_path / "kits", name="x", host="localhost", port=1, sites=SITES, lead=LEAD)
    process = start_engine(kit_note(kits["aachen"], "site"), ALLOWED_CLASSES, {})
    assert process.is_running
    process.stop()
    assert not process.is_running
    assert not psutil.pid_exists(process.pid) or os.getpgid(process.pid) != process.pid


def test_a_reply_without_a_valid_signature_does_not_count(tmp_path):
    """The signature is of the site's own key, over its name and the reply; a key that is revoked signs nothing."""
    kits = make_kits(tmp_path, name="x", host="localhost", port=1, sites=SITES, lead=LEAD)
    server, notes = FederationServer(job_text({})), {name: KitNote(kits[name]) for name in (*SITES, LEAD)}
    transport = nvflare.NvflareTransport(None, None, None, SITES, partial(server.check, kits[SERVER_KIT]))

    def checked(reply, signer, content):
        proof = None if signer is None else FederationSite().prove(kits[signer], content)
        return transport._reply("berlin", Shareable({"message": reply, "proof": proof}))

    signed = signed_reply("berlin", b"reply")
    assert checked(b"reply", "berlin", signed) == b"reply"
    assert transport.reasons() == {}
    for signer, content in ((None, b""), ("aachen", signed), (LEAD, signed), ("berlin", b"reply"),
                            ("berlin", signed_reply("aachen", b"reply")),
                            ("berlin", signed_reply("berlin", b"other"))):
        assert checked(b"reply", signer, content) is None
        assert "its reply does not count" in transport.reasons()["berlin"]
    transport.add_late_reply("berlin", Shareable({"message": b"late"}))
    assert transport.late_replies() == []
    plan = Consortium(name="x", host="localhost", sites=SITES, lead=LEAD, port=1)
    old = notes["berlin"].sign(signed)
    change = rotate_key(tmp_path, plan, "berlin", "stolen")
    assert change.new == tmp_path / "berlin"
    assert transport._reply("berlin", Shareable({"message": b"reply", "proof": old})) is None
    assert transport.reasons()["berlin"].endswith("the key of berlin is revoked")
    assert checked(b"reply", "berlin", signed) == b"reply"  # the new key
    revoke_key(tmp_path, plan, "berlin", "left")
    assert transport._reply("berlin", Shareable({"message": b"reply", "proof": old})) is None
    with pytest.raises(InputError, match="berlin was excluded"):
        check_not_revoked(tmp_path, plan)


@pytest.mark.nightly
def test_a_stolen_key_is_refused_while_the_run_goes_on_and_the_new_key_connects(tmp_path):
    """The lead rotates the key of berlin, and copies the list to the running server."""
    with two_sites(tmp_path, "nvflare", rounds=40) as (rehearsal, kits, folder):
        at_lead = folder / "lead"
        shutil.copytree(kits[SERVER_KIT].parent, at_lead,
                        ignore=shutil.ignore_patterns("runs", "engine*", "*.lock", "*-*-*", "transfer"))
        host, port = address_of(kits[SERVER_KIT])
        plan = Consortium(name="rehearsal", host=host, sites=SITES, lead=LEAD, port=port)
        rounds, changes = [], []

        def observe(event):
            if isinstance(event, PhaseReport):
                rounds.append(event)
            if len(rounds) == 3 and not changes:
                changes.append(rotate_key(at_lead, plan, "berlin", "stolen"))
                for file in changes[0].files:
                    shutil.copy(file, kits[SERVER_KIT] / "startup" / file.name)

        job = FederationJob("", rehearsal.plan.text, SITES, quorum=1, deadline=60.0)
        federate(kit_note(kits[LEAD], "person"), rehearsal.plan, folder / "run", job, observe, notify=print)
        assert {tuple(event["counted"]) for event in rounds[-10:]} == {("aachen",)}
        reasons = [event["absent"].get("berlin", "") for event in rounds]
        assert any("the key of berlin is revoked" in reason for reason in reasons)
        assert rounds[-1]["round"] == 40
        server = (kits[SERVER_KIT] / ENGINE_LOG)
        end = time.monotonic() + 600
        while "berlin is disconnected" not in server.read_text("utf-8", "replace") and time.monotonic() < end:
            time.sleep(1)
        assert "berlin is disconnected: the key of berlin is revoked" in server.read_text("utf-8", "replace")
        with running(start_engine(KitNote(changes[0].new), ALLOWED_CLASSES, {})) as site:
            site.wait_for(lambda: knows_connections(changes[0].new), 300)
        with running(start_engine(KitNote(changes[0].old), ALLOWED_CLASSES, {})) as site:
            site.wait_for(lambda: (changes[0].old / "second_sessions.jsonl").exists(), 300)
