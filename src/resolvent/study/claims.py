"""What a paper claims, as rules that a program can check: a verdict is computed and never written by hand.

A rule takes the curves of one seed and returns items, each with a number and whether it is as claimed. A claim *holds*
where every item of every seed does, *does not hold* where none does, and holds *in part* in between.
"""

from collections.abc import Sequence
from typing import Any

from resolvent.errors import InputError, nearest
from resolvent.study import rules, sweep_rules
from resolvent.study.curves import RULES, Curve, Item, World, rule

__all__ = ["RULES", "Curve", "Item", "World", "check", "rule", "rules", "sweep_rules", "verdict_of"]


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
