"""The run folder: written whole or not at all."""

import contextlib
import json
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from resolvent.algorithms.participation import Stragglers
from resolvent.errors import InputError
from resolvent.simulate import evaluate as ev
from resolvent.simulate.result import Result
from resolvent.simulate.tree_files import named_leaves, write_atomically, write_tree
from resolvent.study.compare import Comparison, Verdict, judge, refusals
from resolvent.study.experiment import Experiment, ExperimentFile, slug

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["begin", "check_folder", "open_folder", "partial_of", "read_summary", "write_folder"]

SUMMARY = "summary.json"


@contextlib.contextmanager
def open_folder(out: Path, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """A working folder beside ``out`` that takes its place when the block ends well.

    What stood at ``out`` stays until the new folder is complete. A block that fails leaves the working folder, from
    which a run can be resumed.

    Raises:
        InputError: ``out`` is used and neither resume nor overwrite is set, or there is nothing to resume.
    """
    check_folder(out, resume=resume, overwrite=overwrite)
    place = out.resolve()
    work, old = partial_of(place), place.with_name(f".{place.name}.old")
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield work
    except InputError:
        if not resume and not any(work.glob("checkpoints/*/[0-9]*")):
            shutil.rmtree(work)  # refused before anything ran
        raise
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    work.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that a run cannot be written to.

    Raises:
        InputError: as ``open_folder``.
    """
    place = out.resolve()
    if place in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{out} is the current folder or holds it: give --out a folder of its own")
    work = partial_of(place)
    if resume and not work.exists():
        done = " (the run there is complete)" if (out / SUMMARY).exists() else ""
        raise InputError(f"there is nothing to resume for {out}{done}: an unfinished run would have left "
                         f"{partial_of(out)}")
    if place.exists() and not place.is_dir():
        raise InputError(f"{out} is a file: give --out a folder")
    if not resume and not overwrite:
        if place.exists() and any(place.iterdir()):
            raise InputError(f"{out} is used already: give --out another folder, or --overwrite")
        if work.exists():
            raise InputError(f"{partial_of(out)} is left from an unfinished run: give --resume to finish it, or "
                             "--overwrite")


def partial_of(out: Path) -> Path:
    """Where a run works before its folder is complete."""
    return out.with_name(f"{out.name}.partial")


def begin(work: Path, file: ExperimentFile, *, resume: bool) -> None:
    """Write the experiment into the working folder; on resuming, see that it is the one that was interrupted.

    Raises:
        InputError: the unfinished run was of other settings; the message names the first that differs.
    """
    path = work / "experiment.yaml"
    if not (resume and path.is_file()):
        write_atomically(path, lambda p: _write_text(p, file.to_yaml()))
        return
    before = _flat(ExperimentFile.load(str(path)).bound.settings())
    now = _flat(file.bound.settings())
    for key in [*before, *(key for key in now if key not in before)]:
        if before.get(key, _ABSENT) != now.get(key, _ABSENT):
            raise InputError(f"{key} is {now.get(key, 'not set')!r} now and was {before.get(key, 'not set')!r} in the "
                             f"unfinished run: resume with the settings of {path}, or start afresh with --overwrite "
                             "or another --out")
    if list(before) != list(now):
        raise InputError(f"the algorithms stand in another order than in the unfinished run: resume with the settings "
                         f"of {path}, or start afresh with --overwrite or another --out")


_ABSENT = object()


def _flat(settings: Any, path: str = "") -> dict[str, Any]:
    """Leaf settings by their path."""
    if not isinstance(settings, dict):
        return {path: settings}
    return {k: v for key, part in settings.items() for k, v in _flat(part, f"{path}.{key}".strip(".")).items()}


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_folder(folder: Path, file: ExperimentFile, comparison: Comparison) -> dict[str, Any]:
    """Write the models, the metrics and the summary beside the experiment; returns the summary."""
    (folder / "models").mkdir(exist_ok=True)
    for result in comparison.results.values():
        _write_models(folder / "models" / slug(result.name), result, comparison.experiment.parties)
    comparison.metrics.to_parquet(folder / "metrics.parquet", index=False)
    summary = _summary(file, comparison)
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1, allow_nan=False), encoding="utf-8")
    return summary


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        InputError: there is no finished run in the folder.
    """
    path = folder / SUMMARY
    if not path.is_file():
        raise InputError(f"there is no finished run in {folder}: {path} is missing")
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    return summary


def _write_models(folder: Path, result: Result, names: tuple[str, ...]) -> None:
    """``parties.safetensors`` (leaves [N, ...], row k is party k), ``server.safetensors``, and a note of the tree."""
    folder.mkdir(parents=True, exist_ok=True)
    parties = result.personal_models
    write_tree(folder / "parties.safetensors", parties)
    shared = result.server_model
    if shared is not None:
        write_tree(folder / "server.safetensors", shared)
    leaves = {name: {"shape": list(leaf.shape[1:]), "dtype": str(leaf.dtype)}
              for name, leaf in named_leaves(parties).items()}
    note = {
        "method": result.name, "round": result.rounds, "parties": list(names), "leaves": leaves,
        "files": {"parties.safetensors": "the model each party deploys: row k of every tensor is parties[k]'s"}
        | ({"server.safetensors": "the shared model"} if shared is not None else {}),
    }
    (folder / "tree.json").write_text(json.dumps(note, indent=1), encoding="utf-8")


def _summary(file: ExperimentFile, comparison: Comparison) -> dict[str, Any]:
    experiment, verdict = comparison.experiment, judge(comparison)
    return {
        "name": file.name,
        "title": experiment.title or file.name,
        "finding": verdict.finding,
        "warnings": [line for result in comparison.results.values() if (line := refusals(result)) is not None],
        "experiment": file.bound.settings(),
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "score": verdict.score,
        "higher_is_better": verdict.higher_is_better,
        "alone": verdict.alone,
        "data": _subject(file, experiment),
        "methods": {name: _of_method(file.preset_of(name), result, verdict)
                    for name, result in comparison.results.items()},
        "versions": {package: metadata.version(package) for package in ("resolvent", "jax", "jaxlib", "numpy")}
        | {"python": platform.python_version()},
        "device": f"{jax.devices()[0].device_kind} ({jax.default_backend()})",
    }


def _subject(file: ExperimentFile, experiment: Experiment) -> dict[str, Any]:
    """What was learned from: the parties, their sizes and what a reader should know."""
    data, problem, parties = experiment.data, experiment.problem, list(experiment.parties)
    if data is not None:
        return {"name": data.name, "parties": parties, "train": data.sizes("train").tolist(),
                "test": data.sizes("test").tolist(), "notes": [*data.notes, *_slow(experiment)]}
    assert problem is not None
    found = ev.dissimilarity(problem, problem.optimum(experiment.participation.shares(problem.sizes)))
    note = f"Heterogeneity H = {float(found.heterogeneity):.3g}, the mean of |grad f_k|^2 at the optimum"
    name = file.bound.parts["problem"].name or ""  # type: ignore[union-attr]
    return {"name": name.replace("_", " "), "parties": parties, "train": np.asarray(problem.sizes).tolist(),
            "notes": [note, f"Computed in {experiment.precision}", *_slow(experiment)]}


def _slow(experiment: Experiment) -> list[str]:
    """What a reader should know about slow parties."""
    who, names = experiment.participation, experiment.parties
    if not isinstance(who, Stragglers):
        return []
    always = [f"{names[k]} is a straggler: each round it can do only a random part of its work" for k in who.parties]
    share = [f"{who.share:.0%} of each round's parties are stragglers"] if who.share else []
    return always + share


def _of_method(preset: str, result: Result, verdict: Verdict) -> dict[str, Any]:
    table, higher = verdict.table, verdict.higher_is_better
    row = table[table["method"] == result.name].iloc[0].drop("method").to_dict()
    means = _means(result, verdict.score)
    known = means.fillna(-np.inf if higher else np.inf).to_numpy()
    best = int(known.argmax() if higher else known.argmin())
    seconds = result.facts["seconds"]
    return {
        "preset": preset,
        "final": {key: _json(value) for key, value in row.items()},
        "best": {"round": int(means.index[best]), "mean": _json(means.iloc[best])},
        "rounds": result.rounds,
        "seconds_per_round": float(np.median(result.facts["seconds_per_round"])),
        "compile_seconds": seconds["compile"],
        "evaluation_seconds": seconds["evaluation"],
        "bytes": result.facts["bytes"],
        "refused": result.refused,
        "digest": result.digest,
    }


def _means(result: Result, score: str) -> "pd.Series":
    """The score by round: the mean over the parties, or the one number that it is."""
    if score == "gap":
        rows: pd.Series = result.metrics[result.metrics["metric"] == score].set_index("round")["value"]
        return rows
    means: pd.Series = result.scores().mean(axis=1, skipna=False)
    return means


def _json(value: Any) -> float | int | None:
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if np.isfinite(value) else None
