"""Every preset passes the contract; ``contract_rows`` has the rows, and chooses those that a commit checks."""

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from contract_rows import ALL_ROWS, BUILT, IN_FULL, IN_PAIRS, ROWS, SAME, TRACED, algorithms_in, structure

import resolvent as rv
from resolvent import algorithms, testing
from resolvent.algorithms import presets

# Clauses that trace or compile programs of their own; a commit checks them on the simplest row.
COSTLY = {testing.check_sweep, testing.check_single_sample}
TRACED_CLAUSES = [testing.check_declarations, *(pytest.param(check, marks=pytest.mark.when_changed)
                                                for check in (testing.check_models, testing.check_weights))]

# Combinators and methods whose problem, participation or model is not the contract's: the file that has their contract.
ELSEWHERE = {
    "FixedPointSums": "test_fixed_point_sums.py",
    "GraphSplitting": "test_graph.py",
    "ModelState": "test_model_state.py", "NormLimit": "test_admission.py", "ShareLimit": "test_robust.py",
    "PrivateParties": "test_private_parties.py", "WarmStart": "../simulator/test_notebook_output.py",
}


def contract_cases():
    for name in ALL_ROWS:
        for check in testing.CHECKS:
            is_costly = check is testing.check_dtypes or (check in COSTLY and name != IN_FULL[0])
            if is_costly or name not in {*IN_FULL, *IN_PAIRS}:
                marks = pytest.mark.nightly
            else:
                marks = () if name in IN_FULL else pytest.mark.when_changed
            yield pytest.param(name, check, id=f"{name}-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("name", "check"), contract_cases())
def test_contract(name, check):
    check(ALL_ROWS[name])


@pytest.mark.parametrize("check", TRACED_CLAUSES)
def test_one_algorithm_of_each_class_keeps_the_clauses_that_trace(check):
    failures = []
    for name in TRACED:
        try:
            check(ALL_ROWS[name])
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)


def library_classes(base):
    """The classes of the library that can be built, whatever other tests have imported."""
    for module in walk_packages(algorithms.__path__, "resolvent.algorithms."):
        import_module(module.name)
    return classes_below(base)


def classes_below(base):
    for kind in base.__subclasses__():
        if kind.__module__.startswith("resolvent.algorithms.") and not inspect.isabstract(kind):
            yield kind.__name__
        yield from classes_below(kind)


def test_a_commit_checks_an_algorithm_of_each_class():
    here = Path(__file__).parent
    checked = {kind.__name__ for name in (*IN_FULL, *TRACED) for kind in algorithms_in(BUILT[name])}
    missing = {*library_classes(rv.Algorithm)} - {"Combinator"} - checked
    assert missing == {*ELSEWHERE}, "give the class a row in contract_rows.py"
    assert [file for file in ELSEWHERE.values() if not (here / file).is_file()] == []


def test_every_preset_has_a_row_or_is_the_composition_of_one():
    assert {*ROWS, *SAME} == set(presets.__all__)
    assert not {*ROWS} & {*SAME}
    solver = testing.example_solver()
    assert [name for name, (make, row) in SAME.items() if structure(make(solver)) != structure(BUILT[row])] == []
