"""Problems: the parties' objectives f_1, ..., f_N as one pytree, from which any party's oracle can be cut."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy
from resolvent.problem.models.model import Model
from resolvent.problem.oracle import Oracle, QuadraticOracle, SampleOracle

__all__ = ["LearningProblem", "Problem", "QuadraticProblem", "SolvedProblem", "block_for"]

_MOST_ON_CPU = 64  # rows at a time: what they make fits a core's caches


class Problem(eqx.Module):
    """The parties' objectives.

    Attributes:
        sizes: [N] the number of training samples of each party: what weights by size are made of.
        splits: the names of the sample sets on which models can be evaluated.
        score_name: what ``evaluate`` reports beside the loss.
        higher_is_better: whether a larger score is better.
    """

    sizes: Int[Array, " N"]
    splits: tuple[str, ...] = eqx.field(static=True)
    score_name: str = eqx.field(static=True)
    higher_is_better: bool = eqx.field(static=True)

    @property
    def parties(self) -> int:
        """N."""
        return int(self.sizes.shape[0])

    def row(self, k: Int[Array, "..."]) -> Int[Array, "..."]:
        """In which row of states [N, ...] that of party k lies: k, unless only some parties' are here."""
        return k

    @abstractmethod
    def init(self, key: Array) -> Vector:
        """The first model."""

    @abstractmethod
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """f_k; ``k`` may be traced."""

    def pooled(self) -> "Problem":
        """The problem of one party whose training samples are everybody's: its objective is sum_k n_k/n f_k.

        Raises:
            InputError: this kind of problem does not say how its objectives are pooled.
        """
        raise InputError(f"{type(self).__name__} cannot be pooled: give it a method pooled(), or leave pooled out")

    @abstractmethod
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        """How many samples each party has in the split with that number."""

    @abstractmethod
    def evaluate(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """Mean loss and mean score of ``w`` on party k's samples of the split with that number; nan without any."""

    def evaluate_shared(self, w: Vector, index: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """``evaluate`` of one model on every split of parties ``index``: [M, splits] each. Not to be traced."""
        loss, score = _party_by_party(self, w, jnp.asarray(index))
        return np.asarray(loss), np.asarray(score)


@jax.jit
def _party_by_party(problem: Problem, w: Vector, index: Int[Array, " M"]) -> tuple[Array, Array]:
    splits = jnp.arange(len(problem.splits))
    found: tuple[Array, Array] = jax.lax.map(
        lambda k: jax.lax.map(lambda split: problem.evaluate(w, k, split), splits), index)
    return found


class SolvedProblem(Problem):
    """Objectives whose minimiser is known, and that have no samples but those they are made of."""

    @abstractmethod
    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The minimiser of f = sum_k shares_k f_k."""

    @abstractmethod
    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """The optimality gap f(w) - f*."""

    def split_sizes(self, split: int) -> Int[Array, " N"]:
        """The parties' sizes."""
        return self.sizes

    def evaluate(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """The objective, twice."""
        value = self.oracle(k).value(w)
        return value, value


class LearningProblem(Problem):
    """A model on federated data: f_k is the mean loss over party k's training samples.

    Args:
        model: the predictor and its loss.
        data: the samples; inputs become floating numbers, except tokens of a vocabulary, which stay integers.
        block: rows per step of a pass over all samples; default: fits the median party.
    """

    model: Model
    x: Float[Array, "total ..."]
    y: Array
    offset: Int[Array, "splits N"]
    length: Int[Array, "splits N"]
    block: int = eqx.field(static=True)

    def __init__(self, model: Model, data: FederatedData, *, block: int | None = None) -> None:
        self.model = model
        dtype = jnp.zeros(()).dtype
        floats = np.issubdtype(data.x.dtype, np.floating)
        # One copy in memory, where jnp.asarray makes two on its way.
        self.x = jax.device_put(data.x.astype(dtype, copy=False) if floats else np.asarray(data.x))
        if not jnp.issubdtype(self.x.dtype, jnp.floating) and not data.vocabulary:
            self.x = self.x.astype(dtype)
        self.y = jnp.asarray(data.y if data.task == "classification" else data.y.astype(dtype))
        self.splits = SPLITS
        self.offset = jnp.asarray(np.stack([data.splits[s].offset for s in SPLITS]))
        self.length = jnp.asarray(np.stack([data.splits[s].length for s in SPLITS]))
        self.sizes = self.length[0]
        self.score_name = model.loss.score_name
        self.higher_is_better = model.loss.higher_is_better
        self.block = block or block_for(data)
        self._check_shapes(data)

    def _check_shapes(self, data: FederatedData) -> None:
        """Refuse a model that does not fit the data before any work starts."""
        x, y = (jax.eval_shape(lambda shape=(2, *a.shape[1:]), dtype=a.dtype: jnp.zeros(shape, dtype))
                for a in (self.x, self.y))
        try:
            params = jax.eval_shape(self.model.init, jax.random.key(0))
            out: Any = jax.eval_shape(lambda p, x, y: self.model.loss.loss(self.model.apply(p, x), y),
                                      params, x, y)
        except (TypeError, ValueError) as error:
            raise InputError(f"the model does not fit the data (inputs {data.input_shape}, {data.outputs} "
                             f"output(s), {data.task}); build it for that shape. It said: {error}") from error
        if out.shape != (2,):
            raise InputError(f"the model's loss must give one number per sample, got shape {out.shape} for 2 samples")
        logits: Any = jax.eval_shape(self.model.apply, params, x)
        loss, classes = self.model.loss, data.outputs
        if data.task == "classification" and isinstance(loss, CrossEntropy) and logits.shape[-1] < classes:
            raise InputError(f"the model has {logits.shape[-1]} output(s), but the data has {classes} classes")
        if data.task == "classification" and isinstance(loss, BinaryCrossEntropy) and classes > 2:
            raise InputError(f"the binary cross-entropy is for two classes, but the data has {classes}")
        if data.task == "regression" and isinstance(loss, CrossEntropy | BinaryCrossEntropy):
            raise InputError(f"{type(loss).__name__} is for classes, but the labels are real: use squared_error")
        wrong = [leaf.dtype for leaf in jax.tree.leaves(params) if not jnp.issubdtype(leaf.dtype, jnp.floating)]
        if wrong:
            raise InputError(f"the model's parameters must be floating numbers, but one leaf is {wrong[0]}")

    def init(self, key: Array) -> Vector:
        """The model's fresh parameters."""
        return self.model.init(key)

    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """Party k's training samples, with its validation samples held out."""
        split = self.splits.index("validation")
        return replace(self._samples(k, jnp.array(0)), validation=(self.offset[split, k], self.length[split, k]))

    def split_sizes(self, split: int) -> Int[Array, " N"]:
        """Samples per party."""
        return self.length[split]

    def pooled(self) -> "LearningProblem":
        """Everybody's training samples side by side; the one party has no samples in the other splits."""
        begin, length = np.asarray(self.offset[0]), np.asarray(self.length[0])
        rows = np.concatenate([np.arange(b, b + n) for b, n in zip(begin, length, strict=True)])
        lengths = jnp.zeros((len(self.splits), 1), self.length.dtype).at[0].set(len(rows))
        together: LearningProblem = eqx.tree_at(
            lambda p: (p.x, p.y, p.offset, p.length, p.sizes), self,
            (self.x[rows], self.y[rows], jnp.zeros_like(lengths), lengths, lengths[0]))
        return together

    def evaluate(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """Mean loss (without l2) and mean score on the split."""
        oracle = self._samples(k, split)
        sums: PyTree[Any] = oracle.sums(w)
        empty = oracle.samples == 0
        return jax.tree.map(lambda s: jnp.where(empty, jnp.nan, s / jnp.maximum(oracle.samples, 1)), sums)  # type: ignore[no-any-return]

    def evaluate_shared(self, w: Vector, index: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The same, sample by sample in blocks that need not end where a party does, and summed in double precision.

        Means have the model's dtype, as those of ``evaluate``: else equal accuracies of two methods would not be equal.
        """
        offset, length = (np.asarray(part)[:, index].ravel() for part in (self.offset, self.length))
        means = np.full((2, len(length)), np.nan)
        some, ends = length > 0, np.cumsum(length, dtype=np.int64)
        if some.any():
            rows = np.arange(ends[-1]) + np.repeat(offset - (ends - length), length)
            of_rows = np.stack(_row_by_row(self, w, jnp.asarray(rows, jnp.int32)), dtype=np.float64)
            means[:, some] = np.add.reduceat(of_rows, (ends - length)[some], axis=1) / length[some]
        loss, score = means.reshape(2, len(self.splits), len(index)).transpose(0, 2, 1).astype(tree.dtype(w))
        return loss, score

    def _samples(self, k: Int[Array, ""], split: Int[Array, ""]) -> SampleOracle:
        return SampleOracle(samples=self.length[split, k], model=self.model, x=self.x, y=self.y,
                            offset=self.offset[split, k], block=self.block)


@jax.jit
def _row_by_row(problem: LearningProblem, w: Vector,
                rows: Int[Array, " R"]) -> tuple[Float[Array, " R"], Float[Array, " R"]]:
    """Loss and score of each of these rows."""
    size, model = len(rows), problem.model
    block = min(size, _MOST_ON_CPU if jax.default_backend() == "cpu" else 1024)

    def some(i: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        begin = jnp.minimum(i * block, size - block)  # the last block meets some rows of the one before once more
        at = jax.lax.dynamic_slice_in_dim(rows, begin, block)
        outputs, y = model.apply(w, problem.x[at]), problem.y[at]
        loss, score = (jax.lax.dynamic_update_slice_in_dim(all_, new.astype(all_.dtype), begin, 0)
                       for all_, new in zip(found, (model.loss.loss(outputs, y), model.loss.score(outputs, y)),
                                            strict=True))
        return loss, score

    nothing = jnp.zeros(size, tree.dtype(w))
    found: tuple[Array, Array] = jax.lax.fori_loop(0, -(-size // block), some, (nothing, nothing))
    return found


def block_for(data: FederatedData) -> int:
    """Rows per step of a pass over a party's samples that fit the median party, and on a CPU the cores' caches."""
    most = _MOST_ON_CPU if jax.default_backend() == "cpu" else 256
    return int(np.clip(2 ** np.ceil(np.log2(np.median(data.sizes()))), 8, most))


class QuadraticProblem(SolvedProblem):
    """Quadratic objectives w'H_k w/2 - g_k'w + c_k.

    Attributes:
        hessians: [N, d, d].
        linears: [N, d].
        constants: [N]; default 0.
        sizes: [N] the parties' sizes, for weights; default 1 each.
    """

    hessians: Float[Array, "N d d"]
    linears: Float[Array, "N d"]
    constants: Float[Array, " N"]

    def __init__(self, hessians: Float[Array, "N d d"], linears: Float[Array, "N d"],
                 constants: Float[Array, " N"] | None = None, sizes: Int[Array, " N"] | None = None) -> None:
        self.hessians, self.linears = jnp.asarray(hessians), jnp.asarray(linears)
        n, d = self.linears.shape
        if self.hessians.shape != (n, d, d):
            raise InputError(f"QuadraticProblem needs hessians [N, d, d] and linears [N, d], got {self.hessians.shape} "
                             f"and {self.linears.shape}")
        self.constants = jnp.zeros(n, self.linears.dtype) if constants is None else jnp.asarray(constants)
        self.sizes = jnp.ones(n, jnp.int32) if sizes is None else jnp.asarray(sizes)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @classmethod
    def least_squares(cls, a: Float[Array, "N n d"], b: Float[Array, "N n"]) -> "QuadraticProblem":
        """f_k(w) = |A_k w - b_k|^2 / 2. Source: operator-splitting paper, A.1."""
        return cls(jnp.einsum("kni,knj->kij", a, a), jnp.einsum("kni,kn->ki", a, b),
                   jnp.sum(b * b, axis=1) / 2, jnp.full(a.shape[0], a.shape[1]))

    def init(self, key: Array) -> Vector:
        """The zero vector."""
        return jnp.zeros_like(self.linears[0])

    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """Party k's quadratic."""
        return QuadraticOracle(samples=jnp.array(1), hessian=self.hessians[k], linear=self.linears[k],
                               constant=self.constants[k])

    def pooled(self) -> "QuadraticProblem":
        """The quadratic sum_k n_k/n f_k."""
        shares = (self.sizes / jnp.sum(self.sizes)).astype(self.linears.dtype)
        hessian, linear, constant = (jnp.tensordot(shares, part, axes=1, precision="highest")[None]
                                     for part in (self.hessians, self.linears, self.constants))
        return QuadraticProblem(hessian, linear, constant, jnp.sum(self.sizes)[None])

    def optimum(self, shares: Float[Array, " N"]) -> Vector:
        """The solution of (sum_k shares_k H_k) w = sum_k shares_k g_k; nan where that matrix is singular."""
        return jax.scipy.linalg.solve(self._hessian(shares), shares @ self.linears, assume_a="pos")

    def gap(self, w: Vector, shares: Float[Array, " N"]) -> Float[Array, ""]:
        """(w - w*)'H(w - w*)/2: exact far below the rounding of f itself."""
        apart = w - self.optimum(shares)
        gap: Array = apart @ (self._hessian(shares) @ apart) / 2
        return gap

    def _hessian(self, shares: Float[Array, " N"]) -> Float[Array, "d d"]:
        return jnp.tensordot(shares, self.hessians, axes=1, precision="highest")
