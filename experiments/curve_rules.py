"""Rules about one number of each curve: alone, against another method, or from one panel to the next.

A rule is made from a function of one curve or of two. The claim has the panels and methods, the bounds ``at_least`` and
``at_most``, and the function's further arguments.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.curves import RULES, Curve, Item, Panels, between, name_of, quotient, rule

_INF = float("inf")


def of_methods(function: Callable[..., float]) -> Callable[..., float]:
    """Register the rule: the number of each method's curve (default: all) in each panel is between the bounds."""
    def check(figure: Panels, panels: Sequence[str], methods: Sequence[str] | None = None, at_least: float = -_INF,
              at_most: float = _INF, **arguments: Any) -> list[Item]:
        return between({name_of(figure, p, m): function(figure[p][m], **arguments)
                        for p in panels for m in methods or figure[p]}, at_least, at_most)

    RULES[function.__name__] = check
    return function


def of_two_methods(item: str = "{a} / {b}") -> Callable[..., Callable[..., float]]:
    """Register the rule: a number of two methods' curves in one panel is between the bounds.

    Each of ``methods`` is compared with the method ``to``, or the methods are those of ``pairs``. With ``mean`` the
    mean of the number over the panels is between the bounds.
    """
    def register(function: Callable[..., float]) -> Callable[..., float]:
        def check(figure: Panels, panels: Sequence[str], methods: Sequence[str] = (), to: str = "",
                  pairs: Mapping[str, str] | None = None, at_least: float = -_INF, at_most: float = _INF,
                  mean: bool = False, **arguments: Any) -> list[Item]:
            if not pairs and not (methods and to):
                raise TypeError("set methods and to, or pairs")
            compared = (pairs or dict.fromkeys(methods, to)).items()
            values = {(p, a): function(figure[p][a], figure[p][b], **arguments) for p in panels for a, b in compared}
            if mean:
                return between({f"{item.format(a=a, b=b)}, mean over panels": {p: values[p, a] for p in panels}
                                for a, b in compared}, at_least, at_most)
            return between({item.format(a=name_of(figure, p, a), b=b): values[p, a]
                            for p in panels for a, b in compared}, at_least, at_most)

        RULES[function.__name__] = check
        return function

    return register


def of_panels(item: str) -> Callable[..., Callable[..., float | None]]:
    """Register the rule: a number of a method's curves in a panel and in the next one is between the bounds.

    Instead of successive panels, ``pairs`` names for each panel the one that it is compared with.

    Args:
        item: what the number is, with the method m and the panels a and b.
    """
    def register(function: Callable[..., float | None]) -> Callable[..., float | None]:
        def check(figure: Panels, methods: Sequence[str], panels: Sequence[str] = (),
                  pairs: Mapping[str, str] | None = None, at_least: float = -_INF, at_most: float = _INF,
                  **arguments: Any) -> list[Item]:
            steps = pairwise(panels) if pairs is None else [(a, b) for b, a in pairs.items()]
            values = {item.format(m=m, a=a, b=b): function(figure[a][m], figure[b][m], **arguments)
                      for m, (a, b) in itertools.product(methods, steps)}
            return between({name: value for name, value in values.items() if value is not None}, at_least, at_most)

        RULES[function.__name__] = check
        return function

    return register


@of_methods
def level(curve: Curve) -> float:
    """The last value."""
    return curve.final


@of_methods
def relative_gap(curve: Curve) -> float:
    """The last value divided by the first."""
    return curve.relative


@of_methods
def gain(curve: Curve, since: float = 0.5) -> float:
    """The last value divided by the value at the share ``since`` of the rounds."""
    return quotient(curve.final, curve.at(int(since * curve.rounds[-1])))


@of_methods
def spike(curve: Curve, begin: int = 1) -> float:
    """From round ``begin`` on, the largest value divided by the median."""
    late = curve.values[curve.rounds >= min(begin, curve.rounds[-1])]
    return quotient(float(late.max()), float(np.median(late)))


@of_methods
def deepest_fall(curve: Curve) -> float:
    """The smallest ratio of a value to the largest one before it, if that is positive; at most 1."""
    earlier = np.maximum.accumulate(curve.values[:-1])
    ratios = curve.values[1:][earlier > 0] / earlier[earlier > 0]
    return float(min(1.0, *ratios)) if len(ratios) else 1.0


@of_methods
def largest_growth(curve: Curve, within: int = 10) -> float:
    """The largest increase of the value within ``within`` rounds.

    A run diverges if its loss grows by more than 1 within 10 rounds. Source: FedProx, C.3.2.
    """
    with np.errstate(invalid="ignore"):  # after a divergence both values are infinite
        rises = [curve.at(int(t)) - curve.at(int(t) - within) for t in curve.rounds if t >= within]
    return float(np.max(np.nan_to_num(rises, nan=-_INF, posinf=_INF, neginf=-_INF), initial=-_INF))


@of_methods
def order(curve: Curve, since: float = 0.1) -> float:
    """The least-squares slope of the logarithm of the value along that of the round, after a share of the rounds.

    It is infinite if the method diverged.
    """
    late = curve.rounds >= max(1, since * curve.rounds[-1])
    if not np.isfinite(curve.values[late]).all():
        return _INF
    return float(np.polyfit(np.log(curve.rounds[late]), np.log(curve.values[late]), 1)[0])


@rule
def climb(figure: Panels, panels: Sequence[str], methods: Sequence[str], begin: int, at_most: float = _INF,
          at_least: float = -_INF, over: Sequence[str] = ()) -> list[Item]:
    """From round ``begin`` on, the largest value divided by the smallest one until then is between the bounds.

    A shorter run is read at its last round. With ``over``, this climb divided by the largest one of the methods
    ``over`` in the same panel is between the bounds.
    """
    def largest_climb(curve: Curve) -> float:
        smallest = np.minimum.accumulate(curve.values)
        return max(quotient(float(v), float(s)) for t, v, s in zip(curve.rounds, curve.values, smallest, strict=True)
                   if t >= min(begin, curve.rounds[-1]))

    climbs = {p: {m: largest_climb(figure[p][m]) for m in (*methods, *over)} for p in panels}
    if over:
        return between({f"{name_of(figure, p, m)} / the others' largest": quotient(
            climbs[p][m], max(climbs[p][other] for other in over)) for p in panels for m in methods}, at_least, at_most)
    return between({name_of(figure, p, m): climbs[p][m] for p in panels for m in methods}, at_least, at_most)


@of_two_methods()
def ratio(a: Curve, b: Curve) -> float:
    """The last value divided by that of the other method."""
    return quotient(a.final, b.final)


@of_two_methods("{a} - {b}")
def difference(a: Curve, b: Curve) -> float:
    """The last value minus that of the other method."""
    return a.final - b.final


@of_two_methods("{a}: rounds / those of {b}")
def sooner(a: Curve, b: Curve, share: float = 1e-8, near: float = 1.1) -> float:
    """The rounds divided by those of the other method, to one target.

    The target is ``share`` times the first value or, if the other method ends above that, ``near`` times its last
    value.
    """
    target = max(share * b.values[0], near * b.final)
    return quotient(a.rounds_to(target), b.rounds_to(target))


@of_panels("{m}: {b} / {a}")
def ratio_of_panels(a: Curve, b: Curve, negligible: float = 0.0) -> float | None:
    """The factor by which the last value grows.

    Pairs of values that are both at most ``negligible`` times the first are left out: they are rounding errors.
    """
    return None if max(a.relative, b.relative) <= negligible else quotient(b.final, a.final)


@of_panels("{m}: {b} - {a}")
def difference_of_panels(a: Curve, b: Curve) -> float:
    """The change of the last value."""
    return b.final - a.final


@of_panels("{m}: rounds, {b} / {a}")
def rounds_of_panels(a: Curve, b: Curve, near: float = 1.1) -> float:
    """The factor by which the rounds to one target grow: ``near`` times the larger of the last values."""
    target = near * max(a.final, b.final)
    return quotient(b.rounds_to(target), a.rounds_to(target))


@rule
def same_limit(figure: Panels, panels: Sequence[str], pairs: Mapping[str, str], within: float = 0.05,
               negligible: float = 1e-10) -> list[Item]:
    """The two of each pair have equal last values: their ratio is within ``within`` of 1, or both are negligible.

    Values are negligible that are at most ``negligible`` times the first.
    """
    items = []
    for panel in panels:
        for a, b in pairs.items():
            first, second = figure[panel][a], figure[panel][b]
            value = quotient(first.final, second.final)
            is_equal = abs(value - 1) <= within or max(first.relative, second.relative) <= negligible
            items.append(Item(f"{name_of(figure, panel, a)} / {b}", value, is_equal))
    return items
