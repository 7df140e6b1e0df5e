"""Integer sums: the trajectory of the inner method up to rounding, whatever the order of the parties is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import classification, equal, personal_models, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.algorithm import Replies
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.algorithms.round import server_step
from resolvent.errors import InputError

FixedPointSums = rv.combinators.FixedPointSums
GD = rv.solvers.GD(0.1, steps=3)
METHODS = {
    "fedavg": rv.fedavg(GD),
    "scaffold, which adds totals": rv.scaffold(GD),
    "two phases": rv.feddane(GD, mu=1.0),
    "server optimizer": rv.combinators.ServerOptimizer(
        rv.fedavg(GD), rv.solvers.traced_optimizer(optax.sgd, learning_rate=0.5, momentum=0.5)),
    "centre from sums": rv.combinators.CentreFromSums(rv.fedgeomed_plus(GD, sigma=0.5, delta=0.4), steps=2),
    "private parties": rv.combinators.PrivateParties(rv.fedavg(GD), cohort=6.0, noise_multiplier=0.1),
}
LATE = rv.participation.Stragglers(rv.participation.Uniform(4), share=0.5)


@pytest.mark.when_changed
@nightly.parametrize("name", METHODS)
def test_the_trajectory_is_the_methods_up_to_rounding(name):
    is_private = name == "private parties"
    weighting = "uniform" if is_private else "size"
    participation = rv.participation.Full("uniform") if is_private else LATE
    problem = classification()
    # Parties weigh their own replies: no server limits their shares.
    unlimited = rv.combinators.ShareLimit(METHODS[name], largest=1.0)
    expected = trajectory(unlimited, problem, 4, participation)
    integers = FixedPointSums(METHODS[name], weighting=weighting)
    actual = trajectory(integers, problem, 4, participation)
    # A mean differs by at most N 2^-(f+1), and the rounds of these convex problems amplify it little.
    tolerance = 6 * 2.0 ** -(integers.fraction + 1) * 10
    equal([s.server.inner for s in expected], [s.server.inner for s in actual], tolerance)
    equal(personal_models(unlimited, problem, expected[-1]),
          personal_models(integers, problem, actual[-1]), tolerance)


def _replies(algorithm, rng, count=7):
    """Replies of parties with other weights, as integers."""
    w0 = jnp.zeros(3)
    oracle = rv.problems.QuadraticProblem.least_squares(jnp.ones((count, 4, 3)), jnp.ones((count, 4)))
    rows = []
    work = jax.jit(algorithm.phases[0].party)
    for k in range(count):
        party = dataclasses.replace(oracle.oracle(k), samples=jnp.asarray(rng.integers(1, 1000), jnp.int32))
        message = jnp.asarray(rng.normal(size=3), w0.dtype)
        rows.append(work(Wrapped((), ()), Wrapped(message, ()), party, jax.random.key(k), jnp.ones(()))[1])
    payload = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    ones = jnp.ones(count)
    return Replies(payload, ones, jnp.arange(count), ones > 0, ones / count), algorithm.init(w0, ones / count)


@nightly.parametrize("bits", [32, 64])
def test_the_step_is_the_same_to_the_bit_for_every_order_and_for_the_sum_itself(bits):
    algorithm, rng = FixedPointSums(rv.fedavg(GD), bits=bits, largest=2.0**14), np.random.default_rng(0)
    replies, state = _replies(algorithm, rng)

    @jax.jit
    def model_after(payload):
        other = dataclasses.replace(replies, payload=payload)
        return server_step(algorithm, 0, state, other, jax.random.key(0))[0].inner

    def step(payload):
        return np.asarray(model_after(payload)).tobytes()

    expected = step(replies.payload)
    for _ in range(5):
        order = rng.permutation(7)
        assert step(jax.tree.map(lambda leaf, order=order: leaf[order], replies.payload)) == expected

    def summed(leaf):
        """The sum of the rows modulo 2^bits, by NumPy."""
        if leaf.dtype != jnp.uint32:
            return leaf[:1]
        integers = np.ascontiguousarray(leaf).view(f"<u{bits // 8}")
        return jnp.asarray(integers.sum(axis=0, keepdims=True, dtype=integers.dtype).view(np.uint32))

    assert step(jax.tree.map(summed, replies.payload)) == expected


def test_a_reply_out_of_range_does_not_count():
    problem = classification()
    sizes = np.sort(np.asarray(problem.sizes))
    largest = float(sizes[-1] + sizes[-2]) / 2  # w_k x_k is about n_k: the largest party is out of range
    w0 = jax.tree.map(jnp.ones_like, problem.init(jax.random.key(0)))
    small = FixedPointSums(rv.fedavg(rv.solvers.GD(1e-9)), largest=largest)
    run = rv.simulate(small, problem, rounds=1, start=w0, progress=False)
    refused = run.metrics.query("metric == 'refused'")["value"]
    assert refused.max() == 1
    equal(run.server_model, w0, 1e-6)


@pytest.mark.parametrize(("participation", "match"), [
    (rv.participation.Full("uniform"), "do not fit together"),
    (rv.participation.BySize(3), "whose weights a party cannot compute"),
    (rv.participation.Dropout(0.1, rv.participation.BySize(3)), "whose weights a party cannot compute")])
def test_other_weights_are_refused(participation, match):
    with pytest.raises(InputError, match=match):
        rv.simulate(FixedPointSums(rv.fedavg(GD)), classification(), rounds=1, participation=participation)


@pytest.mark.parametrize(("make", "match"), [
    (lambda: FixedPointSums(rv.rfa(GD)), "CentreFromSums around a robust method"),
    (lambda: FixedPointSums(rv.combinators.Compressed(rv.fedavg(GD), rv.codecs.QSGD(4))), "without codecs"),
    (lambda: FixedPointSums(rv.fedavg(GD), bits=32, largest=2.0**30), "does not fit in 32 bits"),
    (lambda: FixedPointSums(rv.combinators.PrivateParties(rv.fedavg(GD), cohort=6.0)), "weighting='uniform'")])
def test_what_cannot_be_summed_is_refused(make, match):
    with pytest.raises(InputError, match=match):
        make()


def test_a_problem_whose_parties_do_not_know_their_size_is_refused():
    with pytest.raises(InputError, match="use weighting='uniform'"):
        rv.simulate(FixedPointSums(rv.fedavg(GD)), quadratic(), rounds=1)


def test_more_parties_than_terms_are_refused():
    with pytest.raises(InputError, match="use terms=6"):
        rv.simulate(FixedPointSums(rv.fedavg(GD), terms=5), classification(), rounds=1)
