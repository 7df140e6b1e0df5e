"""Some parties of a federation as a problem of their own, gathered from data that stay on the host or on the disk."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import LearningProblem, Problem, block_for

__all__ = ["Gatherer", "PartySubset"]

_NOBODY = np.iinfo(np.int32).max  # the number of a slot without a party: after all others in order


class PartySubset(Problem):
    """Some parties of a problem, under the numbers that they have among all.

    Whoever asks for party k by its number is given what the whole problem would give, so that keys, messages and
    memories that go by the number are the same.

    Attributes:
        inner: the problem of these parties alone: their data lie in slots 0, ..., M-1.
        numbers: [M] the number of the party in each slot, ascending; slots without a party come last.
    """

    inner: LearningProblem
    numbers: Int[Array, " M"]

    def __init__(self, inner: LearningProblem, numbers: Int[Array, " M"]) -> None:
        self.inner, self.numbers, self.sizes = inner, numbers, inner.sizes
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better

    def row(self, k: Int[Array, "..."]) -> Int[Array, "..."]:
        """The slot of party k."""
        return jnp.searchsorted(self.numbers, k, method="scan_unrolled")  # no loop: on a GPU each turn is a launch

    def init(self, key: Array) -> Vector:
        """As the inner problem."""
        return self.inner.init(key)

    def oracle(self, k: Int[Array, ""]) -> Oracle:
        """That of party k's slot."""
        return self.inner.oracle(self.row(k))

    def split_sizes(self, split: int) -> Int[Array, " M"]:
        """Samples per slot."""
        return self.inner.split_sizes(split)

    def evaluate(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        """On the samples of party k's slot."""
        return self.inner.evaluate(w, self.row(k), split)

    def evaluate_shared(self, w: Vector, index: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
        """On the samples of their slots."""
        return self.inner.evaluate_shared(w, np.asarray(self.row(jnp.asarray(index))))


class Gatherer:
    """Gathers problems of a few parties; memory and time are those of the parties that are gathered.

    Slots and rows are padded, so that problems with other members have the same shapes and nothing compiles again. The
    rows' number is a power of two that grows when it must: at most a few times in a run.

    Attributes:
        data: the samples, in memory or on the disk.
        one: the problem of the first party alone, for what all parties have in common.
    """

    def __init__(self, model: Model, data: FederatedData) -> None:
        self.data, block = data, block_for(data)
        first = {s: Split(np.zeros(1, np.int32), data.splits[s].length[:1] if s == "train" else np.zeros(1, np.int32))
                 for s in SPLITS}
        x, y = data.party(0)
        alone = FederatedData(x, y, first, data.parties[:1], data.task, data.classes, vocabulary=data.vocabulary)
        self.one = LearningProblem(model, alone, block=block)
        self._rows = 0
        self._means = {s: float(data.sizes(s).mean(dtype=np.float64)) for s in SPLITS}

    def bytes_of(self, parties: int, splits: Sequence[str] = SPLITS) -> int:
        """Bytes of the samples of so many parties of average size, as they are used."""
        row = self.one.x.dtype.itemsize * int(np.prod(self.data.input_shape)) + self.one.y.dtype.itemsize
        return int(parties * self._mean(splits) * row)

    def _mean(self, splits: Sequence[str]) -> float:
        """Samples of the average party."""
        return sum(self._means[s] for s in splits)

    def __call__(self, numbers: NDArray[np.int32], slots: int, splits: Sequence[str] = SPLITS) -> PartySubset:
        """The problem of parties ``numbers`` (ascending), with the samples of some splits, in NumPy arrays.

        Args:
            numbers: the parties.
            slots: how many parties there is room for.
            splits: the others are empty.
        """
        lengths = np.zeros((len(SPLITS), slots), np.int32)
        for i, s in enumerate(SPLITS):
            lengths[i, :len(numbers)] = self.data.sizes(s)[numbers] if s in splits else 0
        need = max(int(lengths.sum(dtype=np.int64)), int(slots * self._mean(splits)))
        if need > self._rows:
            self._rows = 1 << int(1.25 * need).bit_length()
        x = np.zeros((self._rows, *self.data.input_shape), self.one.x.dtype)
        y = np.zeros(self._rows, self.one.y.dtype)
        offsets, end = np.zeros_like(lengths), 0
        for i, s in enumerate(SPLITS):
            begin = self.data.splits[s].offset
            for slot in np.flatnonzero(lengths[i]):
                first, n = int(begin[numbers[slot]]), int(lengths[i, slot])
                x[end:end + n], y[end:end + n] = self.data.x[first:first + n], self.data.y[first:first + n]
                offsets[i, slot], end = end, end + n
        padded = np.full(slots, _NOBODY, np.int32)
        padded[:len(numbers)] = numbers
        inner: LearningProblem = eqx.tree_at(lambda p: (p.x, p.y, p.offset, p.length, p.sizes), self.one,
                                             (x, y, offsets, lengths, lengths[0]))
        return PartySubset(inner, padded)  # type: ignore[arg-type]
