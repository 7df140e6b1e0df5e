"""Rules about levels and the course of curves: averages, published levels, collapses, and events that coincide."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from resolvent.papers.reproductions.curves import Curve, Item, Panels, name_of, rule

__all__ = ["average_lead", "close_together", "coincide", "deepest_fall", "net_change", "published", "reverses",
           "same_sign"]

_INF = float("inf")


@rule
def average_lead(figure: Panels, panels: Sequence[str], methods: Sequence[str], over: Sequence[str],
                 at_least: float = -_INF, at_most: float = _INF) -> list[Item]:
    """The mean of the methods' last values minus the mean of those of ``over`` is between the bounds."""
    leads = {p: float(np.mean([figure[p][m].final for m in methods]) - np.mean([figure[p][m].final for m in over]))
             for p in panels}
    return [Item(f"{p}: mean lead", lead, at_least <= lead <= at_most) for p, lead in leads.items()]


@rule
def published(figure: Panels, panels: Sequence[str], values: Mapping[str, float], within: float) -> list[Item]:
    """The last value differs from the published one by at most ``within``."""
    return [Item(f"{name_of(figure, p, m)} (published: {value:g})", figure[p][m].final,
                 abs(figure[p][m].final - value) <= within) for p in panels for m, value in values.items()]


@rule
def close_together(figure: Panels, panels: Sequence[str], within: float,
                   methods: Sequence[str] | None = None) -> list[Item]:
    """The largest last value of the methods (default: all) minus the smallest one is at most ``within``."""
    spreads = {p: float(np.ptp([c.final for m, c in figure[p].items() if methods is None or m in methods]))
               for p in panels}
    return [Item(f"{p}: largest - smallest", spread, spread <= within) for p, spread in spreads.items()]


@rule
def net_change(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_least: float = -_INF,
               at_most: float = _INF) -> list[Item]:
    """The last value minus the first one is between the bounds."""
    changes = {name_of(figure, p, m): figure[p][m].final - float(figure[p][m].values[0])
               for p in panels for m in methods}
    return [Item(name, change, at_least <= change <= at_most) for name, change in changes.items()]


@rule
def deepest_fall(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_least: float = -_INF,
                 at_most: float = _INF) -> list[Item]:
    """The smallest ratio of a value to the largest one before it, if that is positive, is between the bounds.

    It is at most 1; without a positive earlier value it is 1.
    """
    def fall(curve: Curve) -> float:
        earlier = np.maximum.accumulate(curve.values[:-1])
        ratios = curve.values[1:][earlier > 0] / earlier[earlier > 0]
        return float(min(1.0, *ratios)) if len(ratios) else 1.0

    falls = {name_of(figure, p, m): fall(figure[p][m]) for p in panels for m in methods}
    return [Item(name, value, at_least <= value <= at_most) for name, value in falls.items()]


@rule
def coincide(figure: Panels, spikes: str, drops: str, methods: Sequence[str], share: float = 0.1,
             at_least: float = 0.5) -> list[Item]:
    """Of the intervals with the largest spikes, at least the share ``at_least`` also has the largest drops.

    Intervals lie between successive rounds of the panel ``drops``. The spike of an interval is the largest value of the
    panel ``spikes`` in it, and its drop is the decrease of ``drops``; an increase is no drop. ``share`` of the
    intervals are the largest, at least 1.
    """
    items = []
    for m in methods:
        events, curve = figure[spikes][m], figure[drops][m]
        inside = [(events.rounds > a) & (events.rounds <= b) for a, b in pairwise(curve.rounds)]
        sizes = np.array([events.values[mask].max() if mask.any() else -_INF for mask in inside])
        number = max(1, round(share * len(sizes)))
        dropped = -np.diff(curve.values)
        both = set(_largest(sizes, number)) & {i for i in _largest(dropped, number) if dropped[i] > 0}
        items.append(Item(m, len(both) / number, len(both) / number >= at_least))
    return items


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
    items = []
    for a, b in pairs.items():
        sign = np.sign(figure[panel][a].final - figure[panel][b].final)
        count = sum(bool(np.sign(finals[a] - finals[b]) == sign) for finals in points.values())
        items.append(Item(f"{a} - {b}: of {len(points)}", count, count >= at_least))
    return items


def _largest(values: NDArray[np.float64], number: int) -> list[int]:
    """The positions of the largest values."""
    return [int(i) for i in np.argsort(-values, kind="stable")[:number]]
