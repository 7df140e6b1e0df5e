"""Processes that hear signals, also where a shell has started the tests in the background.

A shell without job control ignores SIGINT for ``pytest &``, and nohup ignores SIGHUP. A process inherits what is
ignored: a test that sends such a signal would wait for an end that does not come.
"""

import contextlib
import signal
import subprocess

from resolvent.data.files.atomic_files import INTERRUPTIONS


@contextlib.contextmanager
def heard_signals():
    """A block in which no interruption is ignored: it raises ``KeyboardInterrupt`` here, and ends what starts here.

    A process that starts inherits what is ignored, but not a handler: it begins with the default disposition.
    """
    ignored = [number for number in INTERRUPTIONS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def start_process(arguments, **settings):
    """``subprocess.Popen`` of a process that a test interrupts."""
    with heard_signals():
        return subprocess.Popen(arguments, **settings)
