"""The grid search of parameters that a paper leaves open."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.record import rounded
from experiments.reproduction import PanelExperiment, Reproduction
from experiments.run_metrics import Checkpoints
from experiments.schema import Setting
from experiments.settings import merge
from resolvent.errors import InputError
from resolvent.experiment_files import with_choices
from resolvent.metrics import higher_is_better

ProgressOfPanel = Callable[[str, int, int], None]  # panel, runs done, runs in total

_MAX_TRIALS_TINY = 2  # trials of a method in the tiny setting
_FIRST_SEED = 1000  # seeds of trials count down from here


def is_searched(reproduction: Reproduction, title: str) -> bool:
    """Whether a panel's parameters are chosen by a search of its own."""
    if reproduction.search is None or reproduction.panels[title].tuned:
        return False
    return reproduction.search.panels is None or title in reproduction.search.panels


def search(reproduction: Reproduction, title: str, setting: Setting, changes: tuple[str, ...],
           progress: ProgressOfPanel, checkpoints: Checkpoints) -> dict[str, Any]:
    """For each method of a panel, all trials with their scores and the best one (the first, if several are best)."""
    grid = reproduction.search
    assert grid is not None
    points = _points(reproduction, title, setting)
    view = reproduction.view(title).model_copy(update={**grid.select.model_dump(), "baselines": []})
    seeds = 1 if setting == "tiny" else grid.seeds
    scores: dict[str, list[float]] = {name: [] for name in _trials(points)}
    for i in range(seeds if scores else 0):
        progress(f"{title}: search", i, seeds)
        experiment = experiment_of_trials(reproduction, title, setting, changes, seed=_FIRST_SEED - i)
        for name, curve in checkpoints.run(experiment, f"search: {title}", i).curves(view).items():
            scores[name].append(curve.final)
    if scores:
        progress(f"{title}: search", seeds, seeds)
    return {label: _outcome([{"point": point, "score": float(np.mean(scores[f"{label} ({i})"]))}
                             for i, point in enumerate(of_label)], view.measure)
            for label, of_label in points.items() if of_label}


def experiment_of_trials(reproduction: Reproduction, title: str, setting: Setting, changes: tuple[str, ...] = (), *,
                         seed: int = _FIRST_SEED) -> PanelExperiment:
    """The experiment whose methods are the trials of a panel's search."""
    grid = reproduction.search
    assert grid is not None
    if reproduction.panels[title].sweep is not None:
        raise InputError(f"{reproduction.name}.yaml: panels.{title}: a sweep is not searched; set tuned to another "
                         "panel")
    # Also the solvers that trials copy have the trials' settings, such as a schedule of fewer rounds.
    settings = merge(reproduction.settings_of(title), grid.experiment)
    trials = _trials(_points(reproduction, title, setting))
    algorithms = {name: with_choices({**settings, "algorithms": {name: settings["algorithms"][label]}}, {name: point})
                  ["algorithms"][name] for name, (label, point) in trials.items()}
    panel = reproduction.panels[title]
    panel = panel.model_copy(update={"experiment": {**merge(panel.experiment, grid.experiment),
                                                    "algorithms": algorithms}})
    of_trials = reproduction.model_copy(update={"panels": {title: panel}})
    changes = _changes_of_trials((*reproduction.changes(setting, title), *changes), trials)
    (experiment,) = of_trials.experiments(title, seed, (*changes, *_rounds_of_trials(reproduction, setting)))
    return experiment


def _points(reproduction: Reproduction, title: str, setting: Setting) -> dict[str, list[dict[str, Any]]]:
    """The points of each method's search."""
    assert reproduction.search is not None
    limit = _MAX_TRIALS_TINY if setting == "tiny" else None
    labels = merge(reproduction.settings_of(title), reproduction.search.experiment)["algorithms"]
    return {label: reproduction.search.points(label)[:limit] for label in labels}


def _trials(points: Mapping[str, list[dict[str, Any]]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The label and the point of each trial, by the trial's name."""
    return {f"{label} ({i})": (label, point) for label, of_label in points.items() for i, point in enumerate(of_label)}


def _rounds_of_trials(reproduction: Reproduction, setting: Setting) -> tuple[str, ...]:
    """The changes that give trials their own number of rounds, with one evaluation at the end."""
    assert reproduction.search is not None
    levels = reversed(reproduction.levels(setting))
    rounds = next((s.search_rounds for s in levels if s.search_rounds), reproduction.search.rounds)
    return (f"rounds={rounds}", f"evaluate_every={rounds}") if rounds and setting != "tiny" else ()


def _changes_of_trials(changes: tuple[str, ...], trials: Mapping[str, tuple[str, Any]]) -> tuple[str, ...]:
    """The changes with those of an algorithm repeated for each of its trials."""
    result = []
    for change in changes:
        if not change.startswith("algorithms."):
            result.append(change)
            continue
        path = change.removeprefix("algorithms.")
        result += [f"algorithms.{name}{path.removeprefix(label)}" for name, (label, _) in trials.items()
                   if path.startswith((f"{label}.", f"{label}="))]
    return tuple(result)


def _outcome(trials: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    pick = max if higher_is_better(measure) else min
    best = pick(trials, key=lambda trial: trial["score"])
    return {"chosen": best["point"], "tried": [{**t, "score": rounded([t["score"]])[0]} for t in trials]}
