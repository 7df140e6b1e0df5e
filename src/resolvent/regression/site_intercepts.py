"""Generalised linear models with an intercept of its own for each party, which never leaves it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.regression.families import Family
from resolvent.regression.objective import (
    FitSums,
    RegressionOracle,
    RegressionProblem,
    RowRegression,
    RowsOracle,
    ScoreWeights,
    centred_by_party,
    inverse_of,
)

_STEPS = 60  # of Newton's method for a party's intercepts, each of them at most 2 long
_LONGEST = 2.0
_PRECISION = 1e-13  # of an intercept


class SiteIntercepts(RegressionProblem):
    r"""f_k(w) = min over a_k of the mean loss of party k with the linear predictors a_k + x'w.

    .. math:: \nabla f_k = \nabla_w, \qquad \nabla^2 f_k = H_{ww} - H_{wa} H_{aa}^{-1} H_{aw}

    at the minimiser a_k, with the derivatives of the loss in (a_k, w): the profile likelihood, whose estimates and
    standard errors are those of a regression with an indicator for each party. Each party's features are centred,
    which changes no f_k: a column that is constant within a party is exactly zero there.

    A party with labels of one class only, or with zeros only, says nothing about w.

    Source: Murphy, van der Vaart, *On profile likelihood*, 2000.

    Args:
        x: [rows, d] features without an intercept; further arguments as for ``RowRegression``.
    """

    rows: RowRegression  # with a column of ones before x

    def __init__(self, family: Family, x: Any, y: Any, sizes: Any, *, offsets: Any = None, weights: Any = None,
                 clusters: Any = None, power: int = 1, start: Any = 0.0, l2: Any = 0.0, block: int = 2048) -> None:
        x = centred_by_party(np.asarray(x, float), np.asarray(sizes))
        self.rows = RowRegression(family, np.column_stack([np.ones(len(x)), x]), y, sizes, offsets=offsets,
                                  weights=weights, clusters=clusters, power=power, block=block)
        parameters = family.predictors * x.shape[1] + len(family.extra)
        self.sizes = self.rows.sizes
        self.start, self.l2 = (jnp.asarray(np.broadcast_to(np.asarray(v, float), (parameters,))) for v in (start, l2))
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def oracle(self, k: Int[Array, ""]) -> "SiteInterceptsOracle":
        return SiteInterceptsOracle(self.sizes[k], self.l2, self.rows.oracle(k))

    @override
    def row_weights(self, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
        return self.rows.row_weights(self.oracle(jnp.array(0)).with_intercepts(w))

    @override
    def answered_columns(self, w: Float[Array, " P"], sums: bool = False, scores: bool = False,
                         weights: ScoreWeights | None = None) -> Float[Array, "rows columns"]:
        oracle = self.oracle(jnp.array(0))
        full = oracle.with_intercepts(w)
        if weights is not None:
            weights = weights._replace(inverse=oracle.full_inverse(full, weights.inverse))
        return self.rows.answered_columns(full, sums, scores, weights)

    @override
    def row_leverages(self, w: Float[Array, " P"], inverse: Float[Array, "P P"]) -> Float[Array, " rows"]:
        oracle = self.oracle(jnp.array(0))
        full = oracle.with_intercepts(w)
        return self.rows.row_leverages(full, oracle.full_inverse(full, inverse))


class SiteInterceptsOracle(RegressionOracle):
    """One party's profile likelihood.

    Attributes:
        inner: the party's loss in the intercepts and w.
    """

    inner: RowsOracle

    @override
    def mean_value(self, w: Vector) -> Float[Array, ""]:
        return self.inner.mean_value(self.with_intercepts(w))

    @override
    def mean_second_order(self, w: Vector) -> SecondOrder:
        full = self.with_intercepts(w)
        value, gradient, hessian = self.inner.mean_second_order(full)
        return SecondOrder(value, gradient[self._others], _without(hessian, self._intercepts, self._others))

    @override
    def fit_sums(self, w: Vector, weights: ScoreWeights | None = None) -> FitSums:
        full = self.with_intercepts(w)
        if weights is not None:
            weights = weights._replace(inverse=self.full_inverse(full, weights.inverse))
        sums = self.inner.fit_sums(full, weights)
        a, b = self._intercepts, self._others
        information, hessian, gram = (_without(m, a, b) for m in (sums.information, sums.hessian, sums.gram))
        # A row's score for w, at the intercepts that follow w.
        turn = jnp.zeros((b.size, full.size)).at[:, b].set(jnp.eye(b.size)).at[:, a].set(-_slopes(sums.hessian, a, b).T)
        scores, clusters = (turn @ outer @ turn.T for outer in (sums.scores, sums.clusters))
        return FitSums(turn @ sums.gradient, information, hessian, scores, clusters, gram, *sums[6:])

    def with_intercepts(self, w: Float[Array, " P"]) -> Float[Array, " Q"]:
        """All parameters: w, and the intercepts that maximise the likelihood there."""
        return with_intercepts(self.inner, w)

    def full_inverse(self, full: Float[Array, " Q"], inverse: Float[Array, "P P"]) -> Float[Array, "Q Q"]:
        """The inverse of the information about this party's intercepts and w, from that about w of all parties."""
        a, b = self._intercepts, self._others
        information = self.inner.fit_sums(full).information
        slopes = _slopes(information, a, b)
        own = inverse_of(self.samples * information[a][:, a]) + slopes @ inverse @ slopes.T
        return (jnp.zeros_like(information).at[jnp.ix_(a, a)].set(own).at[jnp.ix_(b, b)].set(inverse)
                .at[jnp.ix_(a, b)].set(-slopes @ inverse).at[jnp.ix_(b, a)].set(-inverse @ slopes.T))

    @property
    def _intercepts(self) -> Int[np.ndarray, " C"]:
        return _positions(self.inner)[0]

    @property
    def _others(self) -> Int[np.ndarray, " P"]:
        return _positions(self.inner)[1]


def with_intercepts(rows: RowsOracle, w: Float[Array, " P"], precision: Float[ArrayLike, ""] = 0.0) -> Float[
        Array, " Q"]:
    """All parameters: w, and the coefficients a of the first feature that minimise the mean loss + precision a^2/2."""
    (a, b), c = _positions(rows), rows.family.predictors

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        full, _, count = state
        _, gradient, hessian = rows.mean_in_first(full)
        information = hessian[:c, :c] + precision * jnp.eye(c)
        move = jnp.clip(-inverse_of(information) @ (gradient[:c] + precision * full[a]), -_LONGEST, _LONGEST)
        return full.at[a].add(move), jnp.max(jnp.abs(move) / (1 + jnp.abs(full[a]))), count + 1

    start = jnp.zeros(a.size + b.size, w.dtype).at[b].set(w)
    found: Array = jax.lax.while_loop(lambda s: (s[1] > _PRECISION) & (s[2] < _STEPS), step,
                                      (start, jnp.array(jnp.inf, w.dtype), jnp.array(0)))[0]
    return found


def _positions(rows: RowsOracle) -> tuple[Int[np.ndarray, " C"], Int[np.ndarray, " P"]]:
    """The positions of the coefficients of the first feature in all parameters, and those of the others."""
    family, d = rows.family, rows.x.shape[1]
    first = np.arange(family.predictors) * d
    return first, np.setdiff1d(np.arange(family.predictors * d + len(family.extra)), first)


def _slopes(matrix: Float[Array, "Q Q"], a: Int[np.ndarray, " C"], b: Int[np.ndarray, " P"]) -> Float[Array, "C P"]:
    """How the minimiser a moves with b, with a minus sign: A_aa^-1 A_ab."""
    return inverse_of(matrix[a][:, a]) @ matrix[a][:, b]


def _without(matrix: Float[Array, "Q Q"], a: Int[np.ndarray, " C"], b: Int[np.ndarray, " P"]) -> Float[Array, "P P"]:
    """A_bb - A_ba A_aa^-1 A_ab."""
    return matrix[b][:, b] - matrix[b][:, a] @ _slopes(matrix, a, b)
