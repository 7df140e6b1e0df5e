"""The run folder: it is complete, or it is not at its place."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.simulate.atomic_files import write_atomically
from resolvent.study.compare import Comparison
from resolvent.study.experiment import ExperimentFile
from resolvent.study.model_files import write_models
from resolvent.study.summary import SUMMARY_FILE, summarize, write_summary

__all__ = ["begin", "check_folder", "default_folder", "open_folder", "partial_of", "write_results"]

_ADVICE = "start afresh with --overwrite or another --out"


@contextlib.contextmanager
def open_folder(out: Path, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """A working folder next to ``out``, which replaces ``out`` when the block ends without an error.

    The previous content of ``out`` stays until the new folder is complete. A block that fails leaves the working
    folder, and the run can be resumed from it.

    Raises:
        InputError: ``out`` is in use and neither resume nor overwrite is set, or there is no run to resume.
    """
    check_folder(out, resume=resume, overwrite=overwrite)
    target = out.resolve()
    work, previous = partial_of(target), target.with_name(f".{target.name}.old")
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield work
    except InputError:
        if not resume and not any(work.glob("checkpoints/*/[0-9]*")):
            shutil.rmtree(work)  # the input was refused before the first round
        raise
    shutil.rmtree(previous, ignore_errors=True)
    if target.exists():
        target.rename(previous)
    work.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Check that a run can be written to a folder.

    Raises:
        InputError: see ``open_folder``.
    """
    target = out.resolve()
    if target in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{out} is the current folder or contains it: give --out another folder")
    work = partial_of(target)
    if resume and not work.exists():
        state = " (the run in it is complete)" if (out / SUMMARY_FILE).exists() else ""
        raise InputError(f"there is no run to resume for {out}{state}: {partial_of(out)}, the folder of an unfinished "
                         "run, does not exist")
    if target.exists() and not target.is_dir():
        raise InputError(f"{out} is a file: give --out a folder")
    if not resume and not overwrite:
        if target.exists() and any(target.iterdir()):
            raise InputError(f"{out} is not empty: give --out another folder, or --overwrite")
        if work.exists():
            raise InputError(f"{partial_of(out)} is an unfinished run: give --resume to finish it, or --overwrite")


def partial_of(out: Path) -> Path:
    """The folder of a run until it is complete."""
    return out.with_name(f"{out.name}.partial")


def default_folder(name: str, *, resume: bool, overwrite: bool) -> Path:
    """The folder of a run without ``--out``.

    It is ``runs/NAME`` or, if that is in use, the next free ``runs/NAME-2``, ``runs/NAME-3`` and so on. To resume, it
    is the folder of the latest unfinished run of that name.

    Raises:
        InputError: there is no run to resume.
    """
    runs = Path("runs")
    if resume:
        pattern = re.compile(rf"{re.escape(name)}(-\d+)?\.partial")
        unfinished = [p for p in runs.iterdir() if pattern.fullmatch(p.name)] if runs.is_dir() else []
        if not unfinished:
            raise InputError(f"there is no unfinished run of {name} in {runs}/: give its folder with --out")
        latest = max(unfinished, key=lambda p: p.stat().st_mtime)
        return latest.with_name(latest.name.removesuffix(".partial"))
    if overwrite:
        return runs / name
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        if not folder.exists() and not partial_of(folder).exists():
            return folder
        number += 1


def begin(work: Path, file: ExperimentFile, *, resume: bool) -> None:
    """Write the experiment into the working folder; to resume, check that it is the interrupted one.

    Raises:
        InputError: the unfinished run has other settings; the message names those that differ, with both values.
    """
    path = work / "experiment.yaml"
    if not (resume and path.is_file()):
        write_atomically(path, lambda p: _write_text(p, file.to_yaml()))
        return
    old = _flat(ExperimentFile.load(str(path)).bound.settings())
    new = _flat(file.bound.settings())
    different = [key for key in [*old, *(key for key in new if key not in old)]
                 if old.get(key, _ABSENT) != new.get(key, _ABSENT)]
    values = [f"{key} ({old.get(key, 'not set')!r}, now {new.get(key, 'not set')!r})" for key in different]
    if not different and list(old) != list(new):
        values = ["the order of the algorithms"]
    if values:
        raise InputError(f"the unfinished run {work} belongs to another experiment, with another value of "
                         f"{', '.join(values)}: resume with the settings of {path}, or {_ADVICE}")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


_ABSENT = object()


def _flat(settings: Any, path: str = "") -> dict[str, Any]:
    """Leaf settings by their path."""
    if not isinstance(settings, dict):
        return {path: settings}
    return {k: v for key, part in settings.items() for k, v in _flat(part, f"{path}.{key}".strip(".")).items()}


def write_results(folder: Path, file: ExperimentFile, comparison: Comparison) -> dict[str, Any]:
    """Write the models, the metrics and the summary; returns the summary."""
    write_models(folder / "models", comparison)
    comparison.metrics.to_parquet(folder / "metrics.parquet", index=False)
    summary = summarize(file, comparison)
    write_summary(folder, summary)
    return summary
