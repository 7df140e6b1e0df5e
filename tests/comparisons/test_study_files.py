"""Experiment files with several data sets or a sweep, and the commands ``run``, ``paper`` and ``new``."""

import json
import runpy

import pytest

import resolvent as rv
from command_line import call_command
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.study.study_file import read_study, run_study, study_of_folders

STUDY = """\
data:
  - {name: digits, parties: 2, classes_per_party: 10}
  - {name: digits, parties: 3, classes_per_party: 10}
model: logistic
solver: {name: SGD, learning_rate: 0.1, batch_size: 50, epochs: 1}
algorithms: {alone: local, FedProx: fedprox}
rounds: 1
seeds: 2
diagnostics: []
sweep: {algorithms.FedProx.mu: [0, 1]}
"""
NAMES = ["digits, mu=0", "digits, mu=1", "digits, mu=0 (2)", "digits, mu=1 (2)"]


def test_each_combination_is_an_experiment(mine):
    study = read_study(mine(STUDY), ["rounds=7"])
    assert list(study.experiments) == NAMES
    settings = [file.bound.settings() for file in study.experiments.values()]
    assert [(s["data"]["parties"], s["algorithms"]["FedProx"]["mu"], s["rounds"]) for s in settings] == [
        (2, 0, 7), (2, 1, 7), (3, 0, 7), (3, 1, 7)]
    single = STUDY.replace("sweep", "# sweep").replace("  - {", "  {", 1).replace("  - {", "# {")
    assert read_study(mine(single)) is None


@pytest.mark.parametrize(("old", "new", "message"), [
    ("mu: [0, 1]", "mu: 1", "sweep: expected a mapping from settings to lists of values"),
    ("mu: [0, 1]", "nu: [0, 1]", "nu: unknown key"),
    ("parties: 3", "partys: 3", r"mine.yaml:3: .*partys: unknown key"),
    ("mu: [0, 1]", "mu: []", "sweep: expected a mapping from settings to lists of values"),
    ("  - {name: digits, parties: 2, classes_per_party: 10}\n  - {name: digits, parties: 3, classes_per_party: 10}",
     "  []", "data: the list is empty")])
def test_mistakes_are_refused_before_anything_runs(mine, old, new, message):
    assert old in STUDY
    with pytest.raises(rv.InputError, match=message):
        read_study(mine(STUDY.replace(old, new)))


@pytest.mark.when_changed
def test_a_study_resumes_and_has_a_page(mine, tmp_path):
    text = STUDY.replace("sweep", "# sweep")
    study = read_study(mine(text))
    calls = []
    with pytest.raises(KeyboardInterrupt):
        run_study(study, progress=lambda label, done, total: interrupt(label, calls))
    root, result = run_study(study, resume=True)
    assert list(result.parts) == ["digits", "digits (2)"]
    page = (root / "report.html").read_text("utf-8")
    assert result.paragraph().split(".")[0] in page.replace("&#39;", "'")
    assert page.count("<svg") == 4
    assert 'href="digits-2/report.html"' in page
    assert (root / "paper" / "curves.pdf").is_file()
    digests = [json.loads((root / folder / "summary.json").read_text())["methods"]["FedProx"]["digests"]
               for folder in ("digits", "digits-2")]
    outcome = call_command("run", "mine.yaml", "--resume", "--out", "runs/mine", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("is complete") == 2
    again = [json.loads((root / folder / "summary.json").read_text())["methods"]["FedProx"]["digests"]
             for folder in ("digits", "digits-2")]
    assert digests == again
    outcome = call_command("compare", "runs/mine", "--paper", "figures", "--set", "reference=alone", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "figures" / "scores.tex").read_text().count("toprule") == 1
    assert call_command("compare", "runs/absent", "--paper", "paper", cwd=tmp_path).code == 2
    with pytest.raises(rv.InputError, match="two run folders have the name 'digits'"):
        study_of_folders([root, root / "digits"])


def interrupt(label, calls):
    calls.append(label)
    if label.startswith("digits (2)"):
        raise KeyboardInterrupt


@pytest.mark.nightly
def test_experiments_run_in_processes_of_their_own(mine):
    """The digests of the last states are those of a run in this process; a refused experiment does not stop others."""
    study = read_study(mine(STUDY))
    root, _ = run_study(study, jobs=2)
    alone, _ = run_study(study, root.with_name("alone"))
    for name in json.loads((root / "study.json").read_text()).values():
        methods = [json.loads((folder / name / "summary.json").read_text())["methods"] for folder in (root, alone)]
        assert methods[0]["FedProx"]["digests"] == methods[1]["FedProx"]["digests"]
    with pytest.raises(rv.InputError, match=r"4 experiments of 4 did not run; .* is not empty"):
        run_study(study, root, jobs=2)


@pytest.mark.when_changed
def test_a_new_algorithm_passes_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call_command("new", "algorithm", "half_step", cwd=tmp_path).code == 0
    assert call_command("new", "model", "net", cwd=tmp_path).code == 0
    assert call_command("new", "experiment", "mine", cwd=tmp_path).code == 0
    names = runpy.run_path("half_step.py")
    from resolvent.testing import check_models, check_repeatable, check_rounds_continue

    for check in (check_repeatable, check_rounds_continue, check_models):  # the whole contract runs at night
        check(names["half_step"])
    text = (tmp_path / "mine.yaml").read_text().replace("rounds: 30", "rounds: 1").replace(
        "  # One of your own, from `resolvent new algorithm mine`: mine: {name: mine.py:mine, step: 0.7}",
        "  mine: {name: half_step.py:half_step, step: 0.7}").replace("model: logistic",
                                                                     "model: {name: net.py:net, hidden: 4}")
    experiment = ExperimentFile.parse(text, "mine.yaml", "mine").build()
    assert experiment.algorithms["mine"].step == 0.7
    assert type(experiment.algorithms["mine"]).__name__ == "HalfStep"
    assert call_command("new", "experiment", "mine", cwd=tmp_path).code == 2
    assert call_command("new", "algorithm", "class", cwd=tmp_path).code == 2
    assert "letters, digits and underscores" in call_command("new", "algorithm", "../x", cwd=tmp_path).err


@pytest.mark.nightly
def test_a_new_algorithm_passes_the_whole_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call_command("new", "algorithm", "half_step", cwd=tmp_path)
    rv.testing.check_algorithm(runpy.run_path("half_step.py")["half_step"])
