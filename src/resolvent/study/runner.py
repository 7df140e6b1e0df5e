"""One run of an experiment, from its file to the finished folder."""

import shutil
from pathlib import Path
from typing import Any

from resolvent.simulate.scheduler_choice import SchedulerChoice
from resolvent.study.compare import ProgressOfMethod, compare
from resolvent.study.experiment import ExperimentFile
from resolvent.study.run_folder import begin, check_folder, default_folder, open_folder, write_results

__all__ = ["run_experiment"]


def run_experiment(
    file: ExperimentFile,
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressOfMethod | None = None,
    scheduler: SchedulerChoice = "auto",
) -> tuple[Path, dict[str, Any]]:
    """Run an experiment and write its folder: experiment, models, metrics, summary and report.

    Args:
        file: the checked experiment.
        out: the folder; default: see ``default_folder``.
        resume: finish an interrupted run.
        overwrite: replace the folder's content when the new run is complete.
        progress: called with (label, rounds done, rounds in total).
        scheduler: how the work is distributed on the machine, see ``simulate``. It changes results by rounding only.

    Returns:
        The folder and its summary.

    Raises:
        InputError: the folder is in use, or the parts of the experiment do not fit together.
    """
    folder = out if out is not None else default_folder(file.name, resume=resume, overwrite=overwrite)
    check_folder(folder, resume=resume, overwrite=overwrite)
    experiment = file.build()  # wrong input is refused before the folder exists
    with file.precision(), open_folder(folder, resume=resume, overwrite=overwrite) as work:
        begin(work, file, resume=resume)
        checkpoints = work / "checkpoints"
        comparison = compare(file, experiment, checkpoints=checkpoints, resume=resume, progress=progress,
                             scheduler=scheduler)
        summary = write_results(work, file, comparison)
        from resolvent.study.report import write_report  # imports matplotlib and jinja2, which take long

        write_report(work)
        shutil.rmtree(checkpoints)
    return folder, summary
