"""Parties whose losses are squared distances to rotated orthants, with their exact proximal points."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

__all__ = ["Orthants", "projection"]


class OrthantOracle(Oracle):
    """f(w) = |max(c - Qw, 0)|^2 / (2 slack) for an orthogonal Q; without slack it is the indicator of Qw >= c."""

    frame: Float[Array, "d d"]
    corner: Float[Array, " d"]
    slack: ArrayLike

    @override
    def value(self, w):
        return jnp.sum(jnp.maximum(self.corner - self.frame @ w, 0)**2) / (2 * self.slack)

    @override
    def grad(self, w):
        return -self.frame.T @ jnp.maximum(self.corner - self.frame @ w, 0) / self.slack

    @override
    def batch_grad(self, w, positions, mask, memory=()):
        return self.grad(w), memory

    @override
    def proximal_point(self, center, weight, linear):
        share = 1 / (1 + weight * self.slack)  # of the way to the projection
        return center + share * self.frame.T @ jnp.maximum(self.corner - self.frame @ center, 0)


class Orthants(Problem):
    """Party k has the orthant {w: Q_k w >= c_k}."""

    frames: Float[Array, "N d d"]
    corners: Float[Array, "N d"]
    slack: ArrayLike
    first: Float[Array, " d"]

    def __init__(self, frames, corners, first, slack=1.0):
        self.frames, self.corners, self.first = (jnp.asarray(a) for a in (frames, corners, first))
        self.slack = jnp.asarray(slack)
        self.sizes = jnp.ones(len(self.frames), jnp.int32)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def init(self, key):
        return self.first

    @override
    def oracle(self, k):
        return OrthantOracle(samples=jnp.array(1), frame=self.frames[k], corner=self.corners[k], slack=self.slack)

    @override
    def split_sizes(self, split):
        return self.sizes

    @override
    def evaluate_party(self, w, k, split):
        value = self.oracle(k).value(w)
        return value, value


def projection(frame, corner, w):
    """The nearest point of {Qw >= c}, in NumPy."""
    return w + frame.T @ np.maximum(corner - frame @ w, 0)
