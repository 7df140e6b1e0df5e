"""Rules about sweeps: trends, optima, and the cost of a target along a parameter."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np

from experiments.curves import Curve, Item, Panels, between, quotient, rule

_INF = float("inf")


def lines_of(figure: Panels, panels: Sequence[str], along: str, fixed: str | None) -> Iterator[tuple[str, str, Any]]:
    """Panel by panel, for each value of ``fixed``: panel, name, and rows of the parameter and the last value, sorted.

    Curves without the parameter are left out.
    """
    for panel in panels:
        groups: dict[str, list[tuple[float, float]]] = {}
        for curve in (c for c in figure[panel].values() if along in c.point):
            value = None if fixed is None else curve.point[fixed]
            name = "" if value is None else value if isinstance(value, str) else f"{fixed} = {value:g}"
            groups.setdefault(name, []).append((float(curve.point[along]), curve.final))
        yield from ((panel, name, np.array(sorted(points))) for name, points in groups.items())


def _finals_by(figure: Panels, panel: str, key: Callable[[Mapping[str, Any]], float]) -> dict[float, list[float]]:
    """The last values of the curves whose points have the same key, by the key in ascending order."""
    groups: dict[float, list[float]] = {}
    for curve in figure[panel].values():
        groups.setdefault(key(curve.point), []).append(curve.final)
    return dict(sorted(groups.items()))


@rule
def determined_by_product(figure: Panels, panels: Sequence[str], max_product: float, within: float = _INF,
                          at_least: float = 1.0) -> list[Item]:
    """In a sweep over ``eta`` and ``k``, methods with equal eta*(k-1) have similar last values.

    The largest value divided by the smallest is between ``at_least`` and ``within``. Only products up to
    ``max_product`` count: beyond, the terms that the paper neglects are no longer small.
    """
    def product(point: Mapping[str, Any]) -> float:
        return float(f"{point['eta'] * (point['k'] - 1):.6g}")

    return [item for panel in panels for item in between(
        {f"eta*(k-1) = {value:g}: largest gap / least": quotient(max(finals), min(finals))
         for value, finals in _finals_by(figure, panel, product).items() if value <= max_product and len(finals) > 1},
        at_least, within)]


@rule
def monotone(figure: Panels, panels: Sequence[str], along: str, fixed: str, sign: int = 1) -> list[Item]:
    """In a sweep, the last values rise with ``along``; with ``sign`` -1 they fall.

    The number is the share of the pairs of methods with the same ``fixed`` that are in this order.
    """
    shares = {}
    for panel in panels:
        values = [(c.point[fixed], c.point[along], c.final) for c in figure[panel].values()]
        pairs = [(a, b) for a, b in combinations(values, 2) if a[0] == b[0]]
        shares[f"{panel}: pairs in order"] = float(np.mean([sign * (a[1] - b[1]) * (a[2] - b[2]) > 0
                                                            for a, b in pairs]))
    return between(shares, at_least=1)


@rule
def inside(figure: Panels, panels: Sequence[str], along: str, fixed: str | None = None, highest: bool = True,
           margin: float = 0.0) -> list[Item]:
    """In a sweep, the best last value is at neither end of the parameter ``along``.

    It is better than those at both ends by at least the share ``margin`` of them. The number is the parameter's best
    value; with ``fixed``, for each value of that parameter.
    """
    items = []
    for panel, name, line in lines_of(figure, panels, along, fixed):
        x, y = line.T
        best = int(np.argmax(y) if highest else np.argmin(y))
        leads = (1 if highest else -1) * (y[best] - y[[0, -1]]) - margin * y[[0, -1]]
        is_inside = 0 < best < len(x) - 1 and leads.min() >= 0
        items.append(Item(f"{name or panel}: best {along}", float(x[best]), bool(is_inside)))
    return items


@rule
def slope(figure: Panels, panels: Sequence[str], along: str, fixed: str | None = None, at_most: float = _INF,
          at_least: float = -_INF, log: bool = True) -> list[Item]:
    """In a sweep, the least-squares slope of the last values along a parameter is between the bounds.

    With ``log`` both are logarithms. With ``fixed``, there is a slope for each value of that parameter.
    """
    items = []
    for panel, name, line in lines_of(figure, panels, along, fixed):
        x, y = np.log(line).T if log else line.T
        value = float(np.polyfit(x, y, 1)[0])
        items.append(Item(f"{name or panel}: slope", value, at_least <= value <= at_most))
    return items


@rule
def average_rises(figure: Panels, panels: Sequence[str], along: str, at_least: float,
                  parties: Literal["all", "first"] = "all", others: Mapping[str, str] | None = None) -> list[Item]:
    """In a sweep, the last values' mean over all methods rises by ``at_least`` with each step of a parameter.

    With ``parties: first`` the parameter is a number of parties, and a value is the mean over that many first parties.
    With ``others`` the further parties have the values of another panel, which it names for each panel.
    """
    def score(panel: str, label: str, curve: Curve) -> float:
        if parties == "all" and others is None:
            return curve.final
        count = int(curve.point[along])
        further = figure[others[panel]][label].parties[count:] if others else curve.parties[:0]
        return float(np.mean([*curve.parties[:count], *further]))

    items = []
    for panel in panels:
        of_methods: dict[float, dict[str, float]] = {}
        for label, curve in figure[panel].items():
            method = str(curve.point.get("method", ""))
            of_methods.setdefault(float(curve.point[along]), {})[method] = score(panel, label, curve)
        items += between({f"{panel}: {along} = {a:g} to {b:g}": {m: of_methods[b][m] - of_methods[a][m]
                                                                 for m in of_methods[a]}
                          for a, b in pairwise(sorted(of_methods))}, at_least)
    return items
