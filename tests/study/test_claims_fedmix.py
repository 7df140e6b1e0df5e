"""Rules for rates and costs, and sweeps whose parameters go together, on curves and files made by hand."""

import numpy as np
import pytest

from resolvent.errors import InputError
from resolvent.study.claims import Curve, check
from resolvent.study.reproduction import Reproduction, reproductions


def curve(*values, each=1, **point):
    rounds = np.arange(len(values))
    return Curve(rounds, np.array(values, float), point, {"bytes_up": each * rounds.astype(float)})


FALLING = {"p": {"slow": curve(16, 8, 4, 2, 1, each=4), "fast": curve(16, 4, 1, 1, 1), "never": curve(16, 9, 9, 9, 9)}}
SWEEP = {"p": {f"{m} {a}": curve(*values, alpha=a, method=m) for m, a, values in (
    ("A", 0.1, (4, 1)), ("A", 0.5, (4, 3, 1)), ("A", 1.0, (4, 4, 4)), ("B", 0.5, (4, 3, 1)), ("B", 1.0, (4, 1, 1)),
    ("C", 0.5, (4, 3, 1)), ("C", 1.0, (4, 3, 1)))} | {"beside": curve(1, 1)}}


@pytest.mark.parametrize(("rule", "arguments", "world", "expected"), [
    ("contraction", {"most": 0.5}, FALLING, [(0.5, True), (0.5, True), ((9 / 16)**0.25, False)]),
    ("contraction", {"methods": ["fast"], "end": 2, "least": 0.3}, FALLING, [(0.25, False)]),
    ("contraction", {"methods": ["never"], "begin": 1, "least": 1}, FALLING, [(1, True)]),
    ("until", {"along": "alpha", "target": 1, "fixed": "method"}, SWEEP, [(0, True), (1, False), (1, False)]),
    ("until", {"along": "alpha", "target": 3, "fixed": "method"}, SWEEP, [(0, True), (1, False), (1, False)]),
    ("cheaper", {"methods": ["fast", "never"], "to": "slow", "share": 1 / 16}, FALLING, [(0.5, True), (np.inf, False)]),
    ("cheaper", {"methods": ["fast"], "to": "slow", "share": 1 / 4, "by": "bytes_up", "most": 0.1}, FALLING,
     [(1 / 8, False)]),
    ("slope", {"along": "alpha", "fixed": "method", "log": False, "least": -1}, SWEEP,
     [(210 / 61, True), (0, True), (0, True)]),
])
def test_rules(rule, arguments, world, expected):
    found = check(rule, world, panels=["p"], **arguments)
    assert [item.value for item in found] == pytest.approx([value for value, _ in expected])
    assert [item.holds for item in found] == [holds for _, holds in expected]


def test_an_axis_that_nobody_measured_is_refused():
    with pytest.raises(InputError, match="the rule cheaper cannot be checked: 'seconds'"):
        check("cheaper", FALLING, panels=["p"], methods=["fast"], to="slow", share=0.5, by="seconds")


FILE = """
title: t
paper: p
figure: f
seeds: 1
experiment:
  problem: {parties: 3, samples: 8, features: 2}
  solver: ClosedForm
  algorithms: {plain: fedavg}
panels:
  one:
    sweep:
      over: {k: [1, 2], a: [0.5, 1.0]}
      along: {rate: [0.1, 0.2]}
      beside: [plain]
      label: "k = {k}, a = {a:g}"
      algorithm: {name: dgd, alpha: $a, repeats: $k, learning_rate: $rate}
claims: []
quick: {}
"""


def test_parameters_go_together_and_methods_beside():
    (file, points), = Reproduction.parse("t", FILE).files("one", 0)
    assert points == {f"k = {k}, a = {a:g}": {"k": k, "a": a, "rate": k / 10} for k in (1, 2) for a in (0.5, 1.0)} | {
        "plain": {}}
    algorithms = file.bound.settings()["algorithms"]
    assert list(algorithms) == list(points)
    assert [a.get("learning_rate") for a in algorithms.values()] == [0.1, 0.1, 0.2, 0.2, None]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("[0.1, 0.2]", "[0.1]", "along.rate has 1 values: give one for each of the 2 of k"),
    ("algorithm:", "experiment:", "beside goes with a sweep of one algorithm"),
])
def test_what_does_not_go_together_is_refused(old, new, message):
    with pytest.raises(InputError, match=message):
        Reproduction.parse("t", FILE.replace(old, new))


def test_fedmixs_reproductions_take_the_step_that_goes_with_alpha():
    """gamma0/alpha^2, with one gamma0 for each problem."""
    what = Reproduction.load("fedmix-compression")
    assert {name for name in reproductions() if name.startswith("fedmix-")} >= {
        "fedmix-compression", "fedmix-sines", "fedmix-text"}
    for panel in what.panels.values():
        if panel.sweep:
            found = [p["rate"] * p["alpha"]**2 for p in panel.sweep.points()]
            assert found == pytest.approx([found[-1]] * len(found))
