"""The diagnostic start_change: how far an aggregation moves the start of the parties' next local work."""

import jax
import numpy as np
import pytest

import resolvent as rv
from resolvent.math import tree
from resolvent.simulator.engine.rounds import trajectory

ROUNDS = 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def measured(algorithm, problem):
    metrics = rv.simulate(algorithm, problem, rounds=ROUNDS, progress=False, diagnostics=["start_change"]).metrics
    return metrics[metrics["metric"] == "start_change"].pivot(index="round", columns="party", values="value").to_numpy()


def least_squares():
    rng = np.random.default_rng(0)
    return rv.problems.QuadraticProblem.least_squares(rng.normal(size=(4, 6, 3)), rng.normal(size=(4, 6)))


@pytest.mark.when_changed
def test_start_change_is_the_distance_from_the_own_model_to_the_next_start():
    problem, solver, lam = least_squares(), rv.SGD(0.05, steps=3), 0.25
    fedplus = rv.fedplus_pull(solver, rv.aggregators.Mean(), sigma=0.0, lam=lam, gamma=0.5)
    states = trajectory(fedplus, problem, ROUNDS)[1:]
    expected = [[lam * tree.norm(row - s.server) for row in s.parties] for s in states]
    np.testing.assert_allclose(measured(fedplus, problem), expected, rtol=1e-12)


@pytest.mark.nightly
def test_start_change_of_methods_with_one_model():
    """A FedAvg party has no model of its own: its next start is the shared model, and its own is what it replied."""
    problem, solver = least_squares(), rv.SGD(0.05, steps=3)
    np.testing.assert_array_equal(measured(rv.local(solver), problem), 0)
    fedavg = rv.simulate(rv.fedavg(solver), problem, rounds=ROUNDS, progress=False,
                         diagnostics=["start_change", "model_change"]).metrics
    start_change, model_change = (fedavg.loc[fedavg["metric"] == name, "value"].to_numpy()
                                  for name in ("start_change", "model_change"))
    assert (start_change > 1e-3).all()
    np.testing.assert_allclose(start_change, model_change, rtol=1e-12)
