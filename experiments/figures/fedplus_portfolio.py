"""Portfolios: events that coincide, gains by the number of parties, the paper's Table 1, other panels."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from experiments.curves import Item, Panels, between, name_of
from experiments.party_rules import is_better

_SHARE = 0.1  # of the intervals, which are the largest


def coincide(figure: Panels, spikes: str, drops: str, methods: Sequence[str]) -> list[Item]:
    """Half of the intervals with the largest tenth of spikes have the largest tenth of drops too.

    Intervals lie between successive rounds of the panel ``drops``. The spike of an interval is the largest value of the
    panel ``spikes`` in it, and its drop is the decrease of ``drops``; an increase is no drop. At least one interval is
    the largest.
    """
    def largest(values: NDArray[np.float64], number: int) -> set[int]:
        return {int(i) for i in np.argsort(-values, kind="stable")[:number]}

    shares = {}
    for m in methods:
        events, curve = figure[spikes][m], figure[drops][m]
        inside = [(events.rounds > a) & (events.rounds <= b) for a, b in pairwise(curve.rounds)]
        sizes = np.array([events.values[mask].max() if mask.any() else -np.inf for mask in inside])
        number = max(1, round(_SHARE * len(sizes)))
        dropped = -np.diff(curve.values)
        both = largest(sizes, number) & {i for i in largest(dropped, number) if dropped[i] > 0}
        shares[m] = len(both) / number
    return between(shares, at_least=0.5)


def net_change(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_least: float) -> list[Item]:
    """The last value minus the first one."""
    return between({name_of(figure, p, m): figure[p][m].final - float(figure[p][m].values[0])
                    for p in panels for m in methods}, at_least)


def gains_grow(figure: Panels, panels: Sequence[str], methods: Sequence[str], to: str, at_least: float,
               largest: bool = False, among: int | None = None) -> list[Item]:
    """With the number of parties, the mean gain over parties grows by ``at_least``.

    A party's gain is its last value minus that with the method ``to``, in the same federation. With ``largest`` the
    largest gain grows; with ``among``, the expected largest gain of that number of random parties. The panels have
    federations of several sizes; in a sweep, curves have the point ``method``.
    """
    by_method: dict[str, dict[int, NDArray[np.float64]]] = {}
    for panel in panels:
        for label, curve in figure[panel].items():
            by_method.setdefault(curve.point.get("method", label), {})[len(curve.parties)] = curve.parties
    items = []
    for m in methods:
        gains = {n: by_method[m][n] - by_method[to][n] for n in sorted(by_method[m])}
        numbers = {n: _expected_largest(g, among or n) if largest or among else float(g.mean())
                   for n, g in gains.items()}
        items += between({f"{m}: {a} to {b} parties": numbers[b] - numbers[a] for a, b in pairwise(numbers)}, at_least)
    return items


def _expected_largest(values: NDArray[np.float64], among: int) -> float:
    """The expected largest of ``among`` values that are drawn without replacement."""
    n = len(values)
    among = min(among, n)
    chances = [comb(i, among - 1) / comb(n, among) for i in range(n)]  # that the i-th smallest value is the largest
    return float(np.sort(values) @ np.array(chances))


def better_of_panels(figure: Panels, panels: Sequence[str], than: str, methods: Sequence[str]) -> list[Item]:
    """In back-tests, each method is better in each panel than in the panel ``than``, on the same universes."""
    return [is_better(f"{m}: {p} - {than}", figure[p][m], figure[than][m]) for p in panels for m in methods]


def published(figure: Panels, panels: Sequence[str], values: Mapping[str, float], within: float) -> list[Item]:
    """The last value differs from the published one by at most ``within``."""
    return [Item(f"{name_of(figure, p, m)} (published: {value:g})", figure[p][m].final,
                 abs(figure[p][m].final - value) <= within) for p in panels for m, value in values.items()]


def close_together(figure: Panels, panels: Sequence[str], within: float,
                   methods: Sequence[str] | None = None) -> list[Item]:
    """The largest last value of the methods (default: all) minus the smallest one is at most ``within``."""
    return between({f"{p}: largest - smallest": float(np.ptp([figure[p][m].final for m in methods or figure[p]]))
                    for p in panels}, at_most=within)


def reverses(figure: Panels, panels: Sequence[str], method: str, to: str) -> list[Item]:
    """From the first panel to the second the sign of the last value minus that of the method ``to`` changes.

    The number is the product of both differences.
    """
    first, second = (figure[p][method].final - figure[p][to].final for p in panels)
    return [Item(f"{method} - {to}: {' times '.join(panels)}", first * second, first * second < 0)]


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
