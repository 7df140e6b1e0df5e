"""Trees as safetensors files, and the digest of a tree."""

import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from resolvent.data.atomic_files import write_atomically
from resolvent.data.digests import DamagedFileError
from resolvent.errors import InputError, shorten
from resolvent.math import tree

__all__ = ["digest", "named_leaves", "read_tree", "write_tree"]


def named_leaves(x: PyTree[Any]) -> dict[str, NDArray[Any]]:
    """Each leaf by its path (``layer 0.weight``); a tree that is one array has the path ``value``.

    Raises:
        InputError: two leaves have the same path.
    """
    leaves = tree.named_leaves(x)
    arrays = {name or "value": np.asarray(leaf) for name, leaf in leaves}
    if len(arrays) < len(leaves):
        raise InputError("two leaves of the tree have the same path: rename a key that has a dot in it")
    return arrays


def digest(x: PyTree[Any]) -> str:
    """SHA-256 of the paths, dtypes, shapes and bytes of all leaves."""
    total = hashlib.sha256()
    for name, leaf in named_leaves(x).items():
        total.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        total.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def write_tree(path: Path, x: PyTree[Any], note: dict[str, str] | None = None) -> None:
    """Write a tree as a safetensors file, with texts in its header.

    Raises:
        OSError: the file cannot be written.
    """
    leaves = {name: np.ascontiguousarray(leaf) for name, leaf in named_leaves(x).items()}
    try:
        write_atomically(path, lambda p: save_file(leaves, p, metadata=note))
    except SafetensorError as error:  # the library reports a full disk as text: "... (os error 28)"
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else shorten(error), str(path)) from error


def read_tree(path: Path, like: PyTree[Any]) -> tuple[PyTree[Any], dict[str, str]]:
    """Read a tree with the structure of ``like``, and the texts in the header.

    Raises:
        DamagedFileError: the file is damaged.
        InputError: its leaves have other paths, shapes or dtypes than those of ``like``.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            note = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, FileNotFoundError) as error:
        raise DamagedFileError(f"{path} cannot be read, it is damaged: {shorten(error)}") from error
    leaves = []
    for name, leaf in tree.named_leaves(like):
        array = arrays.get(name or "value")
        if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
            content = "no leaf" if array is None else f"{array.dtype}{list(array.shape)}"
            raise InputError(f"{path} has {content} for {name or 'value'!r}, expected {leaf.dtype}{list(leaf.shape)}")
        leaves.append(jax.numpy.asarray(array))
    return jax.tree.unflatten(jax.tree.structure(like), leaves), note
