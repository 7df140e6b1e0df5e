"""Several processes that run one federation together, connected by JAX.

The first process is the writer: it alone writes files and shows progress. What the processes exchange outside of
compiled rounds goes through the functions of this module, which all processes must call in the same order.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.errors import ProcessLostError

_SIGNS_OF_A_LOST_PROCESS = ("Gloo", "gloo", "coordination service", "Connection reset by peer", "NCCL")


def connect(address: str | None = None, count: int | None = None, number: int | None = None) -> None:
    """Connect this process with the others of its run. It must be called before anything is computed.

    Args:
        address: ``HOST:PORT`` on which the first process listens; default: that of the cluster (Slurm, Open MPI, or
            another one that ``jax.distributed`` detects).
        count: number of processes; default: that of the cluster.
        number: number of this process, from 0 on; default: that of the cluster.
    """
    update: Callable[..., None] = jax.config.update
    update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, number)
    with _silent_output():  # the first exchange between CPUs prints a line
        gather_over_processes(np.zeros(()))


@contextlib.contextmanager
def _silent_output() -> Iterator[None]:
    """Discard what libraries print to standard output."""
    sys.stdout.flush()
    original, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        yield
    finally:
        os.dup2(original, 1)
        os.close(original)
        os.close(null)


@contextlib.contextmanager
def detect_lost_process() -> Iterator[None]:
    """Raise one error for all the forms in which libraries report that another process has ended."""
    try:
        yield
    except Exception as error:
        if jax.process_count() > 1 and any(sign in str(error) for sign in _SIGNS_OF_A_LOST_PROCESS):
            raise ProcessLostError("another process of this run has ended, or the connection to it is lost: find the "
                                   "cause in its output") from error
        raise


def is_connected() -> bool:
    """Whether this process is connected with others."""
    return jax.distributed.is_initialized()


def is_writer() -> bool:
    """Whether this process writes files and shows progress."""
    return jax.process_index() == 0


def gather_over_processes(values: NDArray[Any]) -> NDArray[Any]:
    """[P, ...] the values of all processes, which have the same shape and dtype in each."""
    if jax.process_count() == 1:
        return values[None]
    from jax.experimental import multihost_utils

    # JAX would round numbers of 64 bits to 32, unless double precision is enabled: they travel as pairs of integers.
    is_wide = values.dtype.itemsize == 8
    sent = np.ascontiguousarray(values).reshape(-1).view(np.uint32) if is_wide else values
    gathered = np.ascontiguousarray(multihost_utils.process_allgather(sent))
    return gathered.view(values.dtype).reshape(jax.process_count(), *values.shape)


def sum_over_processes(values: NDArray[Any]) -> NDArray[Any]:
    """The sum of the values of all processes."""
    total: NDArray[Any] = gather_over_processes(values).sum(axis=0, dtype=values.dtype)
    return total


def from_writer(number: int) -> int:
    """The number that the writer process has."""
    if jax.process_count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def text_from_writer(text: str) -> str:
    """The text that the writer process has."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    encoded = text.encode()
    size = from_writer(len(encoded))
    buffer = np.zeros(size, np.uint8)
    if is_writer():
        buffer[:] = np.frombuffer(encoded, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes().decode()
