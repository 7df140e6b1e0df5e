"""The judgements of sites, several seeds, and sites that join and leave an unfinished run, without an engine."""

import errno
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from federation.harness import EXPERIMENT, SITES, Consortium, FakeSession, Growing, lead_note, limits, named, sent
from resolvent.comparisons.after.calibrations import calibrate
from resolvent.comparisons.after.explanations import explain_models
from resolvent.comparisons.after.held_out_rows import HeldOutRows
from resolvent.comparisons.after.run_rows import rows_of_run
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.judgement.site_judgement import plain_site
from resolvent.comparisons.runs.comparison import Comparison
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.comparisons.runs.load import load
from resolvent.comparisons.runs.record import read_record
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.engines.nvflare.lead import JobState
from resolvent.federation.lead import lead as federation_lead
from resolvent.federation.lead import watchdog as federation_watchdog
from resolvent.federation.lead.lead import federate
from resolvent.federation.lead.refit import RefitOrder
from resolvent.federation.protocol.events import MembersReport, PhaseReport, Revocation
from resolvent.federation.protocol.experiment import experiment_of_file
from resolvent.federation.protocol.judgement import read_judgement
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.transport import TransportError
from resolvent.federation.server import watch as federation_waits
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.samples import samples_of_run
from resolvent.predict.threshold import Goal

METRICS = "metrics: [f1]\nseeds: 2\ndecide_by: f1\n"


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run with two seeds in which one of the sites withholds its scores, and the simulation of the same rows."""
    folder = tmp_path_factory.mktemp("judged")
    consortium = Consortium(folder, {"berlin": {"limits": replace(NO_LIMITS, scores=False)}}, text=EXPERIMENT + METRICS,
                            policy=REHEARSAL)
    assert consortium.serve() == {"status": "complete"}
    consortium.frame.to_csv(folder / "pooled.csv", index=False)
    text = f"{EXPERIMENT}{METRICS}folds: 1\n".replace(
        "label: ill", f"table: {folder / 'pooled.csv'}, party: site, label: ill")
    return consortium, Comparison.of(compare_file(ExperimentFile.parse(text, "pooled.yaml", "pooled")))


@pytest.mark.when_changed
def test_a_site_judges_the_methods_as_a_simulation_does(judged):
    """Scores, gains and intervals of both sites; the lead has those of the site that lets them out.

    The advice counts the gains of all sites that are known: at a site its own, at the lead those that leave their site.
    """
    consortium, comparison = judged
    simulated = {site.name: plain_site(site) for site in comparison.verdict.sites.sites}
    at_lead = read_record(consortium.folder / "out").plain()["sites"]
    at_sites = [read_record(consortium.folder / site / "mine-1").plain()["sites"] for site in SITES]
    assert [site["name"] for site in at_lead] == ["aachen"]
    for mine in (*at_lead, *(site for sites in at_sites for site in sites)):
        like = simulated[mine["name"]]
        assert mine["losses"] == pytest.approx(like["losses"], abs=1e-6)
        assert mine["unit"] == pytest.approx(like["unit"], abs=1e-6)
        for method, of_method in mine["evidence"].items():
            for model, numbers in of_method.items():
                there = np.array(like["evidence"][method][model], dtype=float)  # null: the site is not judged
                np.testing.assert_allclose(np.array(numbers, dtype=float), there, rtol=1e-3, atol=1e-6)
        assert mine["test_rows"] == like["test_rows"]
        for key in ("scores", "gains"):
            assert mine[key].keys() == like[key].keys()
            np.testing.assert_allclose([*mine[key].values()], [*like[key].values()], atol=1e-6)
        assert mine["variances"] == pytest.approx(like["variances"], abs=1e-6)


@pytest.mark.when_changed
def test_metrics_of_all_seeds_are_those_of_the_simulation(judged):
    consortium, comparison = judged
    summary = read_record(consortium.folder / "out").plain()
    assert summary["seeds"] == [0, 1]
    assert all(len(method["digests"]) == 2 for method in summary["methods"].values())
    keys = ["method", "seed", "round", "party", "split", "metric"]
    mine, like = (table[(table["party"] == 0) & (table["round"] == 3) & ~table["metric"].str.startswith("line")
                        & ~table["metric"].isin(["model_change", "update_norm"])].set_index(keys)["value"].sort_index()
                  for table in (consortium.metrics(), comparison.metrics))
    assert [*mine.index] == [*like.index]
    np.testing.assert_allclose(mine, like, atol=2e-6)
    assert "f1" in mine.index.get_level_values("metric")
    assert sent(consortium.folder / "berlin")[-1].items() >= {"methods": ["alone", "FedAvg"], "judgement": None}.items()


@pytest.fixture(scope="module", params=[1, 5], ids=["one split", "folds"])
def advised(tmp_path_factory, request):
    """Three sites, the last one with all effects reversed; and the comparison of the same rows in one process."""
    folder, sites, rows = tmp_path_factory.mktemp("advised"), (*SITES, "celle"), (90, 90, 50)
    text = EXPERIMENT.replace("rounds: 3", "rounds: 20\nprecision: float64").replace("fedavg}", (
        "fedavg, Fed+: {name: fedgeomed_plus, sigma: 0.1}}")).replace("evaluate_every: 3", "evaluate_every: 20")
    text += f"folds: {request.param}\n"
    consortium, rng = Consortium(folder, text=text, policy=REHEARSAL), np.random.default_rng(3)
    x = rng.normal(size=(sum(rows), 8))
    risk = np.repeat([1, 1, -1], rows) * (x[:, 0] - x[:, 1])
    consortium.frame = frame = pd.DataFrame(x, columns=[f"lab{j}" for j in range(8)]).round(2).assign(
        site=np.repeat(sites, rows), ill=np.where(rng.random(len(x)) < 1 / (1 + np.exp(-risk)), "yes", "no"))
    for site in sites:
        consortium.files[site] = replace(consortium.files[SITES[0]], table=str(folder / f"{site}.csv"))
        frame[frame["site"] == site].drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    frame.to_csv(folder / "pooled.csv", index=False)
    assert consortium.serve(consortium.job(sites=sites)) == {"status": "complete"}
    text = text.replace("label: ill", f"table: {folder / 'pooled.csv'}, party: site, label: ill")
    return consortium, Comparison.of(compare_file(ExperimentFile.parse(text, "pooled.yaml", "pooled")))


@pytest.mark.when_changed
def test_the_advice_of_a_federation_is_that_of_one_process(advised):
    """Where nothing is rounded: the evidence with its slopes, what the population of sites makes of it, the choice."""
    consortium, comparison = advised
    lead, there = read_record(consortium.folder / "out"), comparison.verdict.sites
    mine, like = lead.federation, there.federation
    assert (mine.method, mine.about, mine.not_shared) == (like.method, like.about, like.not_shared)
    assert mine.values == pytest.approx(like.values, abs=1e-6)
    assert mine.gain == pytest.approx(like.gain, abs=1e-6)
    assert like.sites[2].answer == "stay alone"
    assert [site.test_rows for site in lead.judged.values()] == [site.test_rows for site in there.sites]
    assert len({round(site.probability, 3) for site in like.sites}) == 3
    for site, expected, advice in zip(there.sites, like.sites, mine.sites, strict=True):
        judged = lead.judged[site.name]
        for method, calibration in site.facts.calibrations.items():
            for name, interval in calibration._asdict().items():
                assert [*getattr(judged.facts.calibrations[method], name)] == pytest.approx([*interval], abs=1e-6)
        for field, value in expected._asdict().items():
            own = getattr(advice, field)
            if isinstance(value, tuple):
                assert [*own] == pytest.approx([*value], abs=1e-6, nan_ok=True), field
            else:
                assert own == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), field


@pytest.mark.when_changed
def test_a_refit_over_a_network_obeys_the_advice_of_each_site(advised):
    """The lead orders another method than advised: a site where it is worse than training alone uses its own."""
    consortium = advised[0]
    folder = consortium.folder
    shutil.rmtree(folder / "server")  # the server has a folder for each run
    order = RefitOrder(folder / "out", "FedAvg", 1)
    assert consortium.serve(order.job(), results="refit") == {"status": "complete"}
    assert load(folder / "celle" / "mine-1", site="celle").method == "alone"
    assert load(folder / "celle" / "mine-1", method="FedAvg", site="celle").rounds == 1


@pytest.mark.when_changed
@pytest.mark.parametrize(("site", "party"), [("aachen", 0), ("berlin", 1)])
def test_a_site_calibrates_and_explains_with_its_own_rows(judged, tmp_path, site, party):
    """Validation and test rows are those of the run, and the results those of the simulation without other sites."""
    consortium, comparison = judged
    folder, journal = consortium.folder / site / "mine-1", consortium.folder / site / JOURNAL
    before, name = journal.read_bytes(), site
    (tmp_path / "site.yaml").write_text(f"table: {consortium.folder / f'{site}.csv'}\n")
    rows = rows_of_run(folder, "FedAvg", samples_of_run(folder, tmp_path / "site.yaml"))
    simulated = comparison.held_out_rows("FedAvg").sites[name]
    assert list(rows.sites) == [name]
    for part in ("validation", "test"):
        mine, like = getattr(rows.sites[name], part), getattr(simulated, part)
        np.testing.assert_allclose(mine.x, like.x, atol=1e-6)
        assert mine.y.tolist() == like.y.tolist()
    made = calibrate(rows, positive=rows.sites[name].fitted.classes[1], goal=Goal(specificity=0.5))
    expected = calibrate(HeldOutRows("FedAvg", {name: simulated}, None), positive=simulated.fitted.classes[1],
                         goal=Goal(specificity=0.5)).sites[name].fitted
    assert made.fitted(name).threshold.value == pytest.approx(expected.threshold.value, rel=1e-4)
    assert made.fitted(name).calibration.kind == expected.calibration.kind
    explained = explain_models(rows)
    made.save(folder)
    explained.save(folder)
    assert load(folder, method="FedAvg", site=name).threshold == made.fitted(name).threshold
    assert journal.read_bytes() == before
    with pytest.raises(InputError, match="of a federation, whose tables are at the sites: name the site's file"):
        rows_of_run(folder, "FedAvg")


@pytest.mark.when_changed
def test_a_site_that_has_changed_its_table_is_refused(judged, tmp_path):
    consortium = judged[0]
    folder = consortium.folder / "aachen" / "mine-1"
    text = (consortium.folder / "aachen.csv").read_text().splitlines()
    (tmp_path / "aachen.csv").write_text("\n".join([text[0], *text[2:], text[1]]) + "\n")
    (tmp_path / "site.yaml").write_text("table: aachen.csv\nlimits: {min_cell: 1}\n")
    with pytest.raises(InputError, match="have changed since the run in"):
        rows_of_run(folder, "FedAvg", samples_of_run(folder, tmp_path / "site.yaml"))


@pytest.mark.when_changed
@pytest.mark.parametrize("change", [
    {"test_rows": -1}, {"scores": {"FedAvg": [0.5, 0.4]}}, {"scores": {"a": [1, 1, 1], "b": [1, 1, 1]}},
    {"rarest_class": "none"}, {"gains": None}, {"variances": {"FedAvg": -1e-9}}, {"variances": [1.0]},
    {"variances": {"FedAvg": "wide"}}])
def test_a_judgement_that_is_none_is_refused(judged, change):
    valid = read_record(judged[0].folder / "out").plain()["sites"][0]
    # The lead advises, by the evidence of all sites: what a site says of its own advice is not read.
    assert plain_site(read_judgement(valid, 0, "aachen", ["alone", "FedAvg"])) | {"advice": valid["advice"]} == valid
    with pytest.raises(InputError, match="the site sent no judgement"):
        read_judgement({**valid, **change}, 0, "aachen", ["alone", "FedAvg"])


@pytest.mark.when_changed
def test_a_site_joins_an_unfinished_run(tmp_path):
    """It takes part in the methods and rounds that are not done; the rows of the others keep their split."""
    consortium = Growing(tmp_path)
    consortium.serve_until(SITES, "FedAvg", 1)
    encoding = (tmp_path / "server" / "encoding.json").read_bytes()
    outcome, events = consortium.serve_until(("aachen", "baden", "berlin"))
    assert outcome == {"status": "complete"}
    assert (tmp_path / "server" / "encoding.json").read_bytes() == encoding
    assert [(e.method, e.round, e.joined, e.left) for e in events if isinstance(e, MembersReport)] == [
        ("FedAvg", 1, ("baden",), ())]
    rounds = [set(named(event, event.counted)) for event in events if isinstance(event, PhaseReport)]
    assert rounds == [{"aachen", "baden", "berlin"}] * 2
    summary = read_record(tmp_path / "out").plain()
    assert summary["data"]["parties"] == ["aachen", "berlin", "baden"]
    judged = {site["name"]: site["scores"] for site in summary["sites"]}
    assert judged["baden"]["FedAvg"][0] is not None
    assert judged["baden"]["alone"] == [None, None, None]  # this method was complete before
    assert summary["data"]["notes"] == ["baden joined the run after alone: it has no models of these methods"]
    assert (tmp_path / "baden" / "mine-1" / "models" / "FedAvg").is_dir()


@pytest.mark.nightly
def test_a_site_leaves_an_unfinished_run(tmp_path):
    consortium = Growing(tmp_path)
    consortium.serve_until(("aachen", "baden", "berlin"), "alone", 2)
    outcome, events = consortium.serve_until(SITES)
    assert outcome == {"status": "complete"}
    change = next(event for event in events if isinstance(event, MembersReport))
    assert (change.method, change.round, change.joined, change.left) == ("alone", 2, (), ("baden",))
    summary = read_record(tmp_path / "out").plain()
    assert [site["name"] for site in summary["sites"]] == [*SITES]
    assert summary["data"]["train"][1] > 0


@pytest.mark.nightly
def test_a_site_that_does_not_fit_leaves_the_run_as_it_is(tmp_path):
    consortium = Growing(tmp_path)
    consortium.serve_until(SITES, "alone", 1)
    table = tmp_path / "baden.csv"
    table.write_text(table.read_text().replace("east", "south"))
    outcome, _ = consortium.serve_until(("aachen", "baden", "berlin"))
    assert outcome["status"] == "refused"
    assert "baden: column 'ward' has the level 'south', which the run does not have" in outcome["message"]
    # It may not name the level: it refuses after the agreement, and does not belong to the run.
    consortium.files["baden"] = replace(consortium.files["baden"], limits=limits(min_cell=24))
    assert consortium.serve_until(("aachen", "baden", "berlin"))[0]["status"] == "refused"
    assert consortium.serve_until(SITES)[0] == {"status": "complete"}
    assert read_record(tmp_path / "out").data.parties == [*SITES]


class ChangedSession(FakeSession):
    """A server whose first job runs until it is aborted."""

    is_aborted = False

    def connected_sites(self):
        return {*SITES, "baden"}

    def running_jobs(self):
        return {"job 1"}

    def state(self, job):
        is_done = job != "job 1" or self.is_aborted
        return JobState("FINISHED:ABORTED" if is_done else "RUNNING", is_done)

    def abort(self, job):
        assert job == "job 1"
        self.is_aborted = True


@pytest.mark.when_changed
def test_the_lead_changes_the_sites_of_an_unfinished_run(tmp_path, monkeypatch):
    """Without --sites the run continues with its sites; with it, the running job is ended and another one started."""
    consortium = Growing(tmp_path)
    session = ChangedSession(consortium, {"stops": 1})
    monkeypatch.setattr(federation_watchdog, "open_session", session.open)
    out, notes = tmp_path / "runs" / "mine", []
    note = lead_note(engine="nvflare")

    def interrupt(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(federation_watchdog.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            federate(note, consortium.experiment, out, consortium.job(), lambda event: None, notify=notes.append)
    everyone = replace(consortium.job(), sites=("aachen", "baden", "berlin"))
    without_choice = federation_lead._continue_or_begin(
        out.with_name("mine.partial") / "job.json", everyone, consortium.experiment, has_sites=False)
    assert without_choice.job.sites == SITES
    federate(note, consortium.experiment, out, everyone, lambda event: None, notify=notes.append, has_sites=True)
    assert session.is_aborted
    assert [job.sites for job in session.jobs] == [SITES, everyone.sites]
    assert len({job.run for job in session.jobs}) == 1
    assert "baden takes part: from the next round on" in notes


class IdleSession(ChangedSession):
    """A server on which berlin runs no job, as after a kill of its engine."""

    def idle_sites(self):
        return {"berlin"}


class RestartedServer(ChangedSession):
    """A server that has lost its job at a restart. The job's state does not change."""

    def running_jobs(self):
        return set()

    def state(self, job):
        return JobState("RUNNING", False) if job == "job 1" else JobState("FINISHED:COMPLETED", True)


@pytest.mark.when_changed
@pytest.mark.parametrize(("kind", "name"), [
    pytest.param(IdleSession, "berlin", marks=pytest.mark.nightly), (RestartedServer, "server")])
def test_a_job_that_a_participant_has_lost_is_started_again(kind, name, tmp_path, monkeypatch):
    consortium = Consortium(tmp_path)
    session, notes = kind(consortium, {"stops": 1}), []
    monkeypatch.setattr(federation_watchdog, "open_session", session.open)
    monkeypatch.setattr(federation_watchdog, "_IDLE_CHECK", 0.0)
    monkeypatch.setattr(federation_watchdog, "_POLL", 0.0)
    note = lead_note(engine="nvflare")
    federate(note, consortium.experiment, tmp_path / "out-lead", consortium.job(), lambda event: None,
             notify=notes.append)
    assert len(session.jobs) == 2
    assert notes[0] == f"{name} started again without the job, which ends now"


class LostConnection(FakeSession):
    """A server whose job has an event, and that loses the connection once while the job runs."""

    states = 0

    def state(self, job):
        self.states += 1
        if self.states == 2:
            raise ConnectionError("the network")
        return JobState("FINISHED:COMPLETED", True) if self.states > 3 else JobState("RUNNING", False)

    def running_jobs(self):
        return {"job 1"}

    def progress(self, job, since):
        return [Revocation("berlin")][since:], None

    def fetch(self, job, target):
        outcome = super().fetch(job, target)
        return {**outcome, "events": [Revocation("berlin").plain(), *outcome["events"]]}


def test_an_event_is_shown_once_although_the_connection_was_lost(tmp_path, monkeypatch):
    consortium, events = Consortium(tmp_path), []
    session = LostConnection(consortium, {"stops": 0})
    monkeypatch.setattr(federation_watchdog, "open_session", session.open)
    monkeypatch.setattr(federation_watchdog, "_POLL", 0.0)
    monkeypatch.setattr(federation_waits, "_RECONNECT", 0.0)
    federate(lead_note(engine="nvflare"), consortium.experiment, tmp_path / "out-lead", consortium.job(), events.append,
             notify=lambda text: None)
    assert session.states > 3
    assert events.count(Revocation("berlin")) == 1
    assert any(isinstance(event, PhaseReport) for event in events)


class QueuedSession(ChangedSession):
    """A server with a run at work: the next one waits, and berlin's process is frozen."""

    time = 0.0

    def state(self, job):
        return JobState("SUBMITTED", is_done=False)

    def running_jobs(self):
        return {"job of others"}

    def last_signs(self):
        self.time += 1
        return {"aachen": self.time, "berlin": 1.0}


def _text(wait):
    """What the watch would say now: a wait, or the function that gives the present one."""
    return (wait() if callable(wait) else wait).text


def test_a_run_that_waits_says_for_which_run_and_which_site(tmp_path, monkeypatch):
    """A site without a sign is named, and the command ends after the time that a reply may take."""
    consortium = Consortium(tmp_path)
    session, texts, clock = QueuedSession(consortium, {"stops": 1}), [], [0.0]
    monkeypatch.setattr(federation_watchdog, "open_session", session.open)
    monkeypatch.setattr(federation_watchdog, "_POLL", 0.0)
    monkeypatch.setattr(federation_watchdog.time, "monotonic", lambda: clock.append(clock[-1] + 1) or clock[-1])
    monkeypatch.setattr(federation_waits.Watch, "expect", lambda self, wait: texts.append(_text(wait)))
    job = replace(consortium.job(), deadline=60.0)
    with pytest.raises(InputError, match=r"berlin gave no sign for 6\d s: .* resolvent site start there again"):
        federate(lead_note(engine="nvflare"), consortium.experiment, tmp_path / "out-lead", job, lambda event: None,
                 notify=texts.append)
    assert [text for text in dict.fromkeys(texts) if "connect" not in text] == [
        "waiting for the server to run the job (SUBMITTED)",
        "waiting for the end of another run at the server, then this one begins (it is SUBMITTED)",
        "waiting for berlin, without a sign for some time: stopped or cut off (the job is SUBMITTED)"]


def test_a_site_that_does_not_answer_stops_the_run_and_does_not_end_it(tmp_path):
    """The lead's command keeps the name of the run, and continues it."""
    consortium = Consortium(tmp_path)
    transport = InProcess(dict.fromkeys(SITES))
    transport.broadcast = lambda messages, **rules: {}
    outcome = serve_federation(consortium.job(), consortium.experiment, transport, tmp_path / "server",
                               tmp_path / "out", Watch(lambda event: None))
    assert outcome["status"] == "stopped"
    assert "berlin: no answer: the site failed, or took longer than 600 s" in outcome["message"]


@pytest.mark.parametrize(("error", "message"), [
    (OSError(errno.ENOSPC, "No space left on device"), "the server's disk cannot be used"),
    (TypeError("a mistake"), "the server failed with TypeError: a mistake; its log says where"),
    (TransportError("the network"), None)])
def test_an_error_of_the_server_ends_the_job_with_its_reason(error, message, tmp_path):
    """A new job would have the same error. Only after an error of the engine, another job can go on."""
    consortium, transport = Consortium(tmp_path), InProcess(dict.fromkeys(SITES))

    def broadcast(messages, **rules):
        raise error

    transport.broadcast = broadcast

    def serve():
        return serve_federation(consortium.job(), consortium.experiment, transport, tmp_path / "server",
                                tmp_path / "out", Watch(lambda event: None))

    if message is None:
        with pytest.raises(TransportError):
            serve()
    else:
        assert serve()["message"].startswith(message)


def test_weights_and_seeds_exclude_each_other(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{EXPERIMENT}class_weight: balanced\nseeds: 2\n")
    with pytest.raises(InputError, match=r"mine\.yaml:\d+: seeds: with weights of rows or classes"):
        experiment_of_file(str(path))
