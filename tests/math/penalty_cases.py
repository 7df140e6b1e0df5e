"""Penalties, each with a reference implementation in NumPy, and vectors for the tests of penalties."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree

import nightly
from resolvent.math.penalties import L1, L2Norm, OriginIndicator, PerLayer, Quadratic, Scaled, SquaredL2, Zero


def size(v):
    """Euclidean norm that does not overflow."""
    largest = np.max(np.abs(v), initial=0)
    return largest * np.linalg.norm(v / largest) if largest > 0 else 0.0


def onto_ball(v):
    return v / max(1.0, size(v))


@dataclass(frozen=True)
class Twin:
    """A penalty of a flat vector in NumPy, written by hand.

    ``off(p, g)``: the distance of g from the subdifferential at p. ``conjugate(y, s)``: prox of s*f^* at y.
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
    """The rounding error relative to x; that of a linear system is proportional to its condition number."""
    return 1e-13 * (1 + t * np.linalg.norm(HALF @ HALF.T) if name == "Quadratic full" else 1)


@functools.cache
def operations(name):
    """All operations of a penalty on a flat vector, compiled once: flat results by name."""
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
quick = settings(deadline=None, max_examples=nightly.examples(40))
