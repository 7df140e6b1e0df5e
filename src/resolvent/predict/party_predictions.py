"""Predictions for the samples of many parties, from which metrics are computed.

The samples of all parties are divided into blocks of one size, each of which belongs to one model. One compiled call
computes many blocks, so that the number of parties and their sizes change neither the program nor the padding.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree
from numpy.typing import NDArray

from resolvent.data.samples import Task
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Predictions
from resolvent.problem.models.losses import Loss
from resolvent.problem.problem import Problem

_MAX_NUMBERS = 2**23  # outputs of one compiled call


class PartyPredictions(NamedTuple):
    """Predictions for the samples of one party in one split.

    Attributes:
        position: the party's position among those that were asked for.
    """

    position: int
    split: str
    predictions: Predictions


class _Blocks(NamedTuple):
    """Blocks of rows, each of one party's samples in one split.

    Attributes:
        first: [J] first row.
        rows: [J] number of rows, at most the size of a block.
        model: [J] number of the model.
    """

    first: NDArray[np.int32]
    rows: NDArray[np.int32]
    model: NDArray[np.int32]


def predictions_of_parties(problem: Problem, models: Vector, choice: NDArray[np.integer],
                           parties: NDArray[np.integer], splits: Sequence[str],
                           task: Task) -> Iterator[PartyPredictions]:
    """The predictions for each party's samples, party by party; parties without samples in a split are left out.

    Args:
        models: leaves [number of models, ...].
        choice: [M] number of the model of each party.
        parties: [M] ids of the parties.
    """
    inner, slots = problem.local(), np.asarray(problem.row(jnp.asarray(parties)))
    assert isinstance(inner, LearningProblem)
    numbers = [inner.splits.index(split) for split in splits]
    offset, length = (np.asarray(part)[numbers][:, slots].T for part in (inner.offset, inner.length))  # [M, splits]
    jobs = [(i, s) for i in range(len(slots)) for s in range(len(splits)) if length[i, s]]
    blocks = _divide([(int(offset[job]), int(length[job]), int(choice[job[0]])) for job in jobs], inner.block)
    outputs = _rows_of_blocks(inner, models, blocks)
    inputs, labels = jax.tree.map(np.asarray, (inner.x if inner.model.loss.needs_inputs else None, inner.labels))
    classes = int(labels.max()) + 1 if task == "classification" else 0
    for i, s in jobs:
        rows, probabilities = _take(outputs, int(length[i, s]))
        x, y = tree.rows((inputs, labels), slice(offset[i, s], offset[i, s] + length[i, s]))
        of_party = inner.model.loss.targets(x, y)
        predicted = predicted_labels(inner.model.loss, rows, probabilities, task, classes)
        yield PartyPredictions(i, splits[s], Predictions(of_party, predicted, probabilities, rows))


def _divide(jobs: list[tuple[int, int, int]], size: int) -> _Blocks:
    """Blocks of at most ``size`` rows, from (first row, number of rows, model)."""
    blocks = [(first + start, min(size, count - start), model)
              for first, count, model in jobs for start in range(0, count, size)]
    return _Blocks(*np.array(blocks, np.int32).reshape(-1, 3).T)


Rows = tuple[Any, Any]  # outputs and probabilities, or None


def _rows_of_blocks(problem: LearningProblem, models: Vector, blocks: _Blocks) -> Iterator[Rows]:
    """Outputs and probabilities of each block in turn."""
    if not len(blocks.first):
        return
    of_sample: Any = jax.eval_shape(lambda: problem.model.apply(tree.rows(models, 0), tree.rows(problem.x, slice(1))))
    size = sum(leaf.size for leaf in jax.tree.leaves(of_sample))
    capacity = int(np.clip(_MAX_NUMBERS // max(1, problem.block * size), 1, len(blocks.first)))
    for start in range(0, len(blocks.first), capacity):
        # The last call repeats blocks, so that it has the shape of the others.
        index = np.minimum(np.arange(start, start + capacity), len(blocks.first) - 1)
        results = jax.tree.map(np.asarray, _evaluate_blocks(problem, models, blocks.first[index], blocks.model[index]))
        for j, block in enumerate(range(start, min(start + capacity, len(blocks.first)))):
            rows = blocks.rows[block]
            outputs, probabilities = tree.rows(results, (j, slice(rows)))
            yield outputs, probabilities


@jax.jit
def _evaluate_blocks(problem: LearningProblem, models: Vector, first: Int[Array, " J"],
                     model: Int[Array, " J"]) -> tuple[PyTree[Array], PyTree[Array]]:
    """Outputs, and probabilities if the loss defines them, of blocks of rows; rows after the last one repeat it."""
    apply, loss = problem.model.rewritten(problem.model.apply), problem.model.loss

    def of_block(block: tuple[Array, Array]) -> tuple[PyTree[Array], PyTree[Array]]:
        start, number = block
        rows = jnp.minimum(start + jnp.arange(problem.block), tree.count_rows(problem.x) - 1)
        outputs = apply(tree.rows(models, number), tree.rows(problem.x, rows))
        return outputs, loss.probabilities(outputs) if loss.has_probabilities else None

    results: tuple[PyTree[Array], PyTree[Array]] = jax.lax.map(of_block, (first, model))
    return results


def _take(blocks: Iterator[Rows], count: int) -> Rows:
    """The next ``count`` rows, from the next blocks."""
    outputs, probabilities, taken = [], [], 0
    while taken < count:
        rows, of_classes = next(blocks)
        outputs.append(rows)
        probabilities.append(of_classes)
        taken += tree.count_rows(rows)
    return tree.concatenate(outputs), tree.concatenate(probabilities)


def predicted_labels(loss: Loss, outputs: Any, probabilities: Any, task: Task, classes: int) -> Any:
    """[n] the predicted class numbers or numbers, as the score of the loss reads them.

    For structured labels, they are the classes that the loss defines, such as one per token; otherwise the outputs.
    Where outputs are several arrays and the loss has neither ``classes`` nor ``probabilities``, the class of a sample
    is the one with the smallest loss.

    Args:
        classes: number of classes of the data.
    """
    is_array = hasattr(outputs, "shape")
    if task == "structured" and type(loss).classes is Loss.classes:
        return outputs
    if task == "regression":
        return outputs.reshape(len(outputs)) if is_array and outputs.size == len(outputs) else outputs
    if type(loss).classes is Loss.classes and probabilities is None and not is_array:
        n = tree.count_rows(outputs)
        return np.argmin([np.asarray(loss.loss(outputs, jnp.full(n, c))) for c in range(classes)], axis=0)
    return loss.classes(outputs, probabilities)
