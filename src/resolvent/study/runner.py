"""One run of an experiment, from its file to the finished folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from resolvent.simulate.scheduler_choice import SchedulerChoice
from resolvent.study.compare import ProgressOfMethod, compare
from resolvent.study.experiment import ExperimentFile
from resolvent.study.run_folder import (
    CHECKPOINTS,
    begin,
    claim_folder,
    finished_summary,
    is_complete,
    open_folder,
    partial_of,
    write_results,
)

__all__ = ["run_experiment"]


def run_experiment(
    file: ExperimentFile,
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressOfMethod | None = None,
    notify: Callable[[str], None] = lambda message: None,
    scheduler: SchedulerChoice = "auto",
) -> tuple[Path, dict[str, Any]]:
    """Run an experiment and write its folder: experiment, models, metrics, summary and report.

    Args:
        file: the checked experiment.
        out: the folder; default: see ``claim_folder``.
        resume: finish an interrupted run. If there is none, the run starts from the beginning; if the run is complete,
            its summary is returned.
        overwrite: replace the folder's content when the new run is complete.
        progress: called with (label, rounds done, rounds in total).
        notify: called with a message that says which of these ``resume`` does.
        scheduler: how the work is distributed on the machine, see ``simulate``. It changes results by rounding only.

    Returns:
        The folder and its summary.

    Raises:
        InputError: the folder is in use, or the parts of the experiment do not fit together.
    """
    with claim_folder(out, file, resume=resume, overwrite=overwrite) as folder:
        if resume and is_complete(folder):
            summary = finished_summary(folder, file)
            notify(f"the run in {folder} is complete")
            return folder, summary
        if resume and not partial_of(folder).exists():
            notify(f"there is no unfinished run in {folder}: it starts from the beginning")
            resume = False
        experiment = file.build()  # wrong input is refused before the folder exists
        with file.precision(), open_folder(folder, resume=resume) as work:
            begin(work, file, resume=resume)
            comparison = compare(file, experiment, checkpoints=work / CHECKPOINTS, resume=resume, progress=progress,
                                 scheduler=scheduler)
            summary = write_results(work, file, comparison)
            from resolvent.study.report import write_report  # imports matplotlib and jinja2, which take long

            write_report(work)
        return folder, summary
