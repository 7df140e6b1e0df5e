"""The command that compares runs."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["compare"]


def compare(runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(
                metavar="RUN RUN ...", help_behavior_hint="(required)")], *,
            json: bool = False) -> None:
    """Compare the methods of several runs on the same test rows, as if they had been one run.

    Try `resolvent compare runs/mine runs/mine-2`.

    The runs must have the same data, split, seed and number of seeds, so that differences are paired. A method that
    several runs have with the same result is shown once. Training alone of the first run that has it is the reference.

    Args:
        runs: at least two run folders, which `resolvent run` or rv.compare wrote.
        json: print JSON instead of tables.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.saved_runs import compare_runs

    summary = compare_runs(runs)
    if json:
        sys.stdout.write(dumps(summary, indent=2) + "\n")
    else:
        terminal.print_summary(summary)
