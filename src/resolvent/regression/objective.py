"""Regressions as problems: the parties' objectives, their second derivatives, and the sums of a fit."""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import ValueProblem
from resolvent.regression.families import Family, RowTerms

_ROUNDING = 1e-12  # features that differ by less, relative to their size, are equal
_FLAT = 1e-13  # eigenvalue of the scaled information, relative to the largest, that counts as zero
_ALIGNMENT = 64  # bytes: JAX takes such an array of NumPy without a copy on a CPU


class FitSums(NamedTuple):
    """Means over a party's rows at one vector of P parameters, from which a regression is reported.

    Their mean over parties by size is the mean over all rows.

    Attributes:
        gradient: [P] of the loss.
        information: [P, P] second derivatives of the loss, or their expected value.
        hessian: [P, P] second derivatives of the loss.
        scores: [P, P] outer products of the rows' gradients.
        clusters: [P, P] the sum over clusters of the outer products of their gradients, over n_k; a party without
            clusters of its rows is one.
        gram: [P, P] outer products of the rows' features, for each linear predictor.
        terms: what the rows add to deviance and likelihood.
        weight: mean weight of a row; every mean above is of weighted rows.
        groups: the number of clusters, over n_k.
    """

    gradient: Float[Array, " P"]
    information: Float[Array, "P P"]
    hessian: Float[Array, "P P"]
    scores: Float[Array, "P P"]
    clusters: Float[Array, "P P"]
    gram: Float[Array, "P P"]
    terms: RowTerms
    weight: Float[Array, ""]
    groups: Float[Array, ""]


class ScoreWeights(NamedTuple):
    """Weights (1 - h_i)^-power of the rows' squared scores, for the errors HC2 (power 1) and HC3 (power 2).

    h_i = w_i x_i' inverse x_i is a row's leverage, with its weight w_i in the information.

    Attributes:
        inverse: [P, P] of the information of all rows.
        power: of the weights.
    """

    inverse: Float[Array, "P P"]
    power: Float[ArrayLike, ""]


class RegressionOracle(Oracle):
    """One party's mean loss in a regression, with l2/2 |w|^2 on the coefficients that are penalised.

    Attributes:
        l2: [P] weights of the squares.
    """

    l2: Float[Array, " P"]

    @abstractmethod
    def mean_second_order(self, w: Float[Array, " P"]) -> SecondOrder:
        """Mean loss over the rows without l2, its gradient and its Hessian."""

    @abstractmethod
    def mean_value(self, w: Float[Array, " P"]) -> Float[Array, ""]:
        """Mean loss over the rows without l2."""

    @abstractmethod
    def fit_sums(self, w: Float[Array, " P"], weights: ScoreWeights | None = None) -> FitSums:
        """The means of a fit, without l2; with ``weights``, ``scores`` are weighted (one linear predictor only)."""

    def firth_gradient(self, w: Float[Array, " P"], inverse: Float[Array, "P P"]) -> Float[Array, " P"]:
        """The party's part of the gradient of Firth's penalty over n, see ``DerivativeSums``."""
        raise InputError("this regression has no penalty of Firth")

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        return self.mean_value(w) + jnp.sum(self.l2 * w**2) / 2

    @override
    def second_order(self, w: Vector) -> SecondOrder:
        value, gradient, hessian = self.mean_second_order(w)
        return SecondOrder(value + jnp.sum(self.l2 * w**2) / 2, gradient + self.l2 * w, hessian + jnp.diag(self.l2))

    @override
    def grad(self, w: Vector) -> Vector:
        return self.second_order(w).gradient

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """The full gradient: regressions are fitted over all rows."""
        return self.grad(w), memory


class LikelihoodProblem(ValueProblem):
    """Parties whose objective is a mean negative log-likelihood. A model is the vector of its P parameters.

    Attributes:
        start: [P] the first model.
    """

    start: Float[Array, " P"]

    @override
    def init(self, key: Array) -> Vector:
        return self.start


class RegressionProblem(LikelihoodProblem):
    """The regressions of all parties.

    Attributes:
        l2: [P] weights of the squares.
    """

    l2: Float[Array, " P"]

    @abstractmethod
    @override
    def oracle(self, k: Int[Array, ""]) -> RegressionOracle:
        """f_k; ``k`` may be traced."""

    @abstractmethod
    def row_weights(self, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
        """The weights of all rows in the second derivatives, for each linear predictor; for a problem of one party."""

    @abstractmethod
    def answered_columns(self, w: Float[Array, " P"], sums: bool = False, scores: bool = False,
                         weights: ScoreWeights | None = None) -> Float[Array, "rows columns"]:
        """What all rows put beside the features into the sums at ``w``; for a problem of one party.

        The gradient is X's, with the slopes s of the rows' losses in their linear predictors, and the second
        derivatives are X'WX: the columns are s and, for each pair of linear predictors, the columns of WX.

        Args:
            sums: whether the sums are those of ``FitSums``, too, which have a second W.
            scores: whether they include the outer products of the rows' gradients, whose W is s^2.
            weights: of these.
        """

    def row_leverages(self, w: Float[Array, " P"], inverse: Float[Array, "P P"]) -> Float[Array, " rows"]:
        """The leverages of all rows, see ``ScoreWeights``; for a problem of one party and one linear predictor."""
        raise InputError("this regression has no leverages of rows")


class RowRegression(RegressionProblem):
    """Regressions whose loss is a mean over rows: generalised linear models.

    The parameters are the coefficients of the first linear predictor, of the second, ..., and further ones.

    Attributes:
        family: distribution of the labels.
        x: [rows, d] features of all parties, one party after the other.
        y: [rows] labels.
        offsets: [rows] what is added to every linear predictor.
        weights: [rows] the factor of each row's loss.
        clusters: [rows] number of the row's cluster within its party; None: a party is one.
        most: the largest number of clusters of a party.
        power: of the weights of the rows' squared scores: 1 if a row stands for that many equal ones, 2 if its weight
            is the inverse of a probability.
        first: [N] each party's first row.
        block: rows that are computed at a time; sums depend on it by rounding.
    """

    family: Family
    x: Float[Array, "rows d"]
    y: Float[Array, " rows"]
    offsets: Float[Array, " rows"]
    weights: Float[Array, " rows"]
    clusters: Int[Array, " rows"] | None
    first: Int[Array, " N"]
    most: int = eqx.field(static=True)
    block: int = eqx.field(static=True)
    power: int = eqx.field(static=True)

    def __init__(self, family: Family, x: Any, y: Any, sizes: Any, *, offsets: Any = None, weights: Any = None,
                 clusters: Any = None, power: int = 1, start: Any = 0.0, l2: Any = 0.0, block: int = 2048) -> None:
        self.family = family
        sizes = np.asarray(sizes, np.int32)  # in NumPy, which compiles nothing
        self.sizes, self.first = jnp.asarray(sizes), jnp.asarray(np.cumsum(sizes, dtype=np.int32) - sizes)
        self.block, self.power = block, power
        self.x, self.y = padded(x, block), jnp.asarray(np.pad(np.asarray(y, float), (0, block), mode="edge"))
        self.offsets = padded(np.zeros(len(y)) if offsets is None else offsets, block)
        self.weights = padded(np.ones(len(y)) if weights is None else weights, block)
        numbers, self.most = numbered_clusters(clusters, sizes)
        self.clusters = None if numbers is None else jnp.asarray(np.pad(numbers, (0, block)))
        parameters = family.predictors * self.x.shape[1] + len(family.extra)
        self.start, self.l2 = (jnp.asarray(np.broadcast_to(np.asarray(v, float), (parameters,))) for v in (start, l2))
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def oracle(self, k: Int[Array, ""]) -> "RowsOracle":
        return RowsOracle(self.sizes[k], self.l2, self.family, self.x, self.y, self.offsets, self.weights,
                          self.clusters, self.first[k], self.most, self.block, self.power)

    @override
    def row_weights(self, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
        _, z, y = self._all_rows(w)
        second: Array = jax.vmap(jax.hessian(self.family.loss))(z, y)
        diagonals: Array = jnp.diagonal(second, axis1=1, axis2=2)[:, :self.family.predictors]
        return diagonals * self.weights[:len(z), None]

    @override
    def answered_columns(self, w: Float[Array, " P"], sums: bool = False, scores: bool = False,
                         weights: ScoreWeights | None = None) -> Float[Array, "rows columns"]:
        (x, z, y), c = self._all_rows(w), self.family.predictors
        slopes = jax.vmap(jax.grad(self.family.loss))(z, y)
        curvatures = [jax.vmap(jax.hessian(self.family.loss))(z, y)]
        if sums:
            curvatures.append(jax.vmap(self.family.information)(z, y))
        if scores:
            squares = slopes[:, :, None] * slopes[:, None, :] * (self.weights[:len(z), None, None]**(self.power - 1))
            curvatures.append(squares if weights is None else _weighted(squares, x, curvatures[1], weights))
        columns = jnp.concatenate([slopes, *(of_rows[:, i, j, None] * (x if j < c else 1) for of_rows in curvatures
                                             for i in range(z.shape[1]) for j in range(i, z.shape[1]))], axis=1)
        if sums and self.clusters is not None:  # sum_g s_g s_g' over clusters is the sum over rows of s_i s_g'
            of_rows = self.oracle(jnp.array(0)).cluster_sums(w)[self.clusters[:len(z)]]
            columns = jnp.concatenate([columns, *(slopes[:, i, None] * of_rows for i in range(z.shape[1]))], axis=1)
        return columns * self.weights[:len(z), None]

    def _all_rows(self, w: Float[Array, " P"]) -> tuple[Float[Array, "rows d"], Float[Array, "rows C"],
                                                        Float[Array, " rows"]]:
        """The features of all rows, their parameters, and their labels."""
        rows, c = self.y.shape[0] - self.block, self.family.predictors
        x, y, count = self.x[:rows], self.y[:rows], c * self.x.shape[1]
        z = x @ w[:count].reshape(c, -1).T + self.offsets[:rows, None]
        return x, jnp.concatenate([z, jnp.broadcast_to(w[count:], (rows, w.size - count))], axis=1), y

    @override
    def row_leverages(self, w: Float[Array, " P"], inverse: Float[Array, "P P"]) -> Float[Array, " rows"]:
        x, z, y = self._all_rows(w)
        return _leverages(x, jax.vmap(self.family.information)(z, y), inverse)


def _leverages(x: Float[Array, "B P"], information: Float[Array, "B 1 1"],
               inverse: Float[Array, "P P"]) -> Float[Array, " B"]:
    return jnp.sum(x @ inverse * x, axis=1) * information[:, 0, 0]


def _firth_slopes(family: Family, x: Float[Array, "B P"], z: Float[Array, "B 1"], y: Float[Array, " B"],
                  inverse: Float[Array, "P P"]) -> Float[Array, " B"]:
    """[B] the factors of x in the gradient of Firth's penalty: half of x'inverse x times the third derivative."""
    third = jax.vmap(jax.jacfwd(jax.hessian(family.loss)))(z, y)[:, 0, 0, 0]
    slopes: Array = third * jnp.sum(x @ inverse * x, axis=1) / 2
    return slopes


def _weighted(squares: Float[Array, "B 1 1"], x: Float[Array, "B P"], information: Float[Array, "B 1 1"],
              weights: ScoreWeights) -> Float[Array, "B 1 1"]:
    """The rows' squared scores with the weights of their leverages."""
    return squares * ((1 - _leverages(x, information, weights.inverse))**(-jnp.asarray(weights.power)))[:, None, None]


def centred_by_party(x: NDArray[np.float64], sizes: NDArray[Any]) -> NDArray[np.float64]:
    """[rows, d] the features minus their means within each party; 0 where they are equal there, up to rounding."""
    def centred(x: NDArray[np.float64]) -> NDArray[np.float64]:
        is_constant = np.ptp(x, axis=0) <= _ROUNDING * np.abs(x).max(axis=0)
        return np.where(is_constant, 0.0, x - x.mean(axis=0))

    return np.concatenate([centred(part) for part in np.split(x, np.cumsum(sizes)[:-1])])


def numbered_clusters(clusters: Any, sizes: Any) -> tuple[NDArray[np.int64] | None, int]:
    """[rows] the numbers of the rows' clusters within their party from 0, and the largest number of clusters."""
    if clusters is None:
        return None, 1
    numbers = [np.unique(part, return_inverse=True)[1]
               for part in np.split(np.asarray(clusters), np.cumsum(np.asarray(sizes))[:-1])]
    return np.concatenate(numbers), 1 + max(int(part.max()) for part in numbers)


def inverse_of(information: Float[Array, "P P"]) -> Float[Array, "P P"]:
    """The inverse; zero along directions without information, whatever the units of the parameters."""
    diagonal = jnp.diag(information)
    scale = jnp.where(diagonal > 0, jnp.sqrt(1 / jnp.where(diagonal > 0, diagonal, 1)), 0)
    inverse: Array = jnp.linalg.pinv(information * jnp.outer(scale, scale), rtol=_FLAT, hermitian=True)
    return inverse * jnp.outer(scale, scale)


def log_determinant(information: Float[Array, "P P"]) -> Float[Array, ""]:
    """The logarithm of the determinant, without the directions that ``inverse_of`` leaves out."""
    diagonal = jnp.diag(information)
    scale = jnp.where(diagonal > 0, jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1)), 1)
    values = jnp.linalg.eigvalsh(information / jnp.outer(scale, scale))
    is_regular = values > _FLAT * values[-1]
    return jnp.sum(jnp.log(jnp.where(is_regular, values, 1))) + 2 * jnp.sum(jnp.log(scale))


def padded(rows: Any, count: int) -> Float[Array, "rows ..."]:
    """The rows, and after them this number of zeros. A table in memory is copied once: its copy is aligned for JAX."""
    rows, dtype = np.asarray(rows), np.dtype(jnp.result_type(float))
    shape = (len(rows) + count, *rows.shape[1:])
    memory = np.zeros(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)  # pages without rows stay untouched
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start:start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    copy[:len(rows)] = rows
    return jnp.asarray(copy)


class _Block(NamedTuple):
    """Some rows of a party: features, parameters, labels, which of them count, their weights and clusters."""

    x: Float[Array, "B d"]
    z: Float[Array, "B C"]
    y: Float[Array, " B"]
    mask: Bool[Array, " B"]
    weight: Float[Array, " B"]
    cluster: Int[Array, " B"]

    def weighted(self, values: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        """The values of the rows that count, times their weights; 0 for the others."""
        column = (slice(None),) + (None,) * (values.ndim - 1)
        return jnp.where(self.mask[column], values, 0) * self.weight[column]

    def gradient(self, family: Family, slopes: Float[Array, "B C"]) -> Float[Array, " P"]:
        """The sum over rows of the slopes times the features, and 1 for further parameters."""
        slopes, c = self.weighted(slopes), family.predictors
        return jnp.concatenate([(slopes[:, :c].T @ self.x).ravel(), slopes[:, c:].sum(0)])

    def outer(self, family: Family, weights: Float[Array, "B C C"]) -> Float[Array, "P P"]:
        """The sum over rows of the weights [C, C] times the outer product of the features, and 1 for further ones."""
        weights, c, x = self.weighted(weights), family.predictors, self.x
        blocks = [[*((x * weights[:, i, j, None]).T @ x for j in range(c)), x.T @ weights[:, i, c:]] for i in range(c)]
        return jnp.block([*blocks, [*(weights[:, c:, j].T @ x for j in range(c)), weights[:, c:, c:].sum(0)]])


# A function that is compiled by itself is traced once, wherever a program computes sums of blocks: in the rounds, for
# the shapes of their results, in the sums of a fit, and in the sites' own fits. Tracing takes most of a fit's time.

@jax.jit
def _value_of_block(family: Family, b: _Block) -> Float[Array, ""]:
    return b.weighted(jax.vmap(family.loss)(b.z, b.y)).sum()


@jax.jit
def _second_order_of_block(family: Family, b: _Block) -> SecondOrder:
    value, slopes = jax.vmap(jax.value_and_grad(family.loss))(b.z, b.y)
    curvatures = jax.vmap(jax.hessian(family.loss))(b.z, b.y)
    return SecondOrder(b.weighted(value).sum(), b.gradient(family, slopes), b.outer(family, curvatures))


def _terms_of_block(family: Family, b: _Block) -> RowTerms:
    return RowTerms(*(b.weighted(term).sum() for term in jax.vmap(family.terms)(b.z, b.y)))


@partial(jax.jit, static_argnums=0)
def _fit_sums_of_block(power: int, family: Family, weights: ScoreWeights | None, b: _Block) -> FitSums:
    slopes, information = jax.vmap(jax.grad(family.loss))(b.z, b.y), jax.vmap(family.information)(b.z, b.y)
    squares = slopes[:, :, None] * slopes[:, None, :] * (b.weight**(power - 1))[:, None, None]
    if weights is not None:
        squares = _weighted(squares, b.x, information, weights)
    same = jnp.broadcast_to(jnp.eye(b.z.shape[1], dtype=b.z.dtype), squares.shape)
    information, hessian, scores, gram = (b.outer(family, of_rows) for of_rows in (
        information, jax.vmap(jax.hessian(family.loss))(b.z, b.y), squares, same))
    return FitSums(b.gradient(family, slopes), information, hessian, scores, jnp.zeros_like(scores), gram,
                   _terms_of_block(family, b), b.weighted(jnp.ones_like(b.y)).sum(), jnp.zeros_like(b.y[0]))


class RowsOracle(RegressionOracle):
    """One party's mean loss over its rows; the attributes are those of ``RowRegression``."""

    family: Family
    x: Float[Array, "rows d"]
    y: Float[Array, " rows"]
    offsets: Float[Array, " rows"]
    weights: Float[Array, " rows"]
    clusters: Int[Array, " rows"] | None
    first: Int[Array, ""]
    most: int = eqx.field(static=True)
    block: int = eqx.field(static=True)
    power: int = eqx.field(static=True)

    @override
    def mean_value(self, w: Vector) -> Float[Array, ""]:
        value: Array = self._mean(w, partial(_value_of_block, self.family))
        return value

    @override
    def mean_second_order(self, w: Vector) -> SecondOrder:
        mean: SecondOrder = self._mean(w, partial(_second_order_of_block, self.family))
        return mean

    def mean_in_first(self, w: Vector) -> SecondOrder:
        """The mean loss, with its derivatives in the C coefficients of the first feature and the E other parameters."""
        def of_block(b: _Block) -> SecondOrder:
            found: SecondOrder = _second_order_of_block(self.family, b._replace(x=b.x[:, :1]))
            return found

        mean: SecondOrder = self._mean(w, of_block)
        return mean

    def mean_gradient(self, w: Vector) -> Float[Array, " P"]:
        """The gradient of the mean loss."""
        mean: Array = self._mean(w, lambda b: b.gradient(self.family, jax.vmap(jax.grad(self.family.loss))(b.z, b.y)))
        return mean

    def mean_terms(self, w: Vector) -> RowTerms:
        """The means of what the rows add to deviance and likelihood."""
        mean: RowTerms = self._mean(w, partial(_terms_of_block, self.family))
        return mean

    @override
    def fit_sums(self, w: Vector, weights: ScoreWeights | None = None) -> FitSums:
        means: FitSums = self._mean(w, partial(_fit_sums_of_block, self.power, self.family, weights))
        if self.clusters is None:
            return means._replace(clusters=self.samples * jnp.outer(means.gradient, means.gradient),
                                  groups=means.groups + 1 / self.samples)
        of_clusters, number = self.cluster_sums(w), 1 + jnp.max(jnp.where(self._is_own, self.clusters, 0))
        return means._replace(clusters=of_clusters.T @ of_clusters / self.samples, groups=number / self.samples)

    @override
    def firth_gradient(self, w: Float[Array, " P"], inverse: Float[Array, "P P"]) -> Float[Array, " P"]:
        def of_block(b: _Block) -> Float[Array, " P"]:
            return b.gradient(self.family, _firth_slopes(self.family, b.x, b.z, b.y, inverse)[:, None])

        gradient: Array = self._mean(w, of_block)
        return gradient

    def cluster_sums(self, w: Vector) -> Float[Array, "clusters P"]:
        """The gradient of each cluster, a sum over its rows."""
        c = self.family.predictors

        def of_block(b: _Block) -> Float[Array, "clusters P"]:
            slopes = b.weighted(jax.vmap(jax.grad(self.family.loss))(b.z, b.y))
            of_rows = jnp.concatenate([*(slopes[:, i, None] * b.x for i in range(c)), slopes[:, c:]], axis=1)
            sums: Array = jnp.zeros((self.most, w.size), w.dtype).at[b.cluster].add(of_rows)
            return sums

        total: Array = self.samples * self._mean(w, of_block)
        return total

    @property
    def _is_own(self) -> Bool[Array, " rows"]:
        rows = jnp.arange(self.y.shape[0])
        return (rows >= self.first) & (rows < self.first + self.samples)

    def _mean(self, w: Vector, f: Callable[[_Block], Any]) -> Any:
        """The mean over the party's rows of what ``f`` sums over blocks of them."""
        def add_block(i: Array, total: Any) -> Any:
            return jax.tree.map(jnp.add, total, f(self._rows(w, i)))

        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
                            jax.eval_shape(lambda: f(self._rows(w, jnp.array(0)))))
        total = jax.lax.fori_loop(0, (self.samples + self.block - 1) // self.block, add_block, zero)
        return jax.tree.map(lambda leaf: leaf / self.samples, total)

    def _rows(self, w: Vector, i: Array) -> _Block:
        start = self.first + i * self.block
        clusters = jnp.zeros(self.y.shape, int) if self.clusters is None else self.clusters
        x, y, offsets, weight, cluster = (jax.lax.dynamic_slice_in_dim(array, start, self.block) for array in (
            self.x, self.y, self.offsets, self.weights, clusters))
        count = self.family.predictors * x.shape[1]
        predictors = x @ w[:count].reshape(self.family.predictors, -1).T + offsets[:, None]
        extra = jnp.broadcast_to(w[count:], (self.block, w.size - count))
        mask = i * self.block + jnp.arange(self.block) < self.samples
        return _Block(x, jnp.concatenate([predictors, extra], axis=1), y, mask, weight, cluster)
