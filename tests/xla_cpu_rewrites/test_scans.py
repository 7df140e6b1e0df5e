"""Rewritten scans (products, residuals, sums) against the original ones: values and derivatives."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun

from xla_cpu_rewrites import rewrite, scans
from xla_cpu_rewrites.programs import Scan, programs
from xla_cpu_rewrites.residuals import recompute_residuals
from xla_cpu_rewrites.weights import orient_products

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


@pytest.mark.nightly
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


def test_products_of_many_rows_stay(monkeypatch):
    monkeypatch.setattr(scans, "_FEW_ROWS", B - 1)
    closed = jax.make_jaxpr(lambda a, b: lax.scan(lambda c, x: (c + x[0].T @ x[1], None), jnp.zeros((2, 2)), (a, b)))(
        *[jnp.ones((T, B, 2))] * 2)
    # The factors are inputs of the scan, so they are stored in any case.
    assert scans.sum_after_scans(closed) is not closed
    closed = jax.make_jaxpr(lambda a, b: lax.scan(lambda c, x: (c + jnp.sin(x[0]).T @ x[1], None), jnp.zeros((2, 2)),
                                                  (a, b)))(*[jnp.ones((T, B, 2))] * 2)
    assert scans.sum_after_scans(closed) is closed


def lstm(params, state, x):
    """An LSTM cell for one sample, as Equinox writes it."""
    h, c = state
    i, f, g, o = jnp.split(params["input"] @ x + params["state"] @ h + params["bias"], 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru(params, state, x):
    """A GRU cell for one sample, whose products are split before they are added."""
    h, c = state
    reset, update, new = jnp.split(params["input"] @ x + params["bias"], 4)[:3]
    of_reset, of_update, of_new = jnp.split(params["state"] @ h, 4)[:3]
    update = jax.nn.sigmoid(update + of_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new)
    return new + update * (h - new), c


def rows(params, state, x):
    """A cell whose weights are the second factor."""
    h, c = state
    z = jnp.tanh(x @ params["input"].T + h @ params["state"].T + params["bias"])
    return z[:W] - z[W:2 * W] * h, c + z[2 * W:3 * W] ** 2 - z[3 * W:]


@pytest.mark.when_changed
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([lstm, gru, rows]), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans(),
       st.booleans())
def test_every_cell_has_the_same_derivatives(cell, times, batch, is_reverse, is_checkpointed, shows_states):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        params = {name: jnp.asarray(random.normal(size=shape) / 3)
                  for name, shape in {"input": (4 * W, N), "state": (4 * W, W), "bias": (4 * W,)}.items()}
        x = jnp.asarray(random.normal(size=(batch, times, N)))

        def network(params, x):
            zeros = jnp.zeros(W)
            step = jax.checkpoint(cell) if is_checkpointed else cell
            (h, c), states = lax.scan(lambda state, at_time: (step(params, state, at_time), state[0]),
                                      (zeros, zeros), x, reverse=is_reverse)
            return jnp.sum(jnp.sin(h) * c) + (jnp.sum(states**3) if shows_states else 0)

        def loss(params, x):
            return jnp.mean(jax.vmap(network, (None, 0))(params, x))

        gradient = jax.grad(loss, (0, 1))
        rewritten = rewrite(gradient)
        assert str(jax.make_jaxpr(rewritten)(params, x)) != str(jax.make_jaxpr(gradient)(params, x))

        def transformed(g):
            return g(params, x), jax.jvp(lambda p: g(p, x), (params,), (params,))[1]

        plain, ours = jax.jit(lambda: [transformed(gradient), transformed(rewritten)])()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10), plain, ours)


def bodies(jaxpr):
    """The bodies of the scans of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["jaxpr"].jaxpr, equation.params
        for closed in programs(equation):
            yield from bodies(closed.jaxpr)


@pytest.fixture
def lstm_gradient(arguments):
    _, x = arguments
    random = np.random.default_rng(0)
    params = {name: jnp.asarray(random.normal(size=shape)) for name, shape in
              {"input": (4 * W, N), "state": (4 * W, W), "bias": (4 * W,)}.items()}

    def loss(params):
        zeros = jnp.zeros((B, W))
        (h, _), _ = lax.scan(lambda state, at_time: (jax.vmap(lambda s, v: lstm(params, s, v))(state, at_time), None),
                             (zeros, zeros), x)
        return jnp.sum(h)

    return jax.make_jaxpr(jax.grad(loss))(params)


def test_weights_are_the_second_factor_and_nothing_is_transposed_in_a_step(lstm_gradient):
    for body, params in bodies(orient_products(lstm_gradient).jaxpr):
        assert "transpose" not in {equation.primitive.name for equation in body.eqns}
        weights = body.invars[:params["num_consts"]]
        products = [equation for equation in body.eqns if equation.primitive.name == "dot_general"
                    and set(equation.invars) & set(weights)]
        assert products
        for equation in products:
            assert equation.invars[1] in weights
            assert equation.params["dimension_numbers"] == (((1,), (0,)), ((), ()))


def test_only_what_no_sum_or_product_gives_is_stored(lstm_gradient):
    def stored(closed):
        body, params = next(bodies(closed.jaxpr))
        return len(body.outvars) - params["num_carry"]

    # h and c, four gates and tanh(c); before also the derivatives of the five activation functions.
    assert (stored(lstm_gradient), stored(recompute_residuals(lstm_gradient))) == (12, 7)


def test_what_is_read_elsewhere_is_stored():
    def f(x):
        states, doubled = lax.scan(lambda c, v: (jnp.sin(c) * v, (c, c + c)), 1.0, x)[1]
        return lax.scan(lambda c, v: (c + v[0] * v[1], None), 0.0, (states, doubled))[0] + doubled[0]

    closed = jax.make_jaxpr(f)(jnp.ones(3))
    assert recompute_residuals(closed) is closed


def test_they_are_shown(arguments, lstm_gradient):
    params, x = arguments
    shown = rewrite.replacements(jax.grad(recurrent), params, x)
    assert {(item.operation, item.change, item.operands) for item in shown} == {
        ("dot_general", "weights as second factor", ("float64[8,4]", "float64[3,4]")),
        ("dot_general", "weights as second factor", ("float64[8,8]", "float64[3,8]")),
        ("dot_general", "weights as second factor", ("float64[8,3]", "float64[8,8]")),
        ("scan", "computed again", ("float64[5,3,8]",)),
        ("scan", "one product for all steps", ("float64[3,8]", "float64[3,8]")),
        ("scan", "one product for all steps", ("float64[3,8]", "float64[3,4]"))}
    of_lstm = rewrite.replacements(jaxpr_as_fun(lstm_gradient), *[jnp.zeros(a.shape) for a in lstm_gradient.in_avals])
    # The derivatives of the five activation functions, see the test above.
    assert sum(count for item, count in of_lstm.items() if item.change == "computed again") == 5


@pytest.mark.parametrize("params", [
    {"num_consts": 2, "num_carry": 1},
    {"ft_in": SimpleNamespace(unpack=lambda: [SimpleNamespace(vals=[None] * n) for n in (2, 1, 3)])},
], ids=["JAX 0.10", "JAX 0.11"])
def test_kinds_of_operands_of_a_scan_in_each_version_of_jax(params):
    assert Scan(params | {"jaxpr": None}).divide("aabccc") == (["a", "a"], ["b"], ["c"] * 3)
