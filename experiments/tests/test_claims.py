"""The rules of claims, on given curves: the numbers, and whether they are as claimed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from portfolio_rule_cases import ALL_RULES, BOOTSTRAPS
from portfolio_rule_cases import CASES as PORTFOLIO_CASES

from experiments.claims import (
    NOT_DECIDED,
    check,
    deciding_choices,
    is_borderline,
    readings_that_hold,
    thresholds,
    verdict_of,
)
from experiments.curve_reading import read_panels
from experiments.curves import Curve, Item
from experiments.record import claim_record
from experiments.schema import Claim, Read
from resolvent.errors import InputError


def curve(*values, **point):
    return Curve(np.arange(len(values)), np.array(values, float), point)


def ending(final, **point):
    return curve(0.0, final, **point)


def costed(*values, each=1, **point):
    rounds = np.arange(len(values))
    return Curve(rounds, np.array(values, float), point, {"bytes_up": each * rounds.astype(float)})


P = {"panels": ["p"]}
FALLING = {"p": {"slow": costed(16, 8, 4, 2, 1, each=4), "fast": costed(16, 4, 1, 1, 1),
                 "never": costed(16, 9, 9, 9, 9)}}
COSTS = {"p": {f"{m} {a}": costed(*values, alpha=a, method=m) for m, a, values in (
    ("A", 0.1, (4, 1)), ("A", 0.5, (4, 3, 1)), ("A", 1.0, (4, 4, 4)), ("B", 0.5, (4, 3, 1)), ("B", 1.0, (4, 1, 1)),
    ("C", 0.5, (4, 3, 1)), ("C", 1.0, (4, 3, 1)))} | {"baseline": costed(1, 1)}}
COSTS_OF_METHODS = {"p": {label: c for label, c in COSTS["p"].items() if label != "baseline"}}
COSTS_BY_METHOD = {m: {label: c for label, c in COSTS["p"].items() if c.point.get("method", m) == m} for m in "ABC"}
LEADS = {"one": {"A": ending(0.5), "B": ending(0.75), "C": ending(0.625)},
         "two": {"A": ending(0.5), "B": ending(0.25), "C": ending(1.0)}}
RISES = {"s": {f"{m} {n}": ending(value, N=n, method=m) for m, n, value in
               (("A", 3, 0.5), ("B", 3, 0.25), ("A", 10, 0.25), ("B", 10, 0.75), ("A", 30, 0.5), ("B", 30, 0.25))}}
SCORED = {title: {f"{n}": replace(ending(np.mean(of_parties), N=n), parties=np.array(of_parties))
                  for n, of_parties in ((1, own_one), (2, own_two))} for title, own_one, own_two in
          (("own", (0.5, 0.125), (0.5, 0.75)), ("shared", (0.25, 0.25), (0.25, 0.5)))}
WORLD = {"one": {"A": curve(100, 10, 1, 1e-9), "B": curve(100, 50, 20, 20), "C": curve(100, 1, np.inf, np.inf)},
         "two": {"A": curve(100, 10, 1, 1e-3), "B": curve(100, 60, 30, 60), "C": curve(100, 1, 2, 500)}}
SWEEP = {"s": {f"{k} {eta}": curve(1, value, k=k, eta=eta) for k, eta, value in
               ((2, 2e-6, 1.0), (3, 1e-6, 1.2), (2, 1e-6, 0.5), (3, 2e-6, 9.0), (5, 1e-6, 30.0))}}
PANEL = {"panels": ["one"]}
BOTH = {"panels": ["one", "two"]}
ALPHA = {"a": {f"{m} {a}": curve(0, value, alpha=a, method=m) for m, a, value in
               (("A", 1.0, 4.0), ("A", 2.0, 8.0), ("A", 4.0, 1.0), ("B", 4.0, 16.0), ("B", 2.0, 4.0), ("B", 1.0, 1.0))}}
SHAKY = {"one": {"A": curve(0, 1, 0, 1, 1), "B": curve(0, 3, 0, 3, 3)}}


@pytest.mark.parametrize(("rule", "arguments", "figure", "expected"), [
    ("relative_gap", PANEL | {"methods": ["A", "B"], "at_most": 1e-10}, WORLD, [(1e-11, True), (0.2, False)]),
    ("relative_gap", PANEL | {"methods": ["C"], "at_least": 1}, WORLD, [(np.inf, True)]),
    ("gain", PANEL | {"methods": ["A", "B"], "at_least": 0.9}, WORLD, [(1e-10, False), (0.4, False)]),
    ("gain", PANEL | {"methods": ["B"], "since": 0.67, "at_most": 1}, WORLD, [(1, True)]),
    ("rise", {"panels": ["two"], "methods": ["A", "C"], "at_least": 100}, WORLD, [(1, False), (500, True)]),
    ("climb", {"panels": ["two"], "methods": ["A", "B", "C"], "begin": 2, "at_most": 2}, WORLD,
     [(1, True), (2, True), (500, False)]),
    ("climb", PANEL | {"methods": ["B"], "begin": 10, "at_least": 1}, WORLD, [(1, True)]),
    ("climb", {"panels": ["two"], "methods": ["C"], "begin": 2, "over": ["A", "B"], "at_least": 250}, WORLD,
     [(250, True)]),
    ("spike", PANEL | {"methods": ["A", "B"], "at_most": 3}, SHAKY, [(1, True), (1, True)]),
    ("spike", {"panels": ["two"], "methods": ["A", "B", "C"], "at_least": 10}, WORLD,
     [(10, True), (1, False), (250, True)]),
    ("spike", {"panels": ["two"], "methods": ["A"], "begin": 3, "at_least": 1}, WORLD, [(1, True)]),
    ("ratio_of_panels", BOTH | {"methods": ["A", "B"], "at_least": 4, "negligible": 1e-3}, WORLD, [(3, False)]),
    ("ratio", PANEL | {"methods": ["A", "C"], "to": "B", "at_most": 0.5}, WORLD, [(5e-11, True), (np.inf, False)]),
    ("ratio_of_panels", {"panels": ["one", "two"], "methods": ["A", "B"], "at_least": 4}, WORLD,
     [(1e6, True), (3, False)]),
    ("best", {"panels": ["one", "two"], "methods": ["A"], "at_most": 1e-5}, WORLD, [(5e-11, True), (1e-3 / 60, False)]),
    ("best", PANEL | {"methods": ["B"], "among": ["C"], "at_most": 0.99}, WORLD, [(0, True)]),
    ("sooner", PANEL | {"pairs": {"A": "B"}, "at_most": 0.4}, WORLD, [(0.5, False)]),
    ("sooner", PANEL | {"pairs": {"B": "A"}, "share": 0.5, "at_least": 1}, WORLD, [(1, True)]),
    ("same_limit", PANEL | {"pairs": {"A": "B"}}, WORLD, [(5e-11, False)]),
    ("same_limit", PANEL | {"pairs": {"A": "A"}, "within": 0}, WORLD, [(1, True)]),
    ("determined_by_product", {"panels": ["s"], "max_product": 1, "within": 2}, SWEEP, [(1.2, True), (10 / 3, False)]),
    ("determined_by_product", {"panels": ["s"], "max_product": 3e-6, "within": 2}, SWEEP, [(1.2, True)]),
    ("determined_by_product", {"panels": ["s"], "max_product": 1, "at_least": 2}, SWEEP,
     [(1.2, False), (10 / 3, True)]),
    ("monotone", {"panels": ["s"], "along": "k", "fixed": "eta"}, SWEEP, [(1, True)]),
    ("monotone", {"panels": ["s"], "along": "k", "fixed": "eta", "sign": -1}, SWEEP, [(0, False)]),
    ("difference", BOTH | {"methods": ["B"], "to": "A", "at_least": 25}, WORLD,
     [(20 - 1e-9, False), (60 - 1e-3, True)]),
    ("difference", BOTH | {"methods": ["B"], "to": "A", "at_least": 25, "mean": True}, WORLD,
     [(40 - (1e-9 + 1e-3) / 2, True)]),
    ("difference_of_panels", BOTH | {"methods": ["A", "B"], "at_least": 1, "at_most": 40}, WORLD,
     [(1e-3 - 1e-9, False), (40, True)]),
    ("level", PANEL | {"methods": ["A", "B"], "at_least": 1, "at_most": 20}, WORLD, [(1e-9, False), (20, True)]),
    ("lead", BOTH | {"methods": ["C"], "of": "worst", "at_least": 0.01}, WORLD, [(np.inf, True), (440, True)]),
    ("lead", {"panels": ["two"], "methods": ["B"], "over": ["A"], "of": "worst", "at_least": 60}, WORLD,
     [(60 - 1e-3, False)]),
    ("inside", {"panels": ["a"], "along": "alpha", "fixed": "method"}, ALPHA, [(2, True), (4, False)]),
    ("inside", {"panels": ["a"], "along": "alpha", "fixed": "method", "highest": False}, ALPHA,
     [(4, False), (1, False)]),
    *(("inside", {"panels": ["a"], "along": "alpha", "fixed": "method", "margin": margin}, ALPHA,
       [(2, holds), (4, False)]) for margin, holds in ((1.0, True), (1.01, False))),
    ("slope", {"panels": ["a"], "along": "alpha", "fixed": "method", "at_least": 2}, ALPHA, [(-1, False), (2, True)]),
    ("slope", {"panels": ["a"], "along": "alpha", "fixed": "method", "at_most": 0, "log": False}, ALPHA,
     [(-19 / 14, True), (36 / 7, False)]),
    ("largest_growth", {"panels": ["two"], "methods": ["A", "B", "C"], "within": 1, "at_most": 30}, WORLD,
     [(1e-3 - 1, True), (30, True), (498, False)]),
    ("largest_growth", PANEL | {"methods": ["A", "C"], "within": 2, "at_least": 1}, WORLD,
     [(1e-9 - 10, False), (np.inf, True)]),
    ("rounds_of_panels", BOTH | {"methods": ["A", "B"], "near": 1, "at_most": 1}, WORLD, [(1, True), (1, True)]),
    ("rounds_of_panels", {"panels": ["two", "one"], "methods": ["C"], "near": 1, "at_least": 2}, WORLD, [(1, False)]),
    ("contraction", P | {"begin": 0, "end": 4, "at_most": 0.5}, FALLING,
     [(0.5, True), (0.5, True), ((9 / 16)**0.25, False)]),
    ("contraction", P | {"begin": 0, "end": 2, "at_most": 0.3}, FALLING, [(0.5, False), (0.25, True), (0.75, False)]),
    ("contraction", P | {"begin": 1, "end": 4, "at_most": 0.99}, FALLING,
     [(0.5, True), (0.25**(1 / 3), True), (1, False)]),
    *(("until", {"panels": ["A", "B", "C"], "along": "alpha", "target": target}, COSTS_BY_METHOD,
       [(0, True), (1, False), (1, False)]) for target in (1, 3)),
    ("step_ratio", {"panels": ["a"], "along": "alpha", "fixed": "method", "at_most": 0.5}, ALPHA,
     [(2, False), (1 / 8, True), (4, False), (4, False)]),
    ("ratio_at_best", {"panels": ["a"], "pairs": {"A": "B"}, "at_least": 1, "at_most": 1.6}, ALPHA, [(1, True)]),
    ("slope", P | {"along": "alpha", "fixed": "method", "log": False, "at_least": -1}, COSTS,
     [(210 / 61, True), (0, True), (0, True)]),
    ("lead", {"panels": ["one", "two"], "methods": ["A", "B"], "over": ["C"], "at_least": 0.1}, LEADS,
     [(0.125, True), (-0.5, False)]),
    ("lead", {"panels": ["one", "two"], "methods": ["A", "B"], "over": ["C"], "at_least": -0.2, "mean": True}, LEADS,
     [(-0.1875, True)]),
    ("average_rises", {"panels": ["s"], "along": "N", "at_least": 0.1}, RISES, [(0.125, True), (-0.125, False)]),
    ("order", {"panels": ["p"], "methods": ["A"], "since": 0.5, "at_most": -1.9},
     {"p": {"A": curve(1, 9, 9, 9, 1, 16 / 25, 16 / 36, 16 / 49, 1 / 4)}}, [(-2.0, True)]),
    ("average_rises", {"panels": ["own"], "along": "N", "at_least": 0.1}, SCORED, [(0.3125, True)]),
    ("average_rises", {"panels": ["own"], "along": "N", "at_least": 0.2, "parties": "first"}, SCORED, [(0.125, False)]),
    ("average_rises", {"panels": ["own"], "along": "N", "at_least": 0.2, "others": {"own": "shared"}}, SCORED,
     [(0.25, True)]),
])
def test_rules(rule, arguments, figure, expected):
    items = check(rule, figure, rules=ALL_RULES, **arguments)
    assert [item.value for item in items] == pytest.approx([value for value, _ in expected])
    assert [item.holds for item in items] == [holds for _, holds in expected]
    json.dumps([(item.value, item.holds) for item in items])  # a record can hold them


def test_every_rule_has_a_case():
    cases = next(mark for mark in test_rules.pytestmark if mark.name == "parametrize").args[1]
    assert {case[0] for case in [*cases, *PORTFOLIO_CASES]} | BOOTSTRAPS == set(ALL_RULES)


LOSSES = {"one": "one", "two": "one"}


@pytest.mark.parametrize(("read", "title", "label", "expected"), [
    ({}, "two", "B", 60), ({"round": 1}, "one", "A", 10), ({"round": 9}, "one", "B", 20),
    ({"late": 0.6}, "one", "B", 20), ({"late": 0.5}, "two", "B", 45), ({"late": 0.5}, "one", "C", np.inf),
    ({"round": 2, "late": 0.5}, "two", "B", 45), ({"fluctuation": 0.0}, "shaky", "A", np.std([1, -1, 1, 0])),
    ({"fluctuation": 0.5}, "shaky", "B", np.std([3, 0])),
    ({"settled": 1.1}, "two", "C", 0), ({"settled": 1.0}, "shaky", "A", 0),
    ({"settled": 1.5}, "one", "A", 3), ({"settled": 1.5, "negligible": 0.1}, "one", "A", 1),
    ({"reached": 0.01}, "one", "A", 2), ({"reached": 0.01}, "one", "B", np.inf),
    ({"reached": 0.25, "by": "bytes_up"}, "costs", "slow", 8),
    # Diverged (C in round 2, B in round 3), converged (A in round 3, B in round 2), and cut before that.
    ({"stopped": {"losses": LOSSES, "within": 1}}, "two", "C", 2),
    ({"stopped": {"losses": {"two": "two"}, "within": 1}}, "two", "B", 60),
    ({"stopped": {"losses": LOSSES, "change": 1.5}}, "two", "A", 1e-3),
    ({"stopped": {"losses": LOSSES, "change": 40}}, "two", "B", 30),
    ({"stopped": {"losses": LOSSES, "change": 40}, "round": 1}, "two", "B", 60)])
def test_a_curve_is_read_in_many_ways(read, title, label, expected):
    figure = {**WORLD, "shaky": SHAKY["one"], "costs": FALLING["p"]}
    panels = read_panels(figure, Read(**read))
    assert panels[title][label].final == pytest.approx(expected)


def test_a_curve_becomes_one_number():
    with pytest.raises(ValueError, match="at most one of late, fluctuation, settled and reached"):
        Read(late=0.5, settled=1.1)


MANY = Claim(says="x", rule="difference", args={"panels": ["one"], "methods": ["B"], "to": "A", "at_least": 15.0},
             readings={"read": {"at the end": {}, "after a round": {"read": {"round": 1}}},
                       "panels": {"one": {}, "both, on average": {"args": {"panels": ["one", "two"], "mean": True}}},
                       "least": {"15": {}, "30": {"args": {"at_least": 30.0}}}})


def test_a_claim_is_checked_in_every_reading_and_says_which_choice_decides():
    record = claim_record(MANY, [WORLD, WORLD], "paper scale")
    numbers = [reading["items"][0]["mean"] for reading in record["readings"]]
    assert numbers == pytest.approx([20, 20, 39.9995, 39.9995, 40, 40, 45, 45])
    assert [r["verdict"] for r in record["readings"]] == ["holds", "does not hold", *["holds"] * 6]
    assert record["readings"][-1]["choices"] == {"read": "after a round", "panels": "both, on average", "least": "30"}
    assert record["verdict"] == "holds in part"
    assert readings_that_hold(record) == 7
    assert deciding_choices(record) == ["least", "panels", "read"]
    mean = record["readings"][2]["items"][0]
    assert mean["parts"] == {"one": [20.0, 20.0], "two": [59.999, 59.999]}
    assert mean["seeds"] == [39.9995, 39.9995]
    single = claim_record(MANY.model_copy(update={"readings": {}}), [WORLD], "paper scale")
    assert [single["readings"][0]["choices"], deciding_choices(single), single["verdict"]] == [{}, [], "holds"]


def test_an_option_can_remove_an_argument_and_a_choice_needs_two():
    claim = Claim(says="x", rule="level", args={"panels": ["one"], "methods": ["A"], "at_most": 1.0},
                  readings={"methods": {"A": {}, "all": {"args": {"methods": None}}}})
    assert [reading.args.get("methods") for reading in claim.all_readings()] == [["A"], None]
    with pytest.raises(ValueError, match=r"readings\.methods: a choice must have at least two options"):
        Claim(says="x", rule="level", args={}, readings={"methods": {"A": {}}})


def test_verdicts():
    yes, no = Item("a", 1, True), Item("b", 2, False)
    assert [verdict_of(s) for s in ([[yes], [yes]], [[yes], [no]], [[yes, no]], [[no], [no]])] == [
        "holds", "holds in part", "holds in part", "does not hold"]


def test_labels_of_means_are_the_same_in_every_seed():
    first, second = ({"s": {f"{n}": ending(n / scale, N=n) for n in (3, 10)}} for scale in (10, 30))
    names = [[item.name for item in check("average_rises", figure, panels=["s"], along="N", at_least=0.0)]
             for figure in (first, second)]
    assert names[0] == names[1] == ["s: N = 3 to 10"]


def of_claim(*items, rule="difference", seeds=3, **arguments):
    """A claim of a record: for each item its mean, standard deviation and the number of seeds in which it holds."""
    records = [{"name": str(i), "mean": mean, "std": std, "holds": holds} for i, (mean, std, holds) in enumerate(items)]
    verdict = verdict_of([[Item("", 0, bool(holds)), Item("", 0, holds == seeds)] for _, _, holds in items])
    return {"readings": [{"choices": {}, "rule": rule, "args": arguments, "items": records, "verdict": verdict}],
            "verdict": verdict}


@pytest.mark.parametrize(("claim", "spreads", "expected"), [
    (of_claim((0.01, 0.02, 2), at_least=0.0), None, True),
    (of_claim((0.03, 0.02, 3), at_least=0.0), None, False),
    (of_claim((0.03, 0.02, 3), at_least=0.0), [0.04], True),
    (of_claim((0.03, 0.02, 3), at_least=0.0), [0.01, 0.04], True),  # of other panels: the largest
    (of_claim((0.01, 0.02, 3), (0.5, 0.02, 3), at_least=0.0), None, True),
    (of_claim((0.01, 0.02, 3), (-0.5, 0.02, 0), at_least=0.0), None, True),
    (of_claim((0.01, 0.02, 3), (0.5, 0.02, 3), (-0.5, 0.02, 0), at_least=0.0), None, False),  # in part with either
    (of_claim((0.0, 0.0, 3), at_most=0.0), None, False),  # equal to its threshold in every seed
    (of_claim((None, None, 0), at_least=0.0), None, False),
    (of_claim((0.98, 0.02, 3), rule="best", at_most=0.99), None, True),
    (of_claim((0.08, 0.02, 3), rule="better"), None, False),
    (of_claim((0.96, 0.02, 3), rule="same_limit"), None, True),
    (of_claim((1.0, 0.1, 3), rule="monotone", along="k"), None, False),
    (of_claim((0.01, 0.02, 2), at_least=0.0) | {"verdict": NOT_DECIDED}, None, False),
])
def test_a_verdict_within_the_spread_of_the_seeds_is_borderline(claim, spreads, expected):
    assert is_borderline(claim, 3, spreads) is expected


def test_thresholds_are_numbers_that_items_are_compared_with():
    assert thresholds("published", {"within": 10}) == []
    assert thresholds("determined_by_product", {"max_product": 1.0, "within": 1.5}) == [1.5]
    assert thresholds("better", {"than": ["A"]}) == [0.0]


@pytest.mark.parametrize(("rule", "arguments", "message"), [
    ("ration", {}, "there is no rule 'ration'.*ratio"),
    ("ratio", {"panels": ["one"], "methods": ["Z"], "to": "B"}, "the rule ratio cannot be checked: 'Z'"),
    ("ratio", {"panels": []}, "the rule ratio cannot be checked"),
    ("ratio", {"panels": [], "methods": ["A"], "to": "B"}, "checks nothing"),
])
def test_what_cannot_be_checked_is_refused(rule, arguments, message):
    with pytest.raises(InputError, match=message):
        check(rule, WORLD, **arguments)


def test_an_axis_that_was_not_measured_is_refused():
    with pytest.raises(InputError, match="the rule level cannot be checked: 'seconds'"):
        check("level", FALLING, Read(reached=0.5, by="seconds"), at_most=9, panels=["p"], methods=["fast"])
