"""Searches of hyperparameters: closed forms, budgets in rounds, one program for all trials, resumption."""

import contextlib
import itertools
import math
import re
import warnings
from collections import Counter
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.tuning import searching
from resolvent.comparisons.tuning.files import TUNED_FILE, party_table, tune_file
from resolvent.comparisons.tuning.space import Choices, beyond, combinations, draw_combinations, draw_points, read_space
from resolvent.comparisons.tuning.trials import Reading, TrialFiles
from resolvent.data.files.digests import read_sealed
from resolvent.errors import InputError
from resolvent.simulator.engine.rounds import compiled_programs, run_rounds
from resolvent.simulator.together import simulate_together

CURVATURE, ROUNDS = 2.0, 3
RATE = {"rate": {"low": 0.05, "high": 0.9, "scale": "log"}}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def problem():
    """f_k(w) = |w|^2 - g_k'w: every party has the curvature 2, so one full step with the rate 1/2 is exact."""
    with jax.enable_x64(True):
        hessians = jnp.broadcast_to(CURVATURE * jnp.eye(2), (3, 2, 2))
        return rv.problems.QuadraticProblem(hessians, jnp.array([[1.0, 0], [2, 4], [0, 5]]))


def fedavg(rate):
    return rv.fedavg(rv.solvers.GD(rate, steps=1))


def gap(rate):
    """w - w* shrinks by 1 - rate h in a round, from w = 0 to w* = mean(g)/h."""
    distance = np.linalg.norm(np.array([1.0, 3.0]) / CURVATURE)
    return CURVATURE / 2 * (1 - rate * CURVATURE) ** (2 * ROUNDS) * distance**2


@pytest.fixture
def simulated(monkeypatch):
    """Records (checkpoint folder, rounds) of every call of ``simulate`` by a search."""
    calls = []

    def record(*args, **options):
        calls.append((options["checkpoint"], options["rounds"]))
        return rv.simulate(*args, **options)

    monkeypatch.setattr(searching, "simulate", record)
    return calls


def rounds_run(calls):
    """The rounds of all calls; a call with the checkpoint of an earlier one continues from its rounds."""
    total, done = 0, {}
    for folder, rounds in calls:
        total += rounds - (done.get(folder, 0) if folder else 0)
        done[folder] = rounds
    return total


@pytest.mark.when_changed
@pytest.mark.parametrize(("strategy", "over"), [("grid", {"rate": [0.1, 0.45, 0.8]}), ("random", RATE)])
def test_scores_have_the_closed_form_and_the_best_is_chosen(problem, simulated, strategy, over):
    before = compiled_programs()
    tuned = rv.tune(fedavg, over, problem, rounds=ROUNDS, strategy=strategy, trials=6 if strategy == "random" else None)
    assert compiled_programs() - before <= 1  # rates are traced
    rates = tuned.table["rate"].to_numpy()
    np.testing.assert_allclose(tuned.table["gap"], [gap(rate) for rate in rates], rtol=1e-9)
    assert tuned.point["rate"] == rates[np.argmin(np.abs(rates - 1 / CURVATURE))]
    assert tuned.algorithm.solver.learning_rate == tuned.point["rate"]
    assert tuned.rounds_spent["run"] == rounds_run(simulated) == ROUNDS * len(rates)


@pytest.mark.when_changed
def test_mu_is_that_of_brute_force(problem):
    values = [0.0, 0.3, 1.0, 3.0]
    solver = rv.solvers.GD(0.1, steps=4)
    tuned = rv.tune(lambda mu: rv.fedprox(solver, mu=mu), {"mu": values}, problem, rounds=ROUNDS, strategy="grid")
    shares = jnp.full(3, 1 / 3)
    gaps = [float(problem.gap(run_rounds(rv.fedprox(solver, mu=mu), problem, rounds=ROUNDS).server, shares))
            for mu in values]
    np.testing.assert_allclose(tuned.table["gap"], gaps, rtol=1e-9)
    assert tuned.point["mu"] == values[int(np.argmin(gaps))]


def test_halving_is_refused_with_what_to_write(problem, tmp_path):
    sentence = "a pruner of Optuna: write strategy: optuna and pruner: halving, with .*pip install"
    with pytest.raises(InputError, match=sentence):
        rv.tune(fedavg, RATE, problem, rounds=1, strategy="halving")
    with pytest.raises(InputError, match=f"mine.yaml:7 .*: search: strategy: .*{sentence}"):
        tune_file(ExperimentFile.parse(TEXT, "mine.yaml", "mine", ["search.strategy=halving"]), tmp_path / "out")
    with pytest.raises(InputError, match=r"there is no strategy 'gird'.*'grid'"):
        rv.tune(fedavg, RATE, problem, rounds=1, strategy="gird")
    with pytest.raises(InputError, match=r"search: strategy: there is no strategy 'gird'"):  # also without a search
        ExperimentFile.parse(TEXT, "mine.yaml", "mine", ["search.strategy=gird"]).build()


@pytest.mark.when_changed
@pytest.mark.parametrize(("rates", "warning"), [
    ([0.01, 0.05, 0.2], "the chosen rate = 0.2 is the largest that was tried: .* such as up to 2$"),
    ([0.9, 0.95, 0.97], "the chosen rate = 0.9 is the smallest that was tried: .* such as down to 0.45$"),
    ([0.2, 0.5, 1e30], None), ([0.5], None)])
def test_a_choice_at_the_edge_of_its_values_is_a_warning(problem, rates, warning):
    """The best rate is 1/2. A rate with which the training diverges bounds the others as well."""
    with pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext():
        rv.tune(fedavg, {"rate": rates}, problem, rounds=ROUNDS, strategy="grid")


@pytest.mark.parametrize(("values", "chosen", "where"), [
    ([0.0, 0.1, 1.0], 0.0, ""), ([1, 2, 3], 1, ""), ([1, 2, 3], 3, "up to 5"), (["a", "b"], "a", ""),
    ([True, False], True, ""), ([2, 4], 2, "down to 1"), ([-1.0, 0.0, 1.0], -1.0, "down to -3"),
    ({"low": 0.01, "high": 1, "scale": "log"}, 0.02, "down to 0.001")])
def test_only_numbers_that_can_be_exceeded_have_an_edge(values, chosen, where):
    space = read_space(values, "x")
    tried = space.values if isinstance(space, Choices) else [0.02, 0.3, 0.9]
    assert beyond(space, chosen, tried).endswith(where) is True
    assert bool(beyond(space, chosen, tried)) is bool(where)


def test_interrupted_search_continues_from_its_finished_trials(problem, tmp_path, simulated, monkeypatch):
    def search(folder, trials=4):
        return rv.tune(fedavg, RATE, problem, rounds=ROUNDS, trials=trials, folder=folder)

    whole = search(tmp_path / "whole")
    simulated.clear()
    recorded = searching.simulate

    def fail(*args, **options):
        if len(simulated) == 2:
            raise KeyboardInterrupt
        return recorded(*args, **options)

    monkeypatch.setattr(searching, "simulate", fail)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "part")
    monkeypatch.setattr(searching, "simulate", recorded)
    resumed = search(tmp_path / "part")
    assert len(simulated) == 4
    assert resumed.table.equals(whole.table)
    assert search(tmp_path / "part").table.equals(whole.table)
    assert len(simulated) == 4
    with pytest.raises(InputError, match="belongs to another search"):
        search(tmp_path / "part", trials=5)


@pytest.mark.parametrize(("change", "message"), [
    (lambda first, second: first.write_text(first.read_text().replace("0.25", "0.99")), "is damaged"),
    (lambda first, second: second.replace(first), "is the file of another trial"),
    (lambda first, second: first.write_text(re.sub(r',\s*"sha256": "\w*"', "", first.read_text())), "has no SHA-256"),
], ids=["edited", "exchanged", "without a digest"])
def test_edited_trials_are_refused(change, message, tmp_path):
    trials = TrialFiles(tmp_path / "trials", "a search")
    files = []
    for number in (1, 2):
        before = {*(tmp_path / "trials").iterdir()}
        trials.write("run", number, {"rate": 0.1}, 3, Reading(number / 4, {}, {}), ["digest of the run"])
        files += {*(tmp_path / "trials").iterdir()} - before
    assert read_sealed(files[0], "")["runs"] == ["digest of the run"]
    change(*files)
    with pytest.raises(InputError, match=message):
        trials.read("run", 1, {"rate": 0.1}, 3)


def test_a_search_of_edited_code_is_another_search(problem, tmp_path):
    def search(factor):
        return rv.tune(lambda rate: fedavg(factor * rate), {"rate": [0.1]}, problem, rounds=2, strategy="grid",
                       folder=tmp_path / "search")

    search(1.0)
    assert len(search(1.0).table) == 1
    with pytest.raises(InputError, match="of other settings or of edited code"):
        search(0.5)


def test_a_reading_is_the_one_that_was_written(tmp_path):
    reading = Reading(0.5, {"A": 0.25, "B": math.nan}, {})
    TrialFiles(tmp_path, "a search").write("run", 1, {"rate": 0.1}, 3, reading)
    again = TrialFiles(tmp_path, "a search").read("run", 1, {"rate": 0.1}, 3)
    np.testing.assert_equal(again._asdict(), reading._asdict())
    assert TrialFiles(tmp_path, "a search").read("run", 1, {"rate": 0.1}, 4) is None


@pytest.mark.nightly
def test_trials_side_by_side_have_the_results_of_single_ones(problem, simulated):
    """Two structures, as the number of steps is static: trials of each run together."""
    def make(rate, steps):
        return rv.fedavg(rv.solvers.GD(rate, steps=steps))

    over, settings = RATE | {"steps": [1, 2]}, {"rounds": 9, "trials": 4, "seeds": 2}
    single = rv.tune(make, over, problem, **settings)
    simulated.clear()
    done = []
    together = rv.tune(make, over, problem, trials_at_once=3, progress=lambda *report: done.append(report[1]),
                       **settings)
    assert not simulated
    assert set(single.table["steps"]) == {1, 2}
    gaps = single.table["gap"].to_numpy()
    np.testing.assert_allclose(together.table["gap"], gaps, rtol=1e-9, atol=1e-15 * gaps.max())
    assert together.table.drop(columns="gap").equals(single.table.drop(columns="gap"))
    assert done == sorted(done)
    assert done[-1] == single.rounds_spent["run"]


@pytest.mark.nightly
def test_runs_side_by_side_measure_what_single_runs_measure():
    """Parties' models, metrics at every evaluation, bytes and states."""
    data, model = rv.datasets.digits(parties=3, classes_per_party=4, seed=0), rv.models.logistic(64, 10)
    algorithms = [rv.fedavg_plus(rv.SGD(rate, batch_size=20), sigma=0.1) for rate in (0.01, 0.1)]
    options = {"participation": rv.participation.Uniform(cohort=2), "evaluate_every": 2, "seed": 5,
               "metrics": [rv.metrics.ROCAUC()]}
    together = simulate_together(algorithms, model, data, rounds=4, **options)
    for algorithm, result in zip(algorithms, together, strict=True):
        single = rv.simulate(algorithm, model, data, rounds=4, progress=False, **options)
        columns = [column for column in single.metrics if column != "value"]
        assert result.metrics[columns].equals(single.metrics[columns])
        np.testing.assert_allclose(result.metrics["value"], single.metrics["value"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(result.personal_model(1)["weight"], single.personal_model(1)["weight"], rtol=1e-9,
                                   atol=1e-12)
        assert result.facts["bytes"] == single.facts["bytes"]
    with pytest.raises(InputError, match="differ in more than traced numbers"):
        simulate_together([algorithms[0], rv.fedavg(rv.SGD(0.1))], model, data, rounds=1)


def test_optuna_proposes_one_trial_at_a_time(problem):
    with pytest.raises(InputError, match="trials_at_once=2: Optuna proposes"):
        rv.tune(fedavg, RATE, problem, rounds=1, strategy="optuna", trials_at_once=2)


SPACE = {"a": read_space({"low": 1e-3, "high": 1, "scale": "log"}, "a"),
         "b": read_space({"low": -1, "high": 1}, "b"), "n": read_space({"low": 1, "high": 4, "whole": True}, "n"),
         "c": read_space(["x", "y", "z"], "c")}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [1, 2, 6, 16, 37])
def test_draws_fill_the_strata_of_every_parameter(count, seed):
    """One of n numbers in each of n equal parts, and choices that are balanced to within one."""
    points = draw_points(SPACE, seed, count)
    assert len(points) == count
    shares = {"a": [1 + math.log10(p["a"]) / 3 for p in points], "b": [(p["b"] + 1) / 2 for p in points]}
    for of_parameter in shares.values():
        gaps = np.diff(np.sort(of_parameter))
        np.testing.assert_allclose(gaps, 1 / count, atol=2e-3)  # equal distances; four digits are stored
        assert 0 <= min(of_parameter) <= 1 / count + 1e-3
        assert 1 - 1 / count - 1e-3 <= max(of_parameter) <= 1
    for name, choices in {"n": (1, 2, 3, 4), "c": ("x", "y", "z")}.items():
        counts = [sum(p[name] == value for p in points) for value in choices]
        assert sum(counts) == count
        assert max(counts) - min(counts) <= 1


def test_draws_follow_from_the_seed_and_combine_the_values_evenly():
    points = draw_points(SPACE, 0, 16)
    assert points == draw_points(SPACE, 0, 16) != draw_points(SPACE, 1, 16)
    shared = draw_points({"mu": SPACE["b"], "a": SPACE["a"]}, 0, 16)
    assert sorted(p["a"] for p in shared) == sorted(p["a"] for p in points)  # in every method that has the parameter
    cells = {(int(4 + 4 * math.log10(p["a"]) / 3), int(2 * (p["b"] + 1))) for p in points}
    assert len(cells) >= 12  # independent draws fill 10.3 of 16 cells on average
    assert draw_points({}, 0, 2) == [{}, {}]


@pytest.mark.parametrize(("values", "message"), [
    ([], "empty"), (3, "neither a list nor a range"), ({"low": 1, "high": 0.1}, "low less than high"),
    ({"low": 0, "high": 1, "scale": "log"}, "must be positive"), ({"low": 0, "hihg": 1}, "did you mean 'high'"),
    ({"low": 0, "high": 1, "scale": "ln"}, "linear or log"),
])
def test_wrong_spaces_are_refused(values, message):
    with pytest.raises(InputError, match=f"mu: .*{message}"):
        read_space(values, "mu")


def test_every_method_has_the_same_budget(problem):
    makes = {"FedAvg": fedavg, "FedProx": lambda rate, mu: rv.fedprox(rv.solvers.GD(rate, steps=1), mu=mu)}
    over = {"*": {"rate": [0.1, 0.4]}, "FedProx": {"mu": [0.0, 0.1]}}
    with pytest.raises(InputError, match=r"FedAvg 2, FedProx 4 trials.*set trials: 2"):
        rv.tune(makes, over, problem, rounds=1, strategy="grid")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tuned = rv.tune(makes, over, problem, rounds=1, strategy="grid", trials=2)
    assert {str(warning.message).partition(",")[0].partition(" that")[0] for warning in warned} == {
        "FedAvg: the chosen rate = 0.4 is the largest", "FedProx: the chosen rate = 0.4 is the largest"}
    assert tuned.rounds_spent == {"FedAvg": 2, "FedProx": 2}
    assert set(tuned.algorithms) == {"FedAvg", "FedProx"}


@pytest.mark.parametrize("sizes", [(7,), (3, 3), (6, 2), (2, 3, 5), (3, 3, 3, 2), (8, 8)])
def test_a_part_of_a_grid_is_balanced(sizes):
    """Different combinations, of which each value of each parameter has floor or ceil of its share."""
    space = {f"p{i}": Choices(tuple(range(size))) for i, size in enumerate(sizes)}
    everything = combinations(space, "over")
    for count in range(1, len(everything) + 1):
        points = draw_combinations(space, count, count, "over")
        assert [p for p in everything if p in points] == points
        assert len(points) == count
        for name, size in zip(space, sizes, strict=True):
            numbers = np.bincount([point[name] for point in points], minlength=size)
            assert count // size <= numbers.min() <= numbers.max() <= -(-count // size)


def test_a_part_of_a_grid_does_not_clump():
    """Eight of 8 x 8: a row and a column each, and each quarter of the grid has two, as of a Sobol sequence."""
    space = {name: Choices(tuple(range(8))) for name in "ab"}
    for seed in range(5):
        points = draw_combinations(space, seed, 8, "over")
        assert Counter((p["a"] // 4, p["b"] // 4) for p in points) == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)], 2)
    assert draw_combinations(space, 0, 8, "over") != draw_combinations(space, 1, 8, "over")


def test_search_in_which_all_trainings_diverge_says_so(problem):
    with pytest.raises(InputError, match="the training of each diverged; search smaller learning rates"):
        rv.tune(fedavg, {"rate": [1e30]}, problem, rounds=6, strategy="grid").best  # noqa: B018


TEXT = """
data: {name: digits, parties: 3, classes_per_party: 4, seed: 1}
model: logistic
solver: {name: SGD, learning_rate: 0.05, epochs: 1}
algorithms: {Alone: local, FedProx: fedprox, Fixed: fedavg}
rounds: 2
search:
  over: {Alone: {solver.learning_rate: [0.01, 1.0]}, FedProx: {solver.learning_rate: [0.001, 0.5]}}
  strategy: grid
  per_site: true
"""


@pytest.fixture(scope="module")
def tuned_file(tmp_path_factory):
    with pytest.warns(UserWarning, match="the chosen solver.learning_rate = .* that was tried: search"):
        return tune_file(ExperimentFile.parse(TEXT, "mine.yaml", "mine"), tmp_path_factory.mktemp("runs") / "mine")


@pytest.mark.when_changed
def test_file_search_is_that_of_separate_runs(tuned_file):
    """The scores of the trials, the choice of all parties together and that of each party."""
    _, tuned = tuned_file
    experiment = ExperimentFile.parse(TEXT, "mine.yaml", "mine").build()
    sizes = experiment.data.sizes("validation")
    for i, rate in enumerate([0.01, 1.0]):
        result = rv.simulate(rv.local(rv.SGD(rate, epochs=1)), experiment.model, experiment.data, rounds=2, seed=1000,
                             evaluate_every=2, progress=False)
        scores = result.scores("validation").iloc[-1].to_numpy()
        trial = tuned.trials["Alone"][i]
        assert trial.reading.score == pytest.approx(np.average(scores, weights=sizes))
        np.testing.assert_allclose(list(trial.reading.of_parties.values()), scores)
    for party, trial in tuned.best_of_parties["Alone"].items():
        of_party = [t.reading.of_parties[party] for t in tuned.trials["Alone"]]
        assert trial.number == 1 + int(np.argmax(of_party))
    table = party_table(tuned)
    assert set(table["party"]) == set(experiment.parties)
    assert (table["test common"] <= 1).all()


@pytest.mark.when_changed
def test_folder_has_the_table_the_page_and_an_experiment_with_the_chosen_values(tuned_file):
    folder, tuned = tuned_file
    assert {path.name for path in folder.iterdir()} == {"trials.csv", "parties.csv", "tuning.html", TUNED_FILE,
                                                        "trials"}
    page = (folder / "tuning.html").read_text()
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", "").replace("https://matplotlib.org", "")
    chosen = ExperimentFile.load(str(folder / TUNED_FILE))
    solver = chosen.bound.parts["algorithms"]["Alone"].parts["solver"]
    assert solver.values["learning_rate"] == tuned.best["Alone"].point["solver.learning_rate"]
    assert "solver" not in chosen.bound.parts["algorithms"]["Fixed"].parts
    assert chosen.bound.values["search"] is None
    assert chosen.bound.values["folds"] == 1  # rows that the search has read are tested in no fold


@pytest.mark.parametrize(("change", "message"), [
    ("search.over={Alon: {solver.epochs: [1]}}", r"search.over.Alon: there is no algorithm 'Alon'.*'Alone'"),
    ("search.over={Alone: {mu: [1]}}", r"algorithms.Alone.mu: unknown key"),
    ("search.over={Alone: {solver.learning_rate: {low: 1}}}", r"search.over.Alone.solver.learning_rate: low=1"),
    ("search.over={Alone: {solver.learning_rate: {low: 1, high: 2}}}", "a grid needs a list"),
    ("search.trials=0", r"search: .*trials=0 must be at least 1"),
    ("search.by=auc", r"decide_by: there is no metric 'auc'"),
    ("data.validation=0", "no party has validation samples"),
    ("search=null", "search: missing; state what is searched"),
])
def test_mistakes_in_a_file_are_refused_before_the_first_round(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        tune_file(ExperimentFile.parse(TEXT, "mine.yaml", "mine", [change]), tmp_path / "out")


def test_a_search_with_a_privacy_budget_is_refused(tmp_path):
    text = ("data: {name: digits, parties: 2, validation: 0.2}\nmodel: logistic\nrounds: 2\n"
            "solver: {name: DPSGD, learning_rate: 0.1}\nalgorithms: {FedAvg: fedavg}\nprivacy: {delta: 1e-5}\n"
            "search: {over: {FedAvg: {solver.learning_rate: [0.1, 1.0]}}}\n")
    with pytest.raises(InputError, match=r"mine.yaml:6: privacy: a search cannot keep a budget: every trial.*spends"):
        tune_file(ExperimentFile.parse(text, "mine.yaml", "mine"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.when_changed
def test_used_folder_is_kept(tuned_file):
    with pytest.raises(InputError, match="exists: continue the search with --resume"):
        tune_file(ExperimentFile.parse(TEXT, "mine.yaml", "mine"), tuned_file[0])


@nightly.parametrize("pruner", ["hyperband", "median", "none"])
def test_optuna_proposes_within_the_budget_and_is_repeatable(problem, simulated, tmp_path, pruner):
    pytest.importorskip("optuna")

    def search(folder):
        return rv.tune(fedavg, RATE, problem, rounds=5, strategy="optuna",
                       trials=6, pruner=pruner, folder=folder)

    tuned = search(tmp_path / "a")
    assert rounds_run(simulated) == tuned.rounds_spent["run"] <= 30
    assert len(tuned.table) >= 6
    assert gap(tuned.point["rate"]) < gap(0.2)
    again = search(None)
    assert again.table.equals(tuned.table)
    simulated.clear()
    assert search(tmp_path / "a").table.equals(tuned.table)
    assert not simulated


@pytest.mark.when_changed
@pytest.mark.filterwarnings("ignore:.* that was tried")
def test_every_sampler_and_pruner_of_optuna_spends_the_budget_and_finds_a_good_rate(problem, monkeypatch):
    optuna = pytest.importorskip("optuna")
    tables = {}
    for sampler, pruner in [*itertools.product(["tpe"], ["none", "median", "halving", "hyperband"]),
                            ("gp", "none"), ("cmaes", "none"), ("random", "none")]:
        if sampler == "gp" and not find_spec("torch"):
            continue
        tuned = rv.tune(fedavg, RATE, problem, rounds=10, strategy="optuna", trials=6, sampler=sampler, pruner=pruner)
        assert 50 < tuned.rounds_spent["run"] <= 60
        if pruner in ("none", "halving"):  # the others need more trials before they stop one
            assert (pruner == "none") == tuned.table["complete"].all()
        assert tuned.table["gap"].min() < 1e-3
        tables[sampler, pruner] = tuple(tuned.table["rate"])
    assert tables["cmaes", "none"] != tables["tpe", "none"] == tables["random", "none"]  # TPE begins with random ones
    assert len(tables["tpe", "halving"]) > 6  # the rounds that a pruner saves are used

    def fail(**options):
        raise ImportError("no cmaes")

    monkeypatch.setattr(optuna.samplers, "CmaEsSampler", fail)
    with pytest.raises(InputError, match=r"sampler: Optuna's cmaes needs another package .*no cmaes"):
        rv.tune(fedavg, RATE, problem, rounds=1, strategy="optuna", sampler="cmaes")


def test_missing_optuna_is_named(problem, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'resolvent\[optuna\]'"):
        rv.tune(fedavg, RATE, problem, rounds=1, strategy="optuna")


@pytest.mark.when_changed
def test_sweep_is_the_runs_of_each_value_with_one_program(problem):
    algorithm = rv.fedprox(rv.solvers.GD(0.1, steps=4), mu=0.5)
    before = compiled_programs()
    runs = rv.sweep(algorithm, problem, rounds=2, mu=[0.0, 1.0], learning_rate=[0.1, 0.2])
    assert compiled_programs() - before <= 1
    assert runs.table[["mu", "learning_rate"]].to_numpy().tolist() == [[0, 0.1], [0, 0.2], [1, 0.1], [1, 0.2]]
    alone = rv.simulate(rv.fedprox(rv.solvers.GD(0.2, steps=4), mu=1.0), problem, rounds=2, progress=False)
    assert runs.results[3].digest == alone.digest
    assert runs.table["gap"].iloc[3] == alone.metrics.query("metric == 'gap'")["value"].iloc[-1]
    assert len(runs.plot().axes[0].lines) == 2
    together = rv.sweep(algorithm, problem, rounds=2, mu=[0.0, 1.0], learning_rate=[0.1, 0.2], trials_at_once=3)
    np.testing.assert_allclose(together.table["gap"], runs.table["gap"], rtol=1e-9)
    assert not math.isnan(runs.table["gap"].sum())


def test_several_jobs_have_the_results_of_one(problem):
    """Each trial and each run is the same to the last bit, in double precision also in other threads."""
    tuned = [rv.tune(fedavg, {"rate": [0.1, 0.3, 0.5, 0.7]}, problem, rounds=2, strategy="grid", seeds=2, jobs=jobs,
                     scheduler="sequential") for jobs in (1, 3)]
    assert tuned[0].table.equals(tuned[1].table)
    reports = []
    swept = [rv.sweep(fedavg(0.1), problem, rounds=2, learning_rate=[0.1, 0.2, 0.3], jobs=jobs,
                      progress=lambda *counts: reports.append(counts)) for jobs in (1, 2)]
    assert [r.digest for r in swept[0].results] == [r.digest for r in swept[1].results]
    assert reports[-1] == (6, 6)


@pytest.mark.parametrize(("settings", "message"), [
    ({"strategy": "optuna", "jobs": 2}, "leave jobs out"), ({"trials_at_once": 2, "jobs": 2}, "leave jobs out"),
    ({"jobs": 0}, "jobs=0"), ({"sheduler": "lanes"}, "not a setting of its runs.*scheduler"),
    ({"trials_at_once": 2, "memory": "host"}, "leave trials_at_once out"),
])
def test_jobs_and_settings_that_a_search_cannot_have_are_refused(problem, settings, message):
    with pytest.raises(InputError, match=message):
        rv.tune(fedavg, {"rate": [0.1, 0.2]}, problem, rounds=1, **settings)


@pytest.mark.parametrize(("values", "message"), [
    ({"muu": [1]}, "no such number; it has .*solver.learning_rate.*did you mean 'mu'"), ({"mu": 1.0}, "must be a list"),
    ({"mu": [-1.0]}, "mu=-1"), ({}, "name a number of the algorithm"),
])
def test_wrong_sweeps_are_refused(problem, values, message):
    with pytest.raises(InputError, match=message):
        rv.sweep(rv.fedprox(rv.solvers.GD(0.1, steps=4)), problem, rounds=1, **values)


@pytest.mark.nightly
def test_sweep_takes_the_settings_of_simulate(capfd):
    """A run of a sweep is the run of simulate with the same settings; the progress is that of all runs."""
    data, model, calls = rv.datasets.digits(parties=3), rv.models.logistic(64, 10), []
    settings = {"rounds": 2, "evaluate_every": 1, "diagnostics": ["model_change"], "metrics": [rv.metrics.LogLoss()],
                "participation": rv.participation.Dropout(0.2, rv.participation.Stragglers(parties=[0])),
                "start": rv.models.logistic(64, 10).init(jax.random.key(5))}
    runs = rv.sweep(rv.fedavg(rv.SGD(0.1, epochs=1)), model, data, learning_rate=[0.1, 0.2], **settings,
                    progress=lambda done, total: calls.append((done, total)))
    alone = rv.simulate(rv.fedavg(rv.SGD(0.2, epochs=1)), model, data, **settings, progress=False)
    assert runs.results[1].digest == alone.digest
    assert set(runs.results[1].metrics["metric"]) == set(alone.metrics["metric"]) > {"model_change", "log_loss"}
    assert calls[-1] == (4, 4)
    rv.sweep(rv.fedavg(rv.SGD(0.1, epochs=1)), model, data, rounds=1, learning_rate=[0.1], progress=False)
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match=r"sweep\(start=.*leave trials_at_once out"):
        rv.sweep(rv.fedavg(rv.SGD(0.1)), model, data, learning_rate=[0.1], **settings, trials_at_once=2)
