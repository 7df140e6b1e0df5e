"""Folders to write to: names that are possible, temporary folders, and a lock against a second writer."""

import contextlib
import errno
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from resolvent.data.files.atomic_files import hidden_sibling
from resolvent.errors import InputError, quote, shorten

_MAX_BYTES = 255  # of a name, in most file systems
_MAX_ENDING = 20  # bytes that helper files add to a name, such as .partial
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # the file system has no locks


class RunningError(InputError):
    """Another process writes into the folder."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


def check_names(path: Path, longest: int = _MAX_BYTES) -> None:
    """Refuse a path with a name that file systems cannot hold.

    Args:
        longest: the largest number of bytes of a name.
    """
    for name in path.parts:
        if "\0" in name or len(os.fsencode(name)) > longest:
            reason = "has a character that no file name can have" if "\0" in name else (
                f"has {len(os.fsencode(name))} bytes, and at most {longest} are possible")
            raise InputError(f"the name {quote(name)} of a file or folder {reason}: choose another name")


def make_temporary_folder() -> Path:
    """A new folder for temporary files, which the caller removes."""
    try:
        return Path(tempfile.mkdtemp(prefix="resolvent-"))
    except OSError as error:
        raise InputError(f"temporary files cannot be written ({shorten(error)}): make room there, or name a folder "
                         "with room in the environment variable TMPDIR") from error


@contextlib.contextmanager
def locked(out: Path, advice: str = "give --out another folder") -> Iterator[None]:
    """Hold the lock of a folder, which need not exist.

    The lock is one of the operating system, on the file ``.NAME.lock`` next to the folder. It ends with its process, so
    the file of a killed process does no harm. Folders that were made for the file are removed if they stay empty.

    Args:
        advice: what to do if another process holds the lock, for the end of the error.
    """
    check_names(out, _MAX_BYTES - _MAX_ENDING)
    try:
        target = out.resolve()
    except RuntimeError as error:  # before Python 3.13; later versions raise an OSError when the folder is made
        raise InputError(f"{out}: the links in the path form a circle: {advice}") from error
    if not target.name:
        raise InputError(f"{out} is the root of the file system, which cannot be replaced: {advice}")
    made = _make_parents(target)
    path = hidden_sibling(target, "lock")
    handle: int | None = None
    try:
        handle = _acquire(path, out, advice)
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)  # before the lock ends, so that no other process has locked this file
            os.close(handle)
        for folder in made:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def _make_parents(target: Path) -> list[Path]:
    """Make the missing folders above a path; the innermost is first in the list."""
    missing = [folder for folder in target.parents if not folder.exists()]
    if missing:
        target.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _acquire(path: Path, out: Path, advice: str) -> int | None:
    """Lock a file and write the number of this process into it; None where files cannot be locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
                return handle
            os.close(handle)  # its holder removed the file between our two calls
        except BlockingIOError:
            holder = os.pread(handle, 300, 0).decode(errors="replace").strip() or "with an unknown number"
            os.close(handle)
            raise RunningError(f"{out} is being written by process {holder}: wait until it has ended, or {advice}",
                               holder) from None
        except OSError as error:
            os.close(handle)
            if error.errno not in _NO_LOCKS:
                raise
            warnings.warn(f"{path.parent} is on a file system without locks: do not start two processes for {out}",
                          stacklevel=4)
            path.unlink(missing_ok=True)
            return None
