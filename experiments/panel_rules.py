"""Rules about all methods of a panel: which ends best, by how much groups differ, and events that coincide."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from experiments.curves import Item, Panels, between, quotient, rule

_INF = float("inf")


def _finals(figure: Panels, panel: str, methods: Sequence[str]) -> list[float]:
    return [figure[panel][m].final for m in methods]


def _others(figure: Panels, panel: str, methods: Sequence[str], among: Sequence[str] | None) -> list[float]:
    """The last values of the methods that are not named, or of those of them that are in ``among``."""
    return [c.final for m, c in figure[panel].items() if m not in methods and (among is None or m in among)]


@rule
def best(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float,
         among: Sequence[str] | None = None) -> list[Item]:
    """In each panel the named methods end lower than all others, or than those of ``among``.

    The largest last value of the named methods divided by the smallest one of the others is at most ``at_most``.
    """
    ends = {p: (max(_finals(figure, p, methods)), min(_others(figure, p, methods, among))) for p in panels}
    return between({f"{p}: their worst / the others' best": quotient(*end) for p, end in ends.items()},
                   at_most=at_most)


@rule
def lead(figure: Panels, panels: Sequence[str], methods: Sequence[str], over: Sequence[str] | None = None,
         of: Literal["best", "worst", "mean"] = "best", at_least: float = -_INF, at_most: float = _INF,
         mean: bool = False) -> list[Item]:
    """The last value of the best, or the worst, of the methods minus that of the best of the others.

    The others are the methods ``over``; default: all others. With ``of`` the mean, both means are compared. With
    ``mean`` the mean over the panels is between the bounds. Higher values are better.
    """
    def difference(finals: Sequence[float], others: Sequence[float]) -> float:
        if of == "mean":
            return float(np.mean(finals) - np.mean(others))
        return (min if of == "worst" else max)(finals) - max(others)

    leads = {p: difference(_finals(figure, p, methods), _others(figure, p, methods, over)) for p in panels}
    return between({"mean over panels: lead": leads} if mean else {f"{name}: lead": v for name, v in leads.items()},
                   at_least, at_most)


@rule
def close_together(figure: Panels, panels: Sequence[str], within: float,
                   methods: Sequence[str] | None = None) -> list[Item]:
    """The largest last value of the methods (default: all) minus the smallest one is at most ``within``."""
    return between({f"{p}: largest - smallest": float(np.ptp(_finals(figure, p, methods or [*figure[p]])))
                    for p in panels}, at_most=within)


@rule
def coincide(figure: Panels, spikes: str, drops: str, methods: Sequence[str], share: float = 0.1,
             at_least: float = 0.5) -> list[Item]:
    """Of the intervals with the largest spikes, at least the share ``at_least`` also has the largest drops.

    Intervals lie between successive rounds of the panel ``drops``. The spike of an interval is the largest value of the
    panel ``spikes`` in it, and its drop is the decrease of ``drops``; an increase is no drop. ``share`` of the
    intervals are the largest, at least 1.
    """
    def largest(values: NDArray[np.float64], number: int) -> set[int]:
        return {int(i) for i in np.argsort(-values, kind="stable")[:number]}

    shares = {}
    for m in methods:
        events, curve = figure[spikes][m], figure[drops][m]
        inside = [(events.rounds > a) & (events.rounds <= b) for a, b in pairwise(curve.rounds)]
        sizes = np.array([events.values[mask].max() if mask.any() else -_INF for mask in inside])
        number = max(1, round(share * len(sizes)))
        dropped = -np.diff(curve.values)
        both = largest(sizes, number) & {i for i in largest(dropped, number) if dropped[i] > 0}
        shares[m] = len(both) / number
    return between(shares, at_least)


@rule
def reverses(figure: Panels, panels: Sequence[str], method: str, to: str) -> list[Item]:
    """From each panel to the next the sign of the last value minus that of the method ``to`` changes.

    The number is the product of both differences.
    """
    differences = {p: figure[p][method].final - figure[p][to].final for p in panels}
    products = {f"{a} times {b}": differences[a] * differences[b] for a, b in pairwise(panels)}
    return [Item(f"{method} - {to}: {name}", product, product < 0) for name, product in products.items()]


@rule
def same_sign(figure: Panels, panel: str, sweep: str, pairs: Mapping[str, str], at_least: int) -> list[Item]:
    """The difference of each pair has the sign that it has in ``panel`` at ``at_least`` points of a sweep or more.

    The curves of the sweep have the point ``method``. The number is that of the points with this sign.
    """
    points: dict[str, dict[str, float]] = {}
    for curve in figure[sweep].values():
        others = {key: value for key, value in curve.point.items() if key != "method"}
        points.setdefault(str(others), {})[curve.point["method"]] = curve.final
    counts = {}
    for a, b in pairs.items():
        sign = np.sign(figure[panel][a].final - figure[panel][b].final)
        counts[f"{a} - {b}: of {len(points)}"] = sum(bool(np.sign(finals[a] - finals[b]) == sign)
                                                     for finals in points.values())
    return between(counts, at_least)
