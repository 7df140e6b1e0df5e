"""Sums after a scan against sums in each of its steps: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from resolvent.xla.rewrites import rewrite, scans
from resolvent.xla.rewrites.evaluation import programs

T, B, N, W = 5, 3, 4, 8


@pytest.fixture(autouse=True)
def _no_minimum(monkeypatch):
    monkeypatch.setattr(scans, "_MIN_BYTES", 0)


def recurrent(params, x, *, reverse=False):
    """A recurrent network of which each weight matrix is used in every step."""
    def step(h, at_time):
        h = jnp.tanh(jax.vmap(lambda v, u: params["input"] @ v + params["state"] @ u)(at_time, h) + params["bias"])
        return h, h

    h, states = lax.scan(step, jnp.zeros((B, W), x.dtype), x, reverse=reverse)
    return jnp.sum(jnp.sin(h)) + jnp.sum(states**2)


@pytest.fixture
def arguments():
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        shapes = {"input": (W, N), "state": (W, W), "bias": (W,)}
        yield ({name: jnp.asarray(random.normal(size=shape) / 3) for name, shape in shapes.items()},
               jnp.asarray(random.normal(size=(T, B, N))))


def carried_sizes(jaxpr):
    """The sizes of the arrays that scans carry."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield from (v.aval.size for v in equation.outvars[:equation.params["num_carry"]])
        for closed in programs(equation):
            yield from carried_sizes(closed.jaxpr)


def test_recurrent_networks(arguments):
    params, x = arguments

    def loss(params):
        return jax.checkpoint(recurrent)(params, x) + recurrent(params, x, reverse=True)

    gradient = jax.grad(loss)
    rewritten = rewrite(gradient)
    assert W * W in carried_sizes(jax.make_jaxpr(gradient)(params).jaxpr)
    assert W * W not in carried_sizes(jax.make_jaxpr(rewritten)(params).jaxpr)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)

    def transformed(g):
        return (g(params), jax.vmap(g)(two), jax.jvp(g, (params,), (params,)),
                jax.grad(lambda p: jnp.sum(jnp.sin(g(p)["state"])))(params))

    plain, ours = jax.jit(lambda: [transformed(gradient), transformed(rewritten)])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)


BODIES = {
    "the sum is read in the step": lambda c, a, b: (c + a.T @ b, jnp.sum(c)),
    "the product is read in the step": lambda c, a, b: (lambda product: (c + product, jnp.sum(product)))(a.T @ b),
    "no sum": lambda c, a, b: (0.5 * c + a.T @ b, jnp.sum(a)),
    "the product of the sum": lambda c, a, b: (c + c @ c, jnp.sum(a)),
    "the sum is a result of the step": lambda c, a, b: (c + a.T @ b, c),
}


@pytest.mark.parametrize("case", BODIES)
def test_what_is_no_sum_of_products_stays(case):
    a, b = jnp.ones((T, B, W)), jnp.ones((T, B, W))
    closed = jax.make_jaxpr(lambda a, b: lax.scan(lambda c, x: BODIES[case](c, *x), jnp.zeros((W, W)), (a, b)))(a, b)
    assert scans.sum_after_scans(closed) is closed


def test_small_products_stay(monkeypatch):
    monkeypatch.setattr(scans, "_MIN_BYTES", 2**18)
    params = {"input": jnp.ones((W, N)), "state": jnp.ones((W, W)), "bias": jnp.ones(W)}
    closed = jax.make_jaxpr(jax.grad(recurrent))(params, jnp.ones((T, B, N)))
    assert scans.sum_after_scans(closed) is closed


def test_they_are_shown(arguments):
    params, x = arguments
    shown = rewrite.replacements(jax.grad(recurrent), params, x)
    assert {(item.operation, item.operands) for item in shown} == {("scan", ("float64[8,3]", "float64[3,8]"))}
