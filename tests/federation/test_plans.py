"""A site acts on plans that the lead has signed and that the site has approved, and answers only what they contain."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from federation.harness import EXPERIMENT, SITES, Consortium, answer_of, request_bytes, sent, signed
from resolvent.cli import site as commands
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol import signatures
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.files import Approval, read_site
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import KitNote, kit_note
from resolvent.federation.protocol.limits import read_refusal
from resolvent.federation.protocol.names import JOURNAL, library_version
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.plans import Plans

LEAD = "lead@example.org"
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


def waiting(folder, rule):
    """A consortium in which berlin has a rule of approval."""
    return Consortium(folder, {"berlin": {"approval": rule}}, text=ONE_METHOD)


def test_a_plan_waits_for_a_person_and_then_runs_with_the_name_that_it_had(tmp_path):
    consortium = waiting(tmp_path, Approval())
    outcome = consortium.serve()
    assert outcome["status"] == "stopped"  # the lead's command keeps the run, and continues it
    assert "berlin: refused (waits for approval): a person at the site has to approve the plan" in outcome["message"]
    assert [[*content] for content in sent(tmp_path / "berlin")] == [["refused"]]
    plans = Plans(Journal(tmp_path / "berlin" / JOURNAL))
    (plan,) = plans.all()
    assert (plan.run, plan.lead, plan.decision) == ("mine-1", "lead@example.org", "waiting")
    assert plan.digest == consortium.job().plan
    plans.decide(plan.name, "approved", "officer")
    assert consortium.serve() == {"status": "complete"}
    assert consortium.serve(consortium.job(run="mine-2"))["status"] == "stopped"  # another run is another plan


def test_who_decides_about_a_plan_sees_what_the_table_lacks_for_it(tmp_path):
    """The columns are compared when the plan arrives; the lead hears only that it waits."""
    consortium = Consortium(tmp_path, {"berlin": {"approval": Approval()}}, text=ONE_METHOD.replace(
        "label: ill", "label: ill, features: [age, smoker]"))
    message = consortium.serve()["message"]
    assert "berlin: refused (waits for approval)" in message
    assert "berlin: refused (absent column)" not in message
    (plan,) = Plans(Journal(tmp_path / "berlin" / JOURNAL)).all()
    assert plan.decision == "waiting"
    assert "the table of this site does not fit the plan: the table has no column 'smoker'" in plan.reason


def test_a_rejected_plan_ends_the_run(tmp_path):
    consortium = waiting(tmp_path, Approval())
    consortium.serve()
    plans = Plans(Journal(tmp_path / "berlin" / JOURNAL))
    plans.decide(plans.all()[0].name, "rejected", "officer: not our question")
    outcome = consortium.serve()
    assert outcome["status"] == "refused"
    assert "berlin: refused (rejected)" in outcome["message"]
    assert "question" not in outcome["message"]


@pytest.mark.when_changed
@pytest.mark.parametrize(("rule", "decision"), [
    (Approval(leads=("lead@example.org",)), "approved"), (Approval(leads=("other@example.org",)), "waiting"),
    (Approval(leads=("lead@example.org",), algorithms=("fedprox",)), "waiting"),
    (Approval(leads=("lead@example.org",), labels=("dead",)), "waiting"),
    (Approval(leads=("lead@example.org",), max_rounds=2), "waiting"),
    (Approval(leads=("lead@example.org",), algorithms=("fedavg",), labels=("ill",), max_rounds=3), "approved"),
    (None, "approved")])
def test_a_rule_of_the_site_approves_plans_within_it(rule, decision, tmp_path):
    waiting(tmp_path, rule).serve()
    assert [plan.decision for plan in Plans(Journal(tmp_path / "berlin" / JOURNAL)).all()] == [decision]


def test_the_rule_is_read_from_the_file_of_the_site(tmp_path):
    path = tmp_path / "site.yaml"
    for text, rule in (("", None), ("approval: {}\n", Approval()),
                       ("approval: {leads: [a@b.org], max_rounds: 9}\n", Approval(leads=("a@b.org",), max_rounds=9))):
        path.write_text(f"table: x.csv\n{text}")
        assert read_site(path).approval == rule
    path.write_text("table: x.csv\napproval: {lead: [a@b.org]}\n")
    with pytest.raises(InputError, match=r"site\.yaml:2: approval\.lead: unknown key"):
        read_site(path)


CHANGES = {
    "another experiment": lambda job: replace(job, experiment=job.experiment.replace("rounds: 3", "rounds: 300")),
    "another run": lambda job: replace(job, run="mine-9"),
    "other sites": lambda job: replace(job, sites=(*job.sites, "celle")),
    "a refit": lambda job: replace(job, refit={"FedAvg": 2}),
    "no signature": lambda job: replace(job, signature=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_server_cannot_change_what_the_lead_has_signed(change, tmp_path):
    """The sites are asked by a server that sends its own order with the lead's signature."""
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    job = CHANGES[change](signed(consortium.job()))
    sites = {name: consortium.site(name) for name in SITES}
    handlers = {name: sites.get(name, sites["aachen"]).handle for name in job.sites}
    outcome = serve_federation(job, experiment_from_text(job.experiment, job.run), InProcess(handlers),
                               tmp_path / "server", tmp_path / "out", Watch(lambda event: None))
    assert outcome["status"] == "refused"
    assert "aachen, berlin: refused (not signed)" in outcome["message"]
    assert Plans(Journal(tmp_path / "aachen" / JOURNAL)).all() == []


def test_messages_of_another_plan_get_no_answer(tmp_path):
    """After the describing request, everything else names the digest of the plan."""
    consortium = Consortium(tmp_path, text=ONE_METHOD)
    job = signed(consortium.job())
    site = consortium.site("aachen")
    request = {"run": job.run, "party": 0, "experiment": job.experiment, "sites": [*job.sites],
               "version": library_version(), "signature": job.signature, "refit": None, "keeps_validation": False}
    assert "table" in answer_of(site.handle(request_bytes("describe", **request)))
    for plan in (None, "", job.plan[:-1], "0" * 64):
        for kind in ("prepare", "finish"):
            refused = answer_of(site.handle(request_bytes(kind, run=job.run, plan=plan)))["refused"]
            assert read_refusal(refused)[1].startswith("refused (conflict)")
    site.close()


def test_the_commands_show_plans_and_decide(tmp_path, monkeypatch, capsys):
    consortium = waiting(tmp_path, Approval())
    consortium.serve()
    plan = consortium.job().plan
    kit = tmp_path / "kit"
    kit.mkdir()
    (tmp_path / "berlin").rename(kit / "runs")
    note = type("Note", (), {"kit": kit, "name": "berlin"})()
    monkeypatch.setattr("resolvent.federation.protocol.kits.kit_note", lambda kit, kind: note)
    commands.plans(kit)
    shown = capsys.readouterr().out
    assert f"{plan[:12]}: waiting; mine-1 of lead@example.org" in shown
    words = " ".join(shown.split())
    assert "It waits, because approval.leads does not have lead@example.org" in words
    assert "validation 0.2, test 0.3, profile clinic, max_scores None, min_rows 10, min_cell 2, min_sites 2" in words
    assert "label: ill" in shown
    commands.reject(kit, plan[:4], reason="not our question")
    assert f"{plan[:12]} of lead@example.org is rejected" in capsys.readouterr().out
    commands.approve(kit, plan[:12])
    commands.plans(kit)
    assert f"{plan[:12]}: approved" in capsys.readouterr().out
    for name in ("", "zz"):
        with pytest.raises(InputError, match="name one of those that have arrived"):
            commands.approve(kit, name)


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of two federations over Flower, whose signatures need no engine."""
    pytest.importorskip("cryptography")
    from resolvent.federation.engines.flower.kits import make_flower_kits

    folder = tmp_path_factory.mktemp("kits")
    return [make_flower_kits(folder / name, name=name, address="x", sites=SITES, lead=LEAD) for name in ("a", "b")]


@pytest.mark.parametrize(("hours", "is_valid"), [(-2, False), (-0.5, True), (24 * 300, True), (24 * 361, False)])
def test_a_kit_is_not_started_before_and_after_its_certificates(hours, is_valid, kits, monkeypatch):
    """The clock of the machine is some hours from the one that made the kits; they are valid from an hour before."""
    shift = timedelta(hours=hours)
    monkeypatch.setattr(signatures, "datetime", SimpleNamespace(now=lambda zone: datetime.now(zone) + shift))
    for name, kind in ((LEAD, "person"), ("aachen", "site")):
        if is_valid:
            assert kit_note(kits[0][name], kind).name == name
        else:
            with pytest.raises(InputError, match=r"startup/.*\.crt is valid from .* UTC, and the clock of"):
                kit_note(kits[0][name], kind)


def test_a_signature_is_that_of_the_federations_lead(kits):
    lead, site, stranger = (KitNote(kits[0][LEAD]), KitNote(kits[0]["aachen"]), KitNote(kits[1][LEAD]))
    job = FederationJob("mine-1", "text", SITES)
    signature = json.loads(json.dumps(lead.sign(job.signed_content)))
    assert site.verify(job.signed_content, signature) == LEAD
    for content, wrong in ((replace(job, run="mine-2").signed_content, signature),
                           (job.signed_content, stranger.sign(job.signed_content)), (job.signed_content, None),
                           (job.signed_content, KitNote(kits[0]["berlin"]).sign(job.signed_content)),
                           (job.signed_content, {}), (job.signed_content, {**signature, "signature": "zz"}),
                           (job.signed_content, {**signature, "certificate": "x"}),
                           (job.signed_content, {**signature, "certificate": stranger.sign(b"")["certificate"]})):
        with pytest.raises(InputError, match=r"sign(ed|ature)"):
            site.verify(content, wrong)


def test_the_lead_is_told_before_the_sites_run_methods_that_treat_stragglers_differently():
    def note(fedavg, participation):
        methods = f"{{FedAvg: {fedavg}, FedProx: fedprox}}"
        text = EXPERIMENT.replace("{alone: local, FedAvg: fedavg}", methods)
        return experiment_from_text(f"{text}participation: {participation}\n", "mine").note

    some, dropping = "{name: stragglers, share: 0.5}", "{name: fedavg, stragglers: drop}"
    assert note(dropping, some).startswith("The methods differ in more than their updates: the partial work of "
                                           "stragglers counts with FedProx, but not with FedAvg")
    assert (note("fedavg", some), note(dropping, "full")) == ("", "")
