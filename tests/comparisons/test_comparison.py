"""Tables and findings from given metrics, and the common random numbers of a comparison."""

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.judgement.verdict import finding, score_table
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.errors import InputError


def table_of(scores, *, score="accuracy", higher=True, alone=None):
    """The score table of {method: values per party} or {method: (values, shared model's values)}."""
    rows = []
    for method, values in scores.items():
        personal, shared = values if isinstance(values, tuple) else (values, [])
        for metric, of_metric in ((score, personal), (f"global_{score}", shared)):
            for k, value in enumerate(of_metric):
                rows.append((method, 5, k, "test", metric, value))
                # The table must not use earlier rounds, other splits or other metrics.
                rows += [(method, 4, k, "test", metric, -7.0), (method, 5, k, "train", metric, -8.0),
                         (method, 5, k, "test", "loss", -9.0)]
    metrics = pd.DataFrame(rows, columns=["method", "round", "party", "split", "metric", "value"])
    return score_table(metrics, list(scores), score, higher_is_better=higher, alone=alone).set_index("method")


def sentence(scores, *, score="accuracy", higher=True, alone=None):
    return finding(table_of(scores, score=score, higher=higher, alone=alone).reset_index(), score, alone,
                   higher_is_better=higher)


ALONE = [0.5, 0.6, 0.7, 0.8]


def test_scores_over_parties():
    table = table_of({"alone": ALONE, "A": ([0.5, 0.7, 0.6, 0.9], [0.1, 0.2, 0.3, 0.4])}, alone="alone")
    a = table.loc["A"]
    assert a["mean"] == pytest.approx(0.675)
    assert a["p10"] == pytest.approx(np.quantile([0.5, 0.7, 0.6, 0.9], 0.1))
    assert a["worst"] == 0.5
    assert (a["global mean"], a["global p10"], a["global worst"]) == pytest.approx((0.25, 0.13, 0.1))
    assert (a["better"], a["level"], a["worse"]) == (2, 1, 1)
    assert table.loc["alone", ["better", "level", "worse"]].tolist() == [0, 4, 0]
    assert table.loc["alone", ["global mean", "global p10", "global worst"]].isna().all()
    assert list(table.index) == ["alone", "A"]


def test_scores_where_less_is_better():
    table = table_of({"alone": [1.0, 2.0, 3.0], "A": ([0.5, 2.0, 4.0], [1.0, 2.0, 11.0])}, score="squared_error",
                     higher=False, alone="alone")
    a = table.loc["A"]
    assert (a["mean"], a["worst"]) == pytest.approx((6.5 / 3, 4.0))
    assert a["p10"] == pytest.approx(np.quantile([0.5, 2, 4], 0.9))
    assert a["global worst"] == 11
    assert (a["better"], a["level"], a["worse"]) == (1, 1, 1)


def test_without_local_training_nobody_is_better_or_worse():
    assert list(table_of({"A": ALONE, "B": ALONE}).columns) == [
        "mean", "p10", "worst", "global mean", "global p10", "global worst"]


@pytest.mark.parametrize(("higher", "broken"), [(True, np.nan), (False, np.nan), (False, np.inf)])
def test_diverged_model_is_the_worst_there_can_be(higher, broken):
    table = table_of({"alone": [broken, 2.0, 2.0, broken], "A": [2.0, broken, 2.0, broken]}, higher=higher,
                     alone="alone")
    a = table.loc["A"]
    assert (a["better"], a["level"], a["worse"]) == (0, 1, 1)  # no gain where alone diverged
    assert not np.isfinite(a["mean"])
    assert not np.isfinite(a["worst"])
    assert np.isfinite(table_of({"A": [broken] + [1.0] * 19}, higher=higher).loc["A", "p10"])


def test_one_diverged_party_of_many_counts():
    table = table_of({"good": [3.0] * 4, "broken": [0.1, 0.1, 0.1, np.nan]}, score="squared_error", higher=False)
    text = finding(table.reset_index(), "squared_error", None, higher_is_better=False)
    assert text.startswith("good gives the parties the best models on average (squared error 3)")


def test_finding_names_who_loses_and_who_does_not():
    scores = {"alone": ALONE, "A": [0.9, 0.1, 0.1, 0.8], "B": [0.6, 0.6, 0.7, 0.8], "C": [0.4, 0.9, 0.9, 0.9],
              "D": ALONE}
    assert sentence(scores, alone="alone") == (
        "Of 4 parties, 2 are worse off than alone with A and 1 with C; B and D leave none worse off; "
        "C gives the parties the best models on average (77.5% accuracy).")


def test_finding_where_all_are_harmful():
    scores = {"A": [0.4, 0.9, 0.9, 0.9], "alone": ALONE, "B": [0.4, 0.5, 0.6, 0.7], "C": [0.4, 0.6, 0.7, 0.8]}
    assert sentence(scores, alone="alone") == (
        "Of 4 parties, 4 are worse off than alone with B, 1 with A and 1 with C; "
        "A gives the parties the best models on average (77.5% accuracy).")


def test_finding_where_one_is_harmful_to_one():
    assert sentence({"alone": ALONE, "A": [0.4, 0.7, 0.8, 0.9], "B": [0.5, 0.6, 0.7, 0.9]}, alone="alone") == (
        "Of 4 parties, 1 is worse off than alone with A; B leaves none worse off; "
        "A gives the parties the best models on average (70.0% accuracy).")


def test_finding_where_none_is_harmful():
    assert sentence({"alone": ALONE, "A": ALONE}, alone="alone") == (
        "No method leaves any party worse off than alone; "
        "alone gives the parties the best models on average (65.0% accuracy).")


def test_finding_where_less_is_better():
    scores = {"alone": [1.0, 2.0], "A": [3.0, 1.0], "B": [0.5, 1.0]}
    assert sentence(scores, score="squared_error", higher=False, alone="alone") == (
        "Of 2 parties, 1 is worse off than alone with A; B leaves none worse off; "
        "B gives the parties the best models on average (squared error 0.75).")


def test_finding_without_local_training():
    assert sentence({"A": [0.5], "B": [0.75]}) == (
        "B gives the parties the best models on average (75.0% accuracy); without local training among the methods, no "
        "comparison with training alone is possible.")


def test_finding_with_nothing_to_compare():
    assert sentence({"alone": ALONE}, alone="alone") == (
        "alone gives the parties the best models on average (65.0% accuracy); there is no other method to compare it "
        "with.")


def test_finding_keeps_the_order_of_the_file_where_methods_tie():
    scores = {"alone": [0.5, 0.5], "B": [0.4, 0.6], "A": [0.6, 0.4]}
    assert sentence(scores, alone="alone") == (
        "Of 2 parties, 1 is worse off than alone with B and 1 with A; "
        "alone gives the parties the best models on average (50.0% accuracy).")


# -------------------------------------------------------------------------------------------- common random numbers

def of_method(metrics, method):
    return metrics[metrics["method"] == method].drop(columns="method").reset_index(drop=True)


def cohorts(metrics, method):
    """The cohort of each round."""
    rows = metrics[(metrics["method"] == method) & (metrics["metric"] == "model_change")]
    return [tuple(sorted(group)) for _, group in rows.groupby("round")["party"]]


@pytest.fixture(scope="module")
def comparison(finished):
    """The small comparison again, in this process, so that its results are at hand."""
    return compare_file(ExperimentFile.load(str(finished.yaml)))


@pytest.mark.when_changed
def test_methods_share_one_copy_of_the_samples(comparison):
    """With one copy for each method, a search of a hundred methods on MNIST would exceed the memory."""
    assert len({id(result.problem) for result in comparison.results.values()}) == 1


@pytest.mark.when_changed
def test_methods_that_are_one_algorithm_give_identical_results(comparison):
    results = comparison.results
    first = of_method(comparison.metrics, "FedAvg+keep")
    for other in ("FedProx 0", "FedAvg once more"):
        pd.testing.assert_frame_equal(of_method(comparison.metrics, other), first, check_exact=True)
        assert results[other].digest == results["FedAvg+keep"].digest
    assert results["alone"].digest != results["FedAvg+keep"].digest


@pytest.mark.when_changed
def test_methods_meet_the_same_cohorts_and_first_models(comparison):
    metrics = comparison.metrics
    drawn = cohorts(metrics, "alone")
    assert len(drawn) == 4
    assert all(len(cohort) == 4 for cohort in drawn)
    assert len(set(drawn)) > 1  # cohorts of four of five parties differ from round to round
    assert cohorts(metrics, "FedProx 0") == drawn
    start = metrics[(metrics["round"] == 0) & ~metrics["metric"].str.startswith("global_")]
    assert len(of_method(start, "alone"))
    for metric, alike in (("loss", {"rtol": 1e-6}), ("accuracy", {"check_exact": True})):
        # A shared model is evaluated sample by sample, personal ones party by party: sums may be rounded differently.
        of_metric = start[start["metric"] == metric]
        pd.testing.assert_frame_equal(of_method(of_metric, "FedProx 0"), of_method(of_metric, "alone"), **alike)


@pytest.mark.when_changed
def test_stragglers_are_the_same_and_matter(comparison, finished):
    """Half of the cohort does part of its work; if it is dropped, the models differ."""
    dropped = compare_file(ExperimentFile.load(str(finished.yaml), [
        "algorithms={FedAvg: {name: fedavg, stragglers: drop}}"]))
    replies = dropped.metrics[dropped.metrics["metric"] == "replies"]["value"].tolist()
    assert replies == [2, 2, 2, 2]
    assert dropped.results["FedAvg"].digest != comparison.results["FedAvg+keep"].digest


def test_another_seed_draws_other_cohorts(comparison, finished):
    changes = ["seed=8", "algorithms={FedProx 0: {name: fedprox, mu: 0}}"]
    other = compare_file(ExperimentFile.load(str(finished.yaml), changes))
    assert cohorts(other.metrics, "FedProx 0") != cohorts(comparison.metrics, "FedProx 0")
    assert other.results["FedProx 0"].digest != comparison.results["FedProx 0"].digest


def test_local_training_is_known_by_its_algorithm_not_its_label(comparison, finished):
    assert comparison.alone == "alone"
    labels = ["algorithms={local: {name: fedavg, stragglers: keep}, on its own: local}"]
    assert compare_file(ExperimentFile.load(str(finished.yaml), labels)).alone == "on its own"


@pytest.mark.when_changed
def test_a_printed_comparison_is_the_finding_and_a_line_of_means_for_each_method(comparison):
    text = str(comparison)
    assert text.startswith(f"{comparison.finding}\n")
    head, *lines = text.removeprefix(f"{comparison.finding}\n").splitlines()
    assert len(lines) == len(comparison.results)
    last = comparison.metrics.query("metric == 'accuracy' and split == 'test' and round == 4")
    for label, of_method in last.groupby("method"):
        (line,) = [line for line in lines if line.strip().startswith(f"{label} ")]
        mean = line.split(label, 1)[1].split()[head.split().index("mean") - 1]
        assert float(mean) == pytest.approx(of_method["value"].mean(), abs=6e-4)


@pytest.mark.when_changed
def test_compare_takes_metrics_as_simulate_does():
    """A list of metrics, or a mapping; two of one name are refused."""
    data, model = rv.datasets.digits(parties=3), rv.models.logistic(64, 10)
    methods = {"alone": rv.local(rv.SGD(0.1, epochs=1))}
    comparison = rv.compare(methods, model, data, rounds=1, metrics=[rv.metrics.LogLoss()], progress=False)
    assert "log_loss" in set(comparison.metrics["metric"])
    with pytest.raises(InputError, match="two are named 'log_loss'"):
        rv.compare(methods, model, data, rounds=1, metrics=[rv.metrics.LogLoss()] * 2, progress=False)
