"""The command line in this process, and the scripts of the repository."""

import sys
from pathlib import Path

from command_line import call

__all__ = ["call"]

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the scripts in benchmarks
