"""Reproductions: a paper's figure as experiments, with its claims as rules, from one file in the package."""

import copy
import io
import itertools
import platform
import time
from collections.abc import Callable, Mapping
from importlib import metadata, resources
from typing import Any

import jax
import numpy as np
import pydantic
from ruamel.yaml import YAML

from resolvent.problem.errors import InputError, nearest
from resolvent.study.claims import Curve, Item, check, verdict_of
from resolvent.study.compare import compare
from resolvent.study.components import parameters
from resolvent.study.experiment import ExperimentFile

__all__ = ["Claim", "Reproduction", "reproduce", "reproductions"]

_POINTS = 60  # of a curve, in a results file


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Claim(_Strict):
    """What a paper says of a figure.

    Attributes:
        says: in words.
        paper: the paper's number, where it has one.
        rule: the name of the rule in ``claims``.
        args: its arguments.
    """

    says: str
    paper: str = ""
    rule: str
    args: dict[str, Any]


class Quick(_Strict):
    """The small setting.

    Attributes:
        seeds: how many seeds.
        set: changes of every panel, ``key.path=value``.
    """

    seeds: int
    set: list[str] = []


class Sweep(_Strict):
    """One algorithm for every combination of parameters.

    Attributes:
        over: the values of each parameter; ``$name`` in the algorithm stands for them.
        algorithm: the algorithm.
        label: its label, such as ``k = {k}, eta = {eta:g}``.
    """

    over: dict[str, list[float]]
    algorithm: dict[str, Any]
    label: str

    def points(self) -> dict[str, dict[str, float]]:
        """The parameters by label."""
        points = (dict(zip(self.over, values, strict=True)) for values in itertools.product(*self.over.values()))
        return {self.label.format(**point): point for point in points}


class Draw(_Strict):
    """How a panel is drawn.

    Attributes:
        x: the parameter of the sweep on the abscissa; left out, rounds.
        lines: the parameter of the sweep that has a line each.
        legend: where the curves' names stand: in the picture's own legend, or nowhere.
    """

    x: str = "rounds"
    lines: str = ""


class Panel(_Strict):
    """One picture, and the experiment behind it.

    Attributes:
        experiment: what differs from the reproduction's experiment.
        sweep: algorithms in place of the experiment's.
        draw: how it is drawn.
    """

    experiment: dict[str, Any] = {}
    sweep: Sweep | None = None
    draw: list[Draw] = [Draw()]


class Reproduction(_Strict):
    """A figure of a paper.

    Attributes:
        name: what the command calls it.
        title: what it is about.
        paper: whose figure.
        figure: which figure.
        measure: a metric of the shared or the deployed models; its mean over parties is drawn.
        split: the samples that the metric is of, or train for a gap.
        axis: what the ordinate is called.
        log: whether it is logarithmic.
        notes: what a reader should know: what the paper leaves open and what was taken.
        seeds: how many seeds at paper scale.
        experiment: the settings that all panels share.
        panels: by title.
        claims: what is claimed.
        quick: the small setting.
    """

    name: str
    title: str
    paper: str
    figure: str
    measure: str = "gap"
    split: str = "train"
    axis: str = "optimality gap f(w) - f*"
    log: bool = True
    notes: list[str] = []
    seeds: int
    experiment: dict[str, Any]
    panels: dict[str, Panel]
    claims: list[Claim]
    quick: Quick

    @classmethod
    def load(cls, name: str) -> "Reproduction":
        """Read a shipped reproduction by name.

        Raises:
            InputError: there is none of this name, or its file is wrong.
        """
        shipped = reproductions()
        if name not in shipped:
            raise InputError(f"there is no reproduction {name!r}; there are {', '.join(shipped)}"
                             f"{nearest(name, shipped)}")
        try:
            return cls(name=name, **YAML(typ="safe").load(shipped[name]))
        except pydantic.ValidationError as error:
            raise InputError(f"{name}.yaml: {error}") from error

    def file(self, panel: str, seed: int, changes: tuple[str, ...] = ()) -> ExperimentFile:
        """A panel's experiment; the seed is of the instance as well as of the run.

        Raises:
            InputError: the settings are wrong.
        """
        one = self.panels[panel]
        settings = _merged(self.experiment, one.experiment)
        if one.sweep is not None:
            settings["algorithms"] = {label: _filled(one.sweep.algorithm, point)
                                      for label, point in one.sweep.points().items()}
        text = io.StringIO()
        YAML().dump(settings, text)
        source = f"{self.name}, {panel}"
        changes = (*changes, f"seed={seed}")
        plain = ExperimentFile.parse(text.getvalue(), source, self.name, changes)
        seeded = [f"{key}.seed={seed}" for key in ("problem", "data")
                  if key in plain.bound.parts and "seed" in parameters(plain.bound.parts[key].function)]  # type: ignore[union-attr]
        return ExperimentFile.parse(text.getvalue(), source, self.name, (*changes, *seeded))


def reproductions() -> dict[str, str]:
    """The shipped reproductions: text by name."""
    folder = resources.files("resolvent.study") / "reproductions"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in files}


def reproduce(what: Reproduction, *, quick: bool = False, changes: tuple[str, ...] = (), seeds: int | None = None,
              progress: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Run a reproduction and check its claims.

    Args:
        what: the reproduction.
        quick: in its small setting.
        changes: further changes of every panel, ``key.path=value``.
        seeds: how many seeds; default: as many as the setting says.
        progress: called with (panel, runs done, runs in all).

    Returns:
        The record that a results file holds.

    Raises:
        InputError: a setting is wrong, or a claim speaks of what there is not.
    """
    begin = time.perf_counter()
    count = seeds if seeds is not None else what.quick.seeds if quick else what.seeds
    changes = (*(what.quick.set if quick else ()), *changes)
    worlds: list[dict[str, dict[str, Curve]]] = [{} for _ in range(count)]
    for panel in what.panels:
        for seed, world in enumerate(worlds):
            if progress:
                progress(panel, seed, count)
            world[panel] = _curves(what, panel, what.file(panel, seed, changes))
        if progress:
            progress(panel, count, count)
    found = [[check(c.rule, world, **c.args) for world in worlds] for c in what.claims]
    return {
        "name": what.name, "title": what.title, "paper": what.paper, "figure": what.figure, "axis": what.axis,
        "setting": "quick" if quick else "paper scale", "log": what.log, "notes": what.notes,
        "command": f"resolvent reproduce {what.name}{' --quick' if quick else ''}", "changes": list(changes),
        "seeds": count, "seconds": round(time.perf_counter() - begin, 1),
        "claims": [_judged(c, items) for c, items in zip(what.claims, found, strict=True)],
        "panels": {panel: _panel(what, panel, worlds) for panel in what.panels},
        "versions": {p: metadata.version(p) for p in ("resolvent", "jax", "numpy")}
        | {"python": platform.python_version()},
        "device": f"{jax.devices()[0].device_kind} ({jax.default_backend()})",
    }


def _curves(what: Reproduction, panel: str, file: ExperimentFile) -> dict[str, Curve]:
    metrics = compare(file).metrics
    sweep = what.panels[panel].sweep
    points = {} if sweep is None else sweep.points()
    rows = metrics[(metrics["metric"] == what.measure) & (metrics["split"].fillna("train") == what.split)]
    curves = {}
    for label, mine in rows.groupby("method", sort=False):
        mean = mine.groupby("round")["value"].mean()
        values = mean.to_numpy(dtype=float)
        values = np.where(np.isfinite(values), values, np.inf)
        curves[str(label)] = Curve(mean.index.to_numpy(dtype=np.int64), values, points.get(str(label), {}))
    return curves


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
        methods[label] = {
            "point": dict(first.point),
            "first": _spread(np.array([c.values[0] for c in runs])),
            "final": _spread(np.array([c.final for c in runs])),
            "rounds": first.rounds[keep].tolist(),
            "mean": _digits(values.mean(axis=0)), "low": _digits(values.min(axis=0)),
            "high": _digits(values.max(axis=0))}
    draw = [d.model_dump() for d in what.panels[panel].draw]
    return {"draw": draw, "methods": methods}


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


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and what differs from them; another component, or other algorithms, replace the old."""
    result = copy.deepcopy(dict(one))
    for key, value in other.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping) and key != "algorithms" and "name" not in value
        result[key] = _merged(old, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def _filled(settings: Any, point: Mapping[str, float]) -> Any:
    """Settings with the parameters of a sweep in the places of their ``$names``."""
    if isinstance(settings, Mapping):
        return {key: _filled(value, point) for key, value in settings.items()}
    if isinstance(settings, str) and settings.startswith("$"):
        return point[settings[1:]]
    return settings
