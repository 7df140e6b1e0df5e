"""Schedules of the learning rate across rounds, and runs that start from a trained model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
from resolvent.simulator.engine.rounds import run_rounds
from resolvent.testing.contract import PARTICIPATION
from resolvent.testing.example import assert_close, example_problem
from resolvent.testing.python_loop import python_rounds

QUADRATIC = rv.problems.QuadraticProblem.least_squares(
    np.random.default_rng(0).normal(size=(3, 6, 2)), np.random.default_rng(1).normal(size=(3, 6)))
FALLING = rv.schedules.InversePower(power=1.0)


def final(solver, *, rounds=1, start=None):
    return rv.simulate(rv.fedavg(solver), QUADRATIC, rounds=rounds, start=start, progress=False)


@pytest.mark.parametrize(("schedule", "expected"), [
    (rv.schedules.Cosine(2.0, rounds=4, last=0.5), [2.0, 1.5 + 0.5**0.5 / 2, 1.5, 1.5 - 0.5**0.5 / 2, 1.0, 1.0]),
    (rv.schedules.WarmUp(rounds=3), [1 / 3, 2 / 3, 1, 1]),
    (rv.schedules.WarmUp(2.0, rounds=2, then=FALLING), [1, 2, 1, 2 / 3])])
def test_values_of_schedules(schedule, expected):
    np.testing.assert_allclose([schedule(jnp.array(t)) for t in range(len(expected))], expected, rtol=1e-6)


def test_schedules_that_end_at_zero_have_a_finite_sum():
    assert not rv.schedules.Cosine().sum_diverges
    assert rv.schedules.Cosine().squares_converge
    assert rv.schedules.WarmUp(then=FALLING).finds_the_optimum
    assert not rv.schedules.WarmUp().finds_the_optimum


@pytest.mark.when_changed
@nightly.parametrize("make", [
    lambda rate, **schedule: rv.solvers.momentum(rate, decay=0.5, steps=2, **schedule),
    lambda rate, **schedule: rv.solvers.GD(rate, steps=2, **schedule),
    lambda rate, **schedule: rv.OptaxSolver(optax.chain(optax.scale(0.01), optax.scale(-100 * rate)), steps=2,
                                            **schedule)],
    ids=["traced optimizer", "GD", "any optax transformation"])
def test_a_schedule_is_another_learning_rate_in_each_round(make):
    """One run of three rounds is a chain of runs of one round, each of which starts from the one before."""
    model = None
    for t in range(3):
        model = final(make(0.1 / (1 + t)), start=model).server_model
    np.testing.assert_allclose(final(make(0.1, schedule=FALLING), rounds=3).server_model, model, rtol=1e-5)


@pytest.mark.nightly
def test_methods_that_read_the_learning_rate_follow_the_schedule():
    """Scaffold divides by the learning rate of the round; a plain Python loop does the same."""
    with jax.enable_x64(True):
        algorithm, problem = rv.scaffold(rv.SGD(0.1, batch_size=4, schedule=FALLING)), example_problem()
        expected = python_rounds(algorithm, problem, PARTICIPATION, 7, 2)[-1]
        assert_close(run_rounds(algorithm, problem, PARTICIPATION, seed=7, rounds=2), expected, 1e-11)


@pytest.mark.when_changed
def test_a_run_starts_from_a_model_a_result_or_a_fitted_model():
    data = rv.FederatedData.from_arrays([np.eye(3), np.eye(3)], [[0, 1, 0], [1, 1, 0]], validation=0, test=0)
    model, algorithm = rv.models.logistic(3, 2), rv.fedavg(rv.SGD(0.1, batch_size=3))
    first = rv.simulate(algorithm, model, data, rounds=1, progress=False)
    results = [rv.simulate(algorithm, model, data, rounds=1, start=start, progress=False)
               for start in (first, first.server_model, first.fitted())]
    assert len({result.digest for result in results}) == 1
    at_start = results[0].scores("train", "loss").loc[0]
    np.testing.assert_array_equal(at_start, first.scores("train", "loss").loc[1])
    with pytest.raises(rv.InputError, match=r"the start has the parameters bias \[1\], weight \[1, 3\], and the models "
                                            r"of this run have bias \[1\], weight \[1, 2\]"):
        rv.simulate(algorithm, rv.models.logistic(2, 2), rv.FederatedData.from_arrays([np.eye(2)], [[0, 1]]), rounds=1,
                    start=first, progress=False)


@pytest.mark.when_changed
def test_a_run_without_a_shared_model_is_no_start():
    data = rv.FederatedData.from_arrays([np.eye(3), np.eye(3)], [[0, 1, 0], [1, 1, 0]], validation=0, test=0)
    model, algorithm = rv.models.logistic(3, 2), rv.fedavg(rv.SGD(0.1, batch_size=3))
    alone = rv.simulate(rv.local(rv.SGD(0.1)), model, data, rounds=1, progress=False)
    with pytest.raises(rv.InputError, match=r"no shared model: give the model of one party, such as result"):
        rv.simulate(algorithm, model, data, rounds=1, start=alone, progress=False)
