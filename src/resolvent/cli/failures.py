"""From an exception to the line that is printed and the exit code: the only place that decides them."""

import errno
import sys
from typing import NamedTuple

from resolvent.cli.exit_codes import BROKEN_PIPE, NO_DATA, NO_RESOURCE, WRONG_INPUT
from resolvent.cli.output import is_started_process
from resolvent.errors import InputError, MissingDataError, ProcessLostError, shorten

_MORE_MEMORY = ("use fewer parties or samples, a smaller model, a smaller batch_size or cohort, or memory='host' in "
                "Python, or a machine with more memory")
_CONTINUE = "then continue with --resume"
_ADVICE = {
    errno.ENOSPC: f"make room on the disk, {_CONTINUE}",
    errno.EDQUOT: f"make room in your quota, {_CONTINUE}",
    errno.EFBIG: f"raise the limit of file sizes (ulimit -f), {_CONTINUE}",
    errno.EROFS: "choose a folder that can be written, with --out or RESOLVENT_DATA",
    errno.EACCES: "change the permissions, or choose another folder with --out or RESOLVENT_DATA",
    errno.EPERM: "change the permissions, or choose another folder with --out or RESOLVENT_DATA",
    errno.ENOTDIR: "a part of the path is a file: choose a path whose parts are folders",
    errno.EEXIST: "a file has the name of a folder that is needed: move it away, or choose another path",
    errno.EISDIR: "give a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "the path has links in a circle: choose another path",
    errno.ENOENT: "it is missing, or was removed meanwhile",
    errno.EMFILE: f"raise the limit of open files (ulimit -n), {_CONTINUE}",
    errno.ENFILE: f"close other programs, {_CONTINUE}",
    errno.ENOMEM: _MORE_MEMORY,
    errno.EIO: f"the disk or the network file system failed: repair it, {_CONTINUE}",
    errno.ESTALE: f"the network file system failed: repair it, {_CONTINUE}",
}


class Failure(NamedTuple):
    """How a command ends.

    Attributes:
        message: one line: what is wrong and what to do; empty to print nothing.
        code: the exit code, see ``exit_codes``.
    """

    message: str
    code: int


def explain(error: BaseException) -> Failure | None:
    """The failure that an exception means; None if it is a defect of resolvent, which needs a traceback."""
    if isinstance(error, InputError):
        return Failure(str(error), NO_DATA if isinstance(error, MissingDataError) else WRONG_INPUT)
    if isinstance(error, ProcessLostError):
        message = f"{error}, {_CONTINUE}, with any number of processes"
        return Failure("" if is_started_process() else message, NO_RESOURCE)  # the process that has started it prints
    if isinstance(error, BrokenPipeError):
        return Failure("", BROKEN_PIPE)  # as programs that SIGPIPE ends
    if isinstance(error, OSError):
        return Failure(_os_message(error), NO_RESOURCE)
    if isinstance(error, MemoryError):
        return Failure(f"there is not enough memory{_detail(error)}: {_MORE_MEMORY}", NO_RESOURCE)
    if _is_device_memory_error(error):
        return Failure(f"there is not enough memory on the device{_detail(error)}: {_MORE_MEMORY}", NO_RESOURCE)
    if isinstance(error, UnicodeError):
        return Failure(f"a name or a file is not text in UTF-8 ({shorten(error)}): rename it, or convert it",
                       WRONG_INPUT)
    return None


def _os_message(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    advice = _ADVICE.get(error.errno or 0, f"correct this, {_CONTINUE}")
    subject = f"{shorten(' and '.join(files))}: " if files else ""
    return _line(f"{subject}{shorten(_line(reason))}: {advice}")


def _detail(error: BaseException) -> str:
    text = str(error).removeprefix("RESOURCE_EXHAUSTED: ")
    return f" ({_line(shorten(text))})" if text else ""


def _line(text: str) -> str:
    return " ".join(text.split())


def _is_device_memory_error(error: BaseException) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(error, jax.errors.JaxRuntimeError) and (
        "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error))
