"""The parties of a cohort for which a device works: all of them, its own, or those that are dealt to it in a round.

With a mesh of several devices, a ``PartyShard`` says which device has the samples and the state of each party, and
each device works for its own parties. Other problems are replicated, with the states of all parties: the cohort of each
round is dealt out, the longest work first. The server's step runs on every device, from the replies of all.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import TypeIs, override

from resolvent.math import tree
from resolvent.problem.learning import LearningProblem
from resolvent.problem.problem import Problem
from resolvent.problem.subset import PartySubset
from resolvent.simulator.engine.schedulers import longest_first
from resolvent.simulator.mesh import AXIS, DIVIDED, REPLICATED, sum_over_devices


class PartyShard(PartySubset):
    """The problem of the parties that belong to one device, which keep their global party ids.

    Arrays with an axis of slots or of rows have those of this device within ``on_every_device``, and those of all
    devices, one after the other, outside of it.

    Attributes:
        sizes: [N] number of training samples of every party, on every device: cohorts are drawn from them.
        device_of: [N] number of the device to which each party belongs, on every device.
        smallest: [1] id of the device's party with the fewest training samples; it occupies slots without work.
    """

    device_of: Int[Array, " N"]
    smallest: Int[Array, " 1"]

    def __init__(self, inner: LearningProblem, numbers: Int[Array, " M"], sizes: Int[Array, " N"],
                 device_of: Int[Array, " N"], smallest: Int[Array, " 1"]) -> None:
        self.inner, self.numbers = inner, numbers
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better
        self.sizes, self.device_of, self.smallest = sizes, device_of, smallest

    @override
    def row(self, k: Int[Array, "..."]) -> Int[Array, "..."]:
        """The slot of party k on its device."""
        return jnp.minimum(jnp.searchsorted(self.numbers, k, method="scan_unrolled"), len(self.numbers) - 1)

    @override
    def at(self, t: Int[Array, ""]) -> "PartyShard":
        inner = self.inner.at(t)
        return self if inner is self.inner else eqx.tree_at(lambda p: p.inner, self, inner)


def is_divided(problem: Problem) -> TypeIs[PartyShard]:
    """Whether each device has the data of its own parties only."""
    return isinstance(problem, PartyShard)


def problem_specs(problem: Problem) -> Any:
    """A tree of specifications: which arrays of a problem are divided among the devices."""
    if not is_divided(problem):
        return REPLICATED
    replicated = jax.tree.map(lambda _: REPLICATED, problem)

    def divided(p: PartyShard) -> list[Any]:
        inner = p.inner
        return jax.tree.leaves((inner.x, inner.y, inner.offset, inner.length, inner.sizes, p.numbers, p.smallest),
                               is_leaf=lambda x: isinstance(x, PartitionSpec))

    return eqx.tree_at(divided, replicated, [DIVIDED] * len(divided(problem)),
                       is_leaf=lambda x: isinstance(x, PartitionSpec))


class WholeCohort(eqx.Module):
    """All parties of a cohort: slot i is party i of the cohort.

    Attributes:
        index: [C] ids of the parties.
    """

    index: Int[Array, " C"]

    @property
    def home(self) -> "WholeCohort":
        """The parties whose states the device has."""
        return self

    def select(self, x: PyTree[Any], empty: Any = 0) -> PyTree[Any]:
        """The values of the slots, leaves [L, ...], from those of the cohort, leaves [C, ...]."""
        return x

    def targets(self, slots: Int[Array, " L"], rows: int) -> Int[Array, " L"]:
        """The rows of the states to which the slots are written."""
        return slots

    def exchange(self, x: PyTree[Any]) -> PyTree[Any]:
        """The values of the cohort, leaves [C, ...], from those of the slots of all devices, leaves [L, ...]."""
        return x

    def collect(self, replies: PyTree[Any], rows: PyTree[Any]) -> tuple[PyTree[Any], PyTree[Any]]:
        """The replies of the whole cohort, and the rows of the parties of ``home``, from those of the slots."""
        return replies, rows


class PartOfCohort(WholeCohort):
    """Some parties of a cohort, in L slots; further slots are empty.

    An empty slot has a party with little work, which works at effort 0; its results are dropped.

    Attributes:
        index: [L] ids of the parties.
        positions: [L] their positions in the cohort; C for an empty slot.
        cohort: [C] ids of all parties of the cohort.
        is_home: whether the device has the states of these parties alone, and not those of all.
    """

    positions: Int[Array, " L"]
    cohort: Int[Array, " C"]
    is_home: bool = eqx.field(static=True)

    @property
    @override
    def home(self) -> WholeCohort:
        return self if self.is_home else WholeCohort(self.cohort)

    @override
    def select(self, x: PyTree[Any], empty: Any = 0) -> PyTree[Any]:
        """The values of the slots, leaves [L, ...]; empty slots have the value ``empty``."""
        def of_leaf(leaf: Array) -> Array:
            rows = leaf[jnp.minimum(self.positions, len(self.cohort) - 1)]
            return jnp.where(tree.column(self._is_filled, rows), rows, jnp.asarray(empty, rows.dtype))
        return jax.tree.map(of_leaf, x)

    @override
    def targets(self, slots: Int[Array, " L"], rows: int) -> Int[Array, " L"]:
        """The rows of the states to which the slots are written; empty slots are written to none."""
        beyond = rows + jnp.arange(len(slots), dtype=slots.dtype)  # different ones, because targets must be unique
        return jnp.where(self._is_filled, slots, beyond)

    @override
    def exchange(self, x: PyTree[Any]) -> PyTree[Any]:
        """The values of the cohort, leaves [C, ...], the same bits on every device. An array is sent once."""
        leaves, structure = jax.tree.flatten(x)
        distinct = {id(leaf): leaf for leaf in leaves}
        size, slots = len(self.cohort), len(self.index)
        # The slot of each party: to gather rows costs a tenth of scattering them on a CPU.
        slot = jnp.full(size, slots, jnp.int32).at[self.positions].set(jnp.arange(slots, dtype=jnp.int32), mode="drop")

        def placed(leaf: Array) -> Array:
            rows = leaf[jnp.minimum(slot, slots - 1)]
            return jnp.where(tree.column(slot < slots, rows), rows, jnp.zeros((), leaf.dtype))

        summed = sum_over_devices([placed(leaf) for leaf in distinct.values()])
        of_leaf = dict(zip(distinct, summed, strict=True))
        return jax.tree.unflatten(structure, [of_leaf[id(leaf)] for leaf in leaves])

    @override
    def collect(self, replies: PyTree[Any], rows: PyTree[Any]) -> tuple[PyTree[Any], PyTree[Any]]:
        if self.is_home:
            return self.exchange(replies), rows
        collected: tuple[PyTree[Any], PyTree[Any]] = self.exchange((replies, rows))
        return collected

    @property
    def _is_filled(self) -> Bool[Array, " L"]:
        return self.positions < len(self.cohort)


def part_of_cohort(problem: Problem, cohort: Int[Array, " C"], amount: Float[Array, " C"], mesh: Mesh | None,
                   slack: float) -> WholeCohort:
    """The parties of a cohort for which this device works.

    Args:
        cohort: ids of the parties.
        amount: estimated amount of work of each party, in any unit.
        slack: additional slots of a device to which parties are dealt, see ``Scheduler.slack``.
    """
    if mesh is None:
        return WholeCohort(cohort)
    size, device = len(cohort), jax.lax.axis_index(AXIS)
    if is_divided(problem):
        is_own = problem.device_of[cohort] == device
        first = jnp.argsort(~is_own, stable=True)[:min(size, len(problem.numbers))]  # own ones, in the cohort's order
        index = jnp.where(is_own[first], cohort[first], problem.smallest[0])
        return PartOfCohort(index, jnp.where(is_own[first], first, size), cohort, is_home=True)
    slots = min(size, int(-(-size // mesh.size) * (1 + slack)))
    # Every device deals out the whole cohort, because that costs less than to receive the result.
    positions = jax.lax.dynamic_slice_in_dim(distribute(amount, mesh.size, slots), device * slots, slots)
    index = cohort[jnp.where(positions < size, positions, jnp.argmin(amount))]
    return PartOfCohort(index, positions, cohort, is_home=False)


def distribute(amount: Float[Array, " C"], devices: int, slots_per_device: int) -> Int[Array, " slots"]:
    """Assign the parties of a cohort to the slots of devices.

    The party with the most work goes first, to the device with the least work among those with a free slot.

    Args:
        amount: [C] amount of work of each party.
        devices: number of devices.
        slots_per_device: number of parties that a device can take.

    Returns:
        [devices * slots_per_device] the party of each slot, device by device; C for a slot without a party.

    Example:
        >>> distribute(jnp.array([3.0, 1.0, 2.0]), devices=2, slots_per_device=2).tolist()
        [0, 3, 2, 1]
    """
    size = len(amount)
    order = longest_first(amount)

    def assign(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        slots, counts, load = carry
        k = order[i]
        device = jnp.argmin(jnp.where(counts < slots_per_device, load, jnp.inf))
        slots = slots.at[device * slots_per_device + counts[device]].set(k)
        return slots, counts.at[device].add(1), load.at[device].add(amount[k])

    first = (jnp.full(devices * slots_per_device, size), jnp.zeros(devices, jnp.int32),
             jnp.zeros(devices, amount.dtype))
    slots: Array = jax.lax.fori_loop(0, size, assign, first)[0]
    return slots
