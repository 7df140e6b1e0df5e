"""Starts a module of NVIDIA FLARE as the main program of this process, which ends when its parent process ends.

Run as ``python -m resolvent.federation.engines.nvflare.start PARENT MODULE ARGUMENTS``.
"""

import runpy
import sys

from resolvent.federation.engines.processes import end_with_parent

if __name__ == "__main__":
    _, parent, module, *arguments = sys.argv
    end_with_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
