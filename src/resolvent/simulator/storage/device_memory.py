"""Whether the parties' data and states fit into the memory of the device."""

import os
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from resolvent.problem.subset import Gatherer

__all__ = ["fits_device", "memory_limit", "tree_bytes"]

_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def fits_device(gatherer: Gatherer, party: PyTree[jax.ShapeDtypeStruct]) -> bool:
    """Whether all parties' data and states, and a copy of the states, take less than half of the device's memory.

    Args:
        gatherer: gathers the parties' data.
        party: the shapes of a party's state.
    """
    parties = len(gatherer.data)
    return gatherer.bytes_of(parties) + 2 * parties * tree_bytes(party) < memory_limit() / 2


def memory_limit() -> int:
    """Bytes of the device's memory; on a CPU those of the machine, or of the container if they are fewer."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    if statistics.get("bytes_limit"):
        return int(statistics["bytes_limit"])
    limits = [file.read_text().strip() for file in _CONTAINER_LIMITS if file.is_file()]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *map(int, filter(str.isdigit, limits))])


def tree_bytes(x: PyTree[Any]) -> int:
    """Number of bytes of all leaves together."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(x))
