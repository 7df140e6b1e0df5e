"""Composed objectives against automatic and finite differences."""

from functools import partial

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.problem.maps import Composed, GradientStep, Mixture, through


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def problem():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 11, 3)), rng.integers(0, 3, (2, 11))
    data = rv.FederatedData.from_arrays(list(x), list(y), validation=0, test=0, classes=["0", "1", "2"])
    return rv.problems.LearningProblem(rv.models.logistic(3, 3, l2=0.1), data, block=4)


def point(seed):
    key = jax.random.key(seed)
    return {"weight": jax.random.normal(key, (3, 3)), "bias": jax.random.normal(key, (3,))}


def numeric(f, w, h=1e-5):
    flat, unravel = jax.flatten_util.ravel_pytree(w)
    value = jax.jit(lambda v: f(unravel(v)))  # a lambda, because a bound method is looked up by the hash of its arrays
    return unravel(jnp.array([(value(flat + h * e) - value(flat - h * e)) / (2 * h)
                              for e in jnp.eye(flat.size)]))


@pytest.mark.when_changed
@nightly.parametrize("make", [lambda: GradientStep(0.7), lambda: Mixture(0.3, point(1))], ids=["step", "mixture"],
                     others=nightly.WHEN_CHANGED)
def test_the_gradient_is_that_of_the_value(make):
    oracle = through(problem().oracle(jnp.array(1)), make())
    w = point(2)
    expected = numeric(oracle.value, w)
    everything = jnp.arange(11)
    for actual in jax.jit(lambda w: (oracle.grad(w), oracle.batch_grad(w, everything, everything >= 0)[0]))(w):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), actual, expected)


@pytest.mark.when_changed
def test_first_order_leaves_the_hessian_out():
    oracle, w = problem().oracle(jnp.array(0)), point(3)
    actual = through(oracle, GradientStep(0.5, second_order=False)).grad(w)
    ahead = jax.tree.map(lambda a, g: a - 0.5 * g, w, oracle.grad(w))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), actual, oracle.grad(ahead))


@pytest.mark.when_changed
def test_a_quadratic_through_a_mixture_is_a_quadratic():
    rng = np.random.default_rng(1)
    a, b = jnp.asarray(rng.normal(size=(1, 6, 3))), jnp.asarray(rng.normal(size=(1, 6)))
    oracle = rv.problems.QuadraticProblem.least_squares(a, b).oracle(jnp.array(0))
    w, mixture = jnp.asarray(rng.normal(size=3)), Mixture(0.4, jnp.asarray(rng.normal(size=3)))
    closed, general = through(oracle, mixture), Composed(oracle.samples, oracle, mixture)
    np.testing.assert_allclose(closed.value(w), general.value(w), rtol=1e-12)
    np.testing.assert_allclose(closed.grad(w), general.grad(w), atol=1e-12)
    solved, _, _ = rv.solvers.ClosedForm()(rv.problems.Subproblem(closed, w), w, jax.random.key(0), jnp.ones(()))
    np.testing.assert_allclose(general.grad(solved), 0, atol=1e-12)


@pytest.mark.when_changed
def test_independent_gradients_use_disjoint_parts_of_the_minibatch():
    """Thirds of the samples in the mask, or halves without the Hessian. An empty part uses the first sample."""
    oracle, w, rate = problem().oracle(jnp.array(1)), point(2), 0.5
    order = jnp.array([7, 2, 9, 4, 0, 5, 1, 3])

    def grad(v, hand):
        return oracle.batch_grad(v, jnp.arange(11), hand)[0]

    @partial(jax.jit, static_argnames="second_order")
    def by_hand(hands, second_order):
        g = grad(jax.tree.map(lambda a, b: a - rate * b, w, grad(w, hands[0])), hands[1])
        bent = jax.jvp(lambda v: grad(v, hands[2]), (w,), (g,))[1]
        return jax.tree.map(lambda a, b: a - rate * b, g, bent) if second_order else g

    @partial(jax.jit, static_argnames="second_order")
    def actual(valid, second_order):
        oracle_ahead = through(oracle, GradientStep(rate, second_order=second_order, independent=True))
        return oracle_ahead.batch_grad(w, order, jnp.arange(8) < valid)[0]

    for second_order, valid, hands in (
            (True, 8, ([7, 4, 1], [2, 0, 3], [9, 5])), (True, 2, ([7], [2], [7])), (True, 1, ([7], [7], [7])),
            (False, 7, ([7, 9, 0, 1], [2, 4, 5], [])), (False, 1, ([7], [7], []))):
        masks = jnp.array([np.isin(np.arange(11), hand) for hand in hands])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), actual(valid, second_order),
                     by_hand(masks, second_order))
