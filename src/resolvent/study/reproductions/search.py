"""The grid search of parameters that a paper leaves open."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from resolvent.errors import InputError
from resolvent.study.metrics import higher_is_better
from resolvent.study.reproductions.checkpoints import Checkpoints
from resolvent.study.reproductions.record import rounded
from resolvent.study.reproductions.reproduction import Reproduction
from resolvent.study.reproductions.schema import Setting
from resolvent.study.reproductions.settings import merge, with_choices

__all__ = ["ProgressOfPanel", "is_searched", "search"]

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
    """For each method of a panel, all trials with their scores and the best one (the first, if several are best).

    Raises:
        InputError: the panel is a sweep.
    """
    grid = reproduction.search
    assert grid is not None
    if reproduction.panels[title].sweep is not None:
        raise InputError(f"{reproduction.name}.yaml: panels.{title}: a sweep is not searched; set tuned to another "
                         "panel")
    # Also the solvers that trials copy have the trials' settings, such as a schedule of fewer rounds.
    settings = merge(reproduction.settings_of(title), grid.experiment)
    limit = _MAX_TRIALS_TINY if setting == "tiny" else None
    points = {label: grid.points(label)[:limit] for label in settings["algorithms"]}
    trials = {f"{label} ({i})": (label, point)
              for label, of_label in points.items() for i, point in enumerate(of_label)}
    if not trials:
        return {}
    algorithms = {name: with_choices({**settings, "algorithms": {name: settings["algorithms"][label]}}, {name: point})
                  ["algorithms"][name] for name, (label, point) in trials.items()}
    panel = reproduction.panels[title]
    of_panel = {**merge(panel.experiment, grid.experiment), "algorithms": algorithms}
    panel = panel.model_copy(update={"experiment": of_panel})
    of_trials = reproduction.model_copy(update={"panels": {title: panel}})
    view = reproduction.view(title).model_copy(update={**grid.select.model_dump(), "baselines": []})
    changes = _changes_of_trials((*reproduction.changes(setting, title), *changes), trials)
    changes = (*changes, *_rounds_of_trials(reproduction, setting))
    seeds = 1 if setting == "tiny" else grid.seeds
    scores: dict[str, list[float]] = {name: [] for name in trials}
    for i in range(seeds):
        progress(f"{title}: search", i, seeds)
        (experiment,) = of_trials.experiments(title, _FIRST_SEED - i, changes)
        for name, curve in checkpoints.run(experiment, f"search: {title}", i).curves(view).items():
            scores[name].append(curve.final)
    progress(f"{title}: search", seeds, seeds)
    return {label: _outcome([{"point": point, "score": float(np.mean(scores[f"{label} ({i})"]))}
                             for i, point in enumerate(of_label)], view.measure)
            for label, of_label in points.items() if of_label}


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
