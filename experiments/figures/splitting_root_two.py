"""FedPi against FedSplit, each with its best step."""

from collections.abc import Mapping, Sequence

from experiments.curves import Item, Panels, between, name_of, quotient


def ratio_at_best(figure: Panels, panels: Sequence[str], pairs: Mapping[str, str], at_least: float,
                  at_most: float) -> list[Item]:
    """In a sweep of several methods, the smallest last value over the sweep divided by that of another method.

    ``pairs`` names the other method of each.
    """
    def smallest(panel: str, method: str) -> float:
        return min(c.final for c in figure[panel].values() if c.point["method"] == method)

    return between({f"{name_of(figure, p, a)} / {b}": quotient(smallest(p, a), smallest(p, b))
                    for p in panels for a, b in pairs.items()}, at_least, at_most)
