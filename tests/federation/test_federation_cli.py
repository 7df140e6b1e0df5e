"""A federation from its files to its run folders, without an engine: messages are function calls."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from federation.harness import (
    EXPERIMENT,
    SITES,
    Consortium,
    FakeSession,
    answer_of,
    lead_note,
    left,
    limits,
    named,
    request_bytes,
    sent,
)
from resolvent.cli import lead as commands
from resolvent.comparisons.after.predictions import predict_file
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs import report
from resolvent.comparisons.runs.record import read_record
from resolvent.errors import InputError
from resolvent.federation.engines import processes
from resolvent.federation.engines.nvflare.jobs import job_text, read_job_text, write_job
from resolvent.federation.engines.processes import EngineProcess
from resolvent.federation.lead import engines as federation_engines
from resolvent.federation.lead import watchdog as federation_watchdog
from resolvent.federation.lead.lead import (
    FederationEndedError,
    _continue_or_begin,
    _restore_note,
    _write_note,
    federate,
    read_sites,
    write_sites,
)
from resolvent.federation.lead.rehearsal import prepare_rehearsal, shipped_changes
from resolvent.federation.protocol.events import EvaluationReport, PhaseReport, StartReport
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.files import read_consortium, read_site
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.names import ALLOWED_CLASSES, check_run_name, run_of_method
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.stores import PartyStore, append_to_log
from resolvent.federation.protocol.wire import Message, encode, head_of_message
from resolvent.federation.server import watch as federation_waits
from resolvent.federation.site import plan_run
from resolvent.federation.site.check import check_site
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.simulator.run import simulate
from resolvent.tables.encoding_files import read_encoding
from resolvent.tables.party_tables import from_frame
from resolvent.tables.text_formats import TextFormat


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A complete run, and its events."""
    consortium, events = Consortium(tmp_path_factory.mktemp("federation"), policy=REHEARSAL), []
    assert consortium.serve(observe=events.append) == {"status": "complete"}
    return consortium, events


@pytest.mark.when_changed
def test_models_are_those_of_the_simulation(complete):
    consortium, _ = complete
    encoding = read_encoding(consortium.folder / "aachen" / "mine-1" / "encoding.json")
    data = from_frame(consortium.frame, "site", "ill", encoding=encoding, test=0.3)
    model = consortium.experiment.model(encoding)
    for label in ("alone", "FedAvg"):
        result = simulate(consortium.experiment.algorithm(label), model, data, rounds=3, progress=False)
        for site in SITES:
            mine = ModelFolder(consortium.folder / site / "mine-1" / "models" / label).parameters(site)
            for name, leaf in result.personal_model(site).items():
                np.testing.assert_allclose(mine[name], leaf, atol=2e-6)
    shared = ModelFolder(consortium.folder / "out" / "models" / "FedAvg").parameters(None)
    for name, leaf in result.server_model.items():
        np.testing.assert_allclose(shared[name], leaf, atol=2e-6)


@pytest.mark.when_changed
def test_the_lead_gets_a_run_folder_and_every_site_a_model_that_predicts(complete, tmp_path):
    consortium, events = complete
    summary = read_record(consortium.folder / "out").plain()
    assert summary["data"]["parties"] == list(SITES)
    assert sum(summary["data"]["train"]) < 70
    assert summary["methods"]["FedAvg"]["bytes"]["up"] > 0
    assert {site["advice"]["answer"] for site in summary["sites"]} <= {"join", "stay alone", "unclear"}
    assert summary["federation"]["about"] == "FedAvg"
    assert [named(e, e.counted) for e in events if isinstance(e, PhaseReport)] == [list(SITES)] * 6
    rows = str(consortium.folder / "berlin.csv")
    run = consortium.folder / "berlin" / "mine-1"
    predicted = predict_file(run, "FedAvg", "berlin", rows, tmp_path / "p.csv", TextFormat())
    assert "accuracy" in predicted.scores
    with pytest.raises(InputError, match="no site 'aachen'"):
        predict_file(run, "FedAvg", "aachen", rows, tmp_path / "q.csv", TextFormat())


def test_the_site_logs_what_left_and_no_value_of_a_row(complete):
    consortium, _ = complete
    lines = left(consortium.folder / "aachen")
    assert [line["kind"] for line in lines] == ["describe", "prepare", "finish"]
    text = json.dumps([line["content"] for line in lines])
    assert not any(repr(age) in text for age in consortium.frame["age"])


@pytest.mark.when_changed
def test_a_killed_server_continues_with_the_same_result(complete, tmp_path, monkeypatch):
    """It does not end before every site has stored its models: the disk of one was full at the end of a method."""
    whole, _ = complete
    consortium = Consortium(tmp_path, policy=REHEARSAL)

    def stop(event):
        if isinstance(event, PhaseReport) and (event.method, event.round) == ("FedAvg", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consortium.serve(observe=stop)
    events = []
    with monkeypatch.context() as patch:
        write_models = PartyStore.write_models
        patch.setattr(PartyStore, "write_models", lambda store, *models: write_models(
            store, *models) if "aachen" not in store.folder.parts or store.folder.name != "01" else full_disk())
        stopped = consortium.serve(observe=events.append)
    assert stopped["status"] == "stopped"
    assert stopped["message"].startswith("aachen has not stored its models of FedAvg: refused (storage): ")
    assert consortium.serve()["status"] == "complete"
    assert read_record(consortium.folder / "out").data.notes == []
    assert [(e.method, e.resumed, e.planned) for e in events if isinstance(e, StartReport)][-1] == ("FedAvg", 2, 3)
    first, second = (read_record(c.folder / "out").plain()["methods"] for c in (whole, consortium))
    assert [m["digest"] for m in first.values()] == [m["digest"] for m in second.values()]
    for file in ("parties.safetensors", "server.safetensors"):
        parts = [(c.folder / "aachen" / "mine-1" / "models" / "FedAvg" / file).read_bytes()
                 for c in (whole, consortium)]
        assert parts[0] == parts[1]


def full_disk():
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("files", "message"), [
    ({"berlin": {"limits": limits(algorithms=("fedprox",))}}, "berlin: refused (limits): the site allows the"),
    ({"berlin": {"limits": limits(min_rows=21)}}, "berlin: refused (limits): the site has fewer training rows"),
    ({"berlin": {"limits": limits(max_rounds=2)}}, "berlin: refused (limits): the site allows at most 2 rounds"),
    ({"berlin": {"columns": {"age": "alter"}}}, "berlin: refused (absent column): column 'age': the site's table"),
    ({"aachen": {"columns": {"years": "age"}}}, "aachen: column 'age' is absent, and present at berlin"),
])
def test_a_refusal_names_the_site_and_nothing_is_trained(tmp_path, files, message):
    outcome = Consortium(tmp_path, files).serve()
    assert outcome["status"] == "refused"
    assert message in outcome["message"]
    assert not (tmp_path / "out").exists()
    if "limits" in files.get("berlin", {}):  # nothing about its table has left the site
        assert [[*content] for content in sent(tmp_path / "berlin")] == [["refused"]]


def test_a_table_that_has_changed_is_no_continuation(tmp_path):
    consortium = Consortium(tmp_path, text=EXPERIMENT.replace("{alone: local, FedAvg: fedavg}", "[local]"))

    def stop(event):
        if isinstance(event, PhaseReport):
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        consortium.serve(observe=stop)
    table = tmp_path / "aachen.csv"
    table.write_text(table.read_text() + "".join(f"33.{k},west,no\n" for k in range(5)))
    assert "the table of aachen has changed" in consortium.serve()["message"]


def test_scores_stay_at_sites_that_withhold_them(tmp_path):
    files = {site: {"limits": limits(scores=False)} for site in SITES}
    events = []
    text = EXPERIMENT.replace("{alone: local, FedAvg: fedavg}", "[local]").replace("rounds: 3", "rounds: 1")
    assert Consortium(tmp_path, files, text).serve(observe=events.append)["status"] == "complete"
    (scores,) = [event for event in events if isinstance(event, EvaluationReport)]
    assert scores.means == (("accuracy", "test", None),)
    assert named(scores, scores.withheld) == list(SITES)
    assert "No site lets its scores out" in read_record(tmp_path / "out").finding


@pytest.mark.when_changed
def test_a_site_imports_nothing_of_the_command_line_and_no_plotting():
    program = ("import sys, resolvent.federation.site.site\n"
               "print([n for n in ('matplotlib', 'jinja2', 'tyro', 'resolvent.cli') if n in sys.modules])")
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True).stdout.strip() == "[]"


# What a site does not accept


@pytest.mark.parametrize("part", ["model: os:getcwd", "solver: {name: 'evil.py:Solver'}",
                                  "participation: {name: 'a:b'}", "algorithms: ['os:system']"])
def test_parts_of_the_users_own_are_refused_before_they_are_imported(part, monkeypatch):
    monkeypatch.setattr("resolvent.comparisons.experiment.own_parts._module", lambda *a: pytest.fail("it was imported"))
    key = part.partition(":")[0]
    text = "\n".join(line for line in EXPERIMENT.splitlines() if not line.startswith(key)) + f"\n{part}\n"
    with pytest.raises(InputError, match="not a part of the library"):
        experiment_from_text(text, "mine")


@pytest.mark.parametrize(("data", "message"), [("{name: digits}", "every site has a table"),
                                               ("{prices: a.csv}", r"prices: unknown key")])
def test_data_other_than_the_sites_tables_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        experiment_from_text(EXPERIMENT.replace("{label: ill, test: 0.3}", data), "mine")


@pytest.mark.parametrize("setting", ["start: runs/mine", "callbacks: [EarlyStopping]", "clock: {name: VirtualClock}",
                                     "privacy: {delta: 0.001}"])
def test_settings_that_a_federation_does_not_have_are_refused(setting):
    with pytest.raises(InputError, match=r"not supported in a federation|does not measure epsilon"):
        experiment_from_text(f"{EXPERIMENT}\n{setting}\n", "mine")


def test_a_site_answers_no_message_that_is_not_its_own(tmp_path):
    site = Consortium(tmp_path)
    handle = site.site("aachen").handle
    for message in (b"", b"method 0\nx", encode(Message("work", "mine-1/0")), b"request\n[]", b"request\n{}",
                    b"request\n{", b"\xff" * 50):
        with pytest.raises(InputError):
            handle(message)
    requests = [("describe", {}), ("describe", {"version": "0"}), ("prepare", {}), ("finish", {}), ("other", {}),
                ("describe", {"run": "../../etc"})]
    for kind, content in requests:
        assert "refused" in answer_of(handle(request_bytes(kind, **{"run": "mine-1", **content})))
    assert {p.name for p in (tmp_path / "aachen").iterdir()} == {"journal.sqlite", "journal.key"}


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", "a" * 81, ".x", "a\n", 3, None])
def test_a_run_name_cannot_leave_the_folder(name):
    with pytest.raises(InputError):
        check_run_name(name)


def test_a_message_of_a_method_names_its_number_and_plan(tmp_path):
    message = encode(Message("work", run_of_method("mine-1", 12, "ab"), 3))
    assert head_of_message(message).run == "mine-1/12/ab"
    with pytest.raises(InputError, match="another run or method"):
        Consortium(tmp_path).site("aachen").handle(message)



def test_no_code_of_a_federation_reads_pickles_or_runs_text():
    room = Path(commands.__file__).parents[1]
    files = [*(room / "federation").rglob("*.py"), room / "cli/lead.py", room / "cli/site.py"]
    assert len(files) > 20
    for file in files:
        text = file.read_text("utf-8")
        for word in ("pickle", "marshal", "eval(", "exec(", "shell=True", "yaml.load", "cloudpickle"):
            assert word not in text.replace("jax.eval", ""), f"{file.name}: {word}"


# Files and commands


@pytest.mark.parametrize(("text", "message"), [
    ("name: a b\nhost: h\nsites: [x, y]\nlead: l@e.org", ":1: name: 'a b' cannot be a name"),
    ("name: a\nhost: h\nsites: [x]\nlead: l@e.org", ":3: sites: a federation has at least 2 sites"),
    ("name: a\nhost: h\nsites: [x, X]\nlead: l@e.org", ":3: sites: 'x' is named twice"),
    ("name: a\nhost: h\nsites: [x, server]\nlead: l@e.org", ":3: sites: 'server' is the name of another"),
    ("name: a\nhost: http://h\nsites: [x, y]\nlead: l@e.org", ":2: host:"),
    ("name: a\nhost: h\nsites: [x, y]\nlead: me", ":4: lead: 'me' is not an e-mail address"),
    ("name: a\nhost: h\nsites: [x, y]\nlead: l@e.org\nport: 0", ":5: port:"),
    ("name: a\nhost: h\nsite: [x, y]\nlead: l@e.org", ":3: site: unknown key"),
])
def test_mistakes_in_the_consortium_file(tmp_path, text, message):
    path = tmp_path / "consortium.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"consortium\.yaml") as refused:
        read_consortium(path)
    assert message in str(refused.value)


@pytest.mark.parametrize(("text", "message"), [
    ("tabel: x.csv", ":1: tabel: unknown key"),
    ("table: x.csv\nlimits: {min_row: 3}", "limits.min_row: unknown key"),
    ("table: x.csv\nlimits:\n  scores: maybe", ":3: limits.scores: 'maybe' is not a valid value"),
    ("table: x.csv\nlimits: {noise: 1}", "noise is a multiple of clip"),
    ("table: x.csv\ncolumns: {a: c, b: c}", ":2: columns: 'c' stands for two columns"),
    ("table: x.csv\nlimits: {min_cell: 0}", "Limits(min_cell=0) must lie in [1, inf)"),
    ("table: x.csv\ntest: 1", ":2: test: validation 0.2 and test 1.0 are shares of the rows"),
    ("[]", ":1: expected a mapping"),
])
def test_mistakes_in_the_site_file(tmp_path, text, message):
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"site\.yaml") as refused:
        read_site(path)
    assert message in str(refused.value)


def test_a_site_sees_all_that_would_leave_it(complete):
    consortium, _ = complete
    lines = [*check_site(consortium.files["aachen"], "aachen", consortium.folder / "mine.yaml")]
    text = "\n".join(lines)
    assert "age: kind, number of values, mean and sum of squared deviations" in text
    assert "FedAvg: reply of phase 1, every round, 16 bytes: bias; weight" in text
    assert lines[-1] == "Nothing has left the site."
    file = replace(consortium.files["aachen"], columns={"years": "age"})
    lines = [*check_site(file, "aachen", None)]
    assert lines[1:3] == ["30 rows, 3 columns", "  age (years in the federation): float64, 0 missing"]


def test_the_shipped_rehearsal_divides_the_digits_among_three_sites():
    rehearsal = prepare_rehearsal(ExperimentFile.load("digits", shipped_changes("digits")))
    assert list(rehearsal.sites) == ["party-0", "party-1", "party-2"]
    assert len(rehearsal.frame) == 1797
    assert rehearsal.plan.table.labels[0] == "label"


def test_a_command_says_what_it_needs(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="--rehearse for a rehearsal"):
        commands.start("digits")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'resolvent\[nvflare\]'"):
        commands.start("digits", rehearse=True)
    monkeypatch.undo()
    monkeypatch.setattr(federation_engines, "require_engine", lambda engine: None)
    with pytest.raises(InputError, match="is not a kit"):
        commands.serve(tmp_path)


def test_a_job_has_no_code_and_names_two_classes(tmp_path):
    job = {"sites": ["a", "b"], "experiment": "{x} $y"}
    assert read_job_text(job_text(job)) == job
    folder = write_job(tmp_path, "mine", job, *ALLOWED_CLASSES)
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert files == {"meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"}
    assert json.loads((folder / "meta.json").read_text())["mandatory_clients"] == ["a", "b"]


@pytest.mark.when_changed
def test_the_lead_starts_a_stopped_job_again_with_the_same_run(tmp_path, monkeypatch):
    consortium = Consortium(tmp_path)
    session = FakeSession(consortium, {"lost": True, "stops": 2})
    monkeypatch.setattr(federation_watchdog, "open_session", session.open)
    monkeypatch.setattr(federation_waits, "_RECONNECT", 0.0)
    notes, out, with_note = [], tmp_path / "runs" / "mine", []
    write_report = report.write_report
    monkeypatch.setattr(report, "write_report", lambda folder, *run: with_note.append(
        (folder / "job.json").is_file()) or write_report(folder, *run))
    record = federate(lead_note(engine="nvflare"), consortium.experiment, out, consortium.job(),
                       lambda event: None, notify=notes.append)
    assert len(session.jobs) == 3
    assert len({job.run for job in session.jobs}) == 1
    assert "connection to the server is lost" in notes[0]
    assert notes[1] == ("the job has ended before the run (the server does not have it): it is started again, and "
                        "continues from the server's checkpoint")
    assert "(FINISHED:ABORTED: it was stopped)" in notes[2]
    assert with_note == [True]  # a command that ends while it writes the report can be continued
    assert (out / "report.html").is_file()
    assert record.rounds == 3
    assert not (out / "job.json").exists()


def test_a_command_whose_job_is_refused_ends(complete, tmp_path, monkeypatch):
    """It does not try again. Until then no second command uses its folder."""
    consortium, out = complete[0], tmp_path / "mine"

    def begin():
        return federate(lead_note(engine="nvflare"), consortium.experiment, out, consortium.job(), print,
                        notify=pytest.fail)

    class Refusing(FakeSession):
        def submit(self, name, job, *classes):
            with pytest.raises(InputError, match="is being written by process"):
                begin()
            raise InputError("the server refuses the job: only the lead may start an experiment")

    monkeypatch.setattr(federation_watchdog, "open_session", Refusing(consortium, {}).open)
    with pytest.raises(FederationEndedError, match="the server refuses the job"):
        begin()


def test_a_job_of_another_version_is_refused(complete):
    plain = complete[0].job().plain()
    assert FederationJob.from_plain(plain) == complete[0].job()
    for content in ({**plain, "patience": 1}, {name: value for name, value in plain.items() if name != "run"}):
        with pytest.raises(InputError, match="the job is of another version of resolvent"):
            FederationJob.from_plain(content)


def test_an_unfinished_rehearsal_begins_again(complete, tmp_path):
    """Its server and its sites do not exist any more. A federation does not continue it, and the other way round."""
    consortium, path = complete[0], tmp_path / "job.json"
    job, real = consortium.job(), consortium.experiment
    names = []
    for _ in range(2):
        progress = _continue_or_begin(path, job, replace(real, policy=REHEARSAL), has_sites=False)
        assert not progress.jobs
        _write_note(path, progress.job, ["job 1"])
        names.append(progress.job.run)
    assert len({*names}) == 2
    with pytest.raises(InputError, match="is an unfinished run of another experiment"):
        _continue_or_begin(path, job, real, has_sites=False)


def test_a_run_whose_new_site_is_refused_keeps_its_sites(complete, tmp_path):
    consortium, path = complete[0], tmp_path / "job.json"
    everyone = consortium.job(sites=("aachen", "baden", "berlin"))
    _write_note(path, consortium.job(), ["job 1"])
    progress = _continue_or_begin(path, everyone, consortium.experiment, has_sites=True)
    _write_note(path, progress.job, [*progress.jobs, "job 2"])
    _restore_note(path, progress)
    assert _continue_or_begin(path, everyone, consortium.experiment, has_sites=False).job.sites == SITES


def test_a_log_does_not_grow_without_end(tmp_path, monkeypatch):
    """Its process writes on; two older parts are left."""
    monkeypatch.setattr(processes, "_MAX_LOG", 1000)
    log, text = tmp_path / "engine.log", ""
    with log.open("ab", buffering=0) as output:
        process = EngineProcess(SimpleNamespace(poll=lambda: None), log, output)
        for number in range(300):
            output.write((line := f"line {number} {'x' * 40}\n").encode())
            text += line
            process.bound_log()
    parts = [tmp_path / name for name in ("engine.log.2", "engine.log.1", "engine.log")]
    assert {*tmp_path.iterdir()} == {*parts}
    assert text.endswith("".join(part.read_text() for part in parts))  # no line is lost
    assert all(part.stat().st_size < 1100 for part in parts)
    assert process.last_lines(1) in ("(none)", line.strip())


def test_folders_of_old_jobs_are_removed_and_runs_stay(tmp_path, monkeypatch, capsys):
    kit, old, new = tmp_path / "kit", "0a1b2c3d-0000-4000-8000-00000000000", "1"
    monkeypatch.setattr("resolvent.federation.protocol.kits.KitNote",
                        lambda kit: SimpleNamespace(kit=kit, name="aachen"))
    for parent in (kit, kit / "engine" / "jobs"):
        for name in (f"{old}0", f"{old}{new}"):
            (parent / name).mkdir(parents=True)
            (parent / name / "log.txt").write_text("x" * 1000)
            if name.endswith("0"):
                for path in (parent / name / "log.txt", parent / name):
                    os.utime(path, (1e9, 1e9))
    for folder in ("runs/mine-1", "startup", "local", "0a1b2c3d"):
        (kit / folder).mkdir(parents=True)
        os.utime(kit / folder, (1e9, 1e9))
    (kit / f"{old}2").symlink_to(tmp_path)
    commands.clean(kit)
    assert "removed 2 folders of jobs" in capsys.readouterr().out
    assert sorted(p.name for p in kit.iterdir() if p.is_dir()) == sorted(
        ["0a1b2c3d", f"{old}{new}", f"{old}2", "engine", "local", "runs", "startup"])
    commands.clean(kit, days=0)
    assert "removed 2 folders of jobs" in capsys.readouterr().out


def test_a_line_that_was_not_completed_stays_alone(tmp_path):
    """The disk was full: the entries after it can be read."""
    log = tmp_path / "rounds.jsonl"
    log.write_bytes(b'{"kind": "rea')
    assert append_to_log(log, {"kind": "reply"}) == log.stat().st_size
    assert append_to_log(log, {"kind": "stored"}) == log.stat().st_size
    assert log.read_text().splitlines() == ['{"kind": "rea', '{"kind": "reply"}', '{"kind": "stored"}']


def test_a_site_waits_for_the_store_of_an_earlier_job(tmp_path, monkeypatch):
    """Its engine ends the process of an earlier job some seconds after the next job may have begun."""
    earlier = PartyStore(tmp_path / "00")
    threading.Timer(0.2, earlier.close).start()
    with plan_run.open_store(tmp_path / "00"):
        monkeypatch.setattr(plan_run, "_LOCK_SECONDS", 0.0)
        with pytest.raises(Refusal, match="is being written by process"):
            plan_run.open_store(tmp_path / "00")


def test_sites_of_a_kit(tmp_path):
    write_sites(tmp_path, "hearts", ["site 10", "site 2"])
    assert read_sites(tmp_path) == ("site 2", "site 10")
    assert read_sites(tmp_path, ["site 10"]) == ("site 10",)
    with pytest.raises(InputError, match="no site 'site 3'"):
        read_sites(tmp_path, ["site 3"])
