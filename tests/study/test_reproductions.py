"""Reproductions: none rots, verdicts follow from numbers, and the committed page is that of the committed numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from resolvent.problem.errors import InputError
from resolvent.study.claims import RULES, Curve, Item, check, verdict_of
from resolvent.study.reproduction import Claim, Reproduction, reproduce, reproductions
from resolvent.study.results import page, write_results

RESULTS = Path(__file__).parents[2] / "results"
TINY = ("rounds=2", "evaluate_every=2", "problem.parties=3", "problem.samples=40", "problem.features=4")


@pytest.mark.parametrize("name", reproductions())
def test_each_runs_for_two_rounds_at_tiny_size(name, tmp_path):
    what = Reproduction.load(name)
    record = reproduce(what, changes=TINY, seeds=1)
    assert set(record["panels"]) == set(what.panels)
    assert [c["says"] for c in record["claims"]] == [c.says for c in what.claims]
    for panel in record["panels"].values():
        for method in panel["methods"].values():
            assert method["rounds"] == [0, 1, 2]
            assert method["mean"][-1] == pytest.approx(method["final"]["mean"], rel=1e-3)
    path = write_results(record, tmp_path)
    assert path.with_suffix(".svg").read_text().startswith("<?xml")
    assert all(claim["says"] in (tmp_path / "README.md").read_text() for claim in record["claims"])
    for seed in (0, 1):
        settings = what.file(next(iter(what.panels)), seed, what.quick.set and tuple(what.quick.set)).bound.settings()
        assert settings["seed"] == settings["problem"]["seed"] == seed  # other data, not only other chances


def test_the_committed_page_is_that_of_the_committed_numbers():
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == page(RESULTS)
    for path in RESULTS.glob("*.json"):
        assert path.with_suffix(".svg").is_file()
        record = json.loads(path.read_text())
        what = Reproduction.load(record["name"])
        assert record["notes"] == what.notes
        assert record["seeds"] == (what.seeds if record["setting"] == "paper scale" else what.quick.seeds)
        for claim, c in zip(record["claims"], what.claims, strict=True):
            assert Claim(says=claim["says"], paper=claim["paper"], rule=claim["rule"], args=claim["args"]) == c
            held = [item["holds"] for item in claim["items"]]
            most = record["seeds"] * len(held)
            expected = "holds" if sum(held) == most else "does not hold" if not sum(held) else "holds in part"
            assert claim["verdict"] == expected


# --- the rules, on curves made by hand -------------------------------------------------------------------------------

def curve(*values, **point):
    return Curve(np.arange(len(values)), np.array(values, float), point)


WORLD = {"one": {"A": curve(100, 10, 1, 1e-9), "B": curve(100, 50, 20, 20), "C": curve(100, 1, np.inf, np.inf)},
         "two": {"A": curve(100, 10, 1, 1e-3), "B": curve(100, 60, 30, 60), "C": curve(100, 1, 2, 500)}}
SWEEP = {"s": {f"{k} {eta}": curve(1, value, k=k, eta=eta) for k, eta, value in
               ((2, 2e-6, 1.0), (3, 1e-6, 1.2), (2, 1e-6, 0.5), (3, 2e-6, 9.0), (5, 1e-6, 30.0))}}
ONE = {"panels": ["one"]}


@pytest.mark.parametrize(("rule", "arguments", "world", "expected"), [
    ("relative_gap", ONE | {"methods": ["A", "B"], "most": 1e-10}, WORLD, [(1e-11, True), (0.2, False)]),
    ("relative_gap", ONE | {"methods": ["C"], "least": 1}, WORLD, [(np.inf, True)]),
    ("gain", ONE | {"methods": ["A", "B"], "least": 0.9}, WORLD, [(1e-10, False), (0.4, False)]),
    ("gain", ONE | {"methods": ["B"], "since": 0.67, "most": 1}, WORLD, [(1, True)]),
    ("rise", {"panels": ["two"], "methods": ["A", "C"], "least": 100}, WORLD, [(1, False), (500, True)]),
    ("ratio", ONE | {"methods": ["A", "C"], "to": "B", "most": 0.5}, WORLD, [(5e-11, True), (np.inf, False)]),
    ("ratio_of_panels", {"panels": ["one", "two"], "methods": ["A", "B"], "least": 4}, WORLD,
     [(1e6, True), (3, False)]),
    ("best", {"panels": ["one", "two"], "methods": ["A"]}, WORLD, [(5e-11, True), (1e-3 / 60, True)]),
    ("best", ONE | {"methods": ["B"], "among": ["C"]}, WORLD, [(0, True)]),
    ("sooner", ONE | {"pairs": {"A": "B"}, "most": 0.4}, WORLD, [(0.5, False)]),
    ("sooner", ONE | {"pairs": {"B": "A"}, "share": 0.5, "least": 1}, WORLD, [(1, True)]),
    ("same_limit", ONE | {"pairs": {"A": "B"}}, WORLD, [(5e-11, False)]),
    ("same_limit", ONE | {"pairs": {"A": "A"}, "within": 0}, WORLD, [(1, True)]),
    ("determined_by_product", {"panels": ["s"], "most_product": 1, "within": 2}, SWEEP, [(1.2, True), (10 / 3, False)]),
    ("determined_by_product", {"panels": ["s"], "most_product": 3e-6, "within": 2}, SWEEP, [(1.2, True)]),
    ("monotone", {"panels": ["s"], "along": "k", "fixed": "eta"}, SWEEP, [(1, True)]),
    ("monotone", {"panels": ["s"], "along": "k", "fixed": "eta", "sign": -1, "at": 1}, SWEEP, [(0, False)]),
])
def test_rules(rule, arguments, world, expected):
    found = check(rule, world, **arguments)
    assert [item.value for item in found] == pytest.approx([value for value, _ in expected])
    assert [item.holds for item in found] == [holds for _, holds in expected]


def test_every_rule_is_tried_by_hand():
    marks = next(m for m in test_rules.pytestmark if m.name == "parametrize")
    assert {case[0] for case in marks.args[1]} == set(RULES)


def test_verdicts():
    yes, no = Item("a", 1, True), Item("b", 2, False)
    assert [verdict_of(s) for s in ([[yes], [yes]], [[yes], [no]], [[yes, no]], [[no], [no]])] == [
        "holds", "holds in part", "holds in part", "does not hold"]


@pytest.mark.parametrize(("rule", "arguments", "message"), [
    ("ration", {}, "there is no rule 'ration'.*ratio"),
    ("ratio", {"panels": ["one"], "methods": ["Z"], "to": "B"}, "the rule ratio cannot be checked: 'Z'"),
    ("ratio", {"panels": []}, "the rule ratio cannot be checked"),
    ("ratio", {"panels": [], "methods": ["A"], "to": "B"}, "has nothing to check"),
])
def test_what_cannot_be_checked_is_refused(rule, arguments, message):
    with pytest.raises(InputError, match=message):
        check(rule, WORLD, **arguments)


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"there is no reproduction 'splitting-anderso'.*splitting-anderson"):
        Reproduction.load("splitting-anderso")


def test_the_command(call, tmp_path, monkeypatch):
    committed = RESULTS / "splitting-anderson.json"
    record = json.loads(committed.read_text(encoding="utf-8"))
    monkeypatch.setattr("resolvent.study.reproduction.reproduce", lambda what, **_: record)
    outcome = call("reproduce", "splitting-anderson", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "results" / committed.name).read_bytes() == committed.read_bytes()
    for claim in record["claims"]:
        assert f"{claim['verdict']}: {claim['says']}" in outcome.out
    wrong = call("reproduce", "splitting", cwd=tmp_path)
    assert wrong.code == 2
    assert "there is no reproduction 'splitting'" in wrong.err
    listed = call("list", "reproductions", cwd=tmp_path).out
    assert all(name in listed for name in reproductions())
