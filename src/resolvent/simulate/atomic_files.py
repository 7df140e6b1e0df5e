"""Files that are written completely or not at all, and that survive a power failure."""

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["sync_to_disk", "write_atomically"]


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call ``write`` with a temporary path in the same folder, and move the result to ``path``."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        sync_to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power failure."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
