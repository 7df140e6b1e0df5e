"""The rules of Fed+'s claims, and the line between a party's model and the shared one, as a panel."""

import numpy as np
import pytest

from resolvent.study.claims import Curve, check
from resolvent.study.reproduce import reproduce
from resolvent.study.reproduction import Reproduction


def curve(final, **point):
    return Curve(np.arange(2), np.array([0.0, final]), point)


WORLD = {"one": {"A": curve(0.5), "B": curve(0.75), "C": curve(0.625)},
         "two": {"A": curve(0.5), "B": curve(0.25), "C": curve(1.0)}}
SWEEP = {"s": {f"{m} {n}": curve(value, N=n, method=m) for m, n, value in
               (("A", 3, 0.5), ("B", 3, 0.25), ("A", 10, 0.25), ("B", 10, 0.75), ("A", 30, 0.5), ("B", 30, 0.25))}}


@pytest.mark.parametrize(("rule", "arguments", "world", "expected"), [
    ("lead", {"panels": ["one", "two"], "methods": ["A", "B"], "over": ["C"], "least": 0.1}, WORLD,
     [(0.125, True), (-0.5, False)]),
    ("lead", {"panels": ["one", "two"], "methods": ["A", "B"], "over": ["C"], "least": -0.2, "mean": True}, WORLD,
     [(-0.1875, True)]),
    ("average_rises", {"panels": ["s"], "along": "N"}, SWEEP, [(0.125, True), (-0.125, False)]),
])
def test_rules(rule, arguments, world, expected):
    found = check(rule, world, **arguments)
    assert [item.value for item in found] == pytest.approx([value for value, _ in expected])
    assert [item.holds for item in found] == [holds for _, holds in expected]


LINE = """
title: line
paper: ours
figure: none
measure: model_change
split: train
axis: change
seeds: 1
experiment:
  data: {name: digits, parties: 4, classes_per_party: 2}
  model: logistic
  solver: {name: SGD, learning_rate: 0.1, batch_size: 20, epochs: 2}
  algorithms: {Local: local, FedAvg: fedavg, FedAvg+: {name: fedavg_plus, sigma: 0.1}}
  rounds: 2
  evaluate_every: 2
  diagnostics: [model_change, line]
panels:
  change: {}
  line: {of: change, measure: line, axis: loss, draw: [{x: lambda}]}
  own loss: {of: change, measure: loss}
  shared loss: {of: change, measure: global_loss}
  before: {of: change, measure: line_previous}
claims:
  - {says: only a shared model changes, rule: level, args: {panels: [change], methods: [Local, FedAvg+], most: 0.0}}
quick: {}
"""


def test_a_line_leads_from_the_own_models_to_the_shared_one():
    record = reproduce(Reproduction.parse("line", LINE))
    panels = {title: panel["methods"] for title, panel in record["panels"].items()}
    assert list(panels["line"]) == list(panels["before"]) == ["FedAvg", "FedAvg+"]  # alone there is no line
    for method, line in panels["line"].items():
        assert line["lambda"] == pytest.approx(np.linspace(0, 1, 11))
        assert line["mean"][-1] == pytest.approx(panels["shared loss"][method]["final"]["mean"], rel=1e-3)
    own = panels["own loss"]["FedAvg+"]["final"]["mean"]
    assert panels["line"]["FedAvg+"]["mean"][0] == pytest.approx(own, rel=1e-3)
    assert panels["line"]["FedAvg"]["mean"][0] < panels["line"]["FedAvg"]["mean"][-1]
    assert panels["before"]["FedAvg"]["final"]["mean"] < panels["shared loss"]["FedAvg"]["first"]["mean"]
    assert record["claims"][0]["verdict"] == "holds"
    assert panels["change"]["FedAvg"]["final"]["mean"] > 0
