"""MARINA, PAGE, EF21-SGDM, EF21-BC and compressed messages against plain loops, fixed points and one another."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SEED, classification, equal, limit, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.description import describe
from resolvent.algorithms.methods.gradient import DistributedGradient
from resolvent.problem.solvers.minibatches import Shuffled
from resolvent.simulator.record.systems import message_bytes

EQUAL_WEIGHTS = rv.participation.Full("uniform")
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
DROPPING = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5, work="drop")
GD = rv.solvers.GD(0.1)
CompressedMessages = rv.combinators.CompressedMessages


def optimum(problem):
    return np.linalg.solve(np.mean(problem.hessians, axis=0), np.mean(problem.linears, axis=0))


def gradients(problem, points):
    """The gradients of all parties, each at its own point or all at one."""
    points = np.broadcast_to(points, np.shape(problem.linears))
    return np.einsum("kij,kj->ki", problem.hessians, points) - np.asarray(problem.linears)


def top(x, k):
    """The k largest entries of each row, zero elsewhere."""
    return np.where(np.abs(x) >= np.sort(np.abs(x), axis=-1)[..., -k, None], x, 0)


@pytest.mark.nightly
def test_marina_with_minibatches_by_a_plain_loop():
    """VR-MARINA: the codec and the minibatches are the library's, the estimate is NumPy's."""
    problem, rate, codec = classification(), 0.3, rv.codecs.RandK(k=3)
    states = trajectory(rv.marina(rv.SGD(rate, batch_size=4), codec=codec, p=0.4), problem, 6, EQUAL_WEIGHTS)
    model = previous = jax.tree.map(jnp.asarray, states[0].server.message.model)
    estimate, coins = None, []
    for t, (before, after) in enumerate(pairwise(states)):
        coins.append(bool(before.server.message.is_full))
        replies = []
        for k in map(jnp.array, range(6)):
            oracle = problem.oracle(k)
            key = keys.party_key(keys.phase_key(keys.round_key(keys.root_key(SEED), jnp.array(t)), 0), k)
            positions, mask = Shuffled().draw(key, jnp.zeros(1, jnp.int32), oracle.samples, 4)
            gradient, last = (oracle.batch_grad(w, positions[0], mask[0])[0] for w in (model, previous))
            difference = jax.tree.map(jnp.subtract, gradient, last)
            replies.append(oracle.grad(model) if coins[-1] else
                           codec.decode(codec.encode(difference, keys.codec_key(key))))
        mean = jax.tree.map(lambda *rows: np.mean(rows, axis=0), *replies)
        estimate = mean if coins[-1] else jax.tree.map(np.add, estimate, mean)
        previous, model = model, jax.tree.map(lambda w, g: w - rate * g, model, estimate)
        equal(after.server.message.model, model)
        equal(after.server.estimate, estimate)
    assert coins[0]
    assert set(coins) == {True, False}


@pytest.mark.when_changed
@nightly.parametrize("make", [lambda: rv.marina(GD, codec=rv.codecs.Identity()), lambda: rv.page(GD),
                              lambda: rv.marina(GD, p=1.0)], ids=["MARINA", "PAGE", "whole gradients"], per_commit=2)
def test_marina_and_page_are_gradient_descent_with_whole_gradients_only(make):
    problem = quadratic()
    plain = [state.server for state in trajectory(rv.dgd(learning_rate=0.1, alpha=1.0), problem, 4)]
    equal([state.server.message.model for state in trajectory(make(), problem, 4)], plain)


@pytest.mark.nightly
def test_marina_is_exact_and_dcgd_is_not():
    problem, codec = quadratic(), rv.codecs.RandK(k=1)
    marina = limit(rv.marina(GD, codec=codec), problem, 3000).server.message.model
    dcgd = limit(rv.dcgd(learning_rate=0.1, codec=codec, alpha=1.0), problem, 3000).server.inner
    np.testing.assert_allclose(marina, optimum(problem), atol=1e-10)
    assert np.abs(dcgd - optimum(problem)).max() > 1e-2


@pytest.mark.nightly
def test_page_is_exact_and_steps_along_minibatches_are_not():
    """The gradient of the average loss vanishes at the limit; the loss is strongly convex."""
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(24, 3))], [rng.integers(0, 3, 24)], validation=0, test=0,
                                        classes=["0", "1", "2"])
    problem = rv.problems.LearningProblem(rv.models.logistic(3, 3, l2=0.1), data)
    solver = rv.SGD(0.2, batch_size=4, steps=1)

    def gradient(model):
        return max(float(jnp.abs(g).max()) for g in jax.tree.leaves(problem.oracle(jnp.array(0)).grad(model)))

    page = limit(rv.page(solver, p=0.2), problem, 2000).server.message.model
    sgd = limit(rv.fedavg(solver), problem, 2000).server
    assert gradient(page) < 1e-9 < 1e-3 < gradient(sgd)


def test_ef21_sgdm_by_numpy():
    problem, rate, eta = quadratic(), 0.1, 0.3
    states = trajectory(rv.ef21_sgdm(GD, codec=rv.codecs.TopK(k=2), eta=eta), problem, 5, EQUAL_WEIGHTS)
    model, shifts, average = np.zeros(4), np.zeros((6, 4)), None
    for state in states[1:]:
        g = gradients(problem, model)
        average = g if average is None else (1 - eta) * average + eta * g
        shifts = shifts + top(average - shifts, 2)
        model = model - rate * shifts.mean(axis=0)
        np.testing.assert_allclose(state.parties.extra[0], shifts, atol=1e-12)
        np.testing.assert_allclose(state.server.inner.inner, model, atol=1e-12)


@pytest.mark.nightly
def test_ef21_sgdm_without_momentum_is_ef21():
    problem, codec = quadratic(), rv.codecs.TopK(k=1)
    ef21_sgdm, ef21 = (trajectory(algorithm, problem, 4) for algorithm in (
        rv.ef21_sgdm(GD, codec=codec, eta=1.0), rv.diana(learning_rate=0.1, codec=codec, alpha=1.0)))
    equal([state.server.inner.inner for state in ef21_sgdm], [state.server.inner for state in ef21])


@pytest.mark.when_changed
def test_ef21_bc_by_numpy():
    problem, rate, up, down = quadratic(), 0.1, 2, 1
    algorithm = rv.ef21_bc(GD, codec=rv.codecs.TopK(k=up), message_codec=rv.codecs.TopK(k=down))
    states = trajectory(algorithm, problem, 6, EQUAL_WEIGHTS)
    model, received, shifts = np.zeros(4), np.zeros(4), np.zeros((6, 4))
    for state in states[1:]:
        received = received + top(model - received, down)
        shifts = shifts + top(gradients(problem, received) - shifts, up)
        model = model - rate * shifts.mean(axis=0)
        np.testing.assert_allclose(state.parties.extra[0].inner, np.tile(received, (6, 1)), atol=1e-12)
        np.testing.assert_allclose(algorithm.server_model(state.server), model, atol=1e-12)


@pytest.mark.nightly
def test_ef21_bc_is_exact():
    problem = quadratic()
    algorithm = rv.ef21_bc(GD, codec=rv.codecs.TopK(k=1), message_codec=rv.codecs.TopK(k=1))
    np.testing.assert_allclose(algorithm.server_model(limit(algorithm, problem, 3000).server), optimum(problem),
                               atol=1e-10)


@pytest.mark.when_changed
@nightly.parametrize("method", [rv.fedavg, rv.feddane], ids=lambda method: method.__name__)
def test_server_and_parties_agree_on_what_was_received(method):
    """For a random codec and one or several phases, whichever parties are absent, late or refused."""
    inner = method(rv.solvers.GD(0.1, steps=3))
    for state in trajectory(CompressedMessages(inner, rv.codecs.QSGD(4)), quadratic(), 5, DROPPING):
        equal(state.server.extra.received, state.parties.extra)
    assert np.ptp(state.parties.extra[0], axis=0).max() > 0  # parties have received different models


@pytest.mark.nightly
def test_messages_without_loss_do_not_change_the_algorithm():
    inner = rv.scaffold(rv.solvers.GD(0.1, steps=3))
    whole, plain = (trajectory(algorithm, quadratic(), 4, DROPPING) for algorithm in (
        CompressedMessages(inner, rv.codecs.Identity()), inner))
    equal([s.server.inner for s in whole], [s.server for s in plain])
    equal([s.parties.inner for s in whole], [s.parties for s in plain])


def test_bytes_of_compressed_messages():
    problem = classification()  # 12 parameters in float64
    algorithm = rv.ef21_bc(GD, codec=rv.codecs.TopK(k=1), message_codec=rv.codecs.TopK(k=2))
    down, up = 2 * (64 + 4) // 8, -(-(64 + 4) // 8)
    assert message_bytes(describe(algorithm, problem)) == (down, up)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: rv.marina(GD, codec=rv.codecs.TopK()), "unbiased codec, got TopK"),
    (lambda: rv.marina(GD, p=0.0), "p="),
    (lambda: rv.page(rv.solvers.ClosedForm()), "plain gradient steps"),
    (lambda: rv.page(rv.SGD(0.1, schedule=rv.schedules.Cosine(rounds=5))), "schedule"),
    (lambda: rv.ef21_sgdm(GD, eta=0.0), "eta"),
    (lambda: DistributedGradient(0.1, batch_size=0), "batch_size"),
    (lambda: CompressedMessages(rv.ef21_bc(GD), rv.codecs.TopK()), "compressed already"),
])
def test_wrong_settings_are_refused(build, message):
    with pytest.raises(rv.InputError, match=message):
        build()
