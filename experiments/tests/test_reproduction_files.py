"""Files of reproductions: searches, views, sweeps, settings, and what is refused."""

import numpy as np
import pytest

from experiments.reproduction import Reproduction
from experiments.results import write_results
from experiments.run import reproduce
from experiments.run_metrics import RunMetrics
from resolvent.errors import InputError

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
  noisy: {tuned: mean, combinator: {name: attacked, attack: gaussian, share: 0.25}}
search:
  select: {measure: accuracy}
  rounds: 2
  grid: {"*": {solver.learning_rate: [1.0e-6, 0.05]}, FedProx: {mu: [1.0, 0.01]}}
claims:
  - {says: more than chance, rule: level, args: {panels: [mean, samples], methods: [FedProx], at_least: 0.2}}
quick: {seeds: 1, set: [rounds=1], panels: {noisy: [rounds=2]}, search_rounds: 1}
tiny: {methods: [FedProx], set: [evaluate_every=1]}
"""


@pytest.fixture(scope="module")
def small():
    reproduction = Reproduction.parse("small", SMALL)
    return reproduction, reproduce(reproduction)


@pytest.mark.nightly
def test_a_search_tries_everything_and_the_runs_take_its_choice(small):
    reproduction, record = small
    searched = record["search"]["mean"]
    points = [trial["point"] for trial in searched["FedAvg"]["tried"]]
    assert points == [{"solver.learning_rate": rate} for rate in (1e-6, 0.05)]
    assert len(searched["FedProx"]["tried"]) == 4
    for method in searched.values():
        best = max(method["tried"], key=lambda t: t["score"])
        assert method["chosen"] == best["point"]
        assert method["chosen"]["solver.learning_rate"] == 0.05  # the other rate does not learn
    chosen = {label: method["chosen"] for label, method in searched.items()}
    for panel in ("mean", "parties"):
        algorithms = reproduction.experiments(panel, 0, (), chosen)[0][0].bound.settings()["algorithms"]
        assert all(a["solver"]["learning_rate"] == 0.05 for a in algorithms.values())


def test_a_change_of_an_algorithm_is_one_of_all_its_trials():
    text = SMALL[:SMALL.index("  parties:\n")] + SMALL[SMALL.index("search:"):]
    change = "algorithms.FedProx.solver={name: SGD, learning_rate: 1.0e-6}"
    searched = reproduce(Reproduction.parse("small", text), seeds=1, changes=(change,))["search"]["mean"]
    fedprox, fedavg = ([t["score"] for t in searched[label]["tried"]] for label in ("FedProx", "FedAvg"))
    assert len(set(fedprox)) == 1
    assert fedavg[1] > fedavg[0] == fedprox[0]  # only FedProx has the change


@pytest.mark.nightly
def test_panels_show_the_same_runs_by_other_measures(small):
    reproduction, record = small
    choices = {label: method["chosen"] for label, method in record["search"]["mean"].items()}
    (experiment,) = reproduction.experiments("mean", 0, (), choices)
    readings = RunMetrics(experiment)
    last = readings.metrics[(readings.metrics["method"] == "FedProx") & (readings.metrics["split"] == "test")
                            & (readings.metrics["round"] == 3)]
    accuracy, loss = (last[last["metric"] == name]["value"].to_numpy() for name in ("accuracy", "loss"))
    finals = [readings.curves(reproduction.view(title))["FedProx"].final
              for title in ("mean", "samples", "worst loss", "one party")]
    expected = (accuracy.mean(), np.average(accuracy, weights=readings.sizes["test"]), loss.max(), accuracy[2])
    assert finals == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
def test_a_sweep_of_experiments_labels_its_curves_and_has_axes_of_the_clock(small):
    _, record = small
    points = {label: m["point"] for label, m in record["panels"]["parties"]["methods"].items()}
    assert points == {f"{m}, N = {n}": {"N": n, "method": m} for n in (2, 4) for m in ("FedProx", "FedAvg")}
    curve = record["panels"]["mean"]["methods"]["FedAvg"]
    down_and_up = 2 * 650 * 4 * 4  # 650 numbers of 4 bytes, both ways, for 4 parties
    assert curve["bytes"] == [0, down_and_up, 2 * down_and_up, 3 * down_and_up]
    assert curve["seconds"][0] == 0 < curve["seconds"][1] < curve["seconds"][3]


def test_combinator_of_a_panel_and_methods_of_smaller_settings(small):
    reproduction, record = small
    noisy, _ = reproduction.experiments("noisy", 0)[0]
    assert {a["name"] for a in noisy.bound.settings()["algorithms"].values()} == {"attacked"}
    finals = [record["panels"][title]["methods"]["FedAvg"]["final"]["mean"] for title in ("mean", "noisy")]
    assert finals[0] != finals[1]
    assert reproduction.changes("quick", "noisy") == ("rounds=1", "rounds=2")
    tiny = reproduce(reproduction, setting="tiny")
    assert {title: list(panel["methods"]) for title, panel in tiny["panels"].items() if title != "parties"} == {
        title: ["FedProx"] for title in ("mean", "samples", "worst loss", "one party", "noisy")}
    assert [len(method["tried"]) for method in tiny["search"]["mean"].values()] == [2]


def test_the_page_names_what_was_chosen(small, tmp_path):
    path = write_results(small[1], tmp_path)
    assert path.with_suffix(".svg").is_file()
    text = (tmp_path / "README.md").read_text()
    assert "Chosen by search, mean: FedProx: solver.learning_rate = 0.05, mu = " in text
    assert "(of 4); FedAvg: solver.learning_rate = 0.05 (of 2)." in text


def test_a_small_setting_does_not_decide_a_claim_about_converged_runs_and_the_page_says_whose_a_claim_is(tmp_path):
    claim = "  - {says: more than chance, "
    text = SMALL[:SMALL.index("  parties:\n")] + SMALL[SMALL.index("search:"):]
    text = text.replace(claim, f"{claim}converged: true, ").replace(
        "quick: {", "  - {says: more than none, ours: true, rule: level, args: {panels: [mean], methods: [FedProx], "
        "at_least: 0.0}}\nmiddle: {seeds: 1, set: [rounds=2]}\nquick: {")
    reproduction = Reproduction.parse("small", text)
    records = {setting: reproduce(reproduction, setting=setting) for setting in ("middle", "quick")}
    verdicts = {setting: [c["verdict"] for c in record["claims"]] for setting, record in records.items()}
    assert verdicts == {"middle": ["holds", "holds"], "quick": ["not decided", "holds"]}
    assert records["middle"]["command"] == "python -m experiments small --scale middle"
    write_results(records["quick"], tmp_path)
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert [line for line in lines if "more than" in line] == [
        "- **not decided**: more than chance (the paper, in words)", "- **holds**: more than none (our claim)"]
    assert write_results(records["middle"], tmp_path).name == "small-middle.json"
    page = (tmp_path / "README.md").read_text()
    assert "## small-middle" in page
    assert "## small-quick" not in page  # the page shows the largest setting


def test_the_middle_setting_must_be_in_the_file(small):
    with pytest.raises(InputError, match="small has no middle setting: use --quick, or run it at the paper's scale"):
        reproduce(small[0], setting="middle")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("{says: more than chance, ", "{says: more than chance, paper: '1', ours: true, ", "that is ours has no number"),
    ("quick: {", "  - {says: more than chance, rule: best, args: {}}\nquick: {", "'more than chance' occurs twice"),
    ("of: mean, over: party 2", "of: men", "panels.one party.of: there is no panel 'men'.*mean, parties"),
    ("over: party 2", "over: party 9", "party K"),
    ("measure: loss", "measure: los", r"no measure 'los'.*accuracy \(test\)"),
    ("    tuned: mean\n", "", "a sweep is not searched"),
])
def test_wrong_file_is_refused(old, new, message):
    with pytest.raises(InputError, match=message):
        reproduce(Reproduction.parse("small", SMALL.replace(old, new)), setting="tiny")


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
      baselines: [plain]
      label: "k = {k}, a = {a:g}"
      algorithm: {name: dgd, alpha: $a, repeats: $k, learning_rate: $rate}
claims: []
quick: {}
"""


def test_zipped_parameters_and_baselines():
    (file, points), = Reproduction.parse("t", FILE).experiments("one", 0)
    assert points == {f"k = {k}, a = {a:g}": {"k": k, "a": a, "rate": k / 10} for k in (1, 2) for a in (0.5, 1.0)} | {
        "plain": {}}
    algorithms = file.bound.settings()["algorithms"]
    assert list(algorithms) == list(points)
    assert [a.get("learning_rate") for a in algorithms.values()] == [0.1, 0.1, 0.2, 0.2, None]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("[0.1, 0.2]", "[0.1]", "along.rate has 1 values: give one for each of the 2 of k"),
    ("algorithm:", "experiment:", "baselines need a sweep of one algorithm"),
])
def test_wrong_sweep_is_refused(old, new, message):
    with pytest.raises(InputError, match=message):
        Reproduction.parse("t", FILE.replace(old, new))


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
  personal loss: {of: change, measure: loss}
  shared loss: {of: change, measure: global_loss}
  before: {of: change, measure: line_previous}
claims:
  - {says: only a shared model changes, rule: level, args: {panels: [change], methods: [Local, FedAvg+], at_most: 0.0}}
quick: {}
"""


@pytest.mark.nightly
def test_line_goes_from_the_personal_models_to_the_shared_one():
    record = reproduce(Reproduction.parse("line", LINE))
    panels = {title: panel["methods"] for title, panel in record["panels"].items()}
    assert list(panels["line"]) == list(panels["before"]) == ["FedAvg", "FedAvg+"]  # local training has no shared model
    for method, line in panels["line"].items():
        assert line["lambda"] == pytest.approx(np.linspace(0, 1, 11))
        assert line["mean"][-1] == pytest.approx(panels["shared loss"][method]["final"]["mean"], rel=1e-3)
    personal = panels["personal loss"]["FedAvg+"]["final"]["mean"]
    assert panels["line"]["FedAvg+"]["mean"][0] == pytest.approx(personal, rel=1e-3)
    assert panels["line"]["FedAvg"]["mean"][0] < panels["line"]["FedAvg"]["mean"][-1]
    assert panels["before"]["FedAvg"]["final"]["mean"] < panels["shared loss"]["FedAvg"]["first"]["mean"]
    assert record["claims"][0]["verdict"] == "holds"
    assert panels["change"]["FedAvg"]["final"]["mean"] > 0
