"""Starts, watches and ends the process of a participant: that of the server or that of a site."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

from resolvent.data.files.atomic_files import remove_folder
from resolvent.errors import InputError

ENGINE_LOG = "engine.log"  # in the folder of a kit
_MAX_LOG = 2**23  # bytes; then the log is moved to engine.log.1, and that one to engine.log.2
_TAIL = 2**16  # bytes of a log that are read for its last lines
_TERMINATION = 8.0  # seconds that the processes have after SIGTERM
_PARENT_CHECK = 0.5  # seconds between two checks whether the parent process has ended
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux; other systems have none


class EngineProcess:
    """A running process of an engine with the processes that it has started."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, output: IO[bytes]) -> None:
        self._process, self.log, self._output = process, log, output
        self._log_start = output.tell()

    @property
    def pid(self) -> int:
        """The number by which the operating system knows the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> bool:
        """Wait at most this time until the process ends; returns whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.is_running

    def bound_log(self) -> None:
        """Move the log away if it is long; the command that has started the process calls it now and then."""
        if self.log.stat().st_size > _MAX_LOG:
            _rotate(self.log)
            self._log_start = 0

    def wait_for(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Wait until the process has got so far.

        Raises:
            InputError: it has ended before, or takes longer.
        """
        end = time.monotonic() + seconds
        while not is_ready():
            if not self.is_running or time.monotonic() > end:
                reason = "has ended" if not self.is_running else f"is not ready after {seconds:.0f} s"
                raise InputError(f"the process {reason}; its last lines: {self.last_lines()}")
            time.sleep(0.1)

    def last_lines(self, count: int = 3) -> str:
        """The last lines of the output."""
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode("utf-8", "replace")
        return " | ".join(text.strip().splitlines()[-count:]) or "(none)"

    def stop(self) -> None:
        """End the process and the processes that it has started, which are its process group."""
        for number, seconds in ((signal.SIGTERM, _TERMINATION), (signal.SIGKILL, _TERMINATION)):
            if not _group_exists(self.pid):
                break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            end = time.monotonic() + seconds
            while _group_exists(self.pid) and time.monotonic() < end:
                self._process.poll()
                time.sleep(0.05)
        self._process.wait(1)
        self._output.close()


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _rotate(log: Path) -> None:
    """Move the content of a log to ``engine.log.1``. The processes append to the file that they have opened.

    It is therefore emptied and not renamed; a line that is written between the copy and this moment is lost.
    """
    older = log.with_name(f"{log.name}.1")
    if older.is_file():
        older.replace(log.with_name(f"{log.name}.2"))
    shutil.copyfile(log, older)
    os.truncate(log, 0)


def start_process(kit: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> EngineProcess:
    """Start a Python module as a process whose output goes to ``ENGINE_LOG`` in its kit.

    Args:
        arguments: the module, the id of this process (see ``end_with_parent``) is inserted after it, and the module's
            further arguments.
        environment: variables for the process, in addition to those of this one.
    """
    module, *others = arguments
    log = kit / ENGINE_LOG
    output = log.open("ab")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", module, str(os.getpid()), *others], stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, start_new_session=True, cwd=kit, env={**os.environ, "PJRT_NPROC": "1", **environment})
    return EngineProcess(process, log, output)


@contextlib.contextmanager
def running(process: EngineProcess) -> Iterator[EngineProcess]:
    """End a process when the block ends."""
    try:
        yield process
    finally:
        process.stop()


def end_with_parent(parent: int) -> None:
    """End this process when its parent process ends.

    Without it, the server and the sites of a command that was killed would keep their connections and the port.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # the parent process has ended before the call
        os.kill(os.getpid(), signal.SIGTERM)


def end_without_parent() -> None:
    """From now on, end this process soon after its parent process has ended.

    A signal of the operating system, as in ``end_with_parent``, would also come when only the thread of the parent
    process ends that has started this process. What the process stores survives an end at any moment.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def free_port() -> int:
    """A TCP port of the loopback address that no program uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # the engine's id of a job
_PARENTS = ("", "engine/jobs")  # of a kit: the working folders of jobs, and the server's store of jobs
_DAY = 86_400.0


class Cleaned(NamedTuple):
    """What was removed: the number of folders, and their size in bytes."""

    folders: int
    bytes: int


def clean_jobs(kit: Path, days: float) -> Cleaned:
    """Remove the folders of jobs in which nothing was written for some days.

    The caller holds the lock of the kit, so that no job runs.
    """
    folders, size = 0, 0
    for parent in _PARENTS:
        for folder in sorted((kit / parent).glob("*-*-*-*-*")):
            if not _JOB.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
                continue
            states = [path.lstat() for path in (folder, *folder.rglob("*"))]
            if datetime.now(UTC).timestamp() - max(state.st_mtime for state in states) >= days * _DAY:
                remove_folder(folder)
                folders, size = folders + 1, size + sum(state.st_size for state in states)
    return Cleaned(folders, size)
