"""The run folder: it is complete, or it is not at its place."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.runs.compared_methods import ComparedMethods
from resolvent.comparisons.runs.model_files import write_models
from resolvent.comparisons.runs.record import (
    EXPERIMENT_FILE,
    METRICS_FILE,
    ROWS_FILE,
    SUMMARY_FILE,
    RunRecord,
    read_record,
    write_record,
)
from resolvent.comparisons.runs.summary import Source, summarize
from resolvent.data.files.atomic_files import hidden_sibling, remove_folder, sync_to_disk, write_atomically, write_text
from resolvent.data.files.folder_lock import RunningError, locked
from resolvent.errors import InputError, quote, shorten
from resolvent.simulator.checkpoint.identity import versions_of_code
from resolvent.simulator.run_options import OF_THE_MACHINE

CHECKPOINTS = "checkpoints"
_RUNS = Path("runs")
_ADVICE = "start afresh with --overwrite or another --out"
_ABSENT = object()


@contextlib.contextmanager
def claim_folder(out: Path | None, file: ExperimentFile, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """Choose the folder of a run and hold its lock.

    Without ``out`` it is ``runs/NAME`` or, if that is in use, the next free ``runs/NAME-2``, ``runs/NAME-3`` and so on.
    To resume, it is the folder of the latest unfinished run of that name; if there is none, that of the latest complete
    run with the same settings; if there is none, a free folder.
    """
    if out is None and resume:
        out = _latest(file)
    if out is None and overwrite:
        out = _RUNS / file.name
    with contextlib.ExitStack() as stack:
        if out is not None:
            stack.enter_context(locked(out))
        else:
            out = _lock_free_folder(file.name, stack)
        check_folder(out, resume=resume, overwrite=overwrite)
        yield out


def _latest(file: ExperimentFile) -> Path | None:
    """The folder of the latest run of an experiment's name that can be resumed or is complete."""
    pattern = re.compile(rf"{re.escape(file.name)}(-\d+)?(\.partial)?")
    runs = [p for p in _RUNS.iterdir() if pattern.fullmatch(p.name)] if _RUNS.is_dir() else []
    runs.sort(key=lambda p: p.stat().st_mtime, reverse=True)
    unfinished = [p for p in runs if p.name.endswith(".partial")]
    if unfinished:
        return unfinished[0].with_name(unfinished[0].name.removesuffix(".partial"))
    settings = file.bound.settings()
    return next((p for p in runs if is_complete(p) and (record := read_record(p)).experiment == settings
                 and not _edited_parts(record, file)), None)


def _lock_free_folder(name: str, stack: contextlib.ExitStack) -> Path:
    number = 1
    while True:
        folder = _RUNS / (name if number == 1 else f"{name}-{number}")
        number += 1
        with contextlib.suppress(RunningError), contextlib.ExitStack() as attempt:
            attempt.enter_context(locked(folder))
            if not folder.exists() and not partial_of(folder).exists():
                stack.push(attempt.pop_all())
                return folder


@contextlib.contextmanager
def open_folder(out: Path, *, resume: bool) -> Iterator[Path]:
    """A working folder next to ``out``, which replaces ``out`` when the block ends without an error.

    The previous content of ``out`` stays until the new folder is complete. A block that fails leaves the working
    folder, and the run can be resumed from it. Checkpoints are removed after the folder has its name, so that a kill at
    any moment leaves a run that is complete or can be resumed from all of its checkpoints.
    """
    target = out.resolve()
    work, previous = partial_of(target), hidden_sibling(target, "old")
    if not resume:
        remove_folder(work)
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield work
    except InputError:
        if not resume and not any(work.glob(f"{CHECKPOINTS}/*/[0-9]*")):
            remove_folder(work)  # the input was refused before the first round
        raise
    remove_folder(previous)
    sync_to_disk(work)
    if target.exists():
        target.rename(previous)
    work.rename(target)
    sync_to_disk(target.parent)
    remove_leftovers(target)


def remove_leftovers(out: Path) -> None:
    """Remove the checkpoints of a complete run, and what is left of runs that it replaced."""
    target = out.resolve()
    for folder in (target / CHECKPOINTS, hidden_sibling(target, "old"), partial_of(target)):
        with contextlib.suppress(OSError):  # a complete run may be in a folder that cannot be written any more
            remove_folder(folder)


def check_folder(out: Path, *, resume: bool, overwrite: bool,
                 advice: str = "give --out another folder, or --overwrite") -> None:
    """Check that a run can be written to a folder.

    Args:
        resume: whether a run in the folder may be continued.
        overwrite: whether a run in the folder may be replaced.
        advice: what to do if the folder is not empty, for the end of the error.
    """
    target = out.resolve()
    if target in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{out} is the current folder or contains it: give --out another folder")
    if target.exists() and not target.is_dir():
        raise InputError(f"{out} is a file: give --out a folder")
    is_unfinished = partial_of(target).exists()
    if overwrite or (resume and (is_unfinished or is_complete(out))):
        return
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{out} is not empty{' and holds no run' if resume else ''}: {advice}")
    if is_unfinished:
        raise InputError(f"{partial_of(out)} is an unfinished run: give --resume to finish it, or --overwrite")


def partial_of(out: Path) -> Path:
    """The folder of a run until it is complete."""
    return out.with_name(f"{out.name}.partial")


def is_complete(out: Path) -> bool:
    """Whether a folder holds a complete run, and no other run will replace it."""
    return (out / SUMMARY_FILE).is_file() and not partial_of(out.resolve()).exists()


def finished_record(out: Path, file: ExperimentFile, advice: str = _ADVICE) -> RunRecord:
    """The record of a complete run.

    Args:
        file: the experiment, whose settings must be those of the run.
        advice: what to do if they are others, for the end of the error.
    """
    record = read_record(out)
    if differences := _differences(record.experiment, file.bound.settings()):
        raise InputError(f"{out} is a complete run of another experiment, with another value of {differences}: "
                         f"{advice}")
    if edited := shorten(", ".join(_edited_parts(record, file))):
        raise InputError(f"{out} is a complete run of other code: {edited}, or what it calls, has been edited since: "
                         f"{advice}")
    remove_leftovers(out)
    return record


def _edited_parts(record: RunRecord, file: ExperimentFile) -> list[str]:
    """The parts of the user's own whose code is not that of a complete run.

    Another version of Python has other bytecode for the same code, so that nothing is compared.
    """
    if ".".join(record.versions["python"].split(".")[:2]) != versions_of_code()["python"]:
        return []
    return [name for name, digest in file.bound.codes().items() if record.code.get(name) != digest]


def begin(work: Path, file: ExperimentFile, *, resume: bool) -> None:
    """Write the experiment into the working folder; to resume, check that it is the interrupted one."""
    path = work / EXPERIMENT_FILE
    if resume and path.is_file():
        differences = _differences(ExperimentFile.load(str(path)).bound.settings(), file.bound.settings())
        if differences:
            raise InputError(f"the unfinished run {work} belongs to another experiment, with another value of "
                             f"{differences}: resume with the settings of {path}, or {_ADVICE}")
    write_text(path, file.to_yaml())


def _differences(old_settings: Mapping[str, Any] | None, new_settings: dict[str, Any]) -> str:
    """The settings that differ, with both values; empty if none does."""
    old, new = _flat(old_settings), _flat(new_settings)
    different = [key for key in [*old, *(key for key in new if key not in old)]
                 if old.get(key, _ABSENT) != new.get(key, _ABSENT)]
    if not different and list(old) != list(new):
        return "the order of the algorithms"
    return ", ".join(f"{key} ({quote(old.get(key, 'not set'))}, now "
                     f"{quote(new.get(key, 'not set'))})" for key in different)


def _flat(settings: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict):
        return {path: settings}
    return {k: v for key, part in settings.items() if path or key not in OF_THE_MACHINE
            for k, v in _flat(part, f"{path}.{key}".strip(".")).items()}


def write_results(folder: Path, source: Source, comparison: ComparedMethods) -> RunRecord:
    """Write the models of the first seed, the metrics, the values of the test rows, and the record.

    Returns:
        The record, which has the digests of all files.
    """
    models = folder / "models"
    remove_folder(models)  # of a process that was killed
    write_models(models, comparison)
    write_atomically(folder / METRICS_FILE, lambda p: comparison.metrics.to_parquet(p, index=False))
    files = [METRICS_FILE]
    if source.settings is not None:
        files.append(EXPERIMENT_FILE)
    if comparison.rows is not None:
        write_atomically(folder / ROWS_FILE, comparison.rows.write)
        files.append(ROWS_FILE)
    files += [p.relative_to(folder).as_posix() for p in sorted(models.rglob("*")) if p.is_file()]
    return write_record(folder, summarize(source, comparison), files)
