"""Ctrl-C, SIGTERM and SIGHUP: a command answers within two seconds, on one line, and says how to continue.

A signal raises ``Interrupted`` in the main thread as soon as that runs Python code. While it computes or compiles, it
does not; then a thread prints the answer and ends the process. This loses nothing, because all files are complete at
any moment. A file that is being written is finished first, unless there is a second signal.
"""

import contextlib
import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from resolvent.cli.output import is_started_process
from resolvent.data.files.atomic_files import INTERRUPTIONS, is_writing

_ANSWER_SECONDS = 1.5  # until the process ends if the main thread has not raised the interruption
_CLEANUP_SECONDS = 8.0  # until the process ends if the main thread has raised the interruption
_EXIT_SECONDS = 1.5  # until the process ends if its normal exit takes longer
_STOP = 0


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def answer_interruptions() -> Iterator[list[Interrupted]]:
    """Answer signals within the block; those that are ignored, as after ``nohup``, stay ignored.

    Yields:
        The interruption that was raised in the block, when there has been one: a library may have turned it into
        another exception.
    """
    _printed.clear()
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    watcher = _Watcher()
    handlers = {number: handler for number in INTERRUPTIONS
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)}
    for number in handlers:
        signal.signal(number, watcher.handle)
    report_unraisable = sys.unraisablehook
    sys.unraisablehook = watcher.ignore_lost(report_unraisable)
    if hasattr(signal, "SIGXFSZ"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a file that is too large raises an OSError
    try:
        yield watcher.raised
    finally:
        sys.unraisablehook = report_unraisable
        if not watcher.raised:  # otherwise it guards the end of the process
            for number, handler in handlers.items():
                signal.signal(number, handler)
            watcher.stop()


class _Watcher:
    """A thread that gets the signals' numbers from a pipe, which Python fills even while the main thread computes."""

    def __init__(self) -> None:
        self.raised: list[Interrupted] = []
        self._is_importing = False  # when a signal came
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._former = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="resolvent-interruption", daemon=True)
        self._thread.start()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise the first interruption in the main thread. Within an import, this object's thread answers at once.

        Compiled modules print an exception within their import with a traceback, and raise another one.
        """
        if _is_importing(frame):
            self._is_importing = True
        elif not self.raised:
            self.raised.append(Interrupted(number))
            raise self.raised[0]

    def ignore_lost(self, report: Callable[[Any], Any]) -> Callable[[Any], None]:
        """A function for ``sys.unraisablehook`` that ignores an interruption.

        Python cannot raise it from a destructor or a callback of the garbage collector. It is as if the main thread had
        run no Python code: this thread answers.
        """
        def hook(unraisable: Any) -> None:
            if isinstance(unraisable.exc_value, Interrupted):
                self.raised.clear()
            else:
                report(unraisable)

        return hook

    def stop(self) -> None:
        signal.set_wakeup_fd(self._former)
        os.write(self._write, bytes([_STOP]))
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        number = self._next_signal(None)
        if number == _STOP:
            return
        assert number is not None
        begin = time.monotonic()
        while (second := self._next_signal(0.05)) is None:
            seconds = time.monotonic() - begin
            if self._is_importing or seconds > (_CLEANUP_SECONDS if self.raised else _ANSWER_SECONDS):
                if not is_writing():
                    break
                print_interruption(number, "a checkpoint is being written, which is finished first; interrupt again "
                                           "to end at once")
        if second != _STOP:
            print_interruption(number)
            _end(128 + number)

    def _next_signal(self, seconds: float | None) -> int | None:
        """The number of the next interruption or ``_STOP``; None if there is none in this time."""
        while select.select([self._read], [], [], seconds)[0]:
            number = os.read(self._read, 1)[0]
            if number == _STOP or number in INTERRUPTIONS:
                return number
        return None


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def limit_exit(code: int) -> None:
    """Let the exit that follows do what is registered for it, such as removing temporary folders, for a moment at most.

    Python waits for threads that are no daemons, such as those of trials, which compute to their end; and JAX has
    registered a function in which a process that is connected with others waits for them, for up to 300 seconds.
    """
    limit = threading.Timer(_EXIT_SECONDS, _end, (code,))
    limit.daemon = True
    limit.start()


def _end(code: int) -> None:
    """End the process from a thread, while the main thread is in a compiled function that does not return.

    The standard library has no other way that keeps the exit code: an exception in this thread ends this thread, the
    handler of a signal runs in the main thread, and without a handler a signal has a code of its own.
    """
    os._exit(code)


_printed: list[str] = []
_lock = threading.Lock()


def print_interruption(number: int, state: str = "") -> None:
    """Print that the process was interrupted, and how to continue; only once for each state.

    Args:
        number: number of the signal.
        state: what the process does until it ends; default: how to continue.
    """
    with _lock:
        if state in _printed or is_started_process():  # the process that has started this one prints it
            return
        _printed.append(state)
    name = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
    text = f"{show_cursor}\ninterrupted{name}: {state or _how_to_continue(sys.argv[1:])}\n"
    with contextlib.suppress(OSError):
        if threading.current_thread() is threading.main_thread():
            sys.stderr.write(text)
            sys.stderr.flush()
        else:
            os.write(2, text.encode(errors="backslashreplace"))  # the main thread may hold the lock of sys.stderr


def _how_to_continue(arguments: list[str]) -> str:
    command = "resolvent " + shlex.join(arguments)
    if arguments[:1] == ["run"]:
        return f"continue with: {command}{'' if '--resume' in arguments else ' --resume'}"
    if arguments[:2] == ["data", "fetch"]:
        return f"the download is resumed by: {command}"
    return f"start again with: {command}"
