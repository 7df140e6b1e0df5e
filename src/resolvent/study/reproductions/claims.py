"""A paper's claims as rules that a program checks: a verdict is computed and never written by hand.

A rule takes the curves of one seed and returns items, each with a number and whether it is as claimed. A claim *holds*
if every item of every seed is, *does not hold* if none is, and holds *in part* otherwise.
"""

from collections.abc import Sequence
from typing import Any

from resolvent.errors import InputError, nearest, quote
from resolvent.study.reproductions import sweep_rules, value_rules
from resolvent.study.reproductions.curves import RULES, Item, Panels

__all__ = ["RULES", "VERDICTS", "check", "sweep_rules", "value_rules", "verdict_of"]

VERDICTS = ("holds", "holds in part", "does not hold")  # from the best to the worst


def check(rule: str, figure: Panels, **arguments: Any) -> list[Item]:
    """Apply a rule to the curves of one seed.

    Raises:
        InputError: there is no such rule, panel or method.
    """
    if rule not in RULES:
        raise InputError(f"there is no rule {quote(rule)}; there are {', '.join(RULES)}{nearest(rule, RULES)}")
    try:
        items = RULES[rule](figure, **arguments)
    except (KeyError, TypeError) as error:
        raise InputError(f"the rule {rule} cannot be checked: {error}") from error
    if not items:
        raise InputError(f"the rule {rule} checks nothing with the arguments {arguments}")
    return items


def verdict_of(items_by_seed: Sequence[Sequence[Item]]) -> str:
    """The verdict on a claim from the items of all seeds."""
    outcomes = [item.holds for items in items_by_seed for item in items]
    return VERDICTS[0] if all(outcomes) else VERDICTS[1] if any(outcomes) else VERDICTS[2]
