"""Rates of DIANA, and the rounds that both methods need for each alpha."""

from collections.abc import Sequence

from experiments.curves import Item, Panels, between, name_of, quotient


def contraction(figure: Panels, panels: Sequence[str], begin: int, end: int, at_most: float) -> list[Item]:
    """The mean factor per round between the rounds ``begin`` and ``end``, of every method."""
    return between({name_of(figure, p, m): quotient(c.at(end), c.at(begin)) ** (1 / (end - begin))
                    for p in panels for m, c in figure[p].items()}, at_most=at_most)


def until(figure: Panels, panels: Sequence[str], along: str, target: float) -> list[Item]:
    """In a sweep, the rounds to a value of at most ``target`` never fall as the parameter grows, and rise overall.

    The number is the smallest parameter's rounds divided by the largest one's: 0 if only the largest never reaches the
    target.
    """
    items = []
    for panel in panels:
        rounds = [c.rounds_to(target) for c in sorted((c for c in figure[panel].values() if along in c.point),
                                                      key=lambda c: float(c.point[along]))]
        grows = rounds == sorted(rounds) and rounds[0] < rounds[-1]
        items.append(Item(f"{panel}: rounds to {target:g}", rounds[0] / rounds[-1] if grows else 1.0, grows))
    return items
