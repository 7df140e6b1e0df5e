"""Penalties against their own mathematics: subdifferentials and conjugates by hand, Moreau, Huber, SciPy."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from resolvent.math import tree
from resolvent.math.penalties import L1, L2Norm, OriginIndicator, PerLayer, Quadratic, Scaled, SquaredL2, Zero


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with jax.enable_x64(True):
        yield


def size(v):
    """Euclidean norm that does not overflow."""
    largest = np.max(np.abs(v), initial=0)
    return largest * np.linalg.norm(v / largest) if largest > 0 else 0.0


def onto_ball(v):
    return v / max(1.0, size(v))


@dataclass(frozen=True)
class Twin:
    """A penalty of a flat vector in plain NumPy, written by hand.

    ``off(p, g)``: how far g is from the subdifferential at p. ``conjugate(y, s)``: prox of s*f^* at y.
    """

    value: Callable
    off: Callable
    conjugate: Callable


def quadratic_twin(q):
    roots, axes = np.linalg.eigh(q)
    roots = np.maximum(roots, 0)
    return Twin(
        value=lambda x: x @ q @ x / 2,
        off=lambda p, g: size(g - q @ p),
        # f^*(y) = y'Q^-1 y / 2 on the range of Q, infinite off it: on axis j, prox is y_j * q_j/(q_j + s).
        conjugate=lambda y, s: axes @ (roots / (roots + s) * (axes.T @ y)))


def scaled_twin(f, c):
    return Twin(
        value=lambda x: c * f.value(x),
        off=lambda p, g: c * f.off(p, g / c),
        conjugate=lambda y, s: c * f.conjugate(y / c, s / c))       # (cf)^*(y) = c f^*(y/c)


def split_twin(f, g, k):
    return Twin(
        value=lambda x: f.value(x[:k]) + g.value(x[k:]),
        off=lambda p, h: max(f.off(p[:k], h[:k]), g.off(p[k:], h[k:])),
        conjugate=lambda y, s: np.concatenate([f.conjugate(y[:k], s), g.conjugate(y[k:], s)]))


L1_TWIN = Twin(
    value=lambda x: np.sum(np.abs(x)),
    off=lambda p, g: size(np.where(p != 0, g - np.sign(p), np.maximum(np.abs(g) - 1, 0))),
    conjugate=lambda y, s: np.clip(y, -1, 1))                       # f^*: the indicator of the inf-ball
L2_TWIN = Twin(
    value=size,
    off=lambda p, g: size(g - p / size(p)) if size(p) > 0 else max(size(g) - 1, 0.0),
    conjugate=lambda y, s: onto_ball(y))                            # f^*: the indicator of the 2-ball
SQUARED_TWIN = Twin(
    value=lambda x: x @ x / 2,
    off=lambda p, g: size(g - p),
    conjugate=lambda y, s: y / (1 + s))                             # f^* = f
ZERO_TWIN = Twin(
    value=lambda x: 0.0,
    off=lambda p, g: size(g),
    conjugate=lambda y, s: np.zeros_like(y))                        # f^*: the indicator of 0
INDICATOR_TWIN = Twin(
    value=lambda x: 0.0 if size(x) == 0 else np.inf,
    off=lambda p, g: size(p),
    conjugate=lambda y, s: y)                                       # f^* = 0

DIAGONAL = np.array([2.0, 0.0, 0.3, 7.0, 1e-3])
HALF = np.array([[1.0, 2, 0], [0, 1, -1], [1, 0, 3], [2, 2, -0.5], [0, -1, 1]])     # Q = HH' has rank 3


def vector(x):
    return x


def layers(x):
    """The same numbers as nested layers, in the order of ``ravel_pytree``."""
    return {"body": {"b": x[0], "w": x[1:3][:, None]}, "head": x[3:]}


CASES = {
    "L1": (L1(), L1_TWIN, vector),
    "L2Norm": (L2Norm(), L2_TWIN, vector),
    "SquaredL2": (SquaredL2(), SQUARED_TWIN, vector),
    "Zero": (Zero(), ZERO_TWIN, vector),
    "OriginIndicator": (OriginIndicator(), INDICATOR_TWIN, vector),
    "Quadratic diagonal": (Quadratic(DIAGONAL), quadratic_twin(np.diag(DIAGONAL)), vector),
    "Quadratic full": (Quadratic(HALF @ HALF.T), quadratic_twin(HALF @ HALF.T), vector),
    "Scaled": (Scaled(Scaled(L2Norm(), 0.5), 3.0), scaled_twin(L2_TWIN, 1.5), vector),
    "PerLayer": (PerLayer({"head": L1()}, default=Scaled(L2Norm(), 2.0)),
                 split_twin(scaled_twin(L2_TWIN, 2.0), L1_TWIN, 3), layers),
}
every = pytest.mark.parametrize("name", CASES)
finite_valued = pytest.mark.parametrize("name", [name for name in CASES if name != "OriginIndicator"])


def rounding(name, t):
    """What rounding may cost, relative to x: a linear system costs its condition number."""
    return 1e-13 * (1 + t * np.linalg.norm(HALF @ HALF.T) if name == "Quadratic full" else 1)


@functools.cache
def looked_at(name):
    """All that a penalty says about a flat vector, jitted once: flat results by name."""
    penalty, _, shape = CASES[name]

    def look(x, t):
        v = shape(x)
        prox, pull, curvature = penalty.prox(v, t), penalty.pull(v, t), penalty.curvature(v, t)
        envelope, gradient = jax.value_and_grad(lambda v: penalty.envelope(v, t))(v)
        flat = {"prox": prox, "pull": pull, "curvature": curvature, "gradient": gradient}
        return {key: ravel_pytree(value)[0] for key, value in flat.items()} | {
            "envelope": envelope, "value": penalty.value(v)}

    jitted = jax.jit(look)
    return lambda x, t: {key: np.asarray(leaf) for key, leaf in jitted(x, np.asarray(t, x.dtype)).items()}


# The kinks |x_j| = t and |x| = t are drawn often: x has many ones, and t is often 1.
ordinary = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 2.0]), st.floats(-100, 100).map(lambda v: v if abs(v) > 1e-100 else 0.0))
extreme = st.one_of(ordinary, st.sampled_from([1e150, -1e150, 1e-150, -1e-150, 1e8, -1e8]))
ordinary_vectors, vectors = (arrays(np.float64, 5, elements=e) for e in (ordinary, extreme))
steps = st.one_of(st.sampled_from([1.0, 0.5, 2.0, 1e-6]), st.floats(1e-3, 1e3))
quick = settings(deadline=None, max_examples=40)


@every
@quick
@given(x=vectors, t=steps)
def test_prox_is_optimal(name, x, t):
    """(x - prox)/t is in the subdifferential at prox; ``pull`` has the digits that the difference lost."""
    _, twin, _ = CASES[name]
    seen = looked_at(name)(x, t)
    g = seen["pull"] / t
    lost = rounding(name, t) * size(x)
    digits = 10 * lost if name == "Quadratic full" else 1e-12 * max(1.0, size(g))
    assert twin.off(seen["prox"], g) <= digits
    np.testing.assert_allclose(seen["prox"] + seen["pull"], x, rtol=0, atol=lost)


@every
@quick
@given(x=vectors, t=steps)
def test_moreau_decomposition(name, x, t):
    """x = prox_{tf}(x) + t*prox_{f^*/t}(x/t), the conjugate's prox by hand; ``pull`` is the second part."""
    _, twin, _ = CASES[name]
    seen = looked_at(name)(x, t)
    second = t * twin.conjugate(x / t, 1 / t)
    lost = rounding(name, t) * size(x)
    np.testing.assert_allclose(seen["prox"], x - second, rtol=0, atol=lost)
    digits = lost if name == "Quadratic full" else 1e-13 * size(second)     # a small pull keeps its digits
    np.testing.assert_allclose(seen["pull"], second, rtol=0, atol=digits + 1e-300)


@pytest.mark.parametrize("name", ["L1", "L2Norm", "Scaled"])
@pytest.mark.parametrize(("x", "t"), [
    ([0, 0, 0, 0, 0], 1.0), ([1e30, -1e30, 1e30, 0, 1], 1.0), ([1e-30, 0, 0, 0, -1e-30], 1e-6),
    ([1, -2, 3, 0, 1e-3], 1e-6), ([-1, 1, 0, 0, 0], 1.0), ([1e30, 1, 0, 0, 0], 1e30)])
def test_float32_at_every_size(name, x, t):
    """As above: among others, a pull of length 1e-6 on a vector of length 1 keeps all its digits."""
    _, twin, _ = CASES[name]
    x = np.array(x, np.float32)
    seen = looked_at(name)(x, t)
    second = float(t) * twin.conjugate(x.astype(np.float64) / t, 1 / t)
    assert all(value.dtype == np.float32 for value in seen.values())
    assert all(np.all(np.isfinite(value)) for value in seen.values())
    np.testing.assert_allclose(seen["prox"], x - second, rtol=0, atol=1e-6 * size(x.astype(np.float64)))
    np.testing.assert_allclose(seen["pull"], second, rtol=0, atol=1e-6 * size(second))
    np.testing.assert_allclose(seen["gradient"], second / t, rtol=0, atol=1e-6 * size(second / t))


@finite_valued
@quick
@given(x=ordinary_vectors)
def test_value_is_the_twins(name, x):
    _, twin, _ = CASES[name]
    np.testing.assert_allclose(looked_at(name)(x, 1.0)["value"], twin.value(x), rtol=1e-12, atol=1e-12)


def test_indicator_is_infinite_but_at_zero():
    seen = looked_at("OriginIndicator")
    assert seen(np.zeros(5), 1.0)["value"] == seen(np.zeros(5), 1.0)["envelope"] == 0
    assert seen(np.array([0, 0, 1e-150, 0, 0]), 1.0)["value"] == np.inf
    x = np.array([1.0, -2, 3, 0, 1])
    np.testing.assert_allclose(seen(x, 0.5)["envelope"], x @ x)     # |x|^2/(2t): only the distance is left


def test_soft_threshold_keeps_negative_coordinates():
    """Errata 1: sign(x)*max(|x| - t, 0), not max(x - t, 0)."""
    x = np.array([-3.0, -1.0, -0.5, 0.5, 3.0])
    np.testing.assert_array_equal(looked_at("L1")(x, 1.0)["prox"], [-2.0, 0.0, 0.0, 0.0, 2.0])


@quick
@given(x=ordinary_vectors, t=steps)
def test_envelope_of_absolute_value_is_huber(x, t):
    huber = np.sum(np.where(np.abs(x) <= t, x * x / (2 * t), np.abs(x) - t / 2))
    np.testing.assert_allclose(looked_at("L1")(x, t)["envelope"], huber, rtol=1e-13, atol=1e-300)


@quick
@given(x=vectors, t=steps)
def test_envelope_of_norm_is_block_huber(x, t):
    r = size(x)
    huber = r * (r / (2 * t)) if r <= t else r - t / 2
    np.testing.assert_allclose(looked_at("L2Norm")(x, t)["envelope"], huber, rtol=1e-13, atol=1e-290)


@every
@quick
@given(x=vectors, t=steps)
def test_gradient_of_envelope_is_pull_over_t(name, x, t):
    """At every x, the kinks and 0 too: an envelope is differentiable everywhere."""
    seen = looked_at(name)(x, t)
    expected = seen["pull"] / t
    np.testing.assert_allclose(seen["gradient"], expected, rtol=0, atol=1e-13 * size(expected) + 1e-300)


@every
@pytest.mark.parametrize("x", [[0, 0, 0, 0, 0], [1, -1, 0, 0, 0], [0.3, -2, 1, 0.5, -0.7]])
def test_gradient_of_envelope_is_its_slope(name, x):
    """Against central differences of the twin's envelope, and exactly 0 at 0."""
    _, twin, _ = CASES[name]
    x, t, h = np.array(x, np.float64), 1.0, 1e-5

    def envelope(x):
        gap = t * twin.conjugate(x / t, 1 / t)
        kept = np.zeros(5) if name == "OriginIndicator" else x - gap
        return twin.value(kept) + gap @ gap / (2 * t)

    slope = [(envelope(x + h * e) - envelope(x - h * e)) / (2 * h) for e in np.eye(5)]
    seen = looked_at(name)(x, t)
    np.testing.assert_allclose(seen["envelope"], envelope(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(seen["gradient"], slope, atol=2e-5)
    np.testing.assert_array_equal(looked_at(name)(np.zeros(5), t)["gradient"], np.zeros(5))


def test_second_derivative_of_huber_is_one_over_t_inside_and_zero_outside():
    hessian = jax.jit(jax.hessian(lambda x: L1().envelope(x, 0.5)))(jnp.array([0.2, -0.4, 3.0, 0.0, -1.0]))
    np.testing.assert_allclose(hessian, np.diag([2.0, 2, 0, 2, 0]), atol=1e-15)


def test_envelopes_other_derivatives():
    """In t: -|pull|^2/(2t^2). In the penalty's own numbers: those of its value at the prox (Danskin)."""
    x, t = jnp.array([0.2, -0.4, 3.0, 0.0, -1.0]), 0.7
    pull = L1().pull(x, t)
    in_t = jax.jit(jax.grad(lambda t: L1().envelope(x, t)))(t)
    np.testing.assert_allclose(in_t, -np.sum(pull**2) / (2 * t**2), rtol=1e-13)
    in_scale = jax.jit(jax.grad(lambda c: Scaled(L1(), c).envelope(x, t)))(1.5)
    np.testing.assert_allclose(in_scale, np.sum(np.abs(L1().prox(x, 1.5 * t))), rtol=1e-13)
    in_weight = jax.jit(jax.grad(lambda q: Quadratic(q).envelope(x, t)))(jnp.asarray(DIAGONAL))
    np.testing.assert_allclose(in_weight, Quadratic(jnp.asarray(DIAGONAL)).prox(x, t)**2 / 2, rtol=1e-13)


@every
@quick
@given(x=vectors, y=vectors, t=steps)
def test_prox_is_firmly_nonexpansive(name, x, y, t):
    """|Px - Py|^2 <= <Px - Py, x - y>."""
    p, q = (looked_at(name)(v, t)["prox"] for v in (x, y))
    unit = max(size(x), size(y), 1e-290)
    moved, apart = (p - q) / unit, (x - y) / unit
    assert moved @ moved <= moved @ apart + rounding(name, t)


@every
@quick
@given(x=ordinary_vectors, y=ordinary_vectors, t=steps)
def test_curvature_majorises(name, x, y, t):
    """env(y) <= env(x) + <grad, y - x> + sum d_j (y_j - x_j)^2 / (2t), with d between 0 and 1."""
    at_x, at_y = looked_at(name)(x, t), looked_at(name)(y, t)
    d, step = at_x["curvature"], y - x
    bound = at_x["envelope"] + at_x["gradient"] @ step + d @ step**2 / (2 * t)
    magnitude = at_x["envelope"] + np.abs(at_x["gradient"]) @ np.abs(step) + d @ step**2 / (2 * t)
    assert np.all((d >= 0) & (d <= 1))
    assert at_y["envelope"] <= bound + (1e-12 + rounding(name, t)) * magnitude


@finite_valued
@quick
@given(x=ordinary_vectors)
def test_envelope_grows_to_the_value_as_t_falls(name, x):
    """And never exceeds it: value - t*|g|^2/2 <= envelope <= value, g the subgradient at the prox."""
    envelopes = [looked_at(name)(x, t)["envelope"] for t in (10.0, 1.0, 1e-3, 1e-9)]
    value = looked_at(name)(x, 1.0)["value"]
    assert all(a <= b + 1e-12 * max(b, 1.0) for a, b in zip(envelopes, [*envelopes[1:], value], strict=True))
    np.testing.assert_allclose(envelopes[-1], value, rtol=1e-6, atol=1e-8)


SINGULAR = np.array([[4.0, 2], [2, 1]])
POINTS = [(np.array([1.3, -0.4]), 0.7), (np.array([-0.2, 0.3]), 0.7), (np.array([-5.0, -2.0]), 0.1)]
IN_THE_PLANE = {
    "L1": (L1(), L1_TWIN), "L2Norm": (L2Norm(), L2_TWIN), "SquaredL2": (SquaredL2(), SQUARED_TWIN),
    "Zero": (Zero(), ZERO_TWIN), "Scaled": (Scaled(L1(), 3.0), scaled_twin(L1_TWIN, 3.0)),
    "Quadratic": (Quadratic(SINGULAR), quadratic_twin(SINGULAR))}


@pytest.mark.parametrize("name", IN_THE_PLANE)
@pytest.mark.parametrize(("x", "t"), POINTS)
def test_prox_is_what_a_general_minimiser_finds(name, x, t):
    penalty, twin = IN_THE_PLANE[name]
    found = minimize(lambda p: twin.value(p) + (x - p) @ (x - p) / (2 * t), x / 2 + 0.1, method="Nelder-Mead",
                     options={"xatol": 1e-9, "fatol": 1e-15, "maxiter": 5000})
    np.testing.assert_allclose(penalty.prox(jnp.asarray(x), t), found.x, atol=1e-6)
    np.testing.assert_allclose(penalty.envelope(jnp.asarray(x), t), found.fun, rtol=1e-10, atol=1e-12)


NESTED = [name for name in CASES if name != "PerLayer"]


@pytest.mark.parametrize("name", NESTED)
def test_a_tree_is_its_flat_vector(name):
    """One norm over all leaves together; a scalar leaf and a nested dict are nothing special."""
    penalty, _, _ = CASES[name]
    x, t = np.array([0.3, -2, 1, 0.5, -0.7]), 0.6
    of_tree, seen = layers(jnp.asarray(x)), looked_at(name)(x, t)
    for key in ("prox", "pull", "curvature"):
        result = getattr(penalty, key)(of_tree, t)
        assert jax.tree.map(jnp.shape, result) == jax.tree.map(jnp.shape, of_tree)
        np.testing.assert_allclose(ravel_pytree(result)[0], seen[key], rtol=1e-14)
    np.testing.assert_allclose(penalty.value(of_tree), seen["value"], rtol=1e-14)
    np.testing.assert_allclose(penalty.envelope(of_tree, t), seen["envelope"], rtol=1e-14)


@every
@pytest.mark.parametrize("t", [0.6, np.float64(0.6), np.ones(()), 1])
def test_float32_stays_float32(name, t):
    """Whatever t is, and also where the penalty's own numbers are float64."""
    penalty, _, shape = CASES[name]
    if name == "Scaled":
        penalty = Scaled(L2Norm(), jnp.array(2.0, jnp.float64))
    x = shape(jnp.arange(5, dtype=jnp.float32) - 2)
    operations = (penalty.prox, penalty.pull, penalty.curvature, penalty.envelope, jax.grad(penalty.envelope),
                  lambda x, _: penalty.value(x))
    for operation in operations:
        result = jax.eval_shape(lambda x, operation=operation: operation(x, t), x)
        assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {np.dtype(np.float32)}


def test_a_sweep_over_scales_is_one_vmap():
    x, scales = jnp.array([0.3, -2.0, 1.0]), jnp.array([0.1, 1.0, 10.0])
    swept = jax.vmap(lambda c: Scaled(L1(), c).prox(x, 0.5))(scales)
    np.testing.assert_allclose(swept, [L1().prox(x, 0.5 * c) for c in scales])


def test_per_layer_gives_each_layer_its_own():
    x = layers(jnp.array([3.0, 0, 4, -3, 0.5]))
    penalty = PerLayer({"head": L1(), "body": L2Norm()})
    result = penalty.prox(x, 1.0)
    np.testing.assert_allclose(ravel_pytree(result)[0], [2.4, 0, 3.2, -2, 0])
    np.testing.assert_allclose(penalty.value(x), 5 + 3.5)
    assert PerLayer({}, default=SquaredL2()).value(x) == SquaredL2().value(x)


def test_per_layer_allows_a_layer_without_parameters():
    x = {"dense": jnp.ones(2, jnp.float32), "relu": {}}
    for default in (Zero(), L1(), L2Norm(), SquaredL2(), OriginIndicator()):
        penalty = PerLayer({"dense": L1()}, default=default)
        assert penalty.prox(x, 0.5)["relu"] == {}
        assert penalty.value(x) == 2
        assert penalty.value(x).dtype == np.float32


def test_per_layer_refuses_an_unknown_layer():
    x = {"body": jnp.ones(2), "head": jnp.ones(2)}
    for use in (lambda p: p.value(x), lambda p: p.prox(x, 1.0), lambda p: p.pull(x, 1.0),
                lambda p: p.curvature(x, 1.0), lambda p: p.envelope(x, 1.0)):
        with pytest.raises(KeyError, match=r"names layer 'haed', but the parameters have \['body', 'head'\]"):
            use(PerLayer({"haed": L1()}, default=Zero()))


def test_per_layer_refuses_a_layer_without_penalty():
    with pytest.raises(KeyError, match=r"no penalty for layer 'body': name it or set default="):
        PerLayer({"head": L1()}).prox({"body": jnp.ones(2), "head": jnp.ones(2)}, 1.0)


def test_per_layer_refuses_what_has_no_layers():
    with pytest.raises(TypeError, match="a dict of layers, got"):
        PerLayer({}, default=L1()).prox(jnp.ones(2), 1.0)


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 2, 2)])
def test_quadratic_refuses_a_weight_that_is_no_matrix(shape):
    with pytest.raises(ValueError, match=r"needs a \[d, d\] matrix or its \[d\] diagonal"):
        Quadratic(jnp.ones(shape))


@pytest.mark.parametrize("weight", [np.ones(1), np.ones(3), np.eye(1), np.eye(3)])
def test_quadratic_refuses_a_vector_of_another_size(weight):
    """Also where NumPy would broadcast."""
    x = {"a": jnp.ones(2), "b": jnp.ones(2)}
    for use in (lambda p: p.value(x), lambda p: p.prox(x, 1.0), lambda p: p.pull(x, 1.0)):
        with pytest.raises(ValueError, match="but the vector has 4 entries"):
            use(Quadratic(jnp.asarray(weight)))


def test_penalties_are_pytrees_whose_numbers_are_leaves():
    penalty = PerLayer({"head": Scaled(L1(), 0.5)}, default=Quadratic(jnp.ones(2)))
    assert len(jax.tree.leaves(penalty)) == 2
    doubled = jax.tree.map(lambda leaf: 2 * leaf, penalty)
    assert doubled.layers["head"].scale == 1.0
    assert tree.norm(doubled.default.weight) == pytest.approx(8**0.5)
