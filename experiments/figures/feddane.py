"""Where more devices do not help: the loss rises again."""

from collections.abc import Sequence

from experiments.curves import Item, Panels, between, name_of, quotient


def rise(figure: Panels, panels: Sequence[str], methods: Sequence[str], at_least: float) -> list[Item]:
    """The last value divided by the smallest value."""
    curves = {name_of(figure, p, m): figure[p][m] for p in panels for m in methods}
    return between({name: quotient(c.final, float(c.values.min())) for name, c in curves.items()}, at_least)
