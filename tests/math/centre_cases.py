"""Penalties, data and reference implementations for the tests of centres."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree

import nightly
from resolvent.math import centres
from resolvent.math.penalties import L1, L2Norm, PerLayer

mean, coordinate_median = jax.jit(centres.mean), jax.jit(centres.coordinate_median)
_centre, _geometric_median = eqx.filter_jit(centres.moreau_centre), eqx.filter_jit(centres.geometric_median)


def centre(points, weights, penalty, t, tolerance=0.0, max_iterations=1000):
    """``moreau_centre``, compiled once for each penalty, shape and dtype of the points: all numbers are traced."""
    points = jax.tree.map(jnp.asarray, points)
    dtype = jax.tree.leaves(points)[0].dtype
    weights, t, tolerance = (jnp.asarray(np.asarray(number, dtype)) for number in (weights, t, tolerance))
    return _centre(points, weights, penalty, t, tolerance=tolerance, max_iterations=jnp.asarray(max_iterations))


def geometric_median(points, weights, tolerance=0.0):
    points = jax.tree.map(jnp.asarray, points)
    dtype = jax.tree.leaves(points)[0].dtype
    return _geometric_median(points, jnp.asarray(np.asarray(weights, dtype)), tolerance=jnp.asarray(tolerance))


COUNT, DIM = 7, 3
Q = np.array([[2.0, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 3]])
SPLIT = PerLayer({"a": L1()}, default=L2Norm())


def clipped(r, t):
    return np.clip(r, -t, t)


def shortened(r, t):
    return r * np.minimum(1, t / np.maximum(np.linalg.norm(r, axis=-1, keepdims=True), 1e-300))


def in_layers(points):
    return {"a": points[..., 0], "b": {"c": points[..., 1:, None]}}


# By name: a penalty; x - prox(x) for rows of flat vectors, in NumPy; and the map from flat vectors to the penalty's
# trees.
CASES = {
    "L1": (L1(), clipped, lambda x: x),
    "L2Norm": (L2Norm(), shortened, lambda x: x),
    "PerLayer": (SPLIT, lambda r, t: np.hstack([clipped(r[:, :1], t), shortened(r[:, 1:], t)]), in_layers),
}
every = pytest.mark.parametrize("name", CASES)


def true_residual(pulls, weights):
    """|sum w_k pull_k| / sum w_k |pull_k|, in NumPy."""
    total = weights @ np.linalg.norm(pulls, axis=1)
    return np.linalg.norm(weights @ pulls) / total if total > 0 else 0.0


def compute_centre(name, points, weights, t, **options):
    """The centre as a flat vector, and its info."""
    penalty, _, shape = CASES[name]
    w, info = centre(shape(points), weights, penalty, t, **options)
    return np.asarray(ravel_pytree(w)[0]), info


def weiszfeld(points, weights, smoothing, iterations=3000):
    """Weiszfeld's iteration without momentum and without a stopping rule."""
    w = weights @ points / weights.sum()
    for _ in range(iterations):
        pull = weights / np.maximum(smoothing, np.linalg.norm(points - w, axis=1))
        w = pull @ points / pull.sum()
    return w


entries = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-100, 100).map(lambda v: round(v, 3)))
clouds = arrays(np.float64, (COUNT, DIM), elements=entries)
counts = arrays(np.int64, COUNT, elements=st.integers(0, 3)).filter(lambda w: w.sum() > 0)
steps = st.sampled_from([0.01, 1.0, 30.0])
quick = settings(deadline=None, max_examples=nightly.examples(40))


def gaussian(seed, count=COUNT, dim=DIM):
    return np.random.default_rng(seed).normal(size=(count, dim))


envelopes = eqx.filter_jit(jax.vmap(lambda r, penalty, t: penalty.envelope(r, t), in_axes=(0, None, None)))


def corrupted(far, dtype=np.float64):
    """101 points of the plane, of which 49 lie far away at one place; and the 52 honest ones."""
    points = gaussian(11, count=101, dim=2)
    points[52:] = far * np.array([0.6, 0.8])
    return points.astype(dtype), points[:52]


WEIGHTS = np.array([1.0, 2, 1, 3, 1, 2, 1])
