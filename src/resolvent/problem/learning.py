"""The problem of training a model on federated data."""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.sample_trees import is_in_memory
from resolvent.errors import InputError, quote, shorten
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import WeightedLabels, WeightedLoss, score_rows
from resolvent.problem.models.model import Model
from resolvent.problem.models.stateful import params_of
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.xla.rows import entry
from resolvent.xla.shapes import shapes_of
from xla_cpu_rewrites.versions import on_cpu

_MAX_CPU_BLOCK = 64  # rows whose intermediate results fit a core's caches


class LearningProblem(Problem):
    """A model on federated data: f_k is the mean loss over party k's training samples.

    If the data have weights of samples, f_k(w) = (1/n_k) sum_i s_i loss_i(w).

    Attributes:
        model: the predictor and its loss.
        x: inputs, a pytree of arrays [total, ...].
        y: labels, a pytree of arrays [total, ...], or None; with weights of samples ``WeightedLabels``.
        offset: [splits, N] first row of each party's samples.
        length: [splits, N] number of rows of each party.
        block: rows per step of a pass over all samples.

    Args:
        model: the predictor and its loss.
        data: the samples; inputs that are one array become floating numbers, except tokens of a vocabulary. In a
            structure, integers and booleans stay.
        block: rows per step of a pass over all samples; default: fits the median party.

    Raises:
        InputError: the model does not fit the data.

    Example:
        >>> data = rv.datasets.digits(parties=3)
        >>> problem = rv.problems.LearningProblem(rv.models.logistic(64, 10), data)
        >>> problem.parties, problem.score_name
        (3, 'accuracy')
    """

    model: Model
    x: PyTree[Array]
    y: PyTree[Array]
    offset: Int[Array, "splits N"]
    length: Int[Array, "splits N"]
    block: int = eqx.field(static=True)

    def __init__(self, model: Model, data: FederatedData, *, block: int | None = None) -> None:
        dtype = jnp.result_type(float)
        # device_put makes one copy of the data; jnp.asarray would make two.
        self.x = jax.device_put(jax.tree.map(partial(_in_precision, dtype=dtype), data.x))
        if isinstance(self.x, jax.Array) and not jnp.issubdtype(self.x.dtype, jnp.floating) and not data.vocabulary:
            self.x = self.x.astype(dtype)
        self.splits = SPLITS
        offset, length = (np.stack([getattr(data.splits[s], name) for s in SPLITS]) for name in ("offset", "length"))
        # Not jnp.asarray and indexing, which compile small programs.
        self.y, self.offset, self.length, self.sizes = jax.device_put(
            (jax.tree.map(partial(_in_precision, dtype=dtype), with_weights(data.y, data.weights)), offset, length,
             length[0]))
        self.model = _model_for(model, data, self.x, self.labels)
        self.score_name = self.model.loss.score_name
        self.higher_is_better = self.model.loss.higher_is_better
        self.block = block or block_size(data)

    @property
    def labels(self) -> PyTree[Array]:
        """The labels, without the weights of samples."""
        return self.y.labels if isinstance(self.y, WeightedLabels) else self.y

    @property
    def has_classes(self) -> bool:
        """Whether labels are one class number per sample."""
        labels = self.labels
        return isinstance(labels, jax.Array) and labels.ndim == 1 and bool(jnp.issubdtype(labels.dtype, jnp.integer))

    @property
    def weighted_model(self) -> Model:
        """The model whose loss reads the rows of ``y``: a weighted loss if samples have weights."""
        return replace(self.model, loss=WeightedLoss(self.model.loss)) if isinstance(self.y, WeightedLabels) else (
            self.model)

    @override
    def init(self, key: Array) -> Vector:
        return self.model.init(key)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """Party k's training samples, with its validation samples as held-out samples."""
        split = self.splits.index("validation")
        training = self._split_oracle(k, jnp.array(0))
        return replace(training, validation=(entry(self.offset, split, k), entry(self.length, split, k)))

    @override
    def split_sizes(self, split: int) -> Int[Array, " N"]:
        return self.length[split]

    @override
    def pooled(self) -> "LearningProblem":
        """One party with all training samples. It has no samples in the other splits."""
        offset, length = np.asarray(self.offset[0]), np.asarray(self.length[0])
        rows = np.concatenate([np.arange(first, first + n) for first, n in zip(offset, length, strict=True)])
        lengths = jnp.zeros((len(self.splits), 1), self.length.dtype).at[0].set(len(rows))
        x, y = tree.rows((self.x, self.y), rows)
        return self.with_samples(x, y, jnp.zeros_like(lengths), lengths, lengths[0])

    def with_samples(self, x: PyTree[Any], y: PyTree[Any], offset: Any, length: Any, sizes: Any) -> "LearningProblem":
        """The same problem with other samples of the same structure; arrays may be shapes or those of NumPy."""
        problem: LearningProblem = eqx.tree_at(lambda p: (p.x, p.y, p.offset, p.length, p.sizes), self,
                                               (x, y, offset, length, sizes), is_leaf=lambda leaf: leaf is None)
        return problem

    def with_half(self, split: str, half: int, *, is_alone: bool = False) -> "LearningProblem":
        """The same problem with half of each party's samples in one split.

        Args:
            split: name of the split.
            half: 0: the first ceil(n/2) of n samples; 1: the others.
            is_alone: whether the other splits have no samples.
        """
        number = self.splits.index(split)
        # Arrays of NumPy, in the changed problem too: JAX would compile each operation.
        offset, length = np.array(self.offset), np.asarray(self.length)
        lengths = np.zeros_like(length) if is_alone else length.copy()
        first = (length[number] + 1) // 2
        lengths[number] = first if half == 0 else length[number] - first
        offset[number] += first if half else 0
        changed: LearningProblem = eqx.tree_at(lambda p: (p.offset, p.length), self, (offset, lengths))
        return changed

    @override
    def of_party(self, k: int, *, is_padded: bool = False) -> "LearningProblem":
        """The problem of party k alone; it holds only the party's rows."""
        lengths = np.asarray(self.length)
        offset, length = np.asarray(self.offset)[:, k], lengths[:, k]
        index = np.concatenate([np.arange(first, first + n) for first, n in zip(offset, length, strict=True)])
        count = int(lengths.sum(axis=0).max()) if is_padded else max(len(index), 1)

        def own_rows(leaf: Array) -> NDArray[Any]:
            rows = np.zeros((count, *leaf.shape[1:]), leaf.dtype)
            rows[:len(index)] = np.asarray(leaf)[index]
            return rows

        x, y = jax.tree.map(own_rows, (self.x, self.y))
        first_rows = (np.cumsum(length) - length).astype(length.dtype)[:, None]
        sizes = np.asarray(self.sizes)[k:k + 1]
        return self.with_samples(*jax.tree.map(jnp.asarray, (x, y, first_rows, length[:, None], sizes)))

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """Mean loss (without l2) and mean score on the party's samples of the split."""
        oracle = self._split_oracle(k, split)
        sums: PyTree[Any] = oracle.sums(w)
        is_empty = oracle.samples == 0
        return jax.tree.map(lambda s: jnp.where(is_empty, jnp.nan, s / jnp.maximum(oracle.samples, 1)), sums)  # type: ignore[no-any-return]

    @override
    def evaluate_shared(self, w: Vector, index: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """The means of ``evaluate_party``, computed in blocks of rows that may belong to several parties.

        The rows are summed in double precision. The means have the model's dtype, as those of ``evaluate_party`` have:
        otherwise equal accuracies of two algorithms would not be equal numbers. A loss that compares the samples of a
        minibatch is evaluated party by party.
        """
        if self.model.loss.needs_batch:
            return super().evaluate_shared(w, index)
        offset, length = (np.asarray(part)[:, index].ravel() for part in (self.offset, self.length))
        means = np.full((2, len(length)), np.nan)
        has_rows, ends = length > 0, np.cumsum(length, dtype=np.int64)
        if has_rows.any():
            rows = np.arange(ends[-1]) + np.repeat(offset - (ends - length), length)
            of_rows = self.evaluate_rows(w, rows)
            means[:, has_rows] = np.add.reduceat(of_rows, (ends - length)[has_rows], axis=1) / length[has_rows]
        loss, score = means.reshape(2, len(self.splits), len(index)).transpose(0, 2, 1).astype(tree.dtype(w))
        return {"loss": loss, self.score_name: score}

    def evaluate_rows(self, w: Vector, rows: NDArray[np.integer]) -> NDArray[np.float64]:
        """[2, R] the loss and the score of each of these rows of the samples. Not traceable."""
        return np.stack(_evaluate_rows(self, w, rows.astype(np.int32)), dtype=np.float64)

    def curvatures(self, w: Vector, rows: NDArray[np.integer]) -> NDArray[np.float64]:
        """[R, outputs] the second derivatives of these rows' losses in each output of a linear model. Not traceable."""
        return np.asarray(_curvatures(self, w, rows.astype(np.int32)), np.float64)

    def _split_oracle(self, k: Int[Array, ""], split: Int[Array, ""]) -> SampleOracle:
        return SampleOracle(samples=entry(self.length, split, k), model=self.weighted_model, x=self.x, y=self.y,
                            offset=entry(self.offset, split, k), block=self.block)


@jax.jit
def _curvatures(problem: LearningProblem, w: Vector, rows: Int[Array, " R"]) -> Float[Array, "R outputs"]:
    model, (x, y) = problem.weighted_model, tree.rows((problem.x, problem.y), rows)
    outputs, y = model.apply(w, x), model.loss.targets(x, y)
    slopes = jax.grad(lambda z: jnp.sum(model.loss.loss(z, y)))

    def of_output(unit: Float[Array, " outputs"]) -> Float[Array, " R"]:
        derivative: Array = jax.jvp(slopes, (outputs,), (jnp.broadcast_to(unit, outputs.shape),))[1] @ unit
        return derivative

    return jax.vmap(of_output, out_axes=1)(jnp.eye(outputs.shape[1], dtype=outputs.dtype))


@jax.jit
def _evaluate_rows(problem: LearningProblem, w: Vector,
                   rows: Int[Array, " R"]) -> tuple[Float[Array, " R"], Float[Array, " R"]]:
    """Loss and score of each of these rows."""
    size, model = len(rows), problem.weighted_model
    block = min(size, _MAX_CPU_BLOCK if on_cpu() else 1024)

    def evaluate_block(i: Array, results: tuple[Array, Array]) -> tuple[Array, Array]:
        first = jnp.minimum(i * block, size - block)  # the last block repeats some rows of the block before it
        of_block = jax.lax.dynamic_slice_in_dim(rows, first, block)
        x, y = tree.rows((problem.x, problem.y), of_block)
        outputs = model.rewritten(model.apply)(w, x)
        y = model.loss.targets(x, y)
        values = model.loss.loss(outputs, y), score_rows(model.loss, outputs, y)
        loss, score = (jax.lax.dynamic_update_slice_in_dim(result, new.astype(result.dtype), first, 0)
                       for result, new in zip(results, values, strict=True))
        return loss, score

    zeros = jnp.zeros(size, tree.dtype(w))
    results: tuple[Array, Array] = jax.lax.fori_loop(0, -(-size // block), evaluate_block, (zeros, zeros))
    return results


def with_weights(y: Any, weights: Any) -> Any:
    """Labels, with the weights of samples if there are any."""
    return y if weights is None else WeightedLabels(y, weights)


def _in_precision(leaf: Any, dtype: Any) -> Any:
    """An array of NumPy; floating numbers get a dtype."""
    return leaf.astype(dtype, copy=False) if np.issubdtype(leaf.dtype, np.floating) else np.asarray(leaf)


def block_size(data: FederatedData) -> int:
    """Rows per step of a pass over a party's samples: fits the median party and, on a CPU, the caches of a core."""
    largest = _MAX_CPU_BLOCK if on_cpu() else 256
    return int(np.clip(2 ** np.ceil(np.log2(np.median(data.sizes()))), 8, largest))


def _model_for(model: Model, data: FederatedData, x: PyTree[Array], y: PyTree[Array]) -> Model:
    def batch(values: PyTree[Array], rows: int) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype), values)  # type: ignore[no-untyped-call]

    inputs, more_inputs, labels = batch(x, 2), batch(x, 3), batch(y, 2)
    if y is None and model.loss.needs_labels:
        raise InputError(f"{type(model.loss).__name__} needs labels, and the data {quote(data.name)} have none: use a "
                         "loss that needs none, such as reconstruction or nt_xent, or one of your own with "
                         "needs_labels = False")
    if data.task == "classification" and len(data.classes) == 1:
        raise InputError(f"every label of the data {quote(data.name)} is {quote(data.classes[0])}, so that there is "
                         "nothing to learn: look at the labels, or name the other classes with classes=")
    try:
        params = shapes_of(model.init, jax.eval_shape(jax.random.key, 0))
        logits: Any = shapes_of(model.apply, params, inputs)
        # With another number of samples too: 2 outputs for a batch of 2 may be one output of 2 numbers for the batch.
        for of_batch, outputs in ((inputs, logits), (more_inputs, shapes_of(model.apply, params, more_inputs))):
            _check_rows(of_batch, outputs)
        loss = model.loss.adapted(logits, data.task, data.outputs)
        loss.check(logits, data.task, data.outputs)
        if is_in_memory(data.y):
            loss.check_labels(data.y, logits)
        targets: Any = shapes_of(loss.targets, inputs, labels)
        losses: Any = shapes_of(loss.loss, logits, targets)
        scores: Any = shapes_of(loss.score, logits, targets)
    except InputError:
        raise
    except Exception as error:  # whatever the user's functions raise; Flax has its own exceptions
        reason = shorten(" ".join(f"{type(error).__name__}: {error}".split())).rstrip(".")
        raise InputError(f"the model does not fit the data (inputs {data.input_shape}, {data.outputs} output(s), "
                         f"{data.task}): {reason}. {_advice(reason, data)}") from error
    for name, values in (("loss", losses), ("score", scores)):
        if getattr(values, "shape", None) != (2,):
            advice = (f"return the {name} of every sample, not their mean" if hasattr(values, "shape") else
                      f"return the {name} alone; metrics= and diagnostics= record other numbers")
            raise InputError(f"the model's {name} must have one number per sample, [2] for 2 samples, got "
                             f"{_described(values)}: {advice}")
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        raise InputError(f"the model's loss must be floating numbers, got {losses.dtype}")
    for name, leaf in tree.named_leaves(params_of(params)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError("the model's parameters must be floating numbers, but "
                             f"{quote(name) if name else 'the leaf'} is {leaf.dtype}: keep constants outside the "
                             "parameters")
    return model if loss is model.loss else replace(model, loss=loss)


def _advice(reason: str, data: FederatedData) -> str:
    is_of_tokens = "must have integer" in reason and is_in_memory(data.x) and not data.vocabulary
    return ("An array of inputs becomes floating numbers: give tokens a vocabulary, from_arrays(..., vocabulary=...)"
            if is_of_tokens else "Build the model for that shape")


def _check_rows(inputs: Any, outputs: Any) -> None:
    """Refuse outputs without a row for each sample: broadcasting would train them without an error."""
    rows = jax.tree.leaves(inputs)[0].shape[0]
    if any(leaf.shape[:1] != (rows,) for leaf in jax.tree.leaves(outputs)):
        raise InputError(f"the model must have one output per sample: for inputs {_shapes(inputs)} its outputs are "
                         f"{_described(outputs)}. Return [{rows}, ...], without a mean or a sum over the samples")


def _shapes(values: Any) -> str:
    return " and ".join(str(list(leaf.shape)) for leaf in jax.tree.leaves(values))


def _described(values: Any) -> str:
    """Shapes and dtypes of arrays in words."""
    return " and ".join(f"{list(leaf.shape)} ({leaf.dtype})" for leaf in jax.tree.leaves(values)) or "no array"
