"""One run of an experiment, from its file to the finished folder."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax

from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.runs.compared_methods import ComparedMethods, ProgressOfMethod
from resolvent.comparisons.runs.comparison_runs import Notify, compare_file, ignore, ignore_progress, run_comparison
from resolvent.comparisons.runs.record import RunRecord
from resolvent.comparisons.runs.run_folder import (
    CHECKPOINTS,
    begin,
    check_folder,
    claim_folder,
    finished_record,
    is_complete,
    open_folder,
    partial_of,
    write_results,
)
from resolvent.comparisons.runs.summary import Source
from resolvent.data.federated import FederatedData
from resolvent.data.files.folder_lock import locked
from resolvent.errors import InputError
from resolvent.simulator.mesh import detect_lost_process, is_writer, text_from_writer
from resolvent.simulator.run_options import READS_ALL_PARTIES

_JUDGEMENT, _REPORT = "judging the gains", "writing the report"  # the parts of a run that follow its methods

__all__ = ["run_experiment", "run_program", "write_run"]


def run_experiment(
    file: ExperimentFile,
    out: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressOfMethod | None = None,
    notify: Notify = ignore,
) -> tuple[Path, RunRecord | None]:
    """Run an experiment and write its folder: experiment, models, metrics, summary and report.

    Args:
        file: the checked experiment.
        out: the folder; default: see ``claim_folder``.
        resume: finish an interrupted run. If there is none, the run starts from the beginning; if the run is complete,
            its record is returned.
        overwrite: replace the folder's content when the new run is complete.
        progress: a function that is called with (label, rounds done, rounds in total); what follows the methods has a
            label for each part, of one unit.
        notify: a function that is called with a message that says which of these ``resume`` does, or what folds cost.

    Returns:
        The folder and its record; in a process that is not the writer, None.

    Raises:
        InputError: the folder is in use, or the parts of the experiment do not fit together.
        ProcessLostError: the run has several processes, and another one has ended.
    """
    if not is_writer():
        return _join(file), None
    with claim_folder(out, file, resume=resume, overwrite=overwrite) as folder:
        if resume and is_complete(folder):
            record = finished_record(folder, file)
            notify(f"the run in {folder} is complete")
            _announce(_Decision(str(folder), is_complete=True, resume=True))
            return folder, record
        if resume and not partial_of(folder).exists():
            notify(f"there is no unfinished run in {folder}: it starts from the beginning")
            resume = False
        source, experiment = Source.of_file(file), _build(file)  # wrong input is refused before the folder exists
        with file.precision(), open_folder(folder, resume=resume) as work:
            begin(work, file, resume=resume)
            _announce(_Decision(str(work), is_complete=False, resume=resume))
            _announce_parts(progress)
            comparison = compare_file(file, experiment, checkpoints=work / CHECKPOINTS, resume=resume,
                                      progress=progress, notify=notify).collected()
            record = _write(work, source, comparison, progress)
        return folder, record


def run_program(
    experiment: Experiment,
    out: Path,
    *,
    title: str = "",
    data_of_seed: Callable[[int], FederatedData] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressOfMethod | None = None,
    notify: Notify = ignore,
) -> ComparedMethods:
    """Run an experiment whose parts a program has built, and write its folder; see ``run_experiment``.

    Raises:
        InputError: the folder is in use, or holds a complete run.
    """
    with _claimed(out, resume=resume, overwrite=overwrite), open_folder(out, resume=resume) as work:
        _announce_parts(progress)
        comparison = run_comparison(experiment, data_of_seed=data_of_seed, checkpoints=work / CHECKPOINTS,
                                    resume=resume, progress=progress, notify=notify)
        _write(work, Source.of_program(out.name, comparison, title), comparison, progress)
    return comparison


def write_run(out: Path, comparison: ComparedMethods, *, title: str = "", overwrite: bool = False) -> Path:
    """Write the folder of a comparison that has run.

    Raises:
        InputError: the folder is in use.
    """
    with _claimed(out, resume=False, overwrite=overwrite), open_folder(out, resume=False) as work:
        _write(work, Source.of_program(out.name, comparison, title), comparison)
    return out


@contextlib.contextmanager
def _claimed(out: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Hold the lock of a folder for a run of a program, which has no experiment file."""
    with locked(out):
        check_folder(out, resume=resume, overwrite=overwrite)
        if resume and is_complete(out):
            raise InputError(f"{out} is a complete run, so there is nothing to resume: read its models with rv.load, "
                             "or set overwrite=True")
        yield


def _announce_parts(progress: ProgressOfMethod | None) -> None:
    """Announce what follows the methods, so that the time left counts it from the beginning."""
    for part in (_JUDGEMENT, _REPORT):
        (progress or ignore_progress)(part, 0, 1)


def _write(work: Path, source: Source, comparison: ComparedMethods,
           progress: ProgressOfMethod | None = None) -> RunRecord:
    """Write the results and the report into the working folder."""
    report = progress or ignore_progress
    report(_JUDGEMENT, 0, 1)
    record = write_results(work, source, comparison)
    report(_JUDGEMENT, 1, 1)
    report(_REPORT, 0, 1)
    from resolvent.comparisons.runs.report import write_report  # imports matplotlib and jinja2, which take long

    write_report(work, record, comparison.metrics)
    report(_REPORT, 1, 1)
    return record


class _Decision(NamedTuple):
    """What the writer process has decided, for the other processes.

    Attributes:
        folder: the working folder, or that of a complete run.
        is_complete: whether nothing is left to do.
        resume: whether the run continues from checkpoints.
    """

    folder: str
    is_complete: bool
    resume: bool


def _announce(decision: _Decision) -> None:
    with detect_lost_process():
        text_from_writer(json.dumps(decision))


def _join(file: ExperimentFile) -> Path:
    """Run the experiment together with the writer process, which writes the results. Returns the folder."""
    experiment = _build(file)
    with detect_lost_process():
        decision = _Decision(*json.loads(text_from_writer("")))
    folder = Path(decision.folder)
    if not decision.is_complete:
        with file.precision():
            compare_file(file, experiment, checkpoints=folder / CHECKPOINTS, resume=decision.resume).collected()
    return folder


def _build(file: ExperimentFile) -> Experiment:
    """The parts of an experiment; of several processes, each keeps the samples of its own parties only."""
    experiment = file.build()
    if not isinstance(experiment.data, FederatedData) or jax.process_count() == 1:
        return experiment
    needs_all_samples = (READS_ALL_PARTIES.intersection(experiment.diagnostics)
                         or any(a.pools_data for a in experiment.algorithms.values())
                         or len(experiment.data) < jax.device_count()
                         or experiment.seeds > 1  # of which each splits the samples again, as each fold does
                         or experiment.number_of_folds > 1)
    if needs_all_samples:
        return experiment
    from resolvent.simulator.storage.shard_storage import keep_own_parties  # few runs have several processes

    return replace(experiment, data=keep_own_parties(experiment.data))
