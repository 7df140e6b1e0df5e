"""Problems of a few parties of a federation, with data gathered from host memory or disk."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem, block_size, with_weights
from resolvent.problem.models.model import Model
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

_EMPTY_SLOT = np.iinfo(np.int32).max  # the id of a slot without a party, which sorts after all others


class PartySubset(Problem):
    """The problem of some of the parties, which keep their global party ids.

    Party k's oracle and scores are those of the whole problem. Keys, messages and states that depend on the party id
    are therefore the same.

    Attributes:
        inner: the problem of these parties alone, with their data in slots 0, ..., M-1.
        numbers: [M] the global party id of each slot, ascending; slots without a party come last.
    """

    inner: LearningProblem
    numbers: Int[Array, " M"]

    def __init__(self, inner: LearningProblem, numbers: Int[Array, " M"]) -> None:
        self.inner, self.numbers, self.sizes = inner, numbers, inner.sizes
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better

    @override
    def row(self, k: Int[Array, "..."]) -> Int[Array, "..."]:
        """The row of the stored arrays that belongs to the party with the global id k."""
        # Unrolled, because on a GPU every pass of a loop is a launch.
        return jnp.searchsorted(self.numbers, k, method="scan_unrolled")

    @override
    def row_ids(self) -> Int[Array, " M"]:
        return self.numbers

    @override
    def party_ids(self) -> NDArray[np.int64]:
        numbers = np.asarray(self.numbers).astype(np.int64)
        return numbers[numbers < _EMPTY_SLOT]

    @override
    def local(self) -> LearningProblem:
        return self.inner

    @override
    def init(self, key: Array) -> Vector:
        return self.inner.init(key)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return self.inner.oracle(self.row(k))

    @override
    def split_sizes(self, split: int) -> Int[Array, " M"]:
        return self.inner.split_sizes(split)

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        return self.inner.evaluate_party(w, self.row(k), split)

    @override
    def report(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Array]:
        return self.inner.report(w, self.row(k), split)

    @override
    def evaluate_shared(self, w: Vector, index: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        return self.inner.evaluate_shared(w, np.asarray(self.row(jnp.asarray(index))))


class Gatherer:
    """Gathers the data of a few parties into a ``PartySubset``. Memory and time depend on these parties only.

    Slots and rows are padded, so that the problems of different parties have the same shapes and are not compiled
    again. The number of rows is a power of two that grows when it must, at most a few times in a run.

    Attributes:
        data: the samples, in memory or on disk.
        template: a problem of one party with one sample of zeros, for everything that does not depend on the parties.
    """

    def __init__(self, model: Model, data: FederatedData) -> None:
        self.data, block = data, block_size(data)
        empty = np.zeros(1, np.int32)
        only = {s: Split(empty, empty + 1 if s == "train" else empty) for s in SPLITS}
        x, y = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), (data.x, data.y))
        party = FederatedData(x, y, only, data.parties[:1], data.task, data.classes, vocabulary=data.vocabulary,
                              weights=None if data.weights is None else np.ones(1, np.float32))
        self.template = LearningProblem(model, party, block=block)
        self._rows = 0
        self._mean_sizes = {s: float(data.sizes(s).mean(dtype=np.float64)) for s in SPLITS}

    def bytes_of(self, parties: int, splits: Sequence[str] = SPLITS) -> int:
        """Bytes of the samples of this number of parties of average size, in the dtypes of the problem."""
        row = sum(a.dtype.itemsize * int(np.prod(a.shape[1:]))
                  for a in jax.tree.leaves((self.template.x, self.template.y)))
        return int(parties * self._mean_size(splits) * row)

    def __call__(self, numbers: NDArray[np.int32], slots: int, splits: Sequence[str] = SPLITS, *,
                 rows: int | None = None) -> PartySubset:
        """The problem of some parties, in NumPy arrays.

        Args:
            slots: number of slots for parties, at least ``len(numbers)``.
            splits: the splits whose samples are gathered; the others are empty.
            rows: number of rows for samples; default: a power of two.
        """
        lengths = np.zeros((len(SPLITS), slots), np.int32)
        for i, s in enumerate(SPLITS):
            lengths[i, :len(numbers)] = self.data.sizes(s)[numbers] if s in splits else 0
        needed = max(int(lengths.sum(dtype=np.int64)), int(slots * self._mean_size(splits)))
        if rows is None:
            if needed > self._rows:
                self._rows = 1 << int(1.25 * needed).bit_length()
            rows = self._rows
        x, y = jax.tree.map(lambda leaf: np.zeros((rows, *leaf.shape[1:]), leaf.dtype),
                            (self.template.x, self.template.y))
        source_of = (self.data.x, with_weights(self.data.y, self.data.weights))
        pairs = list(zip(jax.tree.leaves((x, y)), jax.tree.leaves(source_of), strict=True))
        offsets, end = np.zeros_like(lengths), 0
        for i, s in enumerate(SPLITS):
            source = self.data.splits[s].offset
            for slot in np.flatnonzero(lengths[i]):
                first, n = int(source[numbers[slot]]), int(lengths[i, slot])
                for gathered, stored in pairs:
                    gathered[end:end + n] = stored[first:first + n]
                offsets[i, slot], end = end, end + n
        padded = np.full(slots, _EMPTY_SLOT, np.int32)
        padded[:len(numbers)] = numbers
        inner = self.template.with_samples(x, y, offsets, lengths, lengths[0])
        return PartySubset(inner, padded)  # type: ignore[arg-type]

    def _mean_size(self, splits: Sequence[str]) -> float:
        """Number of samples of the average party in these splits."""
        return sum(self._mean_sizes[s] for s in splits)
