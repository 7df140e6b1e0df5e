"""The speed along gamma."""

from collections.abc import Sequence
from itertools import pairwise

from experiments.curves import Item, Panels, between, quotient
from experiments.sweep_rules import lines_of


def step_ratio(figure: Panels, panels: Sequence[str], along: str, fixed: str, at_most: float) -> list[Item]:
    """In a sweep, the last value at a value of ``along`` divided by that at the next smaller value."""
    return between({f"{panel}, {name}: {along} = {b[0]:g} / {a[0]:g}": float(quotient(b[1], a[1]))
                    for panel, name, line in lines_of(figure, panels, along, fixed)
                    for a, b in pairwise(line)}, at_most=at_most)
