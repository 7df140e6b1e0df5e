"""Starts a module of NVIDIA FLARE as the main program of this process, which ends when its parent process ends.

Run as ``python -m resolvent.deploy.nvflare_start MODULE ARGUMENTS``. Without it, the server and the sites of a command
that was killed would keep their connections and the port.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys

__all__: list[str] = []

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux; other systems have none


def _end_with_parent(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # the parent process has ended before the call
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _, parent, module, *arguments = sys.argv
    _end_with_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
