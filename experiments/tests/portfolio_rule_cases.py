"""Cases of the rules about portfolios: rule, arguments, curves, and for each item its value and whether it holds."""

import numpy as np

from experiments.claims import RULES, rules_of
from experiments.curves import Curve
from experiments.reproduction import reproductions

ALL_RULES = {**RULES, **{rule: function for name in reproductions() for rule, function in rules_of(name).items()}}


def curve(*values, rounds=None, parties=(), growth=((),), **point):
    return Curve(np.arange(len(values)) if rounds is None else np.array(rounds), np.array(values, float), point,
                 parties=np.array(parties, float), growth=np.array(growth, float))


NOISE = 1 + 0.01 * np.random.default_rng(0).normal(size=(3, 60))
TESTS = {"p": {"A": curve(1.1, growth=1.002 * NOISE), "B": curve(1.0, growth=NOISE),
               "C": curve(1.0, growth=NOISE[:, ::-1])},
         "q": {"A": curve(1.0, growth=NOISE)}}
LEVELS = {"p": {"A": curve(0, 0.5), "B": curve(0, 0.25), "C": curve(1, 0.125)},
          "q": {"A": curve(0, 0.125), "B": curve(0, 0.25)}}
COURSES = {"p": {"A": curve(0.25, 1.0, 0.25, 2.0), "B": curve(1.0, 2.0, 3.0), "C": curve(-1.0, -2.0)}}
EVENTS = {"changes": {"A": curve(1, 1, 9, 1, 1, 1, rounds=[1, 2, 3, 4, 5, 6]),
                      "B": curve(1, 1, 1, 9, 1, 1, rounds=[1, 2, 3, 4, 5, 6])},
          "returns": {m: curve(0.1, 0.2, 0.05, 0.1, rounds=[0, 2, 4, 6]) for m in "AB"}}
YEARS = {"main": {"A": curve(0.2), "B": curve(0.1), "C": curve(0.3)},
         "years": {f"{m} {year}": curve(value, method=m, year=year) for year, finals in
                   ((2013, (0.3, 0.1, 0.2)), (2014, (0.3, 0.1, 0.4)), (2015, (0.1, 0.2, 0.0)))
                   for m, value in zip("ABC", finals, strict=True)}}
GAINS = {"s": {f"{m} {n}": curve(0, method=m, K=n, parties=parties) for m, n, parties in
               (("A", 2, (0.1, 0.3)), ("local", 2, (0, 0)))},
         "main": {"A": curve(0, parties=(0.1, 0.3, 0.2, 0.6)), "local": curve(0, parties=(0, 0, 0, 0))}}

BOOTSTRAPS = {"better", "better_of_panels", "survives_deflation"}  # tested without exact values
CASES = [
    ("lead", {"panels": ["p"], "methods": ["A", "B"], "over": ["C"], "of": "mean", "at_least": 0.25}, LEVELS,
     [(0.25, True)]),
    ("lead", {"panels": ["p"], "methods": ["A"], "over": ["B", "C"], "of": "mean", "at_most": 0.3}, LEVELS,
     [(0.3125, False)]),
    ("published", {"panels": ["p"], "values": {"A": 0.45, "B": 0.4}, "within": 0.1}, LEVELS,
     [(0.5, True), (0.25, False)]),
    ("close_together", {"panels": ["p"], "methods": ["B", "C"], "within": 0.2}, LEVELS, [(0.125, True)]),
    ("close_together", {"panels": ["p"], "within": 0.2}, LEVELS, [(0.375, False)]),
    ("net_change", {"panels": ["p"], "methods": ["A", "C"], "at_least": 0.0}, LEVELS, [(0.5, True), (-0.875, False)]),
    ("deepest_fall", {"panels": ["p"], "methods": ["A", "B", "C"], "at_most": 0.5}, COURSES,
     [(0.25, True), (1, False), (1, False)]),
    ("coincide", {"spikes": "changes", "drops": "returns", "methods": ["A", "B"]}, EVENTS,
     [(1, True), (1, True)]),
    ("coincide", {"spikes": "changes", "drops": "returns", "methods": ["A"]},
     {**EVENTS, "returns": {"A": curve(0.1, 0.0, 0.1, 0.1, rounds=[0, 2, 4, 6])}}, [(0, False)]),
    ("coincide", {"spikes": "changes", "drops": "returns", "methods": ["A"]},
     {**EVENTS, "returns": {"A": curve(0.1, 0.3, 0.4, 0.6, rounds=[0, 2, 4, 6])}}, [(0, False)]),
    ("reverses", {"panels": ["p", "q"], "method": "A", "to": "B"}, LEVELS, [(-0.03125, True)]),
    ("same_sign", {"panel": "main", "sweep": "years", "pairs": {"A": "B", "C": "A"}, "at_least": 2}, YEARS,
     [(2, True), (1, False)]),
    ("gains_grow", {"panels": ["s", "main"], "methods": ["A"], "to": "local", "at_least": 0.0}, GAINS, [(0.1, True)]),
    ("gains_grow", {"panels": ["s", "main"], "methods": ["A"], "to": "local", "at_least": 0.2, "largest": True}, GAINS,
     [(0.3, True)]),
    # The largest of 2 random ones of 0.1, 0.2, 0.3, 0.6 is 0.6 in 3 of 6 cases, 0.3 in 2 and 0.2 in 1: 13/30.
    ("gains_grow", {"panels": ["s", "main"], "methods": ["A"], "to": "local", "at_least": 0.1, "among": 2}, GAINS,
     [(13 / 30 - 0.3, True)]),
]
