"""Whether the parties' data and states fit into the memory of the device."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.federated import FederatedData
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.problem.subset import Gatherer
from resolvent.xla.shapes import shapes_of

__all__ = ["fits_device", "memory_limit", "party_state_shapes", "tree_bytes"]

_MAX_MODELS_PER_PARTY = 100  # the state of a party has fewer models with every algorithm
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def fits_device(algorithm: Algorithm, model: Model, data: FederatedData) -> bool:
    """Whether all parties' data and states, and a copy of the states, take less than half of the device's memory."""
    limit = memory_limit() / 2
    gatherer = Gatherer(model, data)
    samples = gatherer.bytes_of(len(data))
    model_bytes = tree_bytes(shapes_of(model.init, keys.root_key(0)))
    if samples + _MAX_MODELS_PER_PARTY * len(data) * model_bytes < limit:
        return True  # without a trace of the algorithm
    return samples + 2 * len(data) * tree_bytes(party_state_shapes(algorithm, gatherer.template)) < limit


def memory_limit() -> int:
    """Bytes of the device's memory; on a CPU those of the machine, or of the container if they are fewer."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    if statistics.get("bytes_limit"):
        return int(statistics["bytes_limit"])
    limits = [file.read_text().strip() for file in _CONTAINER_LIMITS if file.is_file()]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *map(int, filter(str.isdigit, limits))])


def party_state_shapes(algorithm: Algorithm, problem: Problem) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of one party's state."""
    def first_state(seed: Array) -> PyTree[Array]:
        key = keys.initial_key(seed)
        return algorithm.init_party(problem.init(key), problem.oracle(jnp.array(0)), key)
    return jax.eval_shape(first_state, jnp.array(0))


def tree_bytes(x: PyTree[Any]) -> int:
    """Number of bytes of all leaves together."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(x))
