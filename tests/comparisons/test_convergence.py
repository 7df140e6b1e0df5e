"""Which methods have converged, whether a bound is one, and exact solves of few rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.comparisons.judgement.convergence import (
    Convergence,
    convergence,
    convergence_of_methods,
    exact_solve_warning,
    is_untuned,
)
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.wording import unfinished_text
from resolvent.comparisons.runs.summary import Source, summarize


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.when_changed
def test_converged_methods_of_a_convex_problem_are_at_its_optimum():
    """The gap shrinks by (1 - 2 rate)^2 in a round: by 10^-6 in 20 rounds with the rate 0.15, to 0.45 with 0.01."""
    problem = rv.problems.QuadraticProblem(jnp.broadcast_to(2.0 * jnp.eye(2), (3, 2, 2)),
                                           jnp.array([[1.0, 0], [2, 4], [0, 5]]))
    methods = {f"rate {rate}": rv.fedavg(rv.solvers.GD(rate, steps=1)) for rate in (0.15, 0.05, 0.01)}
    comparison = rv.compare(methods, problem, rounds=20, evaluate_every=1)
    answers = {method: part.has_converged for method, part in comparison.verdict.convergence.items()}
    assert answers == {"rate 0.15": True, "rate 0.05": False, "rate 0.01": False}
    gaps = comparison.metrics[comparison.metrics["metric"] == "gap"].pivot_table(
        index="round", columns="method", values="value")
    relative = gaps.loc[20] / gaps.loc[0]
    assert relative["rate 0.15"] < 1e-3 < relative["rate 0.05"]


def losses(values, seeds=(0,)):
    rows = [("A", r, k, "train", "loss", value, seed) for seed, of_seed in zip(seeds, values, strict=True)
            for r, value in enumerate(of_seed) for k in range(2)]
    metrics = pd.DataFrame(rows, columns=["method", "round", "party", "split", "metric", "value", "seed"])
    return Evidence(score="accuracy", split="test", higher_is_better=True, methods=("A",), alone=None,
                    parties=["x", "y"], metrics=metrics, seeds=seeds, train=[3, 5])


@pytest.mark.parametrize(("values", "answer"), [
    ([[3.0, 1.0, 1.0, 1.0]], True), ([[3.0, 1.0, 1.0]], None), ([[3.0, 2, 1.5, 1.2, 1.1]], False),
    ([[3.0, 1.0, 1.01, 1.0, 1.01]], True), ([[3.0, 1.0, 1.1, 1.0, 1.1]], False),
    ([[3.0, 1.0, np.nan, np.nan, np.nan]], False), ([[2.0] * 5], True), ([[1.0, 2.0, 3.0, 4.0]], False),
    ([[3.0, 1.0, 1.0, 1.0], [3.0, 1.0, 1.2, 1.1]], False),
])
def test_the_rule(values, answer):
    assert convergence_of_methods(losses(values, tuple(range(len(values)))))["A"].has_converged is answer


@pytest.mark.parametrize(("values", "rounds"), [
    ([3.0, 2, 1.5, 1.2, 1.0], 40),  # many times too few: ten times as many
    ([3.0, 1.08, 1.05, 1.03, 1.0], 8),  # 0.05 of 2 in the last quarter, and 0.04 are allowed
    ([3.0, 1.0, 1.2, 1.0, 1.2], None), ([1.0, 2.0, 3.0, 4.0], None), ([3.0, 1.0, np.nan, np.nan, np.nan], None),
])
def test_rounds_to_try(values, rounds):
    assert convergence(range(len(values)), values) == Convergence(has_converged=False, rounds=rounds)


@pytest.mark.parametrize("loss", [lambda r: 1 / (1 + r / 10), lambda r: np.exp(-r / 150)])
def test_after_the_rounds_to_try_a_falling_loss_has_converged(loss):
    rounds = np.arange(0, 101, 5)
    first = convergence(rounds, loss(rounds))
    assert first.has_converged is False
    further = np.linspace(0, first.rounds, 21)
    assert convergence(further, loss(further)).has_converged is True


def test_the_sentence():
    assert unfinished_text({"A": True, "B": False, "C": None}, {"B": 120}) == (
        "B has not converged: in the last quarter of the rounds, its training loss changed by more than 2% of its "
        "whole fall. Try rounds: 120.")
    assert unfinished_text({"B": False}, {}).endswith("Use a smaller learning rate.")
    assert unfinished_text({"C": None, "D": True}, {}) == ""


def table(rows):
    """Linear regression with noise: six parties of this many rows, and ten features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6 * rows, 10))
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(10)])
    frame["site"], frame["y"] = np.repeat([*"abcdef"], rows), x @ np.arange(10.0) + rng.normal(0, 5, 6 * rows)
    return rv.datasets.from_frame(frame, "site", "y", seed=0)


@pytest.mark.parametrize(("reference", "is_marked"), [
    (rv.local(rv.SGD(0.1)), True), (rv.careful_local(rv.SGD(0.1)), False), (rv.fedavg(rv.SGD(0.1)), False)])
def test_a_reference_with_the_solvers_settings_is_marked_as_untuned(reference, is_marked):
    assert is_untuned(reference) == is_marked


@pytest.mark.when_changed
def test_pooled_converges_to_least_squares_and_says_so_if_it_does_not():
    model = rv.models.linear(10)
    noisy = rv.SGD(0.2, batch_size=2, epochs=1)
    methods = {"FedAvg": rv.fedavg(rv.solvers.GD(0.1, steps=1)), "pooled": rv.pooled(), "noisy": rv.pooled(noisy)}
    comparison = rv.compare(methods, model, table(30), rounds=40, folds=1, evaluate_every=4)
    record = summarize(Source("t", None, dict.fromkeys(methods, "x"), ""), comparison)
    assert record.converged["pooled"] is True
    assert record.converged["noisy"] is False
    assert [record.methods[label].is_bound for label in methods] == [False, True, True]
    assert comparison.evidence.candidates == ("FedAvg",)  # no federation can run the others
    (warning,) = record.warnings
    assert warning.startswith("noisy is no upper bound in this run: its mean training loss is ")
    assert "that of the shared model of FedAvg is" in warning


@pytest.mark.nightly
def test_exact_solutions_of_few_rows_are_warned_of():
    names, rows = ["a", "b", "c"], [5, 40, 8]
    exact = rv.solvers.LBFGS()
    text = exact_solve_warning("FedAvg", rv.fedavg(exact), names, rows, 11)
    assert text.startswith("FedAvg: a and c have fewer training rows than the model has parameters (11 parameters)")
    for algorithm in (rv.fedavg(rv.SGD(0.1)), rv.fedprox(exact, mu=1.0), rv.pooled(exact), rv.local(exact)):
        assert exact_solve_warning("A", algorithm, names, rows, 11) is None
    assert exact_solve_warning("A", rv.fedavg(exact), names, [11, 40, 12], 11) is None
    comparison = rv.compare({"exact": rv.fedavg(exact)}, rv.models.linear(10), table(14), rounds=1,
                            folds=1)
    (warning,) = summarize(Source("t", None, {"exact": "fedavg"}, ""), comparison).warnings
    assert warning.startswith("exact: a, b, c, d, e and 1 more have fewer training rows than the model has parameters")
