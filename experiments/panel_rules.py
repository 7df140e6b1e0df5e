"""Rules about all methods of a panel: which ends best, by how much groups differ, and events that coincide."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

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
