"""The part of a cohort for which a program computes: all parties, or those that belong to one device of a shard.

The engine computes the parties' work for the slots of this part, and the server's step from the replies of all.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from resolvent.algorithms.cohort import Cohort
from resolvent.math import tree
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.schedulers import AXIS
from resolvent.simulator.storage.shards import is_divided


class WholeCohort(eqx.Module):
    """All parties of the cohort: slot i is party i of the cohort.

    Attributes:
        index: [C] ids of the parties.
    """

    index: Int[Array, " C"]

    def select(self, x: PyTree[Any], empty: Any = 0) -> PyTree[Any]:
        """The values of the slots, leaves [L, ...], from those of the cohort, leaves [C, ...]."""
        return x

    def targets(self, slots: Int[Array, " L"], rows: int) -> Int[Array, " L"]:
        """The rows of the states to which the slots are written."""
        return slots

    def exchange(self, x: PyTree[Any]) -> PyTree[Any]:
        """The values of the cohort, leaves [C, ...], from those of the slots of all devices, leaves [L, ...]."""
        return x


class OwnParties(eqx.Module):
    """The parties of the cohort that belong to this device, in L slots; the others are empty.

    An empty slot has the device's smallest party, which works at effort 0; its results are dropped.

    Attributes:
        index: [L] ids of the parties.
        positions: [L] their positions in the cohort; C for an empty slot.
        size: C.
    """

    index: Int[Array, " L"]
    positions: Int[Array, " L"]
    size: int = eqx.field(static=True)

    def select(self, x: PyTree[Any], empty: Any = 0) -> PyTree[Any]:
        """The values of the slots, leaves [L, ...]; empty slots have the value ``empty``."""
        def of_leaf(leaf: Array) -> Array:
            rows = leaf[jnp.minimum(self.positions, self.size - 1)]
            return jnp.where(tree.column(self._is_filled, rows), rows, jnp.asarray(empty, rows.dtype))
        return jax.tree.map(of_leaf, x)

    def targets(self, slots: Int[Array, " L"], rows: int) -> Int[Array, " L"]:
        """The rows of the states to which the slots are written; empty slots are written to none."""
        beyond = rows + jnp.arange(len(slots), dtype=slots.dtype)  # different ones, because targets must be unique
        return jnp.where(self._is_filled, slots, beyond)

    def exchange(self, x: PyTree[Any]) -> PyTree[Any]:
        """The values of the cohort, leaves [C, ...], the same bits on every device."""
        def in_cohort_order(leaf: Array) -> Array:
            zeros = jnp.zeros((self.size, *leaf.shape[1:]), leaf.dtype)
            return zeros.at[self.positions].set(leaf, mode="drop")
        return sum_over_devices(jax.tree.map(in_cohort_order, x))

    @property
    def _is_filled(self) -> Bool[Array, " L"]:
        return self.positions < self.size


CohortPart: TypeAlias = WholeCohort | OwnParties


def part_of_cohort(problem: Problem, cohort: Cohort) -> CohortPart:
    """The part of a cohort that belongs to this device: everything, unless the problem is a ``PartyShard``."""
    if not is_divided(problem):
        return WholeCohort(cohort.index)
    size = len(cohort.index)
    is_own = problem.device_of[cohort.index] == jax.lax.axis_index(AXIS)
    slots = min(size, len(problem.numbers))
    first = jnp.argsort(~is_own, stable=True)[:slots]  # own parties first, in the cohort's order
    positions = jnp.where(is_own[first], first, size)
    index = jnp.where(is_own[first], cohort.index[first], problem.smallest[0])
    return OwnParties(index, positions, size)


def sum_over_devices(x: PyTree[Any]) -> PyTree[Any]:
    """The bits of arrays of which each entry is zero on all devices but one.

    Bits are added as integers: of floating numbers, -0.0 would become 0.0. All leaves of one width are one message,
    because most of the cost is per message.
    """
    psum: Callable[[Array, str], Array] = jax.lax.psum
    leaves, structure = jax.tree.flatten(x)
    words = [_to_words(leaf) for leaf in leaves]
    summed: list[Array] = list(words)
    for dtype in dict.fromkeys(word.dtype for word in words):  # in an order that all processes share
        numbers = [i for i, word in enumerate(words) if word.dtype == dtype]
        message = psum(jnp.concatenate([words[i].reshape(-1) for i in numbers]), AXIS)
        start = 0
        for i in numbers:
            summed[i] = message[start:start + words[i].size].reshape(words[i].shape)
            start += words[i].size
    return jax.tree.unflatten(structure, [_from_words(word, leaf) for word, leaf in zip(summed, leaves, strict=True)])


def _to_words(leaf: Array) -> Array:
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))
    return bits if bits.dtype.itemsize >= 4 else bits.astype(jnp.uint32)


def _from_words(words: Array, like: Array) -> Array:
    """The array of the dtype of ``like`` with these bits."""
    if like.dtype == jnp.bool_:
        return words.astype(jnp.bool_)
    bits = words.astype(jnp.dtype(f"uint{8 * like.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(bits, like.dtype)
