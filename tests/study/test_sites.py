"""Judgements of sites and decisions, from values of test rows that need no training."""

import numpy as np
import pandas as pd
import pytest

from resolvent.errors import InputError
from resolvent.problem.metrics import ROCAUC
from resolvent.problem.metrics.influences import influences
from resolvent.problem.metrics.metric import Predictions
from resolvent.study.row_values import RowValues
from resolvent.study.sites import Evidence, judge_sites
from resolvent.study.verdict import judge


def evidence(values, *, validation=None, score="accuracy", higher=True, alone="alone", seeds=(0,), baseline=None):
    """From {method: [sites, S, n] values of test rows} and {method: [sites, S] validation scores}."""
    first = next(iter(values.values()))
    sites, number, n = first.shape
    party, seed, row = (a.ravel() for a in np.meshgrid(np.arange(sites), np.array(seeds), np.arange(n), indexing="ij"))
    rows = RowValues(seed, party, row, {m: v.ravel().astype(float) for m, v in values.items()})
    table = []
    for method, v in values.items():
        if method == baseline:
            continue
        for k in range(sites):
            for s in range(number):
                table.append((method, 3, k, "test", score, v[k, s].mean(), seeds[s]))
                if validation is not None:
                    table.append((method, 3, k, "validation", score, validation[method][k][s], seeds[s]))
                    table.append((method, 2, k, "validation", score, 99.0, seeds[s]))  # an earlier round
    metrics = pd.DataFrame(table, columns=["method", "round", "party", "split", "metric", "value", "seed"])
    return Evidence(score, "test", higher, tuple(m for m in values if m != baseline), alone,
                    [f"site {k}" for k in range(sites)], metrics, tuple(seeds), rows, baseline)


def rows_with(correct, n):
    """[1, 1, n] with this number of ones."""
    return (np.arange(n) < correct)[None, None].astype(float)


def test_better_is_said_where_the_interval_excludes_zero():
    values = {"alone": rows_with(50, 100), "A": rows_with(80, 100), "B": rows_with(52, 100), "C": rows_with(20, 100)}
    verdict = judge(evidence(values))
    counts = verdict.table.set_index("method")[["better", "level", "worse"]]
    assert counts.loc["A"].tolist() == [1, 0, 0]
    assert counts.loc["B"].tolist() == [0, 1, 0]
    assert counts.loc["C"].tolist() == [0, 0, 1]
    assert counts.loc["alone"].tolist() == [0, 1, 0]
    gain = verdict.sites.sites[0].gains["A"]
    assert gain.value == pytest.approx(0.3)
    assert 0.2 < gain.low < 0.3 < gain.high < 0.4
    assert verdict.finding.startswith("Of 1 site, 1 is better off than alone with A; 1 is worse off than alone with C; "
                                      "A and B make no site distinguishably worse; A has the best mean")


def test_with_few_rows_nothing_can_be_said():
    verdict = judge(evidence({"alone": rows_with(0, 4), "A": rows_with(4, 4)}, validation={"alone": [[0]],
                                                                                           "A": [[1]]}))
    assert verdict.finding.startswith("No method can be distinguished from training alone at the only site, with 4 "
                                      "test rows per site; A has the best mean over the sites (100.0% accuracy; +100.0")
    assert verdict.finding.endswith("over alone, not distinguishable from training alone).")
    site = verdict.sites.sites[0]
    assert site.has_few_rows
    assert site.decision[:3] == ("alone", "A", 1)


def test_decisions_are_chosen_on_validation_rows_and_judged_on_test_rows():
    values = {"alone": np.zeros((3, 1, 60)), "A": np.ones((3, 1, 60)), "B": np.zeros((3, 1, 60))}
    validation = {"alone": [[0.5], [0.5], [0.5]], "A": [[0.9], [0.1], [0.5]], "B": [[0.1], [0.9], [0.5]]}
    frame = judge(evidence(values, validation=validation)).recommendations().set_index("site")
    assert frame["use"].tolist() == ["A", "alone", "alone"]
    assert frame["chosen"].tolist() == ["A", "B", "alone"]  # a tie goes to training alone
    assert frame["gain"].tolist() == [1.0, 0.0, 0.0]
    assert frame.loc["site 0", "low"] > 0.8
    assert frame.loc["site 1", "low"] < 0 < frame.loc["site 1", "high"]
    assert (frame["test_rows"] == 60).all()


def test_every_seed_chooses_for_itself():
    """The gain is that of each seed's own choice; the method is that of most seeds."""
    values = {"alone": np.zeros((1, 3, 60)), "A": np.ones((1, 3, 60)), "B": np.ones((1, 3, 60)) * 0}
    validation = {"alone": [[0.5] * 3], "A": [[0.9, 0.9, 0.1]], "B": [[0.1, 0.1, 0.9]]}
    site, = judge_sites(evidence(values, validation=validation, seeds=(0, 1, 2))).sites
    assert (site.decision.chosen, site.decision.chosen_in) == ("A", 2)
    assert site.decision.gain.value == pytest.approx(2 / 3)


def test_without_validation_rows_no_method_is_chosen():
    site, = judge_sites(evidence({"alone": rows_with(0, 50), "A": rows_with(50, 50)})).sites
    assert site.decision[:3] == ("alone", None, 0)


def test_where_less_is_better_a_gain_is_less():
    rng = np.random.default_rng(0)
    values = {"alone": 1 + rng.random((1, 1, 80)), "A": rng.random((1, 1, 80))}
    verdict = judge(evidence(values, score="squared_error", higher=False,
                             validation={"alone": [[1.0]], "A": [[0.1]]}))
    gain = verdict.sites.sites[0].gains["A"]
    assert gain.value == pytest.approx((values["alone"] - values["A"]).mean())
    assert gain.sign == 1
    assert verdict.recommendations()["use"].tolist() == ["A"]


def test_a_diverged_method_is_worse_and_two_are_level():
    values = {"alone": np.ones((1, 1, 30)), "A": np.full((1, 1, 30), np.inf), "B": np.full((1, 1, 30), 0.5)}
    verdict = judge(evidence(values, score="squared_error", higher=False))
    site = verdict.sites.sites[0]
    assert site.gains["A"] == (-np.inf, -np.inf, -np.inf)
    assert verdict.table.set_index("method").loc["A", "worse"] == 1
    assert verdict.sites.means is None
    both = {"alone": values["A"], "A": values["A"]}
    assert judge_sites(evidence(both, score="squared_error", higher=False)).sites[0].gains["A"].value == 0


def test_means_are_plain_and_weighted_by_rows():
    rows = RowValues(np.zeros(110, int), np.repeat([0, 1], [10, 100]), np.arange(110),
                     {"alone": np.zeros(110), "A": np.repeat([1.0, 0.0], [10, 100])})
    metrics = evidence({"alone": np.zeros((2, 1, 1)), "A": np.zeros((2, 1, 1))}).metrics
    means = judge_sites(Evidence("accuracy", "test", True, ("alone", "A"), "alone", ["a", "b"], metrics, (0,),
                                 rows)).means
    assert means.plain["A"].value == pytest.approx(0.5)
    assert means.weighted["A"].value == pytest.approx(10 / 110)
    assert means.plain_gains["A"].value == pytest.approx(0.5)


def test_a_null_comparison_is_not_distinguishable():
    """Six equal methods at 60 sites: about 5 % of the gains, and few decisions, are distinguishable from zero."""
    rng = np.random.default_rng(0)
    difficulty = rng.random((60, 1, 80))
    values = {m: (difficulty + 0.3 * rng.normal(size=(60, 1, 80)) > 0.4).astype(float)
              for m in ("alone", *"ABCDE")}
    validation = {m: rng.random((60, 1)) for m in values}
    verdict = judge(evidence(values, validation=validation))
    signs = np.array([[gain.sign for gain in site.gains.values()] for site in verdict.sites.sites])
    assert 0.01 <= (signs != 0).mean() <= 0.08
    assert (verdict.recommendations()["use"] != "alone").mean() <= 0.1
    assert all(abs(gain.value) < 0.03 for gain in verdict.sites.means.plain_gains.values())


def test_scores_of_several_seeds_alone_are_paired():
    """Prices have no rows: the interval is Student's over the seeds, of differences."""
    values = {"alone": np.arange(5.0)[None, :, None], "A": np.arange(5.0)[None, :, None] + 0.1}
    made = evidence(values, seeds=range(5), score="wealth")
    without = Evidence("wealth", "test", True, made.methods, "alone", made.parties, made.metrics, made.seeds)
    site, = judge_sites(without).sites
    assert site.gains["A"] == pytest.approx((0.1, 0.1, 0.1))
    assert site.scores["A"].high - site.scores["A"].low > 3


def test_recommendations_need_training_alone_and_intervals():
    with pytest.raises(InputError, match=r"add rv\.local"):
        judge(evidence({"A": rows_with(3, 9)}, alone=None)).recommendations()
    made = evidence({"alone": rows_with(3, 9), "A": rows_with(3, 9)})
    without = Evidence("accuracy", "test", True, made.methods, "alone", made.parties, made.metrics, (0,))
    with pytest.raises(InputError, match="several seeds"):
        judge(without).recommendations()


def test_rows_are_written_and_read(tmp_path):
    rows = evidence({"alone": rows_with(3, 9), "seed": rows_with(4, 9)}).rows
    rows.write(tmp_path / "rows.parquet")
    again = RowValues.read(tmp_path / "rows.parquet")
    assert list(again.values) == ["alone", "seed"]
    assert (again.values["seed"] == rows.values["seed"]).all()
    assert (again.row == rows.row).all()


def test_pseudo_values_have_the_mean_and_the_variance_of_the_metric():
    """The variance of the area under the ROC curve, against that of resampled areas."""
    rng = np.random.default_rng(0)
    labels = rng.random(120) < 0.4
    positive = 1 / (1 + np.exp(-(labels + rng.normal(size=120))))
    probabilities = np.stack([1 - positive, positive], axis=1)
    metric = ROCAUC()

    def area(index):
        return metric.value(Predictions(labels[index].astype(int), positive[index] > 0.5, probabilities[index],
                                        probabilities[index]))

    everything = np.arange(120)
    values = influences(Predictions(labels.astype(int), positive > 0.5, probabilities, probabilities), metric)
    assert values.mean() == pytest.approx(area(everything))
    resampled = np.std([area(rng.integers(120, size=120)) for _ in range(300)])
    assert values.std() / np.sqrt(120) == pytest.approx(resampled, rel=0.25)
