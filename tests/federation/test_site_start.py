"""What a site's command says before and while it runs: why it cannot connect, and which plans wait."""

import contextlib
import re
import shutil
import socket
import ssl
import threading

import pytest

from resolvent.cli.site import journal_watch
from resolvent.federation.protocol.connections import connection_problem
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import JOURNAL, runs_of
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.plans import Plans

SITES = ("aachen", "berlin")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of two federations of the same name; their keys need no engine."""
    pytest.importorskip("cryptography")
    from resolvent.federation.engines.flower.kits import make_flower_kits

    return [make_flower_kits(tmp_path_factory.mktemp("kits"), name="x", address="x", sites=SITES, lead="l@example.org")
            for _ in range(2)]


def note_at(kit, address):
    note = KitNote(kit)
    note.address = address
    return note


@pytest.fixture
def server():
    """Starts a server on this machine, which does with a connection what a function does; returns its address."""
    listeners = []

    def start(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            with contextlib.suppress(OSError), listener.accept()[0] as plain:  # the site may end the connection
                answer(plain)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def over_tls(kit, authority=None):
    """A server with the certificate of a kit, which may ask for one of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority)

    def answer(plain):
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(3)
            connection.sendall(bytes(9))

    return answer


def test_a_site_says_whether_name_port_or_certificate_keeps_it_out(kits, server, tmp_path, monkeypatch):
    ours, theirs = kits
    site = ours["aachen"]
    assert connection_problem(note_at(site, server(over_tls(ours["berlin"])))) == ""
    silent = threading.Event()
    problems = {
        "name: this machine does not know no-host.invalid": "no-host.invalid:8002",
        "port: nothing answers at 127.0.0.1:1 ": "127.0.0.1:1",
        "certificate: the one of the server .* are not of one federation": server(over_tls(theirs["berlin"]))}
    found = {expected: connection_problem(note_at(site, address)) for expected, address in problems.items()}
    monkeypatch.setattr("resolvent.federation.protocol.connections._SECONDS", 0.2)
    found["port: a program at .* says nothing"] = connection_problem(
        note_at(site, server(lambda connection: silent.wait(600))))
    silent.set()
    copy = shutil.copytree(site, tmp_path / "kit")
    (copy / "startup" / "rootCA.pem").unlink()
    found["certificate: that of the kit cannot be read from .*startup"] = connection_problem(
        note_at(copy, "127.0.0.1:1"))
    assert {expected: text for expected, text in found.items() if not re.match(expected, text)} == {}


def test_a_server_that_refuses_the_certificate_of_the_kit_is_named(kits, server, tmp_path):
    """NVIDIA FLARE asks a site for its certificate, and says so after the handshake only."""
    ours, theirs = (made["aachen"] / "startup" for made in kits)
    site = shutil.copytree(kits[0]["aachen"], tmp_path / "kit")
    for own, is_accepted in ((ours, True), (theirs, False)):
        for name in ("client.crt", "client.key"):
            (site / "startup" / name).write_bytes((own / name).read_bytes())
        problem = connection_problem(note_at(site, server(over_tls(kits[0]["berlin"], ours / "rootCA.pem"))))
        assert problem.partition(":")[0] == ("" if is_accepted else "certificate"), problem


def test_a_plan_that_waits_is_said_once_and_the_command_of_the_site_gets_it(kits, tmp_path, capsys):
    note = KitNote(kits[0]["aachen"])
    mail = tmp_path / "mail"
    look = journal_watch(note, f"tee -a {mail}")
    look()
    assert capsys.readouterr().out == ""
    plans = Plans(Journal(runs_of(note.kit) / JOURNAL))
    plans.receive("a1" * 32, "lead@example.org", "hearts", "rounds: 5", "approval.leads does not have it", {})
    plans.receive("b2" * 32, "lead@example.org", "approved", "rounds: 7", "", {})
    for _ in range(2):
        look()
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("waits for a decision, because approval.leads does not have it") == 1
    assert "resolvent site approve" in text
    assert "b2" not in text
    assert mail.read_text().count("rounds: 5") == 1
    plans.journal.append("second session", run="hearts")
    for _ in range(2):
        look()
    assert " ".join(capsys.readouterr().out.split()).count("refused a second process that connects as aachen") == 1
    journal_watch(note, "no-such-command")()
    captured = capsys.readouterr()
    assert "waits for a decision" in captured.out
    assert "the command notify of the site's file has failed" in captured.err
