"""Trees as safetensors files, and the digest of a tree."""

import errno
import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from resolvent.data.files.atomic_files import write_atomically
from resolvent.data.files.digests import DamagedFileError
from resolvent.errors import InputError, shorten
from resolvent.math import tree

FILE_NAMES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
              "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16",
              "float32": "F32", "float64": "F64"}  # names in the header of a safetensors file
NUMPY_NAMES = {name: dtype for dtype, name in FILE_NAMES.items()}


class BlockedLeaf(ABC):
    """An array that is not in the memory of one process: it is read and written in blocks of rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows, block by block. Several processes that divide the array must iterate together."""

    @abstractmethod
    def from_blocks(self, read: Callable[[int, int], NDArray[Any]]) -> Any:
        """An array of the same kind with other numbers; ``read`` returns the rows from a first to a last one."""


def named_leaves(x: PyTree[Any]) -> dict[str, Any]:
    """Each leaf by its path (``layer 0.weight``); a tree that is one array has the path ``value``."""
    leaves = tree.named_leaves(x)
    arrays = {name or "value": leaf if isinstance(leaf, BlockedLeaf) else np.asarray(leaf) for name, leaf in leaves}
    if len(arrays) < len(leaves):
        raise InputError("two leaves of the tree have the same path: rename a key that has a dot in it")
    return arrays


def digest(x: PyTree[Any]) -> str:
    """SHA-256 of the paths, dtypes, shapes and bytes of all leaves."""
    total = hashlib.sha256()
    for name, leaf in named_leaves(x).items():
        total.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        for block in _blocks_of(leaf):
            total.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def digest_of_array(x: Any) -> str:
    """The dtype, the shape and the SHA-256 of the numbers of an array."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    array = np.ascontiguousarray(x)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()}"


def digest_of_texts(texts: Iterable[str]) -> str:
    """SHA-256 of a sequence of texts."""
    # With lengths, because a text may contain any separator.
    return hashlib.sha256("".join([f"{len(text)}:{text}" for text in texts]).encode()).hexdigest()


def write_tree(path: Path, x: PyTree[Any]) -> None:
    """Write a tree as a safetensors file."""
    leaves = named_leaves(x)
    if any(isinstance(leaf, BlockedLeaf) for leaf in leaves.values()):
        write_atomically(path, lambda p: _write_blocks(p, leaves))
        return
    leaves = {name: np.asarray(leaf, order="C") for name, leaf in leaves.items()}  # contiguous; scalars stay scalars
    try:
        write_atomically(path, lambda p: save_file(leaves, p))
    except SafetensorError as error:  # the library reports a full disk as text: "... (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else shorten(error), str(path)) from error


def join_blocks(x: PyTree[Any]) -> None:
    """What a process does that has a part of a tree, while another one writes it with ``write_tree``."""
    for leaf in named_leaves(x).values():
        for _ in _blocks_of(leaf):
            pass


def _blocks_of(leaf: Any) -> Iterator[NDArray[Any]]:
    return leaf.blocks() if isinstance(leaf, BlockedLeaf) else iter([leaf])


def _write_blocks(path: Path, leaves: Mapping[str, Any]) -> None:
    """A safetensors file of arrays of which only a block is in memory."""
    header: dict[str, Any] = {}
    end = 0
    for name, leaf in leaves.items():
        start, end = end, end + int(np.prod(leaf.shape)) * leaf.dtype.itemsize
        header[name] = {"dtype": FILE_NAMES[leaf.dtype.name], "shape": list(leaf.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for leaf in leaves.values():
                for block in _blocks_of(leaf):
                    file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # with the name of the file


def read_tree(path: Path, like: PyTree[Any]) -> PyTree[Any]:
    """Read a tree with the structure of ``like``."""
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            leaves = [_read_leaf(file, path, name or "value", leaf, names) for name, leaf in tree.named_leaves(like)]
    except (SafetensorError, FileNotFoundError) as error:
        raise DamagedFileError(f"{path} cannot be read, it is damaged: {shorten(error)}") from error
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _read_leaf(file: Any, path: Path, name: str, like: Any, names: set[str]) -> Any:
    """One leaf of a safetensors file, as the kind of array that ``like`` is."""
    if name not in names:
        raise InputError(f"{path} has no leaf for {name!r}, expected {like.dtype}{list(like.shape)}")
    rows = file.get_slice(name)
    shape, dtype = tuple(rows.get_shape()), rows.get_dtype()
    if shape != like.shape or dtype != FILE_NAMES[np.dtype(like.dtype).name]:
        raise InputError(f"{path} has {NUMPY_NAMES.get(dtype, dtype)}{list(shape)} for {name!r}, expected "
                         f"{like.dtype}{list(like.shape)}")
    if isinstance(like, BlockedLeaf):
        return like.from_blocks(lambda start, stop: rows[start:stop])
    return jax.numpy.asarray(file.get_tensor(name))
