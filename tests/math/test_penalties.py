"""Proximal operators: subdifferentials and conjugates by hand, Moreau's decomposition, SciPy; values, dtypes,
refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.flatten_util import ravel_pytree
from penalty_cases import (
    CASES,
    L1_TWIN,
    L2_TWIN,
    SQUARED_TWIN,
    ZERO_TWIN,
    every,
    finite_valued,
    layers,
    operations,
    ordinary_vectors,
    quadratic_twin,
    quick,
    rounding,
    scaled_twin,
    size,
    steps,
    vectors,
)
from scipy.optimize import minimize

import nightly
from resolvent.math import tree
from resolvent.math.penalties import L1, L2Norm, OriginIndicator, PerLayer, Quadratic, Scaled, SquaredL2, Zero


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


@every
@quick
@given(x=vectors, t=steps)
def test_prox_is_optimal(name, x, t):
    """(x - prox)/t is in the subdifferential at prox; ``pull`` has the digits that the difference lost."""
    _, twin, _ = CASES[name]
    results = operations(name)(x, t)
    g = results["pull"] / t
    lost = rounding(name, t) * size(x)
    digits = 10 * lost if name == "Quadratic full" else 1e-12 * max(1.0, size(g))
    assert twin.off(results["prox"], g) <= digits
    np.testing.assert_allclose(results["prox"] + results["pull"], x, rtol=0, atol=lost)


@every
@quick
@given(x=vectors, t=steps)
def test_moreau_decomposition(name, x, t):
    """x = prox_{tf}(x) + t*prox_{f^*/t}(x/t), the conjugate's prox by hand; ``pull`` is the second part."""
    _, twin, _ = CASES[name]
    results = operations(name)(x, t)
    second = t * twin.conjugate(x / t, 1 / t)
    lost = rounding(name, t) * size(x)
    np.testing.assert_allclose(results["prox"], x - second, rtol=0, atol=lost)
    digits = lost if name == "Quadratic full" else 1e-13 * size(second)     # a small pull keeps its digits
    np.testing.assert_allclose(results["pull"], second, rtol=0, atol=digits + 1e-300)


@pytest.mark.parametrize("name", ["L1", "L2Norm", "Scaled"])
@pytest.mark.parametrize(("x", "t"), [
    ([0, 0, 0, 0, 0], 1.0), ([1e30, -1e30, 1e30, 0, 1], 1.0), ([1e-30, 0, 0, 0, -1e-30], 1e-6),
    ([1, -2, 3, 0, 1e-3], 1e-6), ([-1, 1, 0, 0, 0], 1.0), ([1e30, 1, 0, 0, 0], 1e30)])
def test_float32_at_every_size(name, x, t):
    """As above: among others, a pull of length 1e-6 on a vector of length 1 keeps all its digits."""
    _, twin, _ = CASES[name]
    x = np.array(x, np.float32)
    results = operations(name)(x, t)
    second = float(t) * twin.conjugate(x.astype(np.float64) / t, 1 / t)
    assert all(value.dtype == np.float32 for value in results.values())
    assert all(np.all(np.isfinite(value)) for value in results.values())
    np.testing.assert_allclose(results["prox"], x - second, rtol=0, atol=1e-6 * size(x.astype(np.float64)))
    np.testing.assert_allclose(results["pull"], second, rtol=0, atol=1e-6 * size(second))
    np.testing.assert_allclose(results["gradient"], second / t, rtol=0, atol=1e-6 * size(second / t))


@finite_valued
@quick
@given(x=ordinary_vectors)
def test_value_is_the_twins(name, x):
    _, twin, _ = CASES[name]
    np.testing.assert_allclose(operations(name)(x, 1.0)["value"], twin.value(x), rtol=1e-12, atol=1e-12)


def test_indicator_is_infinite_but_at_zero():
    results = operations("OriginIndicator")
    assert results(np.zeros(5), 1.0)["value"] == results(np.zeros(5), 1.0)["envelope"] == 0
    assert results(np.array([0, 0, 1e-150, 0, 0]), 1.0)["value"] == np.inf
    x = np.array([1.0, -2, 3, 0, 1])
    np.testing.assert_allclose(results(x, 0.5)["envelope"], x @ x)     # |x|^2/(2t): only the distance is left


def test_soft_threshold_keeps_negative_coordinates():
    """Errata 1: sign(x)*max(|x| - t, 0), not max(x - t, 0)."""
    x = np.array([-3.0, -1.0, -0.5, 0.5, 3.0])
    np.testing.assert_array_equal(operations("L1")(x, 1.0)["prox"], [-2.0, 0.0, 0.0, 0.0, 2.0])


@every
@quick
@given(x=vectors, y=vectors, t=steps)
def test_prox_is_firmly_nonexpansive(name, x, y, t):
    """|Px - Py|^2 <= <Px - Py, x - y>."""
    p, q = (operations(name)(v, t)["prox"] for v in (x, y))
    unit = max(size(x), size(y), 1e-290)
    moved, distance = (p - q) / unit, (x - y) / unit
    assert moved @ moved <= moved @ distance + rounding(name, t)


SINGULAR = np.array([[4.0, 2], [2, 1]])
POINTS = [(np.array([1.3, -0.4]), 0.7), (np.array([-0.2, 0.3]), 0.7), (np.array([-5.0, -2.0]), 0.1)]
IN_THE_PLANE = {
    "L1": (L1(), L1_TWIN), "L2Norm": (L2Norm(), L2_TWIN), "SquaredL2": (SquaredL2(), SQUARED_TWIN),
    "Zero": (Zero(), ZERO_TWIN), "Scaled": (Scaled(L1(), 3.0), scaled_twin(L1_TWIN, 3.0)),
    "Quadratic": (Quadratic(SINGULAR), quadratic_twin(SINGULAR))}


@pytest.mark.when_changed
@pytest.mark.parametrize("name", IN_THE_PLANE)
@pytest.mark.parametrize(("x", "t"), POINTS)
def test_prox_is_what_a_general_minimiser_finds(name, x, t):
    penalty, twin = IN_THE_PLANE[name]
    actual = minimize(lambda p: twin.value(p) + (x - p) @ (x - p) / (2 * t), x / 2 + 0.1, method="Nelder-Mead",
                     options={"xatol": 1e-9, "fatol": 1e-15, "maxiter": 5000})
    np.testing.assert_allclose(penalty.prox(jnp.asarray(x), t), actual.x, atol=1e-6)
    np.testing.assert_allclose(penalty.envelope(jnp.asarray(x), t), actual.fun, rtol=1e-10, atol=1e-12)


NESTED = [name for name in CASES if name != "PerLayer"]


@pytest.mark.parametrize("name", NESTED)
def test_a_tree_is_its_flat_vector(name):
    """One norm over all leaves together; a scalar leaf and a nested dict are nothing special."""
    penalty, _, _ = CASES[name]
    x, t = np.array([0.3, -2, 1, 0.5, -0.7]), 0.6
    of_tree, results = layers(jnp.asarray(x)), operations(name)(x, t)
    for key in ("prox", "pull", "curvature"):
        result = getattr(penalty, key)(of_tree, t)
        assert jax.tree.map(jnp.shape, result) == jax.tree.map(jnp.shape, of_tree)
        np.testing.assert_allclose(ravel_pytree(result)[0], results[key], rtol=1e-14)
    np.testing.assert_allclose(penalty.value(of_tree), results["value"], rtol=1e-14)
    np.testing.assert_allclose(penalty.envelope(of_tree, t), results["envelope"], rtol=1e-14)


@nightly.diagonal(("name", "t"), CASES, [0.6, np.float64(0.6), np.ones(()), 1])
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
