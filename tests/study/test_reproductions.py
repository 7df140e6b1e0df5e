"""Reproductions: none rots, verdicts follow from numbers, and the committed page is that of the committed numbers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from resolvent.errors import InputError
from resolvent.study.claims import RULES, Curve, Item, check, verdict_of
from resolvent.study.compare import compare
from resolvent.study.reproduce import reproduce
from resolvent.study.reproduction import Claim, Reproduction, reproductions
from resolvent.study.results import page, write_results
from resolvent.study.settings import merged

RESULTS = Path(__file__).parents[2] / "results"


REAL = {"cifar10", "emnist", "fashion_mnist", "leaf", "mnist", "sentiment", "shakespeare", "stackexchange"}


def unpacked(folder, place, monkeypatch):
    """CIFAR-10 in its standard format: the folder of real data may hold it packed."""
    if (folder / "unpack_cifar10.py").is_file():
        subprocess.run([sys.executable, folder / "unpack_cifar10.py", place], check=True, capture_output=True)
        monkeypatch.setenv("RESOLVENT_DATA", str(place))


@pytest.mark.parametrize("name", reproductions())
def test_each_runs_for_two_rounds_at_tiny_size(name, tmp_path, request, monkeypatch):
    what = Reproduction.load(name)
    settings = [merged(what.experiment, panel.experiment) for panel in what.panels.values()]
    used = REAL & {(s.get("data") or {}).get("name") for s in settings}
    folder = request.getfixturevalue("real_data") if used else None
    if "cifar10" in used:
        unpacked(folder, tmp_path, monkeypatch)
    record = reproduce(what, setting="tiny")
    assert all(what.files(panel, 0) for panel in what.panels if not what.panels[panel].of)  # also what is left out here
    assert set(record["panels"]) == set(what.panels)
    assert [c["says"] for c in record["claims"]] == [c.says for c in what.left("tiny").claims]
    assert all(c.rule in RULES and set(c.args.get("panels", ())) <= set(what.panels) for c in what.claims)
    for panel in record["panels"].values():
        for method in panel["methods"].values():
            if not panel["measure"].startswith(("line", "model_change")):  # of a round, and of the way at the last one
                assert method["rounds"][0] == 0
                assert method["rounds"][-1] == 2
            assert method["mean"][-1] == pytest.approx(method["final"]["mean"], rel=1e-3)
    path = write_results(record, tmp_path)
    assert path.with_suffix(".svg").read_text().startswith("<?xml")
    assert all(claim["says"] in (tmp_path / "README.md").read_text() for claim in record["claims"])
    for seed in (0, 1):
        file, _ = what.files(next(iter(what.panels)), seed, what.quick.set)[0]
        settings = file.bound.settings()
        own = [part["seed"] for key in ("problem", "data") if "seed" in (part := settings.get(key) or {})]
        assert {settings["seed"], *own} == {seed}  # other data, not only other chances


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


# --- what a file can say -------------------------------------------------------------------------------------------

SMALL = """
title: small
paper: ours
figure: none
measure: accuracy
split: test
axis: test accuracy
log: false
columns: 2
seeds: 2
experiment:
  data: {name: digits, parties: 4, classes_per_party: 5, validation: 0.2}
  model: logistic
  solver: {name: SGD, learning_rate: 0.05, batch_size: 20, epochs: 1}
  algorithms: {FedProx: {name: fedprox, mu: 0.1}, FedAvg: fedavg}
  rounds: 3
  evaluate_every: 1
  diagnostics: []
  clock: {speed: 100.0, rate: 1000000.0}
panels:
  mean: {draw: [{x: rounds}, {x: bytes}]}
  samples: {of: mean, over: samples, draw: [{x: methods}]}
  worst loss: {of: mean, measure: loss, over: worst, axis: loss}
  one party: {of: mean, over: party 2}
  parties:
    tuned: mean
    sweep: {over: {N: [2, 4]}, experiment: {data: {parties: $N}}, label: "{method}, N = {N}"}
    draw: [{x: N, lines: method, log_x: false}]
  noisy: {tuned: mean, around: {name: attacked, attack: gaussian, share: 0.25}}
search:
  select: {measure: accuracy}
  rounds: 2
  grid: {"*": {solver.learning_rate: [1.0e-6, 0.05]}, FedProx: {mu: [1.0, 0.01]}}
claims:
  - {says: more than chance, rule: level, args: {panels: [mean, samples], methods: [FedProx], least: 0.2}}
quick: {seeds: 1, set: [rounds=1], panels: {noisy: [rounds=2]}, search_rounds: 1}
tiny: {methods: [FedProx], set: [evaluate_every=1]}
"""


@pytest.fixture(scope="module")
def small():
    what = Reproduction.parse("small", SMALL)
    return what, reproduce(what)


def test_a_search_tries_everything_and_the_runs_take_its_choice(small):
    what, record = small
    found = record["search"]["mean"]
    assert [t["point"] for t in found["FedAvg"]["tried"]] == [{"solver.learning_rate": rate} for rate in (1e-6, 0.05)]
    assert len(found["FedProx"]["tried"]) == 4
    for method in found.values():
        best = max(method["tried"], key=lambda t: t["score"])
        assert method["chosen"] == best["point"]
        assert method["chosen"]["solver.learning_rate"] == 0.05  # the other does not learn
    chosen = {label: method["chosen"] for label, method in found.items()}
    for panel in ("mean", "parties"):
        algorithms = what.files(panel, 0, (), chosen)[0][0].bound.settings()["algorithms"]
        assert all(a["solver"]["learning_rate"] == 0.05 for a in algorithms.values())


def test_a_change_of_an_algorithm_is_one_of_all_its_trials():
    text = SMALL[:SMALL.index("  parties:\n")] + SMALL[SMALL.index("search:"):]
    change = "algorithms.FedProx.solver={name: SGD, learning_rate: 1.0e-6}"
    found = reproduce(Reproduction.parse("small", text), seeds=1, changes=(change,))["search"]["mean"]
    fedprox, fedavg = ([t["score"] for t in found[label]["tried"]] for label in ("FedProx", "FedAvg"))
    assert len(set(fedprox)) == 1
    assert fedavg[1] > fedavg[0] == fedprox[0]  # what is not tried, or not changed, goes on as it was


def test_panels_see_the_same_runs_by_other_measures(small):
    what, record = small
    (file, _), = what.files("mean", 0, (), {label: m["chosen"] for label, m in record["search"]["mean"].items()})
    comparison = compare(file)
    metrics, data = comparison.metrics, comparison.experiment.data
    last = metrics[(metrics["method"] == "FedProx") & (metrics["split"] == "test") & (metrics["round"] == 3)]
    accuracy, loss = (last[last["metric"] == name]["value"].to_numpy() for name in ("accuracy", "loss"))
    once = reproduce(what, seeds=1)["panels"]
    finals = {title: once[title]["methods"]["FedProx"]["final"]["mean"]
              for title in ("mean", "samples", "worst loss", "one party")}
    expected = (accuracy.mean(), np.average(accuracy, weights=data.sizes("test")), loss.max(), accuracy[2])
    assert list(finals.values()) == pytest.approx(expected, rel=1e-5)


def test_a_sweep_of_experiments_labels_its_curves_and_has_axes_of_the_clock(small):
    _, record = small
    points = {label: m["point"] for label, m in record["panels"]["parties"]["methods"].items()}
    assert points == {f"{m}, N = {n}": {"N": n, "method": m} for n in (2, 4) for m in ("FedProx", "FedAvg")}
    curve = record["panels"]["mean"]["methods"]["FedAvg"]
    down_and_up = 2 * 650 * 4 * 4  # 650 numbers of 4 bytes, both ways, for 4 parties
    assert curve["bytes"] == [0, down_and_up, 2 * down_and_up, 3 * down_and_up]
    assert curve["seconds"][0] == 0 < curve["seconds"][1] < curve["seconds"][3]


def test_around_and_what_smaller_settings_leave(small):
    what, record = small
    noisy, _ = what.files("noisy", 0)[0]
    assert {a["name"] for a in noisy.bound.settings()["algorithms"].values()} == {"attacked"}
    finals = [record["panels"][title]["methods"]["FedAvg"]["final"]["mean"] for title in ("mean", "noisy")]
    assert finals[0] != finals[1]
    assert what.changes("quick", "noisy") == ("rounds=1", "rounds=2")
    least = reproduce(what, setting="tiny")
    assert {title: list(panel["methods"]) for title, panel in least["panels"].items() if title != "parties"} == {
        title: ["FedProx"] for title in ("mean", "samples", "worst loss", "one party", "noisy")}
    assert [len(found["tried"]) for found in least["search"]["mean"].values()] == [2]


def test_the_page_names_what_was_chosen(small, tmp_path):
    path = write_results(small[1], tmp_path)
    assert path.with_suffix(".svg").is_file()
    text = (tmp_path / "README.md").read_text()
    assert "Chosen by search, mean: FedProx: solver.learning_rate = 0.05, mu = " in text
    assert "(of 4); FedAvg: solver.learning_rate = 0.05 (of 2)." in text


@pytest.mark.parametrize(("old", "new", "message"), [
    ("of: mean, over: party 2", "of: men", "panels.one party.of: there is no panel 'men'.*mean, parties"),
    ("over: party 2", "over: party 9", "party K of one that there is"),
    ("measure: loss", "measure: los", r"nothing measured 'los'.*accuracy \(test\)"),
    ("    tuned: mean\n", "", "a sweep is not searched"),
])
def test_what_a_file_says_wrongly_is_refused(old, new, message):
    with pytest.raises(InputError, match=message):
        reproduce(Reproduction.parse("small", SMALL.replace(old, new)), setting="tiny")


# --- the rules, on curves made by hand -------------------------------------------------------------------------------

def curve(*values, **point):
    return Curve(np.arange(len(values)), np.array(values, float), point)


WORLD = {"one": {"A": curve(100, 10, 1, 1e-9), "B": curve(100, 50, 20, 20), "C": curve(100, 1, np.inf, np.inf)},
         "two": {"A": curve(100, 10, 1, 1e-3), "B": curve(100, 60, 30, 60), "C": curve(100, 1, 2, 500)}}
SWEEP = {"s": {f"{k} {eta}": curve(1, value, k=k, eta=eta) for k, eta, value in
               ((2, 2e-6, 1.0), (3, 1e-6, 1.2), (2, 1e-6, 0.5), (3, 2e-6, 9.0), (5, 1e-6, 30.0))}}
ONE = {"panels": ["one"]}
BOTH = {"panels": ["one", "two"]}
ALPHA = {"a": {f"{m} {a}": curve(0, value, alpha=a, method=m) for m, a, value in
               (("A", 1.0, 4.0), ("A", 2.0, 8.0), ("A", 4.0, 1.0), ("B", 4.0, 16.0), ("B", 2.0, 4.0), ("B", 1.0, 1.0))}}
SHAKY = {"one": {"A": curve(0, 1, 0, 1, 1), "B": curve(0, 3, 0, 3, 3)}}


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
    ("determined_by_product", {"panels": ["s"], "most_product": 1, "least": 2}, SWEEP, [(1.2, False), (10 / 3, True)]),
    ("monotone", {"panels": ["s"], "along": "k", "fixed": "eta"}, SWEEP, [(1, True)]),
    ("monotone", {"panels": ["s"], "along": "k", "fixed": "eta", "sign": -1, "at": 1}, SWEEP, [(0, False)]),
    ("difference", BOTH | {"methods": ["B"], "to": "A", "least": 25}, WORLD, [(20 - 1e-9, False), (60 - 1e-3, True)]),
    ("difference", BOTH | {"methods": ["B"], "to": "A", "least": 25, "mean": True}, WORLD,
     [(40 - (1e-9 + 1e-3) / 2, True)]),
    ("difference", ONE | {"methods": ["B"], "to": "A", "most": 39, "at": 1}, WORLD, [(40, False)]),
    ("difference_of_panels", BOTH | {"methods": ["A", "B"], "least": 1, "most": 40}, WORLD,
     [(1e-3 - 1e-9, False), (40, True)]),
    ("level", ONE | {"methods": ["A", "B"], "least": 1, "most": 20}, WORLD, [(1e-9, False), (20, True)]),
    ("highest", BOTH | {"methods": ["C"]}, WORLD, [(np.inf, True), (440, True)]),
    ("highest", {"panels": ["two"], "methods": ["B"], "among": ["A"], "by": 60}, WORLD, [(60 - 1e-3, False)]),
    ("inside", {"panels": ["a"], "along": "alpha", "fixed": "method"}, ALPHA, [(2, True), (4, False)]),
    ("inside", {"panels": ["a"], "along": "alpha", "fixed": "method", "highest": False}, ALPHA,
     [(4, False), (1, False)]),
    ("slope", {"panels": ["a"], "along": "alpha", "fixed": "method", "least": 2}, ALPHA, [(-1, False), (2, True)]),
    ("slope", {"panels": ["a"], "along": "alpha", "fixed": "method", "most": 0, "log": False}, ALPHA,
     [(-19 / 14, True), (36 / 7, False)]),
    ("steadier", ONE | {"methods": ["A"], "to": "B", "most": 0.5}, SHAKY, [(1 / 3, True)]),
    ("steadier", ONE | {"methods": ["B"], "to": "A", "since": 0.5}, SHAKY, [(3, False)]),
    ("steadier_panels", {"pairs": {"two": "one"}, "methods": ["A", "B"], "most": 1.1}, WORLD,
     [(np.std([-90, -9, -1 + 1e-3]) / np.std([-90, -9, -1]), True),
      (np.std([-40, -30, 30]) / np.std([-50, -30, 0]), False)]),
    ("lately", ONE | {"methods": ["A", "C"], "to": "B", "most": 0.05}, WORLD, [(0.025, True), (np.inf, False)]),
    ("lately", ONE | {"methods": ["B"], "to": "A", "minus": True, "least": 19, "since": 0.6}, WORLD, [(19.5, True)]),
    ("lately", {"panels": ["one", "two"], "methods": ["A"], "to": "B", "mean": True, "most": 0.01}, WORLD,
     [((0.025 + 0.5005 / 45) / 2, False)]),
    ("lately_of_panels", {"panels": ["one", "two"], "methods": ["A", "B"], "least": 2}, WORLD,
     [(1.001, False), (2.25, True)]),
    ("when_stopped", {"panels": {"two": "one"}, "methods": ["A"], "to": "B", "within": 1, "least": 0}, WORLD,
     [(1e-3 - 60, False)]),
    ("when_stopped", {"panels": {"two": "two"}, "methods": ["C"], "to": "A", "within": 1, "least": 0}, WORLD,
     [(500 - 1e-3, True)]),
    ("when_stopped", {"panels": {"one": "two"}, "methods": ["C"], "to": "A", "within": 1, "by": 0.5, "least": 0}, WORLD,
     [(np.inf, True)]),
])
def test_rules(rule, arguments, world, expected):
    found = check(rule, world, **arguments)
    assert [item.value for item in found] == pytest.approx([value for value, _ in expected])
    assert [item.holds for item in found] == [holds for _, holds in expected]


def test_every_rule_is_tried_by_hand():
    marks = next(m for m in test_rules.pytestmark if m.name == "parametrize")
    others = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_claims_*.py"))
    assert {case[0] for case in marks.args[1]} | {rule for rule in RULES if f'"{rule}"' in others} == set(RULES)


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
    monkeypatch.setattr("resolvent.study.reproduce.reproduce", lambda what, **_: record)
    outcome = call("reproduce", "splitting-anderson", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "results" / committed.name).read_bytes() == committed.read_bytes()
    for claim in record["claims"]:
        assert f"{claim['verdict']}: {claim['says']}" in outcome.out
    picture = (tmp_path / "results" / committed.name).with_suffix(".svg")
    assert picture.read_bytes() == committed.with_suffix(".svg").read_bytes()
    drawn = picture.read_text(encoding="utf-8")
    picture.write_text("gone", encoding="utf-8")
    assert "PredrawnCohorts: results/splitting-anderson.svg" in call("reproduce", "splitting-anderson", "--redraw",
                                                           cwd=tmp_path).out
    assert picture.read_text(encoding="utf-8") == drawn
    none = call("reproduce", "splitting-sampling", "--redraw", cwd=tmp_path)
    assert none.code == 2
    assert "results holds no results of splitting-sampling to draw" in none.err
    wrong = call("reproduce", "splitting", cwd=tmp_path)
    assert wrong.code == 2
    assert "there is no reproduction 'splitting'" in wrong.err
    listed = call("list", "reproductions", cwd=tmp_path).out
    assert all(name in listed for name in reproductions())
