"""What a paper claims, as rules that a program can check: a verdict is computed and never written by hand.

A rule takes the curves of one seed and returns items, each with a number and whether it is as claimed. A claim *holds*
where every item of every seed does, *does not hold* where none does, and holds *in part* in between.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.problem.errors import InputError, nearest

__all__ = ["RULES", "Curve", "Item", "World", "check", "rule", "verdict_of"]


@dataclass(frozen=True)
class Curve:
    """What one method measured in one run.

    Attributes:
        rounds: [T] when.
        values: [T] what; infinite from where the method diverged.
        point: the parameters of a sweep that the method stands for; ``method``, where a sweep has several.
        axes: [T] each, simulated seconds and bytes until then, where a clock measured them.
    """

    rounds: NDArray[np.int64]
    values: NDArray[np.float64]
    point: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def final(self) -> float:
        """The last value."""
        return float(self.values[-1])

    @property
    def relative(self) -> float:
        """The last value as a share of the first."""
        return float(self.values[-1] / self.values[0])

    def at(self, round_: int) -> float:
        """The value at a round, or at the last one before it."""
        return float(self.values[np.searchsorted(self.rounds, round_, side="right") - 1])

    def rounds_to(self, target: float) -> float:
        """The first round with a value of at most ``target``; infinite where there is none."""
        near = self.rounds[self.values <= target]
        return float(near[0]) if len(near) else float("inf")


World = Mapping[str, Mapping[str, Curve]]
Rule = Callable[..., list["Item"]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Make a function a rule that claims may name."""
    RULES[function.__name__] = function
    return function


@dataclass(frozen=True)
class Item:
    """One number that a claim speaks of.

    Attributes:
        name: of what.
        value: the number.
        holds: whether it is as claimed.
    """

    name: str
    value: float
    holds: bool


@rule
def relative_gap(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
                 least: float = 0.0) -> list[Item]:
    """The last value is between ``least`` and ``most`` of the first."""
    return [Item(_name(world, panel, m), world[panel][m].relative, least <= world[panel][m].relative <= most)
            for panel in panels for m in methods]


@rule
def gain(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
         least: float = 0.0, since: float = 0.5) -> list[Item]:
    """The last value over that at the share ``since`` of the rounds is between ``least`` and ``most``."""
    items = []
    for panel in panels:
        for m in methods:
            curve = world[panel][m]
            value = _over(curve.final, curve.at(int(since * curve.rounds[-1])))
            items.append(Item(_name(world, panel, m), value, least <= value <= most))
    return items


@rule
def rise(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
         least: float = 0.0) -> list[Item]:
    """The last value over the least of all is between ``least`` and ``most``."""
    found = [(_name(world, p, m), _over(world[p][m].final, float(world[p][m].values.min())))
             for p in panels for m in methods]
    return [Item(name, value, least <= value <= most) for name, value in found]


@rule
def ratio(world: World, panels: Sequence[str], methods: Sequence[str], to: str, most: float = float("inf"),
          least: float = 0.0) -> list[Item]:
    """The last value over that of the method ``to`` is between ``least`` and ``most``."""
    found = [(_name(world, p, m), _over(world[p][m].final, world[p][to].final)) for p in panels for m in methods]
    return [Item(f"{name} / {to}", value, least <= value <= most) for name, value in found]


@rule
def ratio_of_panels(world: World, panels: Sequence[str], methods: Sequence[str], least: float) -> list[Item]:
    """From each panel to the next the last value grows by at least the factor ``least``."""
    return [Item(f"{m}: {b} / {a}", r := _over(world[b][m].final, world[a][m].final), r >= least)
            for m in methods for a, b in pairwise(panels)]


@rule
def best(world: World, panels: Sequence[str], methods: Sequence[str],
         among: Sequence[str] | None = None) -> list[Item]:
    """In each panel the named methods end lower than every other, or than those of ``among``: their worst over the
    others' best.
    """
    items = []
    for panel in panels:
        ours = max(world[panel][m].final for m in methods)
        rest = min(c.final for m, c in world[panel].items()
                   if m not in methods and (among is None or m in among))
        items.append(Item(f"{panel}: their worst / the others' best", _over(ours, rest), ours < rest))
    return items


@rule
def sooner(world: World, panels: Sequence[str], pairs: Mapping[str, str], share: float = 1e-8, near: float = 1.1,
           most: float = float("inf"), least: float = 0.0) -> list[Item]:
    """Rounds of the first of each pair over those of the second, to the same target: between ``least`` and ``most``.

    The target is ``share`` of the first value; where the second stops above it, ``near`` times where that stops.
    """
    items = []
    for panel in panels:
        for a, b in pairs.items():
            fast, plain = world[panel][a], world[panel][b]
            target = max(share * plain.values[0], near * plain.final)
            value = _over(fast.rounds_to(target), plain.rounds_to(target))
            items.append(Item(f"{a}: rounds / those of {b}", value, least <= value <= most))
    return items


@rule
def same_limit(world: World, panels: Sequence[str], pairs: Mapping[str, str], within: float = 0.05,
               negligible: float = 1e-10) -> list[Item]:
    """The two of each pair end alike: their ratio is within ``within`` of 1, or both are ``negligible``."""
    items = []
    for panel in panels:
        for a, b in pairs.items():
            one, other = world[panel][a], world[panel][b]
            value = _over(one.final, other.final)
            alike = abs(value - 1) <= within or max(one.relative, other.relative) <= negligible
            items.append(Item(f"{a} / {b}", value, alike))
    return items


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
                value = _over(max(finals), min(finals))
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
def difference(world: World, panels: Sequence[str], methods: Sequence[str], to: str, most: float = float("inf"),
               least: float = -float("inf"), at: int | None = None, mean: bool = False) -> list[Item]:
    """The value (the last, or that at round ``at``) minus that of the method ``to`` is between ``least`` and ``most``;
    with ``mean``, its mean over panels is.
    """
    items = []
    for m in methods:
        found = {p: _at(world[p][m], at) - _at(world[p][to], at) for p in panels}
        named = {f"{m} - {to}, mean over panels": float(np.mean(list(found.values())))} if mean else {
            f"{_name(world, p, m)} - {to}": value for p, value in found.items()}
        items += [Item(name, value, least <= value <= most) for name, value in named.items()]
    return items


@rule
def difference_of_panels(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
                         least: float = -float("inf")) -> list[Item]:
    """From each panel to the next the last value changes by between ``least`` and ``most``."""
    found = [(f"{m}: {b} - {a}", world[b][m].final - world[a][m].final) for m in methods for a, b in pairwise(panels)]
    return [Item(name, value, least <= value <= most) for name, value in found]


@rule
def level(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
          least: float = -float("inf")) -> list[Item]:
    """The last value is between ``least`` and ``most``."""
    return [Item(_name(world, p, m), world[p][m].final, least <= world[p][m].final <= most)
            for p in panels for m in methods]


@rule
def highest(world: World, panels: Sequence[str], methods: Sequence[str], among: Sequence[str] | None = None,
            by: float = 0.0) -> list[Item]:
    """In each panel the named methods end more than ``by`` above every other, or those of ``among``: their worst minus
    the others' best.
    """
    items = []
    for panel in panels:
        ours = min(world[panel][m].final for m in methods)
        rest = max(c.final for m, c in world[panel].items() if m not in methods and (among is None or m in among))
        items.append(Item(f"{panel}: their worst - the others' best", ours - rest, ours - rest > by))
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
def steadier(world: World, panels: Sequence[str], methods: Sequence[str], to: str, most: float = 1.0,
             since: float = 0.0) -> list[Item]:
    """The standard deviation of the changes from one evaluation to the next is at most ``most`` times that of ``to``,
    both after the share ``since`` of the rounds.
    """
    found = [(_name(world, p, m), _over(_unsteady(world[p][m], since), _unsteady(world[p][to], since)))
             for p in panels for m in methods]
    return [Item(f"{name} / {to}", value, value <= most) for name, value in found]


@rule
def steadier_panels(world: World, pairs: Mapping[str, str], methods: Sequence[str], most: float = float("inf"),
                    least: float = 0.0) -> list[Item]:
    """The standard deviation of the changes from one evaluation to the next in the first panel of each pair is between
    ``least`` and ``most`` times that in the second.
    """
    found = [(f"{m}: {a} / {b}", _over(_unsteady(world[a][m], 0.0), _unsteady(world[b][m], 0.0)))
             for m in methods for a, b in pairs.items()]
    return [Item(name, value, least <= value <= most) for name, value in found]


@rule
def lately(world: World, panels: Sequence[str], methods: Sequence[str], to: str, most: float = float("inf"),
           least: float = -float("inf"), since: float = 0.5, minus: bool = False, mean: bool = False) -> list[Item]:
    """The mean of the values after the share ``since`` of the rounds, over that of the method ``to`` (or ``minus`` it),
    is between ``least`` and ``most``; with ``mean``, its mean over panels is. Curves that jump up and down have last
    values that say little.
    """
    items, sign = [], "-" if minus else "/"
    for m in methods:
        found = {p: (_late(world[p][m], since), _late(world[p][to], since)) for p in panels}
        values = {f"{_name(world, p, m)} {sign} {to}": a - b if minus else _over(a, b) for p, (a, b) in found.items()}
        if mean:
            values = {f"{m} {sign} {to}, mean over panels": float(np.mean(list(values.values())))}
        items += [Item(name, value, least <= value <= most) for name, value in values.items()]
    return items


@rule
def lately_of_panels(world: World, panels: Sequence[str], methods: Sequence[str], least: float,
                     since: float = 0.5) -> list[Item]:
    """From each panel to the next the mean of the values after the share ``since`` of the rounds grows by at least the
    factor ``least``.
    """
    found = [(f"{m}: {b} / {a}", _over(_late(world[b][m], since), _late(world[a][m], since)))
             for m in methods for a, b in pairwise(panels)]
    return [Item(name, value, value >= least) for name, value in found]


@rule
def when_stopped(world: World, panels: Mapping[str, str], methods: Sequence[str], to: str, least: float,
                 within: int = 10, by: float = 1.0) -> list[Item]:
    """The value minus that of the method ``to``, in the mean over panels, each read at the end or where the run began
    to diverge: where the loss, which the panel named beside shows, grew by more than ``by`` in ``within`` rounds.
    Source: FedProx, C.3.2.
    """
    def stopped(panel: str, method: str) -> float:
        loss = world[panels[panel]][method]
        grew = [t for t in loss.rounds[loss.rounds >= within] if not loss.at(t) - loss.at(t - within) <= by]
        return world[panel][method].at(grew[0]) if grew else world[panel][method].final

    means = {m: float(np.mean([stopped(p, m) - stopped(p, to) for p in panels])) for m in methods}
    return [Item(f"{m} - {to}, mean over panels", value, value >= least) for m, value in means.items()]


@rule
def contraction(world: World, panels: Sequence[str], methods: Sequence[str] | None = None, most: float = 1.0,
                least: float = 0.0, begin: int = 0, end: int | None = None) -> list[Item]:
    """The factor per round, from round ``begin`` to ``end`` on average, is between ``least`` and ``most``."""
    items = []
    for panel in panels:
        for m, c in world[panel].items():
            if methods is None or m in methods:
                last = int(c.rounds[-1]) if end is None else end
                value = _over(c.at(last), c.at(begin)) ** (1 / (last - begin))
                items.append(Item(_name(world, panel, m), value, least <= value <= most))
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
def cheaper(world: World, panels: Sequence[str], methods: Sequence[str], to: str, share: float, by: str = "rounds",
            most: float = 1.0) -> list[Item]:
    """What it takes to the ``share`` of the first value, in rounds or an axis of the clock, is at most ``most`` times
    that of the method ``to``.
    """
    items = []
    for panel in panels:
        for m in methods:
            own, theirs = (_spent(c, share * c.values[0], by) for c in (world[panel][m], world[panel][to]))
            value = _over(own, theirs)
            items.append(Item(f"{_name(world, panel, m)}: {by} / those of {to}", value, value <= most))
    return items


@rule
def lead(world: World, panels: Sequence[str], methods: Sequence[str], over: Sequence[str],
         least: float = -float("inf"), mean: bool = False) -> list[Item]:
    """The highest last value among the methods minus the highest among those of ``over`` is at least ``least``; with
    ``mean``, its mean over panels is.
    """
    found = {p: max(world[p][m].final for m in methods) - max(world[p][m].final for m in over) for p in panels}
    named = {"mean over panels": float(np.mean(list(found.values())))} if mean else found
    return [Item(f"{name}: lead", value, value >= least) for name, value in named.items()]


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


def check(rule: str, world: World, **arguments: Any) -> list[Item]:
    """Apply a rule to one seed's curves.

    Raises:
        InputError: there is no such rule, or no such panel or method.
    """
    if rule not in RULES:
        raise InputError(f"there is no rule {rule!r}; there are {', '.join(RULES)}{nearest(rule, RULES)}")
    try:
        items = RULES[rule](world, **arguments)
    except (KeyError, TypeError) as error:
        raise InputError(f"the rule {rule} cannot be checked: {error}") from error
    if not items:
        raise InputError(f"the rule {rule} has nothing to check with {arguments}")
    return items


def verdict_of(seeds: Sequence[Sequence[Item]]) -> str:
    """The words for how much of a claim holds."""
    held = [item.holds for items in seeds for item in items]
    return "holds" if all(held) else "holds in part" if any(held) else "does not hold"


def _over(a: float, b: float) -> float:
    """The quotient, infinite where b is nothing or a is not finite; 1 where both are nothing."""
    if not np.isfinite(a):
        return float("inf")
    return a / b if b > 0 else float("inf") if a > 0 else 1.0


def _name(world: World, panel: str, method: str) -> str:
    return method if len(world) == 1 else f"{panel}: {method}"


def _unsteady(curve: Curve, since: float) -> float:
    """The standard deviation of the changes from one evaluation to the next after a share of the rounds."""
    return float(np.std(np.diff(curve.values[curve.rounds >= since * curve.rounds[-1]])))


def _late(curve: Curve, since: float) -> float:
    """The mean of the values after a share of the rounds."""
    return float(np.mean(curve.values[curve.rounds >= since * curve.rounds[-1]]))


def _at(curve: Curve, round_: int | None) -> float:
    return curve.final if round_ is None else curve.at(round_)


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
