"""Trees on disk: safetensors files, atomic writes, digests, checkpoints."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from resolvent.errors import InputError
from resolvent.math import tree

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Checkpoint", "digest", "named_leaves", "read_tree", "write_atomically", "write_tree"]


def named_leaves(x: PyTree[Any]) -> dict[str, NDArray[Any]]:
    """Every leaf by the path to it (``layer 0.weight``); a bare array is called ``value``."""
    leaves = tree.named_leaves(x)
    found = {name or "value": np.asarray(leaf) for name, leaf in leaves}
    if len(found) < len(leaves):
        raise InputError("two leaves of the tree have the same path: rename a key that has a dot in it")
    return found


def digest(x: PyTree[Any]) -> str:
    """SHA-256 over the names, types, shapes and bytes of all leaves."""
    total = hashlib.sha256()
    for name, leaf in named_leaves(x).items():
        total.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        total.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, would outlive a loss of power."""
    if path.is_dir() and os.name == "nt":
        return  # there a folder cannot be opened
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call ``write`` with a temporary path beside ``path`` and move the result there: whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        _to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_tree(path: Path, x: PyTree[Any], note: dict[str, str] | None = None) -> None:
    """Write a tree as a safetensors file, with text beside it in the header."""
    leaves = {name: np.ascontiguousarray(leaf) for name, leaf in named_leaves(x).items()}
    write_atomically(path, lambda p: save_file(leaves, p, metadata=note))


def read_tree(path: Path, like: PyTree[Any]) -> tuple[PyTree[Any], dict[str, str]]:
    """Read a tree with the structure of ``like``, and the text beside it.

    Raises:
        InputError: the file is damaged, or its leaves are not those of ``like``.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            note = dict(file.metadata() or {})
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}. It may be damaged; remove it to start afresh") from error
    leaves = []
    for name, leaf in tree.named_leaves(like):
        value = found.get(name or "value")
        if value is None or value.shape != leaf.shape or value.dtype != leaf.dtype:
            have = "nothing" if value is None else f"{value.dtype}{list(value.shape)}"
            raise InputError(f"{path} has {have} for {name or 'value'!r}, expected {leaf.dtype}{list(leaf.shape)}")
        leaves.append(jax.numpy.asarray(value))
    return jax.tree.unflatten(jax.tree.structure(like), leaves), note


class Checkpoint(NamedTuple):
    """A run at the end of a chunk.

    Attributes:
        rounds: how many rounds are done.
        state: what the next round needs.
        metrics: all metrics so far.
        facts: seconds, bytes and the like, as JSON can hold them.
    """

    rounds: int
    state: PyTree[Any]
    metrics: "pd.DataFrame"
    facts: dict[str, Any]

    def write(self, folder: Path, fingerprint: str) -> None:
        """Write beside the last checkpoint, then put it in its place: a kill at any moment leaves one whole."""
        folder.mkdir(parents=True, exist_ok=True)
        step = folder / f"{self.rounds:09d}"
        partial = folder / f".{self.rounds:09d}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        self.metrics.to_parquet(partial / "metrics.parquet", index=False)
        (partial / "facts.json").write_text(json.dumps(self.facts))
        write_tree(partial / "state.safetensors", self.state, {"fingerprint": fingerprint})
        for written in (partial / "metrics.parquet", partial / "facts.json", partial):
            _to_disk(written)
        shutil.rmtree(step, ignore_errors=True)
        partial.rename(step)
        _to_disk(folder)  # before the old one goes
        for old in folder.iterdir():
            if old != step:
                shutil.rmtree(old)

    @classmethod
    def read(cls, folder: Path, like: PyTree[Any], fingerprint: str) -> "Checkpoint | None":
        """The newest whole checkpoint in ``folder``, or None where there is none.

        Raises:
            InputError: it belongs to another run.
        """
        import pandas as pd

        steps = sorted(p for p in folder.glob("[0-9]*") if p.is_dir()) if folder.is_dir() else []
        if not steps:
            return None
        step = steps[-1]
        try:
            # The fingerprint first: another run's leaves would be reported as a damaged file.
            with safe_open(step / "state.safetensors", framework="numpy") as file:
                belongs = (file.metadata() or {}).get("fingerprint")
            metrics = pd.read_parquet(step / "metrics.parquet")
            facts = json.loads((step / "facts.json").read_text())
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(f"the checkpoint {step} cannot be read: {error}. It may be damaged; remove it to start "
                             "afresh") from error
        if belongs != fingerprint:
            raise InputError(f"the checkpoint in {folder} belongs to another run (its algorithm, problem, "
                             "participation or seed differ): choose another folder, or start afresh without resume")
        state, _ = read_tree(step / "state.safetensors", like)
        return cls(int(step.name), state, metrics, facts)
