"""Run a reproduction: search what the paper leaves open, run every seed, check the claims, make the record."""

import platform
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import jax
import numpy as np
import pandas as pd

from resolvent.errors import InputError
from resolvent.study.claims import Curve, Item, check, verdict_of
from resolvent.study.compare import compare
from resolvent.study.experiment import ExperimentFile
from resolvent.study.reproduction import Claim, Reproduction, Setting, View, better, worst
from resolvent.study.settings import merged, tuned

__all__ = ["reproduce"]

_POINTS = 60  # of a curve, in a results file
_TRIED_TINY = 2  # points of a search in the least setting
Progress = Callable[[str, int, int], None]
Sizes = Mapping[str, np.ndarray]


class _Run:
    """One experiment that has run: its metrics, each party's samples, and what its labels stand for."""

    def __init__(self, file: ExperimentFile, points: Mapping[str, Mapping[str, Any]]) -> None:
        comparison = compare(file)
        data = comparison.experiment.data
        self.metrics, self.points = comparison.metrics, points
        self.sizes = {} if data is None else {split: data.sizes(split) for split in data.splits}

    def curves(self, view: View) -> dict[str, Curve]:
        """A curve for each method of which there is one, in the order of their labels."""
        if view.measure == "line":
            return self._lines(view)
        rows = self.metrics[(self.metrics["metric"] == view.measure)
                            & (self.metrics["split"].fillna("train") == view.split)]
        if rows.empty:
            known = self.metrics[["metric", "split"]].drop_duplicates().fillna("train").itertuples(index=False)
            raise InputError(f"nothing measured {view.measure!r} on {view.split!r}; there are "
                             f"{', '.join(sorted(f'{m} ({s})' for m, s in known if not m.startswith('line_')))}")
        found, measured = {}, set(rows["method"])
        for label, point in self.points.items():
            if label not in measured:
                continue
            by_round = _one_number(rows[rows["method"] == label], view, self.sizes)
            values = by_round.to_numpy(dtype=float)
            rounds = by_round.index.to_numpy(dtype=np.int64)
            found[label] = Curve(rounds, np.where(np.isfinite(values), values, worst(view.measure)), point,
                                 self._axes(label, rounds))
        return found

    def _lines(self, view: View) -> dict[str, Curve]:
        """At the last round, the loss on the way from the parties' own models (lambda = 0) to the shared one (1)."""
        found = {}
        rows = self.metrics[self.metrics["metric"].str.match(r"line_\d")]
        last = rows[rows["round"] == rows["round"].max()]
        for label, mine in last.groupby("method"):
            values = np.array([_one_number(at, view, self.sizes).iloc[-1] for _, at in mine.groupby("metric")], float)
            found[label] = Curve(np.arange(len(values)), np.where(np.isfinite(values), values, np.inf),
                                 self.points[label], {"lambda": np.linspace(0, 1, len(values))})
        if not found:
            raise InputError("nothing measured the line from a party's model to a shared one: it needs the diagnostic "
                             "line, and a method with both")
        return {label: found[label] for label in self.points if label in found}

    def _axes(self, label: str, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """Seconds and bytes up to each round, where a clock measured them."""
        mine = self.metrics[self.metrics["method"] == label]
        axes = {}
        for name, parts in (("seconds", ("simulated_seconds",)), ("bytes", ("bytes_down", "bytes_up")),
                            ("bytes_up", ("bytes_up",))):
            each = mine[mine["metric"].isin(parts)].groupby("round")["value"].sum().cumsum()
            if len(each):
                axes[name] = np.array([0.0 if r < each.index[0] else each.loc[:r].iloc[-1] for r in rounds])
        return axes


def _one_number(rows: pd.DataFrame, view: View, sizes: Sizes) -> "pd.Series[float]":
    """The parties as one number, by round."""
    if rows["party"].isna().all():
        return rows.groupby("round")["value"].mean()
    table = rows.pivot_table(index="round", columns="party", values="value", dropna=False).astype(float)
    match view.over.split():
        case ["mean"]:
            return table.mean(axis=1, skipna=False)
        case ["samples"]:
            share = sizes[view.split][table.columns.to_numpy(dtype=np.int64)]
            return pd.Series(table.to_numpy() @ share / share.sum(), table.index)
        case ["worst"]:
            return table.agg("min" if view.better == "highest" else "max", axis=1)
        case ["p10"]:
            return table.quantile(0.1 if view.better == "highest" else 0.9, axis=1)
        case ["std"]:
            return table.std(axis=1, ddof=0)
        case ["party", number] if number.isdigit() and int(number) in table.columns:
            return table[int(number)]
    raise InputError(f"over: {view.over!r} is none of mean, samples, worst, p10, std, or party K of one that there is "
                     f"({len(table.columns)} parties)")


def reproduce(what: Reproduction, *, setting: Setting = "paper scale", changes: tuple[str, ...] = (),
              seeds: int | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Run a reproduction and check its claims.

    Args:
        what: the reproduction.
        setting: at the paper's sizes, in the small setting, or in the least one, for tests.
        changes: further changes of every panel, ``key.path=value``.
        seeds: how many seeds; default: as many as the setting says.
        progress: called with (panel, runs done, runs in all).

    Returns:
        The record that a results file holds.

    Raises:
        InputError: a setting is wrong, or a claim speaks of what there is not.
    """
    begin, cpu = time.perf_counter(), time.process_time()
    count = seeds or {"paper scale": what.seeds, "quick": what.quick.seeds, "tiny": what.tiny.seeds}[setting]
    tell = progress or (lambda *_: None)
    what = what.left(setting)
    sources = [title for title, panel in what.panels.items() if not panel.of]
    searched = {panel: _search(what, panel, setting, changes, tell) for panel in sources if _is_searched(what, panel)}
    choices = {panel: {label: found["chosen"] for label, found in methods.items()}
               for panel, methods in searched.items()}
    worlds: list[dict[str, dict[str, Curve]]] = [{} for _ in range(count)]
    for panel in sources:
        views = {panel: what.view(panel)} | {title: what.view(title) for title, p in what.panels.items()
                                             if p.of == panel}
        choice = choices.get(what.panels[panel].tuned or panel)
        for seed, world in enumerate(worlds):
            tell(panel, seed, count)
            files = what.files(panel, seed, (*what.changes(setting, panel), *changes), choice)
            runs = [_Run(*one) for one in files]
            for title, view in views.items():
                world[title] = {label: curve for run in runs for label, curve in run.curves(view).items()}
        tell(panel, count, count)
    found = [[check(c.rule, world, **c.args) for world in worlds] for c in what.claims]
    return {
        "name": what.name, "title": what.title, "paper": what.paper, "figure": what.figure, "axis": what.axis,
        "setting": setting, "log": what.log, "columns": what.columns, "notes": what.notes,
        "command": f"resolvent reproduce {what.name}{' --quick' if setting == 'quick' else ''}",
        "changes": [*what.changes(setting, ""), *changes],
        "seeds": count, "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "claims": [_judged(c, items) for c, items in zip(what.claims, found, strict=True)],
        "panels": {panel: _panel(what, panel, worlds) for panel in what.panels},
        "search": searched,
        "versions": {p: metadata.version(p) for p in ("resolvent", "jax", "numpy")}
        | {"python": platform.python_version()},
        "device": f"{jax.devices()[0].device_kind} ({jax.default_backend()})",
    }


def _is_searched(what: Reproduction, panel: str) -> bool:
    if what.search is None or what.panels[panel].tuned:
        return False
    return what.search.panels is None or panel in what.search.panels


def _search(what: Reproduction, panel: str, setting: Setting, changes: tuple[str, ...],
            tell: Progress) -> dict[str, Any]:
    """For each method of a panel what was tried, with scores, and the best: the first of equals."""
    search = what.search
    assert search is not None
    settings = merged(what.experiment, what.panels[panel].experiment)
    if what.panels[panel].sweep is not None:
        raise InputError(f"{what.name}.yaml: panels.{panel}: a sweep is not searched; name another panel as its tuned")
    least = _TRIED_TINY if setting == "tiny" else None
    trials = {label: search.points(label)[:least] for label in settings["algorithms"]}
    labels = {f"{label} ({i})": (label, point) for label, points in trials.items() for i, point in enumerate(points)}
    algorithms = {name: tuned({**settings, "algorithms": {name: settings["algorithms"][label]}}, {name: point})
                  ["algorithms"][name] for name, (label, point) in labels.items()}
    if not algorithms:
        return {}
    fewer = next((s.search_rounds for s in reversed(what.levels(setting)) if s.search_rounds), search.rounds)
    changes = _of_trials((*what.changes(setting, panel), *changes), labels)
    if fewer and setting != "tiny":
        changes = (*changes, f"rounds={fewer}", f"evaluate_every={fewer}")
    trial = what.model_copy(update={"panels": {panel: what.panels[panel].model_copy(
        update={"experiment": {**what.panels[panel].experiment, "algorithms": algorithms}})}})
    view = what.view(panel).model_copy(update=search.select.model_dump())
    count = 1 if setting == "tiny" else search.seeds
    scores: dict[str, list[float]] = {name: [] for name in labels}
    for i in range(count):
        tell(f"{panel}: search", i, count)
        (file, points), = trial.files(panel, 1000 - i, changes)
        for name, curve in _Run(file, points).curves(view).items():
            scores[name].append(curve.final)
    tell(f"{panel}: search", count, count)
    return {label: _chosen([{"point": points[i], "score": float(np.mean(scores[f"{label} ({i})"]))}
                            for i in range(len(points))], view.measure) for label, points in trials.items() if points}


def _of_trials(changes: tuple[str, ...], labels: Mapping[str, tuple[str, Any]]) -> tuple[str, ...]:
    """A change of an algorithm is one of all its trials; of one that is not tried, none."""
    found = []
    for change in changes:
        if not change.startswith("algorithms."):
            found.append(change)
            continue
        path = change.removeprefix("algorithms.")
        found += [f"algorithms.{name}{path.removeprefix(label)}" for name, (label, _) in labels.items()
                  if path.startswith((f"{label}.", f"{label}="))]
    return tuple(found)


def _chosen(tried: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    pick = max if better(measure) == "highest" else min
    best = pick(tried, key=lambda t: t["score"])
    return {"chosen": best["point"], "tried": [{**t, "score": _digits([t["score"]])[0]} for t in tried]}


def _judged(claim: Claim, seeds: list[list[Item]]) -> dict[str, Any]:
    items = []
    for same in zip(*seeds, strict=True):
        values = np.array([item.value for item in same])
        items.append({"name": same[0].name, **_spread(values), "holds": sum(item.holds for item in same)})
    return {"says": claim.says, "paper": claim.paper, "verdict": verdict_of(seeds), "rule": claim.rule,
            "args": claim.args, "items": items}


def _panel(what: Reproduction, panel: str, worlds: list[dict[str, dict[str, Curve]]]) -> dict[str, Any]:
    methods = {}
    for label, first in worlds[0][panel].items():
        runs = [world[panel][label] for world in worlds]
        keep = _thin(len(first.rounds))
        values = np.array([c.values[keep] for c in runs])
        axes = {name: _digits(np.mean([c.axes[name] for c in runs], axis=0)[keep]) for name in first.axes}
        methods[label] = {
            "point": dict(first.point),
            "first": _spread(np.array([c.values[0] for c in runs])),
            "final": _spread(np.array([c.final for c in runs])),
            "rounds": first.rounds[keep].tolist(), **axes,
            "mean": _digits(values.mean(axis=0)), "low": _digits(values.min(axis=0)),
            "high": _digits(values.max(axis=0))}
    draw = [d.model_dump() for d in what.panels[panel].draw]
    return {"draw": draw, **what.view(panel).model_dump(), "methods": methods}


def _thin(length: int) -> list[int]:
    """At most 60 places: the first ten as they are, then ever wider apart, always the last."""
    if length <= _POINTS:
        return list(range(length))
    first = range(10)
    wide = np.linspace(10, length - 1, _POINTS - 10).round().astype(int)
    return sorted({*first, *wide.tolist()})


def _spread(values: np.ndarray) -> dict[str, float | None]:
    with np.errstate(invalid="ignore"):
        mean, std = float(values.mean()), float(values.std(ddof=1 if len(values) > 1 else 0))
    return {"mean": _digits([mean], 6)[0], "std": _digits([std], 3)[0]}


def _digits(values: Any, digits: int = 4) -> list[float | None]:
    """Few digits, and nothing where a number is not finite: JSON has no infinity."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in values]
