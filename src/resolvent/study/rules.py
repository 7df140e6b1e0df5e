"""Rules over the values of single runs: last ones, late ones, and how steady they are."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from resolvent.study.curves import Curve, Item, World, over, rule, titled

__all__ = ["best", "difference", "difference_of_panels", "gain", "highest", "lately", "lately_of_panels", "lead",
           "level", "ratio", "ratio_of_panels", "relative_gap", "rise", "same_limit", "sooner", "steadier",
           "steadier_panels", "when_stopped"]


@rule
def relative_gap(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
                 least: float = 0.0) -> list[Item]:
    """The last value is between ``least`` and ``most`` of the first."""
    return [Item(titled(world, panel, m), world[panel][m].relative, least <= world[panel][m].relative <= most)
            for panel in panels for m in methods]


@rule
def gain(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
         least: float = 0.0, since: float = 0.5) -> list[Item]:
    """The last value over that at the share ``since`` of the rounds is between ``least`` and ``most``."""
    items = []
    for panel in panels:
        for m in methods:
            curve = world[panel][m]
            value = over(curve.final, curve.at(int(since * curve.rounds[-1])))
            items.append(Item(titled(world, panel, m), value, least <= value <= most))
    return items


@rule
def rise(world: World, panels: Sequence[str], methods: Sequence[str], most: float = float("inf"),
         least: float = 0.0) -> list[Item]:
    """The last value over the least of all is between ``least`` and ``most``."""
    found = [(titled(world, p, m), over(world[p][m].final, float(world[p][m].values.min())))
             for p in panels for m in methods]
    return [Item(name, value, least <= value <= most) for name, value in found]


@rule
def ratio(world: World, panels: Sequence[str], methods: Sequence[str], to: str, most: float = float("inf"),
          least: float = 0.0) -> list[Item]:
    """The last value over that of the method ``to`` is between ``least`` and ``most``."""
    found = [(titled(world, p, m), over(world[p][m].final, world[p][to].final)) for p in panels for m in methods]
    return [Item(f"{name} / {to}", value, least <= value <= most) for name, value in found]


@rule
def ratio_of_panels(world: World, panels: Sequence[str], methods: Sequence[str], least: float) -> list[Item]:
    """From each panel to the next the last value grows by at least the factor ``least``."""
    return [Item(f"{m}: {b} / {a}", r := over(world[b][m].final, world[a][m].final), r >= least)
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
        items.append(Item(f"{panel}: their worst / the others' best", over(ours, rest), ours < rest))
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
            value = over(fast.rounds_to(target), plain.rounds_to(target))
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
            value = over(one.final, other.final)
            alike = abs(value - 1) <= within or max(one.relative, other.relative) <= negligible
            items.append(Item(f"{a} / {b}", value, alike))
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
            f"{titled(world, p, m)} - {to}": value for p, value in found.items()}
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
    return [Item(titled(world, p, m), world[p][m].final, least <= world[p][m].final <= most)
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
def lead(world: World, panels: Sequence[str], methods: Sequence[str], over: Sequence[str],
         least: float = -float("inf"), mean: bool = False) -> list[Item]:
    """The highest last value among the methods minus the highest among those of ``over`` is at least ``least``; with
    ``mean``, its mean over panels is.
    """
    found = {p: max(world[p][m].final for m in methods) - max(world[p][m].final for m in over) for p in panels}
    named = {"mean over panels": float(np.mean(list(found.values())))} if mean else found
    return [Item(f"{name}: lead", value, value >= least) for name, value in named.items()]


@rule
def steadier(world: World, panels: Sequence[str], methods: Sequence[str], to: str, most: float = 1.0,
             since: float = 0.0) -> list[Item]:
    """The standard deviation of the changes from one evaluation to the next is at most ``most`` times that of ``to``,
    both after the share ``since`` of the rounds.
    """
    found = [(titled(world, p, m), over(_unsteady(world[p][m], since), _unsteady(world[p][to], since)))
             for p in panels for m in methods]
    return [Item(f"{name} / {to}", value, value <= most) for name, value in found]


@rule
def steadier_panels(world: World, pairs: Mapping[str, str], methods: Sequence[str], most: float = float("inf"),
                    least: float = 0.0) -> list[Item]:
    """The standard deviation of the changes from one evaluation to the next in the first panel of each pair is between
    ``least`` and ``most`` times that in the second.
    """
    found = [(f"{m}: {a} / {b}", over(_unsteady(world[a][m], 0.0), _unsteady(world[b][m], 0.0)))
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
        values = {f"{titled(world, p, m)} {sign} {to}": a - b if minus else over(a, b) for p, (a, b) in found.items()}
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
    found = [(f"{m}: {b} / {a}", over(_late(world[b][m], since), _late(world[a][m], since)))
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


def _unsteady(curve: Curve, since: float) -> float:
    """The standard deviation of the changes from one evaluation to the next after a share of the rounds."""
    return float(np.std(np.diff(curve.values[curve.rounds >= since * curve.rounds[-1]])))


def _late(curve: Curve, since: float) -> float:
    """The mean of the values after a share of the rounds."""
    return float(np.mean(curve.values[curve.rounds >= since * curve.rounds[-1]]))


def _at(curve: Curve, round_: int | None) -> float:
    return curve.final if round_ is None else curve.at(round_)
