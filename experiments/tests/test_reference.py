"""The reference: its schema, resumed and merged cells, ranks of a table made by hand, and a method of a file."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from experiments.reference import __main__ as command
from experiments.reference import readings
from experiments.reference import rows as files
from experiments.reference.cells import Budget, malicious
from experiments.reference.methods import METHODS, TRIALS, own_method
from experiments.reference.problems import PROBLEMS
from experiments.reference.readings import Table, paragraph, shown
from experiments.reference.rows import RESULTS, SCHEMA, SEEDS, Row, merge, read_rows, schema, write_rows
from experiments.reference.sdane import SDANE
from resolvent.errors import InputError
from resolvent.testing import check_algorithm

ROUNDS = {problem.name: problem.rounds for problem in PROBLEMS}
SCORES = {problem.name: problem.score for problem in PROBLEMS}
PAGE = SCHEMA.with_name("README.md").read_text("utf-8")


def row(problem="diabetes", method="FedAvg", means=(0.5,) * SEEDS, layer="honest", **values):
    first = means[0] if means else 0.0
    settings = {"outcome": "measured", "personal": False, "trials": TRIALS, "rounds": ROUNDS[problem], "jax": "0",
                "score": SCORES[problem], "means": list(means), "worst": list(means), "parties": [first] * 4,
                "evaluated": [0, ROUNDS[problem]], "curve": [0.1, first], "bytes": 10.0, "seconds": 1.0}
    return Row(problem=problem, method=method, layer=layer, **(settings | values))


def table(*cells):
    return Table({cell.key: cell for cell in cells})


# Rows.


def test_the_committed_schema_and_rows_are_those_of_the_code():
    """If the schema differs: python -c "from experiments.reference.rows import *; SCHEMA.write_text(schema())"."""
    assert SCHEMA.read_text("utf-8") == schema()
    rows = read_rows(RESULTS)
    assert all(cell.is_complete for cell in rows.values())
    assert {cell.method for cell in rows.values()} <= {method.name for method in METHODS}
    assert len(rows) > 100
    assert all(cell.reason for cell in rows.values() if cell.outcome != "measured")


@pytest.mark.parametrize(("values", "message"), [
    ({"means": [], "worst": []}, "one for each seed"),
    ({"worst": [0.1]}, "worst: 1 seeds"),
    ({"curve": [0.1]}, "one number for each evaluation"),
    ({"extra": 1}, "Extra inputs"),
])
def test_a_wrong_row_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        row(**values)


def test_rows_of_another_machine_merge(tmp_path):
    mine, theirs = tmp_path / "results.json", tmp_path / "theirs.json"
    write_rows(mine, [row(), row(method="alone")])
    write_rows(theirs, [row(), row(method="Ditto", means=(0.4, None, 0.3, 0.2, 0.1))])
    assert merge(theirs, mine) == 1
    assert merge(theirs, mine) == 0
    assert read_rows(mine) == {cell.key: cell for cell in (
        row(), row(method="alone"), row(method="Ditto", means=(0.4, None, 0.3, 0.2, 0.1)))}


@pytest.mark.parametrize(("content", "message"), [
    ('{"rows": [', "not a JSON file"),
    ('{"rows": [{"problem": "digits, 0.1"}]}', "layer: Field required; schema.json"),
    ('{"rows": []}', "has no rows"),
    (lambda: row(means=(0.5,) * 2), r"diabetes, honest, FedAvg: 2 seeds, 60 rounds and 6 trials are not"),
    (lambda: row(rounds=6), "run it without --quick"),
    (lambda: row(means=(0.6,) * SEEDS), "has other numbers for this cell"),
])
def test_rows_that_do_not_fit_are_not_merged(tmp_path, content, message):
    mine, theirs = tmp_path / "results.json", tmp_path / "theirs.json"
    write_rows(mine, [row()])
    before = mine.read_text()
    if callable(content):
        write_rows(theirs, [content()])
    else:
        theirs.write_text(content)
    with pytest.raises(InputError, match=message):
        merge(theirs, mine)
    assert mine.read_text() == before


def test_an_interrupted_run_continues_by_cell(tmp_path, monkeypatch):
    problems, methods, ran = PROBLEMS[:4], METHODS[:2], []

    def fake(problem, layer, method, data, honest, budget):
        assert (honest is None) == (layer == "honest")
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append((problem.name, layer, method.name))
        return row(problem.name, method.name, layer=layer)

    monkeypatch.setattr(command, "cell", fake)
    path = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        command.fill(problems, methods, path, Budget())
    assert len(read_rows(path)) == 5
    first, ran = ran, []
    with pytest.raises(KeyboardInterrupt):
        command.fill(problems, methods, path, Budget())
    second, ran = ran, []
    with pytest.raises(KeyboardInterrupt):
        command.fill(problems, methods, path, Budget())
    third, ran = ran, []
    assert len(command.fill(problems, methods, path, Budget())) == 16
    assert len({*first, *second, *third, *ran}) == len(first + second + third + ran) == 16


# Readings.


def test_settings_of_one_data_set_count_once_in_ranks():
    """By hand: digits 0.1 and 0.5 are one block, in whose mean FedAvg is better; smaller errors are better."""
    cells = [row("digits, 0.1", "alone", (0.9,) * 5), row("digits, 0.5", "alone", (0.5,) * 5),
             row("digits, 0.1", "FedAvg", (0.8,) * 5), row("digits, 0.5", "FedAvg", (0.8,) * 5),
             row("digits, 0.1", "Ditto", (0.1,) * 5), row("digits, 0.5", "Ditto", (0.1,) * 5),
             row("diabetes", "alone", (0.7,) * 5), row("diabetes", "FedAvg", (0.9,) * 5),
             row("diabetes", "Ditto", (0.2, None, 0.2, 0.2, 0.2)),
             row("tweets", "alone", (0.7,) * 5)]  # without the others it is no block
    ranks = table(*cells).ranks()
    assert ranks.blocks == 2
    assert ranks.mean.to_dict() == {"alone": 1.5, "FedAvg": 1.5, "Ditto": 3.0}


def test_readings_of_a_table_made_by_hand():
    cells = [row("digits, 0.1", "alone", (0.9,) * 5, parties=[0.9, 0.9, 0.9, 0.9]),
             row("digits, 0.1", "FedAvg", (0.7, 0.8, 0.9, 0.8, 0.8), parties=[0.91, 0.895, 0.6, 0.88],
                 evaluated=[0, 30, 60], curve=[0.1, 0.75, 0.8]),
             row("digits, 0.1", "Ditto", (0.95,) * 5, evaluated=[0, 30, 60], curve=[0.1, 0.82, 0.95]),
             row("digits, 0.1", "alone", (0.9,) * 5, "attacked"),
             row("digits, 0.1", "FedAvg", (0.12,) * 5, "attacked")]
    read = table(*cells)
    assert read.worse_than_alone("digits, 0.1", "FedAvg") == 0.5  # by more than 0.009
    assert read.rounds_to_target("digits, 0.1", "Ditto") == 30
    assert read.rounds_to_target("digits, 0.1", "FedAvg") == 60
    assert read.is_collapsed("digits, 0.1", "FedAvg", "attacked")  # 0.02 of a gain of 0.8
    assert not read.is_collapsed("digits, 0.1", "FedAvg", "honest")
    difference = read.difference("digits, 0.1", "Ditto", "FedAvg")
    values = 0.95 - np.array([0.7, 0.8, 0.9, 0.8, 0.8])
    half = 2.7764451 * values.std(ddof=1) / np.sqrt(5)  # Student's quantile with four degrees of freedom
    np.testing.assert_allclose(difference, (0.15, 0.15 - half, 0.15 + half), rtol=1e-6)
    text = paragraph(read, "Ditto")
    assert "Ditto has the mean rank 1.0 among 3 methods over 1 data sets (FedAvg 3.0, alone 2.0" in text
    assert "better than FedAvg on 1 and worse on 0 of 1 problems" in text
    assert shown(read.row("digits, 0.1", "Ditto")) == "95.0"


def test_cells_without_a_number_are_named_with_the_reason(monkeypatch):
    cells = [row("diabetes", "MOON", layer=layer, means=(), outcome="refused", reason="needs a hidden layer")
             for layer in ("honest", "attacked")]
    monkeypatch.setattr(readings, "committed", lambda: table(*cells, row("diabetes", "FedAvg")))
    refused, not_run = readings.empty().splitlines()
    assert refused == "- 2 cells, diabetes: needs a hidden layer (MOON)"
    every = 2 * len(METHODS) * len(PROBLEMS)
    assert not_run == f"- {every - 3} cells, {len(PROBLEMS)} problems: not run ({len(METHODS)} methods)"


# Methods and problems.


def test_every_method_has_the_same_number_of_trials():
    for method in METHODS:
        assert np.prod([len(values) for values in method.space().values()]) == TRIALS, method.name
    assert len({method.name for method in METHODS}) == len(METHODS) >= 24
    assert len(PROBLEMS) >= 10
    assert sum(problem.participation != PROBLEMS[0].participation for problem in PROBLEMS) * 2 >= len(PROBLEMS) - 1
    assert malicious(12) == (4, 9)


@pytest.mark.parametrize(("source", "message"), [
    ("", "the file has none"),
    ("def a(solver): ...\ndef b(solver): ...", "the file has a, b"),
    ("def FedAvg(solver): ...", "a method FedAvg already"),
    ("TRIED = {'a': (1, 2), 'b': (1, 2)}\ndef mine(solver, a, b): ...", "TRIED has a, b"),
])
def test_a_file_without_one_method_is_refused(tmp_path, source, message):
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(InputError, match=message):
        own_method(tmp_path / "mine.py")


def test_the_method_of_a_file_has_its_own_parameter(tmp_path):
    (tmp_path / "mine.py").write_text("TRIED = {'mu': (0.1, 1.0)}\ndef mine(solver, mu=1.0):\n    return solver, mu\n")
    method = own_method(tmp_path / "mine.py")
    assert method.name == "mine"
    assert method.space() == {"learning_rate": [0.05, 0.2, 0.8], "mu": [0.1, 1.0]}
    assert method.algorithm(PROBLEMS[0], 0.2, mu=0.1)[1] == 0.1


def write_method_of_the_page(path):
    path.write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    return path


def test_the_method_of_the_page_is_one(tmp_path):
    write_method_of_the_page(tmp_path / "mine.py")
    method = own_method(tmp_path / "mine.py")
    assert (method.name, method.tried) == ("Relaxed", ("step", (0.5, 1.5)))
    result = rv.simulate(method.algorithm(PROBLEMS[0]._replace(solver=rv.solvers.GD), 0.1, step=0.5),
                         rv.problems.least_squares(parties=2, samples=5, features=2), rounds=1, progress=False)
    assert jnp.isfinite(result.server_model).all()


def test_the_quick_form_writes_its_own_table_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "cell", lambda p, layer, m, data, honest, budget: row(
        p.name, m.name, (0.5,) * budget.seeds, layer, trials=budget.trials, rounds=budget.rounds(p)))
    before = RESULTS.read_bytes()
    assert command.main(["--quick", "--methods", "alone", "FedAvg", "--out", str(tmp_path / "quick")]) == 0
    rows = read_rows(tmp_path / "quick" / "results.json")
    assert len(rows) == 2 * 2 * len(command.QUICK)
    assert {len(cell.means) for cell in rows.values()} == {2}
    assert (tmp_path / "quick" / "reference.svg").is_file()
    assert RESULTS.read_bytes() == before


@pytest.mark.when_changed
def test_s_dane_is_the_papers_by_numpy():
    """Two rounds on quadratics with exact local solutions."""
    problem = rv.problems.least_squares(parties=3, samples=20, features=2, heterogeneity=1.0)
    result = rv.simulate(SDANE(rv.solvers.ClosedForm(), lam=30.0), problem, rounds=2, progress=False)
    hessians, linears = np.asarray(problem.hessians, float), np.asarray(problem.linears, float)
    v = np.zeros(2) + np.asarray(rv.simulate(SDANE(rv.solvers.ClosedForm(), lam=1e12), problem, rounds=1,
                                             progress=False).server_model, float)  # the first model
    for _ in range(2):
        gradients = hessians @ v - linears
        mean = gradients.mean(0)
        x = np.array([np.linalg.solve(h + 30 * np.eye(2), b - (mean - g) + 30 * v)
                      for h, b, g in zip(hessians, linears, gradients, strict=True)])
        v = v - np.mean([h @ x_k - b for h, b, x_k in zip(hessians, linears, x, strict=True)], axis=0) / 30
    np.testing.assert_allclose(np.asarray(result.server_model), x.mean(0), rtol=1e-3)
    assert jnp.isfinite(result.server_model).all()


def test_s_dane_is_a_line_of_the_table():
    """Its parameter is the weight of a squared distance, whose unit is the inverse of a step's."""
    method = METHODS[-1]
    assert (method.name, method.tried, method.power) == ("SDANE", ("lam", (1.0, 10.0)), -1)
    convex = next(problem for problem in PROBLEMS if problem.is_solved)
    assert method.algorithm(convex, 0.1, lam=10.0).lam == pytest.approx(10.0 / convex.unit)
    with pytest.raises(InputError, match="a method SDANE already"):
        own_method(SCHEMA.with_name("sdane.py"))


@pytest.mark.when_changed
def test_s_dane_has_the_contract_of_an_algorithm():
    check_algorithm(SDANE)


@pytest.mark.when_changed
def test_a_method_of_a_file_runs_in_the_quick_form(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_method_of_the_page(tmp_path / "relaxed.py")
    call = ["--quick", "--method", str(path), "--problems", "diabetes", "--out", "mine"]
    assert command.main(call) == 0
    rows = read_rows(tmp_path / "mine" / "results.json")
    assert set(rows) == {("diabetes", layer, "Relaxed") for layer in ("honest", "attacked")}
    assert rows["diabetes", "honest", "Relaxed"].outcome == "measured"
    text = (tmp_path / "mine" / "paragraph.md").read_text()
    assert text.startswith("# Relaxed")
    assert "among 3 methods" in text
    assert (tmp_path / "mine" / "reference.svg").stat().st_size > 5000
    with pytest.raises(InputError, match="run it without --quick"):
        merge(tmp_path / "mine" / "results.json", tmp_path / "results.json")
    capsys.readouterr()
    monkeypatch.setattr(command, "cell", None)  # everything is stored: nothing runs again
    assert command.main(call) == 0
    assert command.main(["--method", "no.py"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_row_is_one_line_of_the_file(tmp_path):
    write_rows(tmp_path / "a.json", [row(), row(method="alone")])
    assert len((tmp_path / "a.json").read_text().splitlines()) == 4
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 2
    assert files.read_rows(tmp_path / "none.json") == {}
