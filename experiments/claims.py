"""A paper's claims as rules that a program checks: a verdict is computed and never written by hand.

A rule takes the curves of one seed and returns items, each with a number and whether it is as claimed. A claim has one
or more readings; each is a rule, a way to read curves, and the rule's arguments. A reading *holds* if every item of
every seed is as claimed, *does not hold* if none is, and holds *in part* otherwise; so does the claim over the items of
all its readings. It is *not decided* by a setting that is too small for it. A verdict is *borderline* if items as near
to their thresholds as the seeds differ could change it.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from typing import Any

from experiments import curve_rules, panel_rules, party_rules, sweep_rules
from experiments.curve_reading import read_panels
from experiments.curves import RULES, Item, Panels, Rule
from experiments.schema import Read
from resolvent.errors import InputError, alternatives, quote

__all__ = ["NOT_DECIDED", "RULES", "VERDICTS", "check", "curve_rules", "deciding_choices", "is_borderline",
           "items_of", "panel_rules", "party_rules", "readings_that_hold", "rules_of", "sweep_rules", "thresholds",
           "verdict_of"]

VERDICTS = ("holds", "holds in part", "does not hold")  # from the best to the worst
NOT_DECIDED = "not decided"


def rules_of(name: str) -> Mapping[str, Rule]:
    """The rules that the claims of a figure may name: those of its own module, and the common ones."""
    module = f"experiments.figures.{name.replace('-', '_')}"
    if find_spec(module) is None:
        return RULES
    own = {rule: function for rule, function in vars(import_module(module)).items()
           if inspect.isfunction(function) and function.__module__ == module and not rule.startswith("_")}
    return {**RULES, **own}


def check(rule: str, figure: Panels, read: Read | None = None, *, rules: Mapping[str, Rule] = RULES,
          **arguments: Any) -> list[Item]:
    """Apply a rule to the curves of one seed.

    Args:
        read: how a curve becomes one number; default: its last value.
        rules: the rules of the figure, see ``rules_of``; default: the common ones.
    """
    if rule not in rules:
        raise InputError(f"there is no rule {quote(rule)}{alternatives(rule, rules)}")
    try:
        items = rules[rule](figure if read is None else read_panels(figure, read), **arguments)
    except (KeyError, TypeError) as error:
        raise InputError(f"the rule {rule} cannot be checked: {error}") from error
    if not items:
        raise InputError(f"the rule {rule} checks nothing with the arguments {arguments}")
    return items


def verdict_of(items_by_seed: Sequence[Sequence[Item]]) -> str:
    """The verdict on a reading from the items of all seeds."""
    return _verdict([item.holds for items in items_by_seed for item in items])


def _verdict(outcomes: Sequence[bool]) -> str:
    return VERDICTS[0] if all(outcomes) else VERDICTS[1] if any(outcomes) else VERDICTS[2]


def items_of(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The items of all readings of a record's claim."""
    return [item for reading in claim["readings"] for item in reading["items"]]


def readings_that_hold(claim: Mapping[str, Any]) -> int:
    """The number of readings of a record's claim that hold."""
    return sum(reading["verdict"] == VERDICTS[0] for reading in claim["readings"])


def deciding_choices(claim: Mapping[str, Any]) -> list[str]:
    """The choices of a record's claim that decide it: two readings differ only there and in their verdicts."""
    def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
        choices = [choice for choice in a["choices"] if a["choices"][choice] != b["choices"][choice]]
        if len(choices) == 1 and a["verdict"] != b["verdict"]:
            yield from choices

    pairs = combinations(claim["readings"], 2)
    return list(dict.fromkeys(choice for a, b in pairs for choice in differing(a, b)))


def thresholds(rule: str, arguments: Mapping[str, Any]) -> list[float]:
    """The numbers that a rule compares its items with; empty for a rule that compares curves with each other."""
    if rule.startswith("better"):
        return [0.0]
    if rule == "same_limit":
        within = float(arguments.get("within", 0.05))
        return [1 - within, 1 + within]
    return [float(arguments[key]) for key in ("at_least", "at_most", "within")
            if key in arguments and (rule, key) != ("published", "within")]


def is_borderline(claim: Mapping[str, Any], seeds: int, spreads: Sequence[float | None] | None = None) -> bool:
    """Whether the verdict on a claim could change with items that are within the seeds' spread of a threshold.

    Args:
        spreads: the standard deviation over seeds of each item, from another record of the claim; default: the claim's.
    """
    if claim["verdict"] == NOT_DECIDED:
        return False
    items = items_of(claim)
    limits = [thresholds(reading["rule"], reading["args"]) for reading in claim["readings"] for _ in reading["items"]]
    spreads = [item["std"] for item in items] if spreads is None else spreads
    if len(spreads) != len(items):  # the other record has other methods or panels: the largest spread
        spreads = [max((s for s in spreads if s is not None), default=None)] * len(items)
    is_near = [any(abs(item["mean"] - limit) < spread for limit in of_item)
               if item["mean"] is not None and spread is not None else False
               for item, spread, of_item in zip(items, spreads, limits, strict=True)]
    clear = [holds for item, near in zip(items, is_near, strict=True) if not near
             for holds in {item["holds"] > 0, item["holds"] == seeds}]
    return any(is_near) and _verdict([*clear, True]) != _verdict([*clear, False])
