"""A paper's claims as rules that a program checks: a verdict is computed and never written by hand.

A rule takes the curves of one seed and returns items, each with a number and whether it is as claimed. A claim *holds*
if every item of every seed is, *does not hold* if none is, and holds *in part* otherwise. It is *not decided* by a
setting that is too small for it. A verdict is *borderline* if items as near to their thresholds as the seeds differ
could change it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from resolvent.errors import InputError, alternatives, quote
from resolvent.papers.reproductions import curve_rules, panel_rules, party_rules, sweep_rules
from resolvent.papers.reproductions.curves import RULES, Item, Panels

__all__ = ["NOT_DECIDED", "RULES", "VERDICTS", "check", "curve_rules", "is_borderline", "panel_rules", "party_rules",
           "sweep_rules", "thresholds", "verdict_of"]

VERDICTS = ("holds", "holds in part", "does not hold")  # from the best to the worst
NOT_DECIDED = "not decided"
_AT_MOST_ONE = ("best", "cheaper", "contraction", "settles_sooner", "steadier")  # rules whose default threshold is 1
_MORE_THAN_BY = ("average_rises", "better", "better_of_panels", "gains_grow", "highest")  # with the threshold ``by``
_WITHIN_IS_NO_THRESHOLD = ("published", "when_stopped")


def check(rule: str, figure: Panels, **arguments: Any) -> list[Item]:
    """Apply a rule to the curves of one seed.

    Raises:
        InputError: there is no such rule, panel or method.
    """
    if rule not in RULES:
        raise InputError(f"there is no rule {quote(rule)}{alternatives(rule, RULES)}")
    try:
        items = RULES[rule](figure, **arguments)
    except (KeyError, TypeError) as error:
        raise InputError(f"the rule {rule} cannot be checked: {error}") from error
    if not items:
        raise InputError(f"the rule {rule} checks nothing with the arguments {arguments}")
    return items


def verdict_of(items_by_seed: Sequence[Sequence[Item]]) -> str:
    """The verdict on a claim from the items of all seeds."""
    return _verdict([item.holds for items in items_by_seed for item in items])


def _verdict(outcomes: Sequence[bool]) -> str:
    return VERDICTS[0] if all(outcomes) else VERDICTS[1] if any(outcomes) else VERDICTS[2]


def thresholds(rule: str, arguments: Mapping[str, Any]) -> list[float]:
    """The numbers that a rule compares its items with; empty for a rule that compares curves with each other."""
    if rule in _MORE_THAN_BY:
        return [float(arguments.get("by", 0.0))]
    if rule == "same_limit":
        within = float(arguments.get("within", 0.05))
        return [1 - within, 1 + within]
    stated = [float(arguments[key]) for key in ("at_least", "at_most", "within")
              if key in arguments and not (rule in _WITHIN_IS_NO_THRESHOLD and key == "within")]
    return stated or ([1.0] if rule in _AT_MOST_ONE else [])


def is_borderline(claim: Mapping[str, Any], seeds: int, spreads: Sequence[float | None] | None = None) -> bool:
    """Whether the verdict on a claim could change with items that are within the seeds' spread of a threshold.

    Args:
        claim: the claim of a record.
        seeds: the record's number of seeds.
        spreads: the standard deviation over seeds of each item, from another record of the claim; default: the claim's.
    """
    if claim["verdict"] == NOT_DECIDED:
        return False
    items, limits = claim["items"], thresholds(claim["rule"], claim["args"])
    spreads = [item["std"] for item in items] if spreads is None else spreads
    if len(spreads) != len(items):  # the other record has other methods or panels: the largest spread
        spreads = [max((s for s in spreads if s is not None), default=None)] * len(items)
    is_near = [any(abs(item["mean"] - limit) < spread for limit in limits)
               if item["mean"] is not None and spread is not None else False
               for item, spread in zip(items, spreads, strict=True)]
    clear = [holds for item, near in zip(items, is_near, strict=True) if not near
             for holds in {item["holds"] > 0, item["holds"] == seeds}]
    return any(is_near) and _verdict([*clear, True]) != _verdict([*clear, False])
