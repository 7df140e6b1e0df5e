"""Rules about the values of single runs: last values, late values, and how much they fluctuate."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from resolvent.papers.reproductions.curves import Curve, Item, Panels, name_of, quotient, rule

__all__ = ["best", "climb", "difference", "difference_of_panels", "gain", "highest", "largest_growth", "lately",
           "lately_of_panels", "lead", "level", "ratio", "ratio_of_panels", "relative_gap", "rise", "rounds_of_panels",
           "same_limit", "sooner", "spike", "steadier", "steadier_panels", "when_stopped"]

_INF = float("inf")


def _between(values: Mapping[str, float], at_least: float, at_most: float) -> list[Item]:
    """An item for each value, which holds if the value is between the bounds."""
    return [Item(name, value, at_least <= value <= at_most) for name, value in values.items()]


def _of_methods(figure: Panels, panels: Sequence[str], methods: Sequence[str]) -> list[tuple[str, Curve]]:
    """The curve of each method in each panel, with its name."""
    return [(name_of(figure, p, m), figure[p][m]) for p in panels for m in methods]


@rule
def relative_gap(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float = _INF,
                 at_least: float = 0.0) -> list[Item]:
    """The last value divided by the first is between the bounds."""
    return _between({name: curve.relative for name, curve in _of_methods(figure, panels, methods)}, at_least, at_most)


@rule
def gain(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float = _INF,
         at_least: float = 0.0, since: float = 0.5) -> list[Item]:
    """The last value divided by the value at the share ``since`` of the rounds is between the bounds."""
    return _between({name: quotient(curve.final, curve.at(int(since * curve.rounds[-1])))
                     for name, curve in _of_methods(figure, panels, methods)}, at_least, at_most)


@rule
def rise(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float = _INF,
         at_least: float = 0.0) -> list[Item]:
    """The last value divided by the smallest value is between the bounds."""
    return _between({name: quotient(curve.final, float(curve.values.min()))
                     for name, curve in _of_methods(figure, panels, methods)}, at_least, at_most)


@rule
def climb(figure: Panels, panels: Sequence[str], methods: Sequence[str], begin: int, at_most: float = _INF,
          at_least: float = 0.0, over: Sequence[str] = ()) -> list[Item]:
    """From round ``begin`` on, the largest value divided by the smallest one until then is between the bounds.

    A shorter run is read at its last round. With ``over``, this climb divided by the largest one of the methods
    ``over`` in the same panel is between the bounds.
    """
    def largest_climb(curve: Curve) -> float:
        smallest = np.minimum.accumulate(curve.values)
        return max(quotient(float(v), float(s)) for t, v, s in zip(curve.rounds, curve.values, smallest, strict=True)
                   if t >= min(begin, curve.rounds[-1]))

    if not over:
        return _between({name: largest_climb(curve) for name, curve in _of_methods(figure, panels, methods)}, at_least,
                        at_most)
    return _between({f"{name_of(figure, p, m)} / the others' largest": quotient(
        largest_climb(figure[p][m]), max(largest_climb(figure[p][other]) for other in over))
        for p in panels for m in methods}, at_least, at_most)


@rule
def spike(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float = _INF,
          at_least: float = 0.0, begin: int = 1) -> list[Item]:
    """From round ``begin`` on, the largest value divided by the median is between the bounds."""
    return _between({name: quotient(float(late.max()), float(np.median(late)))
                     for name, curve in _of_methods(figure, panels, methods)
                     for late in (curve.values[curve.rounds >= min(begin, curve.rounds[-1])],)}, at_least, at_most)


@rule
def ratio(figure: Panels, panels: Sequence[str], methods: Sequence[str], to: str, at_most: float = _INF,
          at_least: float = 0.0) -> list[Item]:
    """The last value divided by that of the method ``to`` is between the bounds."""
    return _between({f"{name_of(figure, p, m)} / {to}": quotient(figure[p][m].final, figure[p][to].final)
                     for p in panels for m in methods}, at_least, at_most)


@rule
def ratio_of_panels(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_least: float,
                    negligible: float = 0.0) -> list[Item]:
    """From each panel to the next the last value grows by at least the factor ``at_least``.

    Pairs of values that are both at most ``negligible`` times the first are left out: they are rounding errors.
    """
    def is_negligible(panel: str, method: str) -> bool:
        return figure[panel][method].relative <= negligible

    return _between({f"{m}: {b} / {a}": quotient(figure[b][m].final, figure[a][m].final)
                     for m in methods for a, b in pairwise(panels)
                     if not (is_negligible(a, m) and is_negligible(b, m))}, at_least, _INF)


@rule
def best(figure: Panels, panels: Sequence[str], methods: Sequence[str],
         among: Sequence[str] | None = None) -> list[Item]:
    """In each panel the named methods end lower than all others, or than those of ``among``.

    The number is the largest last value of the named methods divided by the smallest one of the others.
    """
    items = []
    for panel in panels:
        largest = max(figure[panel][m].final for m in methods)
        smallest = min(c.final for m, c in figure[panel].items() if m not in methods and (among is None or m in among))
        items.append(Item(f"{panel}: their worst / the others' best", quotient(largest, smallest), largest < smallest))
    return items


@rule
def sooner(figure: Panels, panels: Sequence[str], pairs: Mapping[str, str], share: float = 1e-8, near: float = 1.1,
           at_most: float = _INF, at_least: float = 0.0) -> list[Item]:
    """The rounds of the first of each pair divided by those of the second, to one target, are between the bounds.

    The target is ``share`` times the first value or, if the second method ends above that, ``near`` times its last
    value.
    """
    items = []
    for panel in panels:
        for a, b in pairs.items():
            fast, plain = figure[panel][a], figure[panel][b]
            target = max(share * plain.values[0], near * plain.final)
            value = quotient(fast.rounds_to(target), plain.rounds_to(target))
            name = f"{name_of(figure, panel, a)}: rounds / those of {b}"
            items.append(Item(name, value, at_least <= value <= at_most))
    return items


@rule
def rounds_of_panels(figure: Panels, panels: Sequence[str], methods: Sequence[str], near: float = 1.1,
                     at_least: float = 0.0, at_most: float = _INF) -> list[Item]:
    """From each panel to the next the rounds to one target grow by a factor between the bounds.

    The target is ``near`` times the larger of the method's last values in the two panels.
    """
    def factor(a: Curve, b: Curve) -> float:
        target = near * max(a.final, b.final)
        return quotient(b.rounds_to(target), a.rounds_to(target))

    return _between({f"{m}: rounds, {b} / {a}": factor(figure[a][m], figure[b][m])
                     for m in methods for a, b in pairwise(panels)}, at_least, at_most)


@rule
def largest_growth(figure: Panels, panels: Sequence[str], methods: Sequence[str], within: int = 10,
                   at_least: float = -_INF, at_most: float = _INF) -> list[Item]:
    """The largest increase of the value within ``within`` rounds is between the bounds.

    A run diverges if its loss grows by more than 1 within 10 rounds. Source: FedProx, C.3.2.
    """
    def growth(curve: Curve) -> float:
        with np.errstate(invalid="ignore"):  # after a divergence both values are infinite
            rises = [curve.at(int(t)) - curve.at(int(t) - within) for t in curve.rounds if t >= within]
        return float(np.max(np.nan_to_num(rises, nan=-_INF, posinf=_INF, neginf=-_INF), initial=-_INF))

    return _between({name: growth(curve) for name, curve in _of_methods(figure, panels, methods)}, at_least, at_most)


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


@rule
def difference(figure: Panels, panels: Sequence[str], methods: Sequence[str], to: str, at_most: float = _INF,
               at_least: float = -_INF, at: int | None = None, mean: bool = False) -> list[Item]:
    """The value (the last, or that at round ``at``) minus that of the method ``to`` is between the bounds.

    With ``mean`` the mean of this difference over the panels is.
    """
    items = []
    for m in methods:
        differences = {p: _at(figure[p][m], at) - _at(figure[p][to], at) for p in panels}
        named = {f"{m} - {to}, mean over panels": float(np.mean(list(differences.values())))} if mean else {
            f"{name_of(figure, p, m)} - {to}": value for p, value in differences.items()}
        items += _between(named, at_least, at_most)
    return items


@rule
def difference_of_panels(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float = _INF,
                         at_least: float = -_INF) -> list[Item]:
    """From each panel to the next the last value changes by a difference between the bounds."""
    return _between({f"{m}: {b} - {a}": figure[b][m].final - figure[a][m].final
                     for m in methods for a, b in pairwise(panels)}, at_least, at_most)


@rule
def level(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_most: float = _INF,
          at_least: float = -_INF) -> list[Item]:
    """The last value is between the bounds."""
    return _between({name: curve.final for name, curve in _of_methods(figure, panels, methods)}, at_least, at_most)


@rule
def highest(figure: Panels, panels: Sequence[str], methods: Sequence[str], among: Sequence[str] | None = None,
            by: float = 0.0) -> list[Item]:
    """In each panel the named methods end more than ``by`` above all others, or above those of ``among``.

    The number is the smallest last value of the named methods minus the largest one of the others.
    """
    items = []
    for panel in panels:
        smallest = min(figure[panel][m].final for m in methods)
        largest = max(c.final for m, c in figure[panel].items() if m not in methods and (among is None or m in among))
        items.append(Item(f"{panel}: their worst - the others' best", smallest - largest, smallest - largest > by))
    return items


@rule
def lead(figure: Panels, panels: Sequence[str], methods: Sequence[str], over: Sequence[str],
         at_least: float = -_INF, mean: bool = False) -> list[Item]:
    """The highest last value of the methods minus the highest one of ``over`` is at least ``at_least``.

    With ``mean`` the mean of this difference over the panels is.
    """
    leads = {p: max(figure[p][m].final for m in methods) - max(figure[p][m].final for m in over) for p in panels}
    named = {"mean over panels": float(np.mean(list(leads.values())))} if mean else leads
    return [Item(f"{name}: lead", value, value >= at_least) for name, value in named.items()]


@rule
def steadier(figure: Panels, panels: Sequence[str], methods: Sequence[str], to: str, at_most: float = 1.0,
             since: float = 0.0) -> list[Item]:
    """The fluctuation divided by that of the method ``to`` is at most ``at_most``.

    The fluctuation is the standard deviation of the changes between evaluations after the share ``since`` of the
    rounds.
    """
    return _between({f"{name_of(figure, p, m)} / {to}": quotient(_fluctuation(figure[p][m], since),
                                                               _fluctuation(figure[p][to], since))
                     for p in panels for m in methods}, -_INF, at_most)


@rule
def steadier_panels(figure: Panels, pairs: Mapping[str, str], methods: Sequence[str], at_most: float = _INF,
                    at_least: float = 0.0) -> list[Item]:
    """The fluctuation (see ``steadier``) in the first panel of each pair divided by that in the second.

    It is between the bounds.
    """
    return _between({f"{m}: {a} / {b}": quotient(_fluctuation(figure[a][m], 0.0), _fluctuation(figure[b][m], 0.0))
                     for m in methods for a, b in pairs.items()}, at_least, at_most)


@rule
def lately(figure: Panels, panels: Sequence[str], methods: Sequence[str], to: str, at_most: float = _INF,
           at_least: float = -_INF, since: float = 0.5, minus: bool = False, mean: bool = False) -> list[Item]:
    """The mean of the late values divided by that of the method ``to`` (or minus it) is between the bounds.

    Late values are those after the share ``since`` of the rounds. They say more than the last value if a curve
    fluctuates. With ``mean`` the mean of the number over the panels is between the bounds.
    """
    items, sign = [], "-" if minus else "/"
    for m in methods:
        means = {p: (_late_mean(figure[p][m], since), _late_mean(figure[p][to], since)) for p in panels}
        values = {f"{name_of(figure, p, m)} {sign} {to}": a - b if minus else quotient(a, b)
                  for p, (a, b) in means.items()}
        if mean:
            values = {f"{m} {sign} {to}, mean over panels": float(np.mean(list(values.values())))}
        items += _between(values, at_least, at_most)
    return items


@rule
def lately_of_panels(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_least: float = 0.0,
                     at_most: float = _INF, since: float = 0.5) -> list[Item]:
    """From each panel to the next the mean of the late values (see ``lately``) grows by a factor between the bounds."""
    return _between({f"{m}: {b} / {a}": quotient(_late_mean(figure[b][m], since), _late_mean(figure[a][m], since))
                     for m in methods for a, b in pairwise(panels)}, at_least, at_most)


@rule
def when_stopped(figure: Panels, panels: Mapping[str, str], methods: Sequence[str], to: str, at_least: float,
                 within: int = 10, by: float = 1.0, change: float = 0.0) -> list[Item]:
    """The value minus that of the method ``to``, as a mean over panels, is at least ``at_least``.

    Each value is that of the round in which the run stopped: the first in which the loss had grown by more than ``by``
    within ``within`` rounds (divergence) or had changed by less than ``change`` since the evaluation before
    (convergence), or the last one. ``panels`` names the panel of the loss for each panel. Source: FedProx, C.3.2.
    """
    def stopped_value(panel: str, method: str) -> float:
        loss = figure[panels[panel]][method]
        has_diverged = [t >= within and not loss.at(t) - loss.at(t - within) <= by for t in loss.rounds]
        with np.errstate(invalid="ignore"):  # after a divergence both values are infinite
            has_converged = np.abs(np.diff(loss.values, prepend=np.inf)) < change
        stops = loss.rounds[np.array(has_diverged) | has_converged]
        return figure[panel][method].at(stops[0]) if len(stops) else figure[panel][method].final

    means = {m: float(np.mean([stopped_value(p, m) - stopped_value(p, to) for p in panels])) for m in methods}
    return [Item(f"{m} - {to}, mean over panels", value, value >= at_least) for m, value in means.items()]


def _fluctuation(curve: Curve, since: float) -> float:
    """The standard deviation of the changes between evaluations after a share of the rounds."""
    return float(np.std(np.diff(curve.after(since))))


def _late_mean(curve: Curve, since: float) -> float:
    return float(np.mean(curve.after(since)))


def _at(curve: Curve, round_: int | None) -> float:
    return curve.final if round_ is None else curve.at(round_)
