"""The record of a reproduction, as its results file holds it: verdicts and curves in few digits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.claims import NOT_DECIDED, check, verdict_of
from experiments.curves import RULES, Curve, Item, Panels, Rule
from experiments.reproduction import Reproduction
from experiments.schema import Claim, Setting

_DIGITS = 6  # of the numbers of claims
_MAX_POINTS = 60  # points of a curve
_FIRST_POINTS = 10  # first points of a curve, which are always in the record


def claim_record(claim: Claim, seeds: Sequence[Panels], setting: Setting,
                 rules: Mapping[str, Rule] = RULES) -> dict[str, Any]:
    """A claim with its verdict and, for each reading and item, the numbers of all seeds.

    Args:
        seeds: the curves of each seed.
        rules: the rules of the figure, see ``rules_of``.

    Raises:
        InputError: the claim names an unknown rule, panel or method.
    """
    is_decided = not claim.converged or setting in (
        ("paper scale",) if claim.converged == "paper scale" else ("paper scale", "middle"))
    readings, all_items = [], []
    for reading in claim.all_readings():
        items_by_seed = [check(reading.rule, curves, reading.read, rules=rules, **reading.args) for curves in seeds]
        all_items += items_by_seed
        readings.append({"choices": reading.choices, "verdict": verdict_of(items_by_seed), "rule": reading.rule,
                         "read": reading.read.model_dump(exclude_defaults=True), "args": reading.args,
                         "items": [_item_record(items) for items in zip(*items_by_seed, strict=True)]})
    stated = claim.model_dump(include={"says", "paper", "ours", "headline", "changed"})
    return {**stated, "verdict": verdict_of(all_items) if is_decided else NOT_DECIDED, "readings": readings}


def _item_record(items: Sequence[Item]) -> dict[str, Any]:
    """One item of all seeds; the parts of a mean, such as those of single data sets, are stored with it."""
    values = np.array([item.value for item in items])
    parts = {name: rounded([item.parts[name] for item in items], _DIGITS) for name in items[0].parts}
    return {"name": items[0].name, **_spread(values), "holds": sum(item.holds for item in items),
            "seeds": rounded(values, _DIGITS), **({"parts": parts} if parts else {})}


def panel_record(reproduction: Reproduction, title: str, curves_by_seed: Sequence[dict[str, Curve]]) -> dict[str, Any]:
    """A panel's view and the curves of its methods: the mean, the lowest and the highest value over the seeds."""
    methods = {}
    for label, first in curves_by_seed[0].items():
        curves = [of_seed[label] for of_seed in curves_by_seed]
        points = _thin(len(first.rounds))
        values = np.array([c.values[points] for c in curves])
        axes = {name: rounded(np.mean([c.axes[name] for c in curves], axis=0)[points]) for name in first.axes}
        methods[label] = {
            "point": dict(first.point),
            "first": _spread(np.array([c.values[0] for c in curves])),
            "final": _spread(np.array([c.final for c in curves])),
            "rounds": first.rounds[points].tolist(), **axes,
            "mean": rounded(values.mean(axis=0)), "low": rounded(values.min(axis=0)),
            "high": rounded(values.max(axis=0))}
    draw = [d.model_dump() for d in reproduction.panels[title].draw]
    return {"draw": draw, **reproduction.view(title).model_dump(exclude_defaults=True), "methods": methods}


def rounded(values: Any, digits: int = 4) -> list[float | None]:
    """Numbers in few digits; None for a number that is not finite, because JSON has no infinity."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in values]


def _thin(length: int) -> list[int]:
    """At most 60 positions: the first ten and the last one, with equal distances between."""
    if length <= _MAX_POINTS:
        return list(range(length))
    spaced = np.linspace(_FIRST_POINTS, length - 1, _MAX_POINTS - _FIRST_POINTS).round().astype(int)
    return sorted({*range(_FIRST_POINTS), *spaced.tolist()})


def _spread(values: np.ndarray) -> dict[str, float | None]:
    with np.errstate(invalid="ignore"):
        mean, std = float(values.mean()), float(values.std(ddof=1 if len(values) > 1 else 0))
    return {"mean": rounded([mean], _DIGITS)[0], "std": rounded([std], 3)[0]}
