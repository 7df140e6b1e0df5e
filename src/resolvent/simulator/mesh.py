"""The mesh: all devices of one process or of several ones, along one axis.

Arrays are replicated, so that every device has all of them, or divided, so that each has a part. In a compiled call
devices exchange arrays by ``sum_over_devices``. Outside of compiled calls several processes, which JAX connects,
exchange arrays by the functions of this module, which all of them must call in the same order; the first process is the
writer, which alone writes files and shows progress.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

from resolvent.errors import ProcessLostError
from xla_cpu_rewrites.small_call import no_inline

AXIS = "parties"
REPLICATED, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]

_SHARED_BYTES = 2**20  # smallest array that the devices of a CPU share
_SIGNS_OF_A_LOST_PROCESS = ("Gloo", "gloo", "coordination service", "Connection reset by peer", "NCCL")


def mesh_of(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of these devices; default: all devices of all processes."""
    return Mesh(jax.devices() if devices is None else devices, (AXIS,))


def on_every_device(function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any) -> Any:
    """A function that runs on every device of a mesh, with the parts of its arguments on that device.

    Without a mesh, it is the function itself.
    """
    if mesh is None:
        return function
    # Varying manual axes are not checked, because the scan inside an LSTM's gradient does not pass the check.
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def replicate(x: PyTree[Any], mesh: Mesh | None) -> PyTree[Any]:
    """A copy of the arrays on every device of a mesh; all processes must have the same arrays."""
    if mesh is None:
        return x
    sharding = NamedSharding(mesh, REPLICATED)

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        if mesh.is_multi_process:
            return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])
        return jax.device_put(leaf, sharding)

    return jax.tree.map(of_leaf, x)


def replicate_constants(x: PyTree[Any], mesh: Mesh | None) -> PyTree[Any]:
    """As ``replicate``, for arrays that no round overwrites: the devices of a CPU share the memory of large ones."""
    if mesh is None or mesh.is_multi_process or mesh.devices.flat[0].platform != "cpu":
        return replicate(x, mesh)

    def of_leaf(leaf: Any) -> Any:
        is_large = (isinstance(leaf, jax.Array) and leaf.nbytes >= _SHARED_BYTES
                    and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended))
        if not is_large:
            return replicate(leaf, mesh)
        # JAX does not copy an aligned NumPy array to a CPU device, but it copies an array of another CPU device.
        memory = np.asarray(leaf)
        replicas = [jax.device_put(memory, device) for device in mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(leaf.shape, NamedSharding(mesh, REPLICATED), replicas)

    return jax.tree.map(of_leaf, x)


def local_devices(mesh: Mesh) -> list[int]:
    """The numbers of this process's devices in the mesh."""
    process = jax.process_index()
    return [i for i, device in enumerate(mesh.devices.flat) if device.process_index == process]


def concatenate(parts: Sequence[PyTree[Any]], mesh: Mesh) -> PyTree[Any]:
    """Arrays [D*n, ...], divided among the devices, from the parts [n, ...] of this process's devices."""
    sharding, devices = NamedSharding(mesh, DIVIDED), list(mesh.devices.flat)
    local = [devices[i] for i in local_devices(mesh)]

    def of_leaves(*leaves: Any) -> Array:
        on_devices = [jax.device_put(leaf, device) for leaf, device in zip(leaves, local, strict=True)]
        shape = (mesh.size * leaves[0].shape[0], *leaves[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, on_devices)

    return jax.tree.map(of_leaves, *parts)


def local_view(x: PyTree[Any], number: int = 0) -> PyTree[Any]:
    """The parts of arrays on this process's device ``number``, as arrays of that device; nothing is copied."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(number) if isinstance(leaf, jax.Array) else leaf, x)


def sum_over_devices(x: PyTree[Any]) -> PyTree[Any]:
    """The bits of arrays of which each entry is zero on all devices but one, within ``on_every_device``.

    Bits are added as integers: of floating numbers, -0.0 would become 0.0. All leaves of one width are one message,
    because most of the cost is per message.
    """
    psum: Callable[[Array, str], Array] = jax.lax.psum
    leaves, structure = jax.tree.flatten(x)
    words = [_to_words(leaf) for leaf in leaves]
    summed: list[Array] = list(words)
    for dtype in dict.fromkeys(word.dtype for word in words):  # in an order that all processes share
        numbers = [i for i, word in enumerate(words) if word.dtype == dtype]
        message = psum(no_inline(jnp.concatenate)([words[i].reshape(-1) for i in numbers]), AXIS)
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
