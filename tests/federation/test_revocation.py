"""A site leaves, or a key is stolen: the key is refused while the run goes on for the others; a new kit replaces it.

The processes of an engine are in ``test_nvflare`` and ``test_flower``.
"""

import pytest

from federation.harness import SITES, Consortium, named, signed
from resolvent.cli import lead as commands
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.lead.lead import read_sites
from resolvent.federation.protocol.events import PhaseReport, Revocation
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.revocation import REVOKED_FILE, RevokedKeys, RevokedList
from resolvent.federation.protocol.run_status import STATUS_FILE, read_status
from resolvent.federation.protocol.wire import Message, digest_of_reply, encode
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch

LEAD = "lead@example.org"

# The list


def test_a_list_takes_effect_when_it_is_written(tmp_path):
    (tmp_path / "startup").mkdir()
    keys, path = RevokedKeys(tmp_path), tmp_path / "startup" / REVOKED_FILE
    keys.check("berlin", "a1")
    stolen = RevokedList().revoke("berlin", "a1", "stolen", is_excluded=False)
    stolen.write(path)
    with pytest.raises(InputError, match="the key of berlin is revoked"):
        keys.check("berlin", "a1")
    keys.check("berlin", "b2")  # its new key
    stolen.revoke("berlin", "b2", "left", is_excluded=True).write(path)
    for key in ("a1", "b2", "c3"):
        with pytest.raises(InputError, match="the key of berlin is revoked"):
            keys.check("berlin", key)
    keys.check("aachen", "d4")
    path.unlink()
    keys.check("berlin", "a1")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": [], "excluded": []}', '{"keys": {"a": 1}, "excluded": []}'])
def test_with_a_damaged_list_no_key_is_valid(text, tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / REVOKED_FILE).write_text(text)
    with pytest.raises(InputError, match="copy it again from the folder of the authority"):
        RevokedKeys(tmp_path).check("aachen", "a1")


# A run


def serve(consortium, revoke_at, **rules):
    """Serve a run in which berlin is excluded before a message of this number is sent; returns what it was sent."""
    job, events, received = signed(consortium.job(**rules)), [], []
    sites = {name: consortium.site(name) for name in SITES}

    def answer(message):
        received.append(message)
        return sites["berlin"].handle(message)

    class Revoking(InProcess):
        sent = 0

        def broadcast(self, messages, **waits):
            replies = super().broadcast(messages, **waits)
            self.sent += 1
            if self.sent == revoke_at:
                (consortium.folder / "startup").mkdir(exist_ok=True)
                RevokedList().revoke("berlin", "a1", "left", is_excluded=True).write(
                    consortium.folder / "startup" / REVOKED_FILE)
            return replies

    try:
        outcome = serve_federation(
            job, experiment_from_text(job.experiment, job.run),
            Revoking({"aachen": sites["aachen"].handle, "berlin": answer}), consortium.folder / "server",
            consortium.folder / "out", Watch(events.append), kit=consortium.folder)
    finally:
        for site in sites.values():
            site.close()
    return outcome, events, received


@pytest.mark.when_changed
def test_the_run_goes_on_for_the_others(tmp_path):
    """After the start and one round, berlin is excluded in the second round.

    The next method begins without it.
    """
    outcome, events, received = serve(Consortium(tmp_path), 4, quorum=1)
    assert outcome == {"status": "complete"}
    assert len(received) == 4  # nothing leaves for berlin afterwards
    rounds = [event for event in events if isinstance(event, PhaseReport)]
    assert [named(event, event.counted) for event in rounds] == [["aachen", "berlin"], *[["aachen"]] * 5]
    assert ["berlin" in named(event, event.asked) for event in rounds] == [True] * 3 + [False] * 3
    assert all("its key is revoked" in event.absent[event.names.index("berlin")] for event in rounds[1:3])
    assert events.count(Revocation("berlin")) == 1
    assert read_status(tmp_path / "server" / STATUS_FILE).sites["berlin"].is_member is False


def test_a_run_that_needs_all_sites_stops_and_says_how_to_continue(tmp_path):
    consortium = Consortium(tmp_path)
    outcome, _, received = serve(consortium, 5)
    assert outcome["status"] == "stopped"
    assert "berlin: its key is revoked" in outcome["message"]
    assert "--sites" in outcome["message"]
    assert len(received) == 5
    assert serve(consortium, 0, sites=("aachen",))[0]["status"] in ("complete", "refused")


def test_a_site_that_is_revoked_before_the_run_is_named(tmp_path):
    consortium = Consortium(tmp_path)
    (tmp_path / "startup").mkdir()
    RevokedList(excluded=["berlin"]).write(tmp_path / "startup" / REVOKED_FILE)
    outcome, _, received = serve(consortium, 0)
    assert outcome["status"] in ("refused", "stopped")
    assert "berlin: its key is revoked" in outcome["message"]
    assert received == []


def test_the_digest_of_a_reply_names_its_bytes():
    reply = encode(Message("reply", "run", facts={"answers": "x"}))
    other = encode(Message("reply", "run", facts={"answers": "y"}))
    assert len({digest_of_reply(data) for data in (reply, other, b"{}", b"{ }", b"")}) == 5
    assert digest_of_reply(memoryview(reply)) == digest_of_reply(reply)


# The commands and the kits


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """The kits of a federation over Flower, whose keys need no engine; and the command that changes them."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr("resolvent.federation.lead.engines.require_engine", lambda engine: None)
    file = tmp_path / "consortium.yaml"
    file.write_text("name: hearts\nhost: localhost\nengine: flower\nsites: [aachen, berlin, celle]\n"
                    f"lead: {LEAD}\n")
    commands.kits(file)
    return tmp_path / "kits", lambda action, *name, **options: getattr(commands, action)(file, *name, **options)


def keys_of(kits):
    """Site -> the certificate of its kit."""
    return {site: (kits / site / "startup" / "client.crt").read_text()
            for site in ("aachen", "berlin", "celle") if (kits / site).exists()}


def test_a_revoked_site_is_in_no_list_and_gets_no_kit_by_mistake(federation, capsys):
    kits, command = federation
    before = keys_of(kits)
    command("revoke", "berlin", reason="has left")
    assert keys_of(kits) == {site: before[site] for site in ("aachen", "celle")}
    assert read_sites(kits / LEAD) == ("aachen", "celle")
    listed = RevokedList.read(kits / LEAD / "startup" / REVOKED_FILE)
    assert listed.excluded == ["berlin"]
    assert [entry["reason"] for entry in listed.keys.values()] == ["has left"]
    assert not (kits / "berlin").exists()
    text = capsys.readouterr().out
    assert all(name in text.replace("\n", "") for name in (LEAD, "revoked.json"))
    with pytest.raises(InputError, match="berlin was excluded from the federation"):
        command("kits")
    command("rotate", "berlin")  # it comes back, with a new key
    assert keys_of(kits)["berlin"] not in before.values()
    assert RevokedList.read(kits / LEAD / "startup" / REVOKED_FILE).excluded == []
    assert read_sites(kits / LEAD) == ("aachen", "berlin", "celle")
    command("kits")


def test_kits_of_another_address_are_refused_and_stay(federation):
    """Otherwise they would go on connecting to the former address."""
    kits, command = federation
    file, before = kits.parent / "consortium.yaml", keys_of(kits)
    text = file.read_text()
    moved = text.replace("localhost", "new")
    for change in (moved, moved.replace("celle", "celle, dortmund")):
        file.write_text(change)
        with pytest.raises(InputError, match=r"kits/aachen connects to localhost, and the consortium file says"):
            command("kits")
    assert keys_of(kits) == before
    assert not (kits / "dortmund").exists()


def test_a_rotated_site_has_a_new_key_and_the_old_one_is_refused(federation):
    kits, command = federation
    before = keys_of(kits)
    command("rotate", "berlin", reason="stolen")
    after = keys_of(kits)
    assert {site for site in before if before[site] != after[site]} == {"berlin"}
    assert KitNote(kits / "berlin").name == "berlin"
    listed = RevokedList.read(kits / "authority" / REVOKED_FILE)
    assert (len(listed.keys), listed.excluded) == (1, [])
    (old,) = (kits / "revoked").iterdir()
    assert (old / "startup" / "client.key").is_file()
    command("rotate", "berlin")
    assert len(RevokedList.read(kits / "authority" / REVOKED_FILE).keys) == 2


@pytest.mark.parametrize(("action", "name", "message"), [
    ("revoke", "dortmund", "has no kit of 'dortmund'"), ("revoke", "", "is not a kit"),
    ("rotate", "dortmund", "no participant 'dortmund'"), ("revoke", "server", "the server's key cannot be changed"),
    ("revoke", "../x", "has no kit"), ("revoke", "authority", "is not a kit")])
def test_only_the_key_of_a_participant_can_be_changed(federation, action, name, message):
    kits, command = federation
    before = sorted(kits.rglob("*"))
    with pytest.raises(InputError, match=message):
        command(action, name)
    assert sorted(kits.rglob("*")) == before


def test_a_revoked_lead_signs_no_plan(federation):
    """The sites have the list of the lead's key; which is checked with each plan."""
    kits, _ = federation
    signature = KitNote(kits / LEAD).sign(b"plan")
    site = KitNote(kits / "aachen")
    assert site.verify(b"plan", signature) == LEAD
    RevokedList(excluded=[LEAD]).write(kits / "aachen" / "startup" / REVOKED_FILE)
    with pytest.raises(InputError, match=f"the key of {LEAD} is revoked"):
        site.verify(b"plan", signature)
