"""One run of an experiment, from its file to the finished folder."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.simulate.schedulers import Choice
from resolvent.study.compare import compare
from resolvent.study.experiment import ExperimentFile
from resolvent.study.folder import begin, check_folder, open_folder, partial_of, write_folder

__all__ = ["run_experiment"]


def run_experiment(
    file: ExperimentFile,
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    scheduler: Choice = "auto",
) -> tuple[Path, dict[str, Any]]:
    """Run an experiment and write its folder: experiment, models, metrics, summary, report.

    Args:
        file: the checked experiment.
        out: the folder; default ``runs/NAME``, or the next number that is free; to resume, the unfinished one.
        resume: finish an interrupted run.
        overwrite: replace what is in the folder once the new run is complete.
        progress: called with (label, rounds done, rounds in all).
        scheduler: how the work is laid out on the machine, see ``simulate``; it changes results by rounding at most.

    Returns:
        The folder and its summary.

    Raises:
        InputError: the folder is used, or the experiment's parts do not fit.
    """
    folder = out if out is not None else _default(file.name, resume=resume, overwrite=overwrite)
    check_folder(folder, resume=resume, overwrite=overwrite)
    experiment = file.build()  # what it refuses, it refuses before there is a folder
    with file.precision(), open_folder(folder, resume=resume, overwrite=overwrite) as work:
        begin(work, file, resume=resume)
        checkpoints = work / "checkpoints"
        comparison = compare(file, experiment, checkpoints=checkpoints, resume=resume, progress=progress,
                             scheduler=scheduler)
        summary = write_folder(work, file, comparison)
        from resolvent.study.report import write_report  # matplotlib and jinja2: not before they are needed

        write_report(work)
        shutil.rmtree(checkpoints)
    return folder, summary


def _default(name: str, *, resume: bool, overwrite: bool) -> Path:
    runs = Path("runs")
    if resume:
        ours = re.compile(rf"{re.escape(name)}(-\d+)?\.partial")
        found = [p for p in runs.iterdir() if ours.fullmatch(p.name)] if runs.is_dir() else []
        if not found:
            raise InputError(f"there is no unfinished run of {name} in {runs}/: give --out the folder of one")
        latest = max(found, key=lambda p: p.stat().st_mtime)
        return latest.with_name(latest.name.removesuffix(".partial"))
    if overwrite:
        return runs / name
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        if not folder.exists() and not partial_of(folder).exists():
            return folder
        number += 1

