"""Rules over what a sweep or a clock measures: trends, optima, and what it costs to come near."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from resolvent.study.curves import Curve, Item, World, over, rule, titled

__all__ = ["average_rises", "cheaper", "contraction", "determined_by_product", "inside", "monotone", "slope", "until"]


@rule
def determined_by_product(world: World, panels: Sequence[str], most_product: float, within: float = float("inf"),
                          least: float = 1.0) -> list[Item]:
    """Methods of a sweep over ``eta`` and ``k`` with the same eta*(k-1) end within a factor ``within`` of each other,
    and no less than a factor ``least`` apart.

    Only products up to ``most_product`` count: beyond, what the paper neglects is no longer small.
    """
    items = []
    for panel in panels:
        groups: dict[float, list[float]] = {}
        for curve in world[panel].values():
            groups.setdefault(float(f"{curve.point['eta'] * (curve.point['k'] - 1):.6g}"), []).append(curve.final)
        for product, finals in sorted(groups.items()):
            if product <= most_product and len(finals) > 1:
                value = over(max(finals), min(finals))
                items.append(Item(f"eta*(k-1) = {product:g}: largest gap / least", value, least <= value <= within))
    return items


@rule
def monotone(world: World, panels: Sequence[str], along: str, fixed: str, sign: int = 1,
             at: int | None = None) -> list[Item]:
    """In a sweep, the values (the last, or those at round ``at``) rise with ``along`` (or fall: ``sign`` -1).

    The number is the share of all pairs of methods with the same ``fixed`` that are in this order.
    """
    items = []
    for panel in panels:
        values = [(c.point[fixed], c.point[along], c.final if at is None else c.at(at)) for c in world[panel].values()]
        pairs = [(a, b) for a, b in combinations(values, 2) if a[0] == b[0]]
        share = float(np.mean([sign * (a[1] - b[1]) * (a[2] - b[2]) > 0 for a, b in pairs]))
        items.append(Item(f"{panel}: pairs in order", share, share == 1))
    return items


@rule
def inside(world: World, panels: Sequence[str], along: str, fixed: str | None = None,
           highest: bool = True) -> list[Item]:
    """In a sweep, the best last value lies at neither end of the parameter ``along``: the number is where it lies; with
    ``fixed``, so for each value of that parameter.
    """
    items = []
    for panel in panels:
        for name, (x, y) in _lines(world[panel], along, fixed).items():
            best = float(x[np.argmax(y) if highest else np.argmin(y)])
            items.append(Item(f"{name or panel}: best {along}", best, bool(x[0] < best < x[-1])))
    return items


@rule
def slope(world: World, panels: Sequence[str], along: str, fixed: str | None = None, most: float = float("inf"),
          least: float = -float("inf"), log: bool = True) -> list[Item]:
    """In a sweep, the least-squares slope of the last values along a parameter, both logarithmic or not, is between
    ``least`` and ``most``; with ``fixed``, so for each value of that parameter.
    """
    items = []
    for panel in panels:
        for name, (x, y) in _lines(world[panel], along, fixed).items():
            value = float(np.polyfit(np.log(x), np.log(y), 1)[0] if log else np.polyfit(x, y, 1)[0])
            items.append(Item(f"{name or panel}: slope", value, least <= value <= most))
    return items


@rule
def average_rises(world: World, panels: Sequence[str], along: str, by: float = 0.0) -> list[Item]:
    """In a sweep, the last value, averaged over all methods, rises by more than ``by`` from each value of a parameter
    to the next.
    """
    items = []
    for panel in panels:
        groups: dict[float, list[float]] = {}
        for curve in world[panel].values():
            groups.setdefault(float(curve.point[along]), []).append(curve.final)
        means = {x: float(np.mean(groups[x])) for x in sorted(groups)}
        items += [Item(f"{panel}: {along} = {a:g} ({means[a]:.4g}) to {b:g} ({means[b]:.4g})", means[b] - means[a],
                       means[b] - means[a] > by) for a, b in pairwise(means)]
    return items


@rule
def until(world: World, panels: Sequence[str], along: str, target: float, fixed: str | None = None,
          by: str = "rounds") -> list[Item]:
    """In a sweep, what it takes to a value of at most ``target``, in rounds or an axis of the clock, never falls as the
    parameter grows, and grows in all: the number is the least parameter's over the largest one's, 0 where only that
    never gets there. With ``fixed``, so for each value of that parameter.
    """
    items = []
    for panel in panels:
        for name, table in _tables(world[panel], along, fixed, lambda c: _spent(c, target, by)).items():
            spent = table[:, 1]
            grows = bool(np.all(spent[:-1] <= spent[1:]) and spent[0] < spent[-1])
            items.append(Item(f"{name or panel}: {by} to {target:g}", spent[0] / spent[-1] if grows else 1.0, grows))
    return items


@rule
def contraction(world: World, panels: Sequence[str], methods: Sequence[str] | None = None, most: float = 1.0,
                least: float = 0.0, begin: int = 0, end: int | None = None) -> list[Item]:
    """The factor per round, from round ``begin`` to ``end`` on average, is between ``least`` and ``most``."""
    items = []
    for panel in panels:
        for m, c in world[panel].items():
            if methods is None or m in methods:
                last = int(c.rounds[-1]) if end is None else end
                value = over(c.at(last), c.at(begin)) ** (1 / (last - begin))
                items.append(Item(titled(world, panel, m), value, least <= value <= most))
    return items


@rule
def cheaper(world: World, panels: Sequence[str], methods: Sequence[str], to: str, share: float, by: str = "rounds",
            most: float = 1.0) -> list[Item]:
    """What it takes to the ``share`` of the first value, in rounds or an axis of the clock, is at most ``most`` times
    that of the method ``to``.
    """
    items = []
    for panel in panels:
        for m in methods:
            own, theirs = (_spent(c, share * c.values[0], by) for c in (world[panel][m], world[panel][to]))
            value = over(own, theirs)
            items.append(Item(f"{titled(world, panel, m)}: {by} / those of {to}", value, value <= most))
    return items


def _lines(methods: Mapping[str, Curve], along: str, fixed: str | None) -> dict[str, tuple[Any, Any]]:
    """Of a sweep, the parameter and the last values, sorted, for each value of ``fixed``."""
    tables = _tables(methods, along, fixed, lambda c: c.final)
    return {name: (table[:, 0], table[:, 1]) for name, table in tables.items()}


def _tables(methods: Mapping[str, Curve], along: str, fixed: str | None,
            number: Callable[[Curve], float]) -> dict[str, Any]:
    """Rows of the parameter and a curve's number, sorted, for each value of ``fixed``; of curves with the parameter."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for curve in (c for c in methods.values() if along in c.point):
        other = None if fixed is None else curve.point[fixed]
        name = "" if other is None else other if isinstance(other, str) else f"{fixed} = {other:g}"
        groups.setdefault(name, []).append((float(curve.point[along]), number(curve)))
    return {name: np.array(sorted(points)) for name, points in groups.items()}


def _spent(curve: Curve, target: float, by: str) -> float:
    """Where on an axis the value is first at most ``target``; infinite where it never is."""
    axis = curve.rounds if by == "rounds" else curve.axes[by]
    near = axis[curve.values <= target]
    return float(near[0]) if len(near) else float("inf")
