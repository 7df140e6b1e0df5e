"""The command that shows an experiment, or the outcome of a run."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import tyro

from resolvent.cli.options import Changes

__all__ = ["show"]


def show(experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml|RUN")], *,
         set: Changes = (), json: bool = False) -> None:
    """Print an experiment as YAML with every default and its explanation, ready to edit; or the outcome of a run.

    Try `resolvent show digits > mine.yaml`, and `resolvent show runs/mine` after a run.

    Args:
        experiment: name of an experiment, a YAML file, or a run folder.
        set: change settings of an experiment first, such as model.name=mlp.
        json: print the summary of a run as JSON.
    """
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.errors import InputError

    folder = Path(experiment)
    if not folder.is_dir():
        if json:
            raise InputError(f"--json is for the outcome of a run, and there is no folder {experiment}")
        sys.stdout.write(ExperimentFile.load(experiment, [change for group in set for change in group]).to_yaml())
        return
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.summary import read_summary

    if set:
        raise InputError("--set changes an experiment, not a run: leave it out")
    summary = read_summary(folder)
    if json:
        sys.stdout.write(dumps(summary, indent=2) + "\n")
    else:
        terminal.print_summary(summary)
