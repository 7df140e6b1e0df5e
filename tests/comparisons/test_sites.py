"""Judgements of sites and decisions, from values of test rows that need no training."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from resolvent.comparisons.judgement.convergence import Convergence
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.decisions import decide
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.site_judgement import plain_site
from resolvent.comparisons.judgement.sites import judge_sites
from resolvent.comparisons.judgement.verdict import judge
from resolvent.errors import InputError
from resolvent.federation.protocol.judgement import join_judgements, read_judgement
from resolvent.metrics import F1, ROCAUC, AveragePrecision, BalancedAccuracy, from_function
from resolvent.problem.metrics.metric import Predictions


def evidence(values, *, score="accuracy", higher=True, alone="alone", seeds=(0,), baseline=None):
    """From {method: [sites, S, n] values of test rows}, by which sites are advised."""
    first = next(iter(values.values()))
    sites, number, n = first.shape
    party, seed, row = (a.ravel() for a in np.meshgrid(np.arange(sites), np.array(seeds), np.arange(n), indexing="ij"))
    of = of_rows({m: np.asarray(v, float).ravel() for m, v in values.items()}, party, score, higher=higher, row=row,
                 seed=seed)
    table = [(method, 3, k, "test", score, v[k, s].mean(), seeds[s]) for method, v in values.items()
             for k in range(sites) for s in range(number) if method != baseline]
    metrics = pd.DataFrame(table, columns=["method", "round", "party", "split", "metric", "value", "seed"])
    return replace(of, methods=tuple(m for m in values if m != baseline), alone=alone, metrics=metrics,
                   seeds=tuple(seeds), baseline=baseline)


def of_rows(values, party, score="accuracy", *, higher=True, row=None, seed=None, classes=None):
    """From {method: [R] values of test rows} of these sites."""
    n = len(party)
    rows = RowValues(np.zeros(n, int) if seed is None else seed, party, np.arange(n) if row is None else row, values,
                     "rows" if classes is None else "classes", classes, labels=np.full(n, np.nan),
                     models={(m, "loss"): (2.0 - v if higher else v) for m, v in values.items()})
    metrics = pd.DataFrame(columns=["method", "round", "party", "split", "metric", "value", "seed"])
    return Evidence(score=score, split="test", higher_is_better=higher, methods=tuple(values), alone="alone",
                    parties=[f"site {k}" for k in range(party.max() + 1)], metrics=metrics, seeds=(0,), rows=rows,
                    decides=True)


def rows_with(correct, n):
    """[1, 1, n] with this number of ones."""
    return (np.arange(n) < correct)[None, None].astype(float)


def test_a_site_without_a_difference_on_few_rows_has_the_variance_of_the_others():
    """Of ten sites with the same share of different rows, one shows none by chance."""
    rng = np.random.default_rng(0)
    alone = rng.random((10, 1, 12)) < 0.5
    other = alone ^ (rng.random((10, 1, 12)) < 0.3)
    other[0] = alone[0]
    sites = judge(evidence({"alone": alone, "A": other})).sites.sites
    d = other[3, 0].astype(float) - alone[3, 0]
    assert sites[3].variances["A"] == pytest.approx(d.var(ddof=1) / 12)
    assert sites[0].variances["A"] == 0
    widths = [site.advice.own.high - site.advice.own.low for site in sites]
    assert widths[0] > 0.3 * np.median(widths)


@pytest.mark.parametrize("by_class", [False, True])
def test_the_advice_from_the_sites_messages_is_that_of_a_simulation(by_class):
    """The lead has no rows: it advises by what each site sends, here with all digits."""
    rng = np.random.default_rng(5)
    alone = (rng.random((9, 2, 25)) < 0.6).astype(float)
    values = {"alone": alone, "A": np.where(rng.random((9, 2, 25)) < 0.3, rng.random((9, 2, 25)) < 0.9, alone)}
    values["A"][0] = 0.0
    of = evidence(values, seeds=(0, 1))
    if by_class:
        of = replace(of, score="balanced_accuracy", metrics=of.metrics.replace("accuracy", "balanced_accuracy"),
                     rows=replace(of.rows, sampling="classes", classes=of.rows.row % 3))
    simulated = judge(of).sites.sites
    sent = [json.loads(json.dumps(plain_site(site))) for site in simulated]
    received = [read_judgement(site, k, site["name"], of.methods) for k, site in enumerate(sent)]
    at_lead = judge(replace(of, rows=None), join_judgements(received, of.methods, of.alone, is_share=True)).sites.sites
    assert [site.advice for site in at_lead] == [site.advice for site in simulated]
    assert len({site.advice.answer for site in at_lead}) > 1


@pytest.mark.parametrize("sampling", ["rows", "classes"])
def test_a_seed_that_tests_no_row_of_a_site_says_nothing_about_it(sampling):
    rng = np.random.default_rng(6)
    alone = (rng.random((3, 3, 30)) < 0.5).astype(float)
    of = evidence({"alone": alone, "A": (rng.random((3, 3, 30)) < 0.7).astype(float)}, seeds=(0, 1, 2))
    rows = replace(of.rows, sampling=sampling, classes=of.rows.row % 2)

    def judged(is_tested):
        return judge_sites(replace(of, rows=rows.chosen(is_tested)))

    everything, two_seeds, without = map(judged, (rows.seed < 3, rows.seed < 2, (rows.seed < 2) | (rows.party != 1)))
    assert without.sites == (everything.sites[0], two_seeds.sites[1], everything.sites[2])
    mean = without.means.plain_gains["A"]
    assert mean.value == pytest.approx(np.mean([site.gains["A"].value for site in without.sites]))
    assert mean.low < mean.value < mean.high


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
    assert verdict.finding.startswith("Run A: the only site should join. The expected mean gain over the sites is ")


def test_an_unclear_advice_names_what_would_settle_it():
    rng = np.random.default_rng(1)
    alone = (rng.random((3, 1, 60)) < 0.6).astype(float)
    method = alone.copy()
    method[0, 0, :30] = 1.0  # site 0 gains clearly; the others change by chance
    method[1:] = np.where(rng.random((2, 1, 60)) < 0.1, 1 - alone[1:], alone[1:])
    verdict = judge(evidence({"alone": alone, "A": method}))
    table, few = verdict.recommendations().set_index("site"), 0
    for site in verdict.sites.sites:
        settled = site.advice.settled_by
        assert table.loc[site.name, "settled_by"] == settled
        assert (settled != "") == (site.advice.answer == "unclear")
        if site.advice.reason == "few rows":
            few += 1
            assert settled == "more rows of this kind would not tell" or int(settled.split()[1].replace(",", "")) <= 600
    assert few


def test_with_few_rows_a_site_distinguishes_nothing():
    verdict = judge(evidence({"alone": np.array([[[0.0, 1, 0, 1]]]), "A": np.array([[[1.0, 1, 0, 1]]])}))
    site = verdict.sites.sites[0]
    assert site.has_few_rows
    assert site.gains["A"].sign == 0
    assert site.advice.answer == "unclear"
    assert verdict.finding == "No site should join: 1 site cannot tell: the advice is unclear."


def test_the_federation_runs_one_method_and_each_site_decides_by_its_gain():
    """All sites together prefer A; where A loses, a site stays alone."""
    rng = np.random.default_rng(0)
    gain = np.array([0.3, 0.3, 0.3, -0.4])
    alone = (rng.random((4, 1, 200)) < 0.5).astype(float)
    better = np.clip(alone + (rng.random((4, 1, 200)) < 2 * np.maximum(gain, 0)[:, None, None]), 0, 1)
    method = better * (rng.random((4, 1, 200)) >= 2 * np.maximum(-gain, 0)[:, None, None])
    verdict = judge(evidence({"alone": alone, "A": method, "B": alone}))
    frame = verdict.recommendations().set_index("site")
    assert verdict.sites.federation.method == "A"
    assert frame["use"].tolist() == ["A", "A", "A", "alone"]
    assert frame["advice"].tolist() == ["join", "join", "join", "stay alone"]
    assert (frame["expected_low"] <= frame["expected"]).all()
    assert frame["probability"].to_numpy() == pytest.approx([1, 1, 1, 0], abs=0.02)
    assert verdict.finding.startswith("Run A: 3 of 4 sites should join; site 3 should stay alone.")


def test_a_simpler_method_that_is_as_good_is_chosen():
    rng = np.random.default_rng(0)
    alone = (rng.random((8, 1, 100)) < 0.5).astype(float)
    values = {"alone": alone, **{name: np.maximum(alone, rng.random((8, 1, 100)) < 0.4) for name in "AB"}}
    of = evidence(values)
    assert judge(replace(of, traffic={"A": 10.0, "B": 20.0})).sites.federation.method == "A"
    assert judge(replace(of, traffic={"A": 20.0, "B": 10.0})).sites.federation.method == "B"
    assert judge(of).sites.federation.method == "A"  # the same traffic: the first
    of = evidence(values | {"B": np.ones_like(alone)})
    assert judge(replace(of, traffic={"A": 10.0, "B": 20.0})).sites.federation.method == "B"


def test_a_method_that_diverged_at_most_sites_is_not_chosen():
    rng = np.random.default_rng(0)
    alone = (rng.random((3, 1, 200)) < 0.5).astype(float)
    values = {"alone": alone, "A": np.ones_like(alone), "B": np.maximum(alone, rng.random((3, 1, 200)) < 0.6)}
    values["A"][1:] = -np.inf
    verdict = judge(evidence(values))
    assert verdict.sites.federation.method == "B"
    assert {site.advice.answer for site in verdict.sites.sites} == {"join"}


def test_without_convergence_only_the_advice_that_was_the_same_at_half_the_rounds_stands():
    rng = np.random.default_rng(0)
    alone = (rng.random((4, 1, 200)) < 0.5).astype(float)
    of = evidence({"alone": alone, "A": np.maximum(alone, rng.random((4, 1, 200)) < 0.6)})
    half = of.metrics.assign(round=1)
    half.loc[(half["method"] == "A") & (half["party"] == 2), "value"] -= 0.4  # there A has gained late
    of = replace(of, metrics=pd.concat([half, of.metrics]))
    convergence = {"alone": Convergence(has_converged=True), "A": Convergence(has_converged=False)}
    advice = [site.advice for site in decide(judge_sites(of), of, convergence).sites]
    assert [a.answer for a in advice] == ["join", "join", "unclear", "join"]
    assert (advice[2].reason, advice[2].settled_by) == ("not converged", "more rounds")
    settled = decide(judge_sites(of), of, convergence | {"A": Convergence(has_converged=True)})
    assert {site.advice.answer for site in settled.sites} == {"join"}


def test_a_method_on_pooled_rows_is_a_bound_that_no_federation_runs():
    values = {"alone": rows_with(100, 200), "pooled": rows_with(200, 200), "A": rows_with(160, 200)}
    of = replace(evidence(values), bounds=frozenset({"pooled"}))
    assert judge(replace(of, bounds=frozenset())).sites.federation.method == "pooled"
    assert judge(of).sites.federation.method == "A"
    only = replace(of, methods=("alone", "pooled"))
    assert judge(only).sites.federation is None


def test_small_sites_borrow_strength_and_an_outlier_keeps_its_loss():
    """Twenty sites with twelve rows each, of which few distinguish anything, and one that loses on 200 rows."""
    rng = np.random.default_rng(1)
    sizes = np.array([12] * 20 + [200])
    party = np.repeat(np.arange(21), sizes)
    alone = (rng.random(party.size) < 0.4).astype(float)
    gains, keeps = rng.random(party.size) < 0.6, rng.random(party.size) < 0.3
    method = np.where(party < 20, np.maximum(alone, gains), alone * keeps)
    of = of_rows({"alone": alone, "A": method}, party)
    decided = judge(of).sites.sites
    assert sum(site.gains["A"].sign > 0 for site in decided[:20]) <= 10
    assert sum(site.advice.answer == "join" for site in decided[:20]) >= 15
    assert decided[20].advice.answer == "stay alone"
    assert decided[20].advice.expected.high < 0


def test_the_cost_of_a_loss_moves_the_advice():
    rng = np.random.default_rng(0)
    alone = (rng.random((6, 1, 60)) < 0.6).astype(float)
    method = np.where(rng.random((6, 1, 60)) < 0.1, 1 - alone, alone)
    method[:, :, :4] = 1.0
    of = evidence({"alone": alone, "A": method})
    joins = [sum(s.advice.answer == "join" for s in judge(of, rule=DecisionRule(cost=cost)).sites.sites)
             for cost in (0.2, 2.0, 100.0)]
    assert joins[0] >= joins[1] >= joins[2]
    assert joins[0] > joins[2]
    with pytest.raises(InputError, match="cost"):
        DecisionRule(cost=0.0)


def test_a_site_without_both_classes_has_no_balanced_accuracy_and_its_advice_is_unclear():
    rng = np.random.default_rng(0)
    labels = (rng.random((6, 60)) < 0.3).astype(int)
    labels[5] = 0
    metric = BalancedAccuracy()
    values = {}
    for name, right in (("alone", 0.6), ("A", 0.9)):
        predicted = np.where(rng.random((6, 60)) < right, labels, 1 - labels)
        values[name] = np.concatenate([metric.row_values(Predictions(y, p, None, np.eye(2)[p]))
                                       for y, p in zip(labels, predicted, strict=True)])
    of = of_rows(values, np.repeat(np.arange(6), 60), "balanced_accuracy", classes=labels.ravel())
    decided = judge(of).sites.sites
    assert np.isnan(decided[5].scores["alone"].value)
    assert np.isnan(decided[5].gains["A"].value)
    assert (decided[5].advice.answer, decided[5].advice.reason) == ("unclear", "no evidence")
    assert {site.advice.answer for site in decided[:5]} == {"join"}


def test_where_less_is_better_a_gain_is_less():
    rng = np.random.default_rng(0)
    values = {"alone": 1 + rng.random((1, 1, 80)), "A": rng.random((1, 1, 80))}
    verdict = judge(evidence(values, score="squared_error", higher=False))
    gain = verdict.sites.sites[0].gains["A"]
    assert gain.value == pytest.approx((values["alone"] - values["A"]).mean())
    assert gain.sign == 1
    assert verdict.recommendations()["use"].tolist() == ["A"]


@pytest.mark.parametrize(("score", "low", "high"), [("brier_score", 0, 2), ("log_loss", 0, np.inf), ("r2", -np.inf, 1),
                                                    ("own_loss", -np.inf, np.inf)])
def test_intervals_stay_within_the_range_of_the_metric(score, low, high):
    """Three rows and three seeds with large differences: the noise of the seeds leaves the range."""
    at = high if np.isfinite(high) else low if np.isfinite(low) else 0.0
    values = {"alone": np.array([[[at] * 3, [0.9] * 3, [at] * 3]]), "A": np.array([[[at] * 3, [0.4] * 3, [at] * 3]])}
    sites = judge_sites(evidence(values, score=score, higher=False, seeds=(0, 1, 2)))
    site, means = sites.sites[0], sites.means
    scores = [*site.scores.values(), *means.plain.values(), *means.weighted.values()]
    gains = [site.gains["A"], means.plain_gains["A"]]
    assert all(low <= i.low <= i.value <= i.high <= high for i in scores)
    assert all(low - high <= i.low <= i.value <= i.high <= high - low for i in gains)
    if np.isfinite(low) or np.isfinite(high):
        assert any(i.low == low or i.high == high for i in scores)  # without the range they were beyond it


def test_a_metric_of_the_users_that_is_no_share_is_not_cut_to_shares():
    """A cost by class: its interval is around its value, although metrics by class of this library are shares."""
    rng = np.random.default_rng(0)
    labels = np.tile([0, 1], 20)

    def cost(labels, predictions):
        return 20 * np.mean(labels != predictions)

    metric = from_function(cost, higher_is_better=False)
    values = {m: metric.row_values(Predictions(labels, np.where(rng.random(40) < right, labels, 1 - labels), None,
                                               np.zeros((40, 2)))) for m, right in (("alone", 0.6), ("A", 0.7))}
    site, = judge_sites(of_rows(values, np.zeros(40, int), "cost", higher=False, classes=labels)).sites
    for interval in site.scores.values():
        assert interval.low + 1 < interval.value < interval.high - 1
    assert site.gains["A"].low + 1 < site.gains["A"].value < site.gains["A"].high - 1


def test_a_diverged_method_is_worse_and_training_alone_that_diverged_is_no_reference():
    values = {"alone": np.ones((1, 1, 30)), "A": np.full((1, 1, 30), np.inf), "B": np.full((1, 1, 30), 0.5)}
    verdict = judge(evidence(values, score="squared_error", higher=False))
    site = verdict.sites.sites[0]
    assert site.gains["A"] == (-np.inf, -np.inf, -np.inf)
    assert verdict.table.set_index("method").loc["A", "worse"] == 1
    assert verdict.sites.means is None
    both = {"alone": values["A"], "A": values["A"], "B": values["B"]}
    verdict = judge(evidence(both, score="squared_error", higher=False))
    site, = verdict.sites.sites
    assert np.isnan([*site.gains["A"], *site.gains["B"]]).all()
    assert site.advice is None
    assert verdict.recommendations()["use"].tolist() == [None]
    assert verdict.table[["better", "level", "worse"]].to_numpy().sum() == 0
    assert verdict.finding == "alone diverged at every site, so that there is no gain over training alone."


@pytest.mark.when_changed
def test_a_site_without_large_losses_by_chance_does_not_count_more_than_the_others():
    """Rare large losses: where few rows have none, gain and variance are small, which pulls every advice to alone."""
    probabilities = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        loss = {m: rng.exponential(0.1, (8, 1, 30)) + 3.0 * (rng.random((8, 1, 30)) < share)
                for m, share in (("alone", 0.05), ("A", 0.02))}
        sites = judge(evidence(loss, score="log_loss", higher=False)).sites.sites
        probabilities += [site.advice.probability for site in sites]
    assert np.mean(probabilities) > 0.6  # every site gains 0.09


def test_means_are_plain_and_weighted_by_rows():
    values = {"alone": np.zeros(110), "A": np.repeat([1.0, 0.0], [10, 100])}
    means = judge_sites(of_rows(values, np.repeat([0, 1], [10, 100]))).means
    assert means.plain["A"].value == pytest.approx(0.5)
    assert means.weighted["A"].value == pytest.approx(10 / 110)
    assert means.plain_gains["A"].value == pytest.approx(0.5)


@pytest.mark.when_changed
def test_a_null_comparison_is_not_distinguishable():
    """Six equal methods at 60 sites: about 5 % of the gains, and few decisions, are distinguishable from zero."""
    rng = np.random.default_rng(0)
    difficulty = rng.random((60, 1, 80))
    values = {m: (difficulty + 0.3 * rng.normal(size=(60, 1, 80)) > 0.4).astype(float)
              for m in ("alone", *"ABCDE")}
    verdict = judge(evidence(values))
    signs = np.array([[gain.sign for gain in site.gains.values()] for site in verdict.sites.sites])
    assert 0.01 <= (signs != 0).mean() <= 0.08
    assert (verdict.recommendations()["use"] != "alone").mean() <= 0.1
    assert all(abs(gain.value) < 0.03 for gain in verdict.sites.means.plain_gains.values())


def test_scores_of_several_seeds_alone_are_paired():
    """Prices have no rows: the interval is Student's over the seeds, of differences."""
    values = {"alone": np.arange(5.0)[None, :, None], "A": np.arange(5.0)[None, :, None] + 0.1}
    made = evidence(values, seeds=range(5), score="wealth")
    without = replace(made, rows=None, decides=False)
    site, = judge(without).sites.sites
    assert site.advice.answer == "join"
    assert site.gains["A"] == pytest.approx((0.1, 0.1, 0.1))
    assert site.scores["A"].high - site.scores["A"].low > 3


def test_recommendations_need_training_alone_and_intervals():
    with pytest.raises(InputError, match=r"add rv\.careful_local"):
        judge(evidence({"A": rows_with(3, 9)}, alone=None)).recommendations()
    made = evidence({"alone": rows_with(3, 9), "A": rows_with(3, 9)})
    without = replace(made, rows=None, decides=False)
    with pytest.raises(InputError, match="several seeds"):
        judge(without).recommendations()


def test_rows_are_written_and_read(tmp_path):
    rows = evidence({"alone": rows_with(3, 9), "seed": rows_with(4, 9)}).rows
    rows.write(tmp_path / "rows.parquet")
    again = RowValues.read(tmp_path / "rows.parquet")
    assert list(again.values) == ["alone", "seed"]
    assert (again.values["seed"] == rows.values["seed"]).all()
    assert (again.row == rows.row).all()
    assert again.kind == "other"
    assert again.models.keys() == rows.models.keys()
    assert (again.models["seed", "loss"] == rows.models["seed", "loss"]).all()


@pytest.mark.parametrize("metric", [F1(), AveragePrecision()])
def test_one_positive_row_decides_nothing(metric):
    """Without it the metric is not defined, so that leaving it out does not show how much depends on it."""
    labels = (np.arange(40) == 7).astype(int)
    right, wrong = (np.where(labels == 1, p, 0.1 + 0.001 * np.arange(40)) for p in (0.9, 0.01))
    values = {}
    for name, positive in (("alone", wrong), ("A", right), ("B", wrong)):
        both = np.stack([1 - positive, positive], axis=1)
        values[name] = metric.row_values(Predictions(labels, (positive > 0.5).astype(int), both, both))
        assert values[name].mean() == pytest.approx(metric.value(Predictions(labels, (positive > 0.5).astype(int), both,
                                                                             both)))
    of = evidence({name: v[None, None] for name, v in values.items()}, score=metric.name)
    site = judge_sites(replace(of, rows=replace(of.rows, sampling="classes", classes=labels))).sites[0]
    assert site.gains["A"].value > 0.9
    assert site.gains["A"].low < -0.5
    assert site.gains["B"].value == 0
    assert site.gains["B"].sign == 0


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
    values = metric.row_values(Predictions(labels.astype(int), positive > 0.5, probabilities, probabilities))
    assert values.mean() == pytest.approx(area(everything))
    resampled = np.std([area(rng.integers(120, size=120)) for _ in range(300)])
    assert values.std() / np.sqrt(120) == pytest.approx(resampled, rel=0.25)
