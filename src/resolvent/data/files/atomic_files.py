"""Files and folders that are complete or absent at any moment, also after a kill or a power failure."""

import contextlib
import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

INTERRUPTIONS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_MAX_NAME = 200  # bytes of a name that a hidden name repeats; file systems allow 255
_is_writing = False


def hidden_sibling(path: Path, ending: str) -> Path:
    """The path of a helper file or folder in the same folder: ``.NAME.ending``.

    A long name is cut and gets a digest, so that two names never have one helper file.
    """
    name = path.name
    if len(encoded := os.fsencode(name)) > _MAX_NAME:
        name = f"{encoded[:_MAX_NAME].decode(errors='ignore')}-{hashlib.sha256(encoded).hexdigest()[:8]}"
    return path.with_name(f".{name}.{ending}")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` with a temporary path in the same folder, and move the result to ``path``."""
    partial = hidden_sibling(path, "partial")
    try:
        write(partial)
        sync_to_disk(partial)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    sync_to_disk(path.parent)


def write_bytes(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file of parts that follow each other, completely or not at all."""
    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            file.writelines(parts)

    write_atomically(path, write)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, completely or not at all."""
    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", newline="")

    write_atomically(path, write)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner only can read, completely or not at all."""
    def write(partial: Path) -> None:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)  # before the content
        partial.write_bytes(content)

    write_atomically(path, write)


def remove_folder(path: Path) -> None:
    """Remove a folder: it first gets a hidden name, so that no reader finds a part of it. A missing one is no error.

    What cannot be removed after the move is left under the hidden name.
    """
    aside = hidden_sibling(path, "removed")
    _remove_tree(aside)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        _remove_tree(aside)


def _remove_tree(path: Path) -> None:
    """Remove a folder, also with a single file handle: ``shutil.rmtree`` opens one for each level of folders."""
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    for folder, names, files in os.walk(path, topdown=False):
        for remove, entries in ((os.unlink, files), (os.rmdir, names)):
            for name in entries:
                with contextlib.suppress(OSError):
                    remove(Path(folder, name))
    with contextlib.suppress(OSError):
        path.rmdir()


def sync_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power failure."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def finish_before_interruption() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the block ends.

    Only signals with a handler in Python are delayed; the others end the process at once, or are ignored, as before.
    """
    global _is_writing
    if _is_writing or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    handlers = {number: handler for number in INTERRUPTIONS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, remember)
    _is_writing = True
    try:
        yield
    finally:
        _is_writing = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def is_writing() -> bool:
    """Whether the main thread is in a block of ``finish_before_interruption``."""
    return _is_writing
