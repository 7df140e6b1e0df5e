"""Every mistake in an experiment file is refused with its file, its line and the allowed values."""

import json

import pytest
from experiment_texts import BASE, refused

from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs import runner
from resolvent.errors import InputError

ALGORITHMS = "algorithms:\n  alone: local\n  FedAvg: fedavg"
MISTAKES = {
    "top-level key": ("rounds: 3", "ronds: 3", ["mine.yaml:12: ronds: unknown key", "Allowed here: data, model, solver",
                                               "did you mean 'rounds'?"]),
    "nested key": ("learning_rate", "learning_rat", [
        "mine.yaml:7: solver.learning_rat: unknown key", "Allowed here: name, learning_rate, batch_size",
        "did you mean 'learning_rate'?"]),
    "misspelt name key": ("name: SGD", "nme: SGD", ["mine.yaml:5: solver.name: missing", "SGD, GD"]),
    "misspelt name key with a default": ("name: digits", "nme: digits", [
        "mine.yaml:2: data.nme: unknown key", "did you mean 'name'?"]),
    "data set": ("digits", "digit", ["mine.yaml:2: data.name: there is no data set 'digit'",
                                     "mnist, fashion_mnist", "did you mean 'digits'?"]),
    "model": ("logistic", "logistics", ["mine.yaml:4: model.name: there is no model 'logistics'",
                                        "linear, logistic, mlp", "did you mean 'logistic'?"]),
    "solver": ("SGD", "SDG", ["mine.yaml:6: solver.name: there is no solver 'SDG'", "SGD, GD", "did you mean 'SGD'?"]),
    "algorithm": ("FedAvg: fedavg", "FedAvg: fedvag", [
        "mine.yaml:10: algorithms.FedAvg.name: there is no algorithm 'fedvag'", "fedprox", "did you mean 'fedavg'?"]),
    "participation": ("full", "ful", ["mine.yaml:11: participation.name: there is no participation 'ful'", "Uniform",
                                      "did you mean 'Full'?"]),
    "penalty": ("FedAvg: fedavg", "FedAvg: {name: fedplus, penalty: L2}", [
        "mine.yaml:10: algorithms.FedAvg.penalty.name: there is no penalty 'L2'", "L1, L2Norm",
        "did you mean 'L2Norm'?"]),
    "penalty in a penalty": ("FedAvg: fedavg", "FedAvg:\n    name: fedplus\n    penalty:\n      name: Scaled\n"
                             "      penalty: Zer\n      scale: 1", [
        "mine.yaml:14: algorithms.FedAvg.penalty.penalty.name: there is no penalty 'Zer'", "did you mean 'Zero'?"]),
    "aggregator": ("FedAvg: fedavg", "FedAvg: {name: fedplus_pull, aggregator: men}", [
        "mine.yaml:10: algorithms.FedAvg.aggregator.name: there is no aggregator 'men'", "did you mean 'Mean'?"]),
    "name that is a list": ("name: digits", "name: [digits]", ["mine.yaml:2: data.name: there is no data set"]),
    "name that is a number": ("model: logistic", "model: 3", ["mine.yaml:4: model: expected the name of a model"]),
    "text for a number": ("parties: 4", "parties: four", [
        "mine.yaml:3: data.parties: 'four' is not a valid value", "integer"]),
    "number in quotes": ("0.05", "'0.05'", ["mine.yaml:7: solver.learning_rate: '0.05' is not a valid value"]),
    "fraction for a count": ("parties: 4", "parties: 4.5", ["mine.yaml:3: data.parties: 4.5 is not a valid value"]),
    "true for a number": ("0.05", "true", ["mine.yaml:7: solver.learning_rate: True is not a valid value"]),
    "nothing for a number": ("0.05", "", ["mine.yaml:7: solver.learning_rate: None is not a valid value"]),
    "list for a number": ("0.05", "[0.05]", ["mine.yaml:7: solver.learning_rate: [0.05] is not a valid value"]),
    "not a number": ("0.05", ".nan", ["mine.yaml:7: solver.learning_rate: nan is not a valid value", "finite"]),
    "infinity": ("0.05", ".inf", ["mine.yaml:7: solver.learning_rate: inf is not a valid value"]),
    "one of a list": ("participation: full", "participation:\n  name: stragglers\n  parties: [1, two]", [
        "mine.yaml:13: participation.parties.1: 'two' is not a valid value"]),
    "choice": ("FedAvg: fedavg", "FedAvg: {name: fedavg, stragglers: kep}", [
        "mine.yaml:10: algorithms.FedAvg.stragglers: 'kep' is not a valid value; did you mean 'keep'? Allowed: "
        "keep, drop"]),
    "stragglers of a method": ("FedAvg: fedavg", "FedAvg: {name: rfa, stragglers: keep}", [
        "mine.yaml:10: algorithms.FedAvg.stragglers: one policy for stragglers applies to all methods: set it in the "
        "participation, such as {name: stragglers, share: 0.5, work: drop}"]),
    "choice in a list": ("rounds: 3", "rounds: 3\ndiagnostics:\n- line\n- step", [
        "mine.yaml:15: diagnostics.1: 'step' is not a valid value; did you mean 'steps'? Allowed: model_change"]),
    "missing setting": ("  learning_rate: 0.05\n", "", ["mine.yaml:5: solver.learning_rate: missing"]),
    "missing part": ("model: logistic\n", "", ["mine.yaml:1: model: missing; the model that every party trains"]),
    "missing penalty": ("FedAvg: fedavg", "FedAvg: fedplus", [
        "mine.yaml:10: algorithms.FedAvg.penalty: missing", "if nothing is known, use robust_interpolation"]),
    "empty part": ("model: logistic", "model: {}", ["mine.yaml:4: model.name: missing", "linear, logistic, mlp"]),
    "null part": ("model: logistic", "model:", ["mine.yaml:4: model: missing; the model that every party trains"]),
    "null rounds": ("rounds: 3", "rounds:", ["mine.yaml:12: rounds: None is not a valid value"]),
    "empty algorithms": ("algorithms:\n  alone: local\n  FedAvg: fedavg", "algorithms: {}", [
        "mine.yaml:8: algorithms: expected a mapping from labels to algorithms, or a list of their names, at least "
        "one, got {}"]),
    "the same algorithm twice": (ALGORITHMS, "algorithms: [fedavg, local, fedavg]", [
        "mine.yaml:8: algorithms.2: 'fedavg' is in the list twice: write a mapping"]),
    "list of numbers": (ALGORITHMS, "algorithms: [3]", ["mine.yaml:8: algorithms.0: expected a name, or a mapping"]),
    "setting in a list": (ALGORITHMS, "algorithms:\n- local\n- {name: fedavg, mu: 1}", [
        "mine.yaml:10: algorithms.fedavg.mu: unknown key"]),
    "two labels alike": (ALGORITHMS, "algorithms:\n  1: local\n  '1': fedavg", [
        "mine.yaml:10: algorithms.1: two algorithms have this label, one as a number and one as text"]),
    "label that is a list": (ALGORITHMS, "algorithms:\n  ? [a]\n  : local", [
        "mine.yaml:8: algorithms: ('a',) cannot be a label: put text in quotes"]),
    "ambiguous number": ("rounds: 3", "rounds: 010", ["mine.yaml:12: '010' is ambiguous", "octal: write 10"]),
    "tag": ("rounds: 3", "rounds: !!python/object 3", ["mine.yaml:12: the tag", "is not supported: remove it"]),
    "control character": ("rounds: 3", 'title: "a\\e[2Jb"', ["mine.yaml:12: 'a\\x1b[2Jb' has a control"]),
    "half of a character": ("rounds: 3", 'title: "\\ud800"', ["mine.yaml:12: ", "surrogate"]),
    "huge number": ("rounds: 3", f"rounds: {10**30}", ["mine.yaml:12: rounds: 1000000000", "smaller than 2^31"]),
    "what the data determine": ("model: logistic", "model:\n  name: logistic\n  classes: 3", [
        "mine.yaml:6: model.classes: the experiment supplies it; remove this setting"]),
    "a date": ("rounds: 3", "title: 2026-01-31", ["mine.yaml:12: title: ", "date", "put text in quotes"]),
    "a date as a key": ("rounds: 3", "title: {2026-01-31: 1}", ["mine.yaml:12: title: ", "put keys in quotes"]),
    "no rounds": ("rounds: 3", "rounds: 0", ["mine.yaml:12: rounds: 0 must be at least 1"]),
    "no evaluation": ("rounds: 3", "evaluate_every: 0", ["mine.yaml:12: evaluate_every: 0 must be at least 1"]),
    "negative seed": ("rounds: 3", "seed: -1", ["mine.yaml:12: seed: -1 must be at least 0"]),
    "huge seed": ("rounds: 3", "seed: 2147483648", ["mine.yaml:12: seed: 2147483648", "smaller than 2^31"]),
    "empty label": ("FedAvg: fedavg", "'': fedavg", ["mine.yaml:8: algorithms: '' cannot be a label"]),
    "invisible label": ("FedAvg: fedavg", '"a\\tb": fedavg', ["mine.yaml:8: algorithms: 'a\\tb' cannot be a label"]),
    "two keys alike": ("rounds: 3", "model: mlp", ["mine.yaml:12: not YAML", "duplicate"]),
    "unclosed list": ("rounds: 3", "rounds: [3", ["mine.yaml:13: not YAML"]),
    "tab": ("  parties: 4", "\tparties: 4", ["mine.yaml:3: not YAML"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_with_its_line(mistake, mine):
    right, wrong, wanted = MISTAKES[mistake]
    assert BASE.count(right) == 1
    message = refused(mine(BASE.replace(right, wrong)))
    assert [part for part in wanted if part not in message] == [], message
    assert message.startswith(wanted[0])


@pytest.mark.parametrize(("text", "wanted"), [
    ("", "mine.yaml:1: expected a mapping with keys data, model, solver"),
    ("just text", "mine.yaml:1: expected a mapping with keys"),
    ("- fedavg\n", "mine.yaml:1: expected a mapping with keys"),
    ("a: 1\n---\nb: 2\n", "mine.yaml:2: not YAML"),
    ("%YAML 9.9\n---\na: 1\n", "mine.yaml:1: not YAML"),
    ("a: &a [*a]\n", "mine.yaml:1: 'a' is repeated within itself"),
    ("a: " + 31 * "[", "mine.yaml:1: more than 30 levels of nested lists and mappings"),
    ("a: 1\n" + 240_000 * "#", "mine.yaml:1: more than 200000 characters"),
    ("a0: &a0 [" + "x," * 9 + "]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" for i in range(1, 7)),
     "mine.yaml:5: the repeated parts (*) stand for more than 20000 values"),
])
def test_file_that_is_no_experiment_is_refused(text, wanted, mine):
    assert refused(mine(text)).startswith(wanted)


def test_file_that_is_not_there_or_not_text_is_refused(mine, tmp_path):
    assert refused("yours.yaml") == "there is no file yours.yaml"
    (tmp_path / "image.yaml").write_bytes(b"\x89PNG\xff\xfe")
    assert refused("image.yaml").startswith("image.yaml:1: the file is not text in UTF-8: ")
    (tmp_path / "visits.csv").write_text("hospital,outcome\n")
    assert "is no experiment file. If it is a table, name it in one" in refused(str(tmp_path / "visits.csv"))
    message = refused("digit")
    assert "there is no experiment 'digit'; did you mean 'digits'? There are digits" in message


OUT_OF_RANGE = {
    "data": ("parties: 4", "parties: 0", "mine.yaml:1: data: digits(parties=0) must lie in 1 to 100"),
    "share": ("parties: 4", "test: 1.5", "mine.yaml:1: data: validation=0.2 and test=1.5"),
    "no test samples": ("parties: 4", "test: 0", "mine.yaml:1: data: no party has test samples"),
    "model": ("model: logistic", "model: {name: mlp, width: 0}",
              "mine.yaml:4: model: mlp(width=0) must lie in [1, inf)"),
    "model of numbers": ("model: logistic", "model: linear",
                         "mine.yaml:4: model: linear does not fit the data 'digits', which are for classification: use "
                         "logistic or mlp"),
    "solver": ("0.05", "-1", "mine.yaml:5: solver: SGD(learning_rate=-1.0) must"),
    "two budgets": ("0.05", "0.05\n  steps: 2\n  epochs: 2", "mine.yaml:5: solver: SGD takes epochs= or steps="),
    "own solver": ("FedAvg: fedavg", "FedAvg:\n    name: fedavg\n    solver: {name: GD, learning_rate: 0}",
                   "mine.yaml:12: algorithms.FedAvg.solver: GD(learning_rate=0.0) must"),
    "participation": ("participation: full", "participation: {name: bernoulli, probability: 2}",
                      "mine.yaml:11: participation: Bernoulli(probability=2.0) must"),
    "inner participation": ("participation: full", "participation:\n  name: stragglers\n"
                            "  inner: {name: uniform, cohort: 0}",
                            "mine.yaml:13: participation.inner: Uniform(cohort=0) must"),
    "cohort": ("participation: full", "participation: {name: uniform, cohort: 5}",
               "mine.yaml:11: participation: a cohort of 5 cannot be drawn from 4 parties"),
    "straggler": ("participation: full", "participation: {name: stragglers, parties: [4]}",
                  "mine.yaml:11: participation: Stragglers(parties=...) names party 4"),
}


@pytest.mark.parametrize("mistake", OUT_OF_RANGE)
def test_value_out_of_range_is_refused_before_any_work(mistake, mine, tmp_path, monkeypatch):
    right, wrong, wanted = OUT_OF_RANGE[mistake]
    assert BASE.count(right) == 1
    file = ExperimentFile.load(mine(BASE.replace(right, wrong)))
    monkeypatch.setattr(runner, "compare_file", lambda *a, **k: pytest.fail("work began"))
    with pytest.raises(InputError) as caught:
        runner.run_experiment(file)
    assert str(caught.value).startswith(wanted)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]  # no run folder, finished or not


@pytest.mark.parametrize(("cell", "words"), [("?", r"'\?' in row 4 is not"), ("", "missing")])
def test_a_table_that_cannot_be_read_is_refused_wherever_it_is_built(cell, words, tmp_path):
    """Not only by ``check``: a refit, an evaluation and a program build the experiment at once."""
    rows = [f"{'AB'[k % 2]},{cell if k == 2 else k},{'yn'[k % 3 > 0]}" for k in range(40)]
    (tmp_path / "visits.csv").write_text("\n".join(["site,age,ill", *rows]))
    file = tmp_path / "mine.yaml"
    file.write_text(f"data: {{table: {tmp_path / 'visits.csv'}, party: site, label: ill}}\nmodel: logistic\n"
                    "solver: {name: GD, learning_rate: 0.1, steps: 1}\nalgorithms: [fedavg]\nrounds: 1\n")
    with pytest.raises(InputError, match=f"mine.yaml:1: data: .*'age'.*{words}"):
        ExperimentFile.load(str(file)).build()


@pytest.mark.when_changed
def test_long_values_are_shortened(mine):
    for right, wrong in (("rounds: 3", f"title: {[[1] * 99] * 99}"), ("rounds: 3", f"{'r' * 5000}: 3"),
                         ("FedAvg: fedavg", f"{'F' * 5000}: fedvag"), ("parties: 4", f"parties: {'4' * 2000}x")):
        message = refused(mine(BASE.replace(right, wrong)))
        assert message.startswith("mine.yaml:")
        assert len(message) < 1500, len(message)


def test_list_of_algorithms_has_their_names_as_labels(mine):
    file = ExperimentFile.load(mine(BASE.replace(ALGORITHMS, "algorithms: [local, {name: fedprox, mu: 3}]")),
                               ["algorithms.fedprox.mu=4"])
    assert file.bound.settings()["algorithms"] == {
        "local": {"name": "local", "ridge": None}, "fedprox": {"name": "fedprox", "mu": 4.0, "stragglers": None}}


def test_model_of_classes_does_not_fit_a_regression(mine):
    text = BASE.replace("  name: digits\n  parties: 4", "  name: synthetic\n  parties: 4")
    with pytest.raises(InputError, match=r"mine\.yaml:4: model: logistic .* regression: use linear or mlp"):
        ExperimentFile.load(mine(text)).build()
    assert ExperimentFile.load(mine(text), ["model=mlp"]).build().model.sizes[-1] == 1


@pytest.mark.parametrize(("labels", "folder"), [
    (("FedAvg+", "FedAvg-plus"), "FedAvg-plus"), (("a b", "a-b"), "a-b"), (("fedavg", "FedAvg"), "FedAvg"),
    (("..", "."), "method"), (("x" * 60, "x" * 61), "x" * 60), (("é é", "é-é"), "é-é")])
def test_labels_of_one_folder_are_refused(labels, folder, mine):
    algorithms = "".join(f"  {json.dumps(label)}: fedavg\n" for label in labels)
    message = refused(mine(BASE.replace("  alone: local\n  FedAvg: fedavg\n", algorithms)))
    assert message.startswith("mine.yaml:10: algorithms.")
    assert f"the models of {labels[1]!r} and of {labels[0]!r} would be written to the same folder, {folder}:" in message


@pytest.mark.parametrize("label", ["..", ".", "/etc/passwd", "a/../b", "+", "<b>&\"'", "x" * 500, "é" * 200, "-"])
def test_folder_name_is_one_plain_folder(label):
    name = folder_name(label)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert len(name.encode()) <= 255
    assert folder_name("FedAvg+") == "FedAvg-plus"
