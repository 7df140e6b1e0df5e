"""Judgements of sites and decisions, from values of test rows that need no training."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.decisions import _moderated, choose_method, decide
from resolvent.comparisons.judgement.power_forecast import further_rows
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.sites import Evidence, judge_sites
from resolvent.comparisons.judgement.verdict import judge
from resolvent.comparisons.judgement.wording import format_gain
from resolvent.comparisons.runs.summary import plain_site
from resolvent.errors import InputError
from resolvent.federation.protocol.judgement import join_judgements, read_judgement
from resolvent.problem.metrics import F1, ROCAUC, AveragePrecision, BalancedAccuracy, from_function
from resolvent.problem.metrics.metric import Predictions


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


def test_a_site_without_a_difference_on_few_rows_has_the_variance_of_the_others():
    """Of ten sites with the same share of different rows, one shows none by chance."""
    rng = np.random.default_rng(0)
    alone = rng.random((10, 1, 12)) < 0.5
    other = alone ^ (rng.random((10, 1, 12)) < 0.3)
    other[0] = alone[0]
    of = evidence({"alone": alone, "A": other})
    sites = judge_sites(of).sites
    gains, variances = [site.gains["A"] for site in sites], np.array([site.variances["A"] for site in sites])
    d = other[3, 0].astype(float) - alone[3, 0]
    assert variances[3] == pytest.approx(d.var(ddof=1) / 12)
    assert variances[0] == 0
    moderated = _moderated(sites, gains, variances)
    width = np.median([12 * ((gain.high - gain.low) / 3.919928) ** 2 for gain in gains])
    common = (30 * width + 11 * 12 * variances.sum()) / (30 + 110)
    np.testing.assert_allclose(moderated, (8 * common + 11 * 12 * variances) / 19 / 12, rtol=1e-6)
    assert moderated[0] > 0.1 * np.median(moderated)


@pytest.mark.parametrize("by_class", [False, True])
def test_the_advice_from_the_sites_messages_is_that_of_a_simulation(by_class):
    """The lead has no rows: it decides from what each site sends, here with all digits."""
    rng = np.random.default_rng(5)
    alone = (rng.random((9, 2, 25)) < 0.6).astype(float)
    values = {"alone": alone, "A": np.where(rng.random((9, 2, 25)) < 0.2, rng.random((9, 2, 25)) < 0.8, alone)}
    of = evidence(values, validation={m: v.mean(axis=2).tolist() for m, v in values.items()}, seeds=(0, 1))
    if by_class:
        of = replace(of, score="balanced_accuracy", metrics=of.metrics.replace("accuracy", "balanced_accuracy"),
                     rows=replace(of.rows, sampling="classes", classes=of.rows.row % 3))
    simulated = judge(of).sites.sites
    sent = [json.loads(json.dumps(plain_site(site._replace(decision=None)))) for site in simulated]
    received = [read_judgement(site, k, site["name"], of.methods) for k, site in enumerate(sent)]
    at_lead = judge(replace(of, rows=None), join_judgements(received, of.methods, of.alone, is_share=True)).sites.sites
    assert [site.decision for site in at_lead] == [site.decision for site in simulated]
    assert len({site.decision.advice for site in at_lead}) > 1
    widths_only = [site._replace(variances={}) for site in received]
    assert [site.decision for site in judge(replace(of, rows=None), join_judgements(
        widths_only, of.methods, of.alone, is_share=True)).sites.sites] != [site.decision for site in simulated]


@pytest.mark.parametrize("sampling", ["rows", "classes"])
def test_a_seed_that_tests_no_row_of_a_site_says_nothing_about_it(sampling):
    rng = np.random.default_rng(6)
    alone = (rng.random((3, 3, 30)) < 0.5).astype(float)
    of = evidence({"alone": alone, "A": (rng.random((3, 3, 30)) < 0.7).astype(float)}, seeds=(0, 1, 2))
    rows = replace(of.rows, sampling=sampling, classes=of.rows.row % 2)

    def judged(is_tested):
        part = RowValues(rows.seed[is_tested], rows.party[is_tested], rows.row[is_tested],
                         {m: v[is_tested] for m, v in rows.values.items()}, sampling, rows.classes[is_tested])
        return judge_sites(replace(of, rows=part))

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
    assert verdict.finding.startswith("On their own rows, of 1 site, 1 is better off than alone with A; 1 is worse off "
                                      "than alone with C; A and B make no site distinguishably worse; A has the best "
                                      "mean")


def test_an_uncertain_advice_names_the_further_test_rows_that_would_settle_it():
    rng = np.random.default_rng(1)
    alone = (rng.random((3, 1, 60)) < 0.6).astype(float)
    method = alone.copy()
    method[0, 0, :30] = 1.0  # site 0 gains clearly; the others change by chance
    method[1:] = np.where(rng.random((2, 1, 60)) < 0.1, 1 - alone[1:], alone[1:])
    verdict = judge(evidence({"alone": alone, "A": method}, validation=dict.fromkeys(("alone", "A"),
                                                                                        np.full((3, 1), 0.5))))
    uncertain = [s for s in verdict.sites.sites if s.decision.advice in ("probably join", "no difference")
                 and not s.decision.gain.sign]
    assert uncertain
    table = verdict.recommendations().set_index("site")
    for site in verdict.sites.sites:
        stated = site.decision.forecast
        assert (stated is not None) == (site in uncertain)
        assert plain_site(site)["decision"]["forecast"] == (stated and stated._asdict() | {"power": 0.8})
        if stated:
            by_own_rows = further_rows(site.variances["A"], 60, stated.gain)  # sites share their variances
            assert stated.rows == pytest.approx(by_own_rows, rel=0.5)
            assert stated.rarest == 0
            assert stated.gain == pytest.approx(max(0.02, site.decision.expected.value))  # at least four margins
            assert table.loc[site.name, "further_rows"] == stated.rows > 0
        else:
            assert np.isnan(table.loc[site.name, "further_rows"])


def test_with_few_rows_a_site_distinguishes_nothing():
    verdict = judge(evidence({"alone": rows_with(0, 4), "A": rows_with(4, 4)}, validation={"alone": [[0]],
                                                                                           "A": [[1]]}))
    assert verdict.finding.startswith("With A, 1 site should probably join. On a site's own rows, no method can be "
                                      "distinguished from training alone at the only site, with 4 test rows per site; "
                                      "A has the best mean over the sites (100.0% accuracy; +100.0")
    assert verdict.finding.endswith("over alone, not distinguishable from training alone).")
    site = verdict.sites.sites[0]
    assert site.has_few_rows
    assert site.gains["A"].sign == 0


def test_the_federation_runs_one_method_and_each_site_decides_by_its_gain():
    """The validation rows of all sites choose A, although one site prefers B; where A loses, a site stays alone."""
    rng = np.random.default_rng(0)
    gain = np.array([0.3, 0.3, 0.3, -0.4])
    alone = (rng.random((4, 1, 200)) < 0.5).astype(float)
    better = np.clip(alone + (rng.random((4, 1, 200)) < 2 * np.maximum(gain, 0)[:, None, None]), 0, 1)
    method = better * (rng.random((4, 1, 200)) >= 2 * np.maximum(-gain, 0)[:, None, None])
    values = {"alone": alone, "A": method, "B": alone}
    validation = {"alone": [[0.5]] * 4, "A": [[0.8], [0.8], [0.8], [0.1]], "B": [[0.5], [0.5], [0.5], [0.5]]}
    verdict = judge(evidence(values, validation=validation))
    frame = verdict.recommendations().set_index("site")
    assert verdict.sites.choice == ("A", "A", 4, {})
    assert frame["use"].tolist() == ["A", "A", "A", "alone"]
    assert frame["advice"].tolist() == ["join", "join", "join", "stay alone"]
    assert (frame["expected_low"] <= frame["expected"]).all()
    assert frame["probability"].to_numpy() == pytest.approx([1, 1, 1, 0], abs=0.01)


def test_a_simpler_method_that_is_as_good_is_chosen():
    values = {name: np.zeros((8, 1, 20)) for name in ("alone", "A", "B")}
    noise = np.linspace(-0.05, 0.05, 8)[:, None]
    validation = {"alone": np.full((8, 1), 0.5), "A": 0.7 + noise, "B": 0.702 - noise}
    of = evidence(values, validation={m: v.tolist() for m, v in validation.items()})
    assert choose_method(replace(of, traffic={"A": 10.0, "B": 20.0})).method == "A"
    assert choose_method(replace(of, traffic={"A": 20.0, "B": 10.0})).method == "B"
    assert choose_method(of).method == "A"  # the same traffic: the first
    validation["B"] = validation["A"] + 0.1
    of = evidence(values, validation={m: v.tolist() for m, v in validation.items()})
    assert choose_method(replace(of, traffic={"A": 10.0, "B": 20.0})).method == "B"


def test_a_method_that_diverged_at_a_site_is_not_chosen():
    values = {name: np.zeros((3, 1, 20)) for name in ("alone", "A", "B")}
    validation = {"alone": [[0.5]] * 3, "A": [[0.9], [0.9], [np.nan]], "B": [[0.6], [0.6], [0.6]]}
    assert choose_method(evidence(values, validation=validation)).method == "B"


def test_a_method_on_pooled_rows_is_a_bound_that_no_federation_runs():
    rng = np.random.default_rng(2)
    values = {"alone": rows_with(10, 20), "pooled": rows_with(20, 20), "A": rows_with(16, 20)}
    validation = {name: rng.normal(mean, 0.01, (1, 1)).tolist() for name, mean in
                  (("alone", 0.5), ("pooled", 1.0), ("A", 0.8))}
    of = replace(evidence(values, validation=validation), bounds=frozenset({"pooled"}))
    assert choose_method(replace(of, bounds=frozenset())).method == "pooled"
    assert choose_method(of).method == "A"
    assert decide(judge_sites(of), of).sites[0].decision.federation == "A"
    without = replace(evidence(values), bounds=frozenset({"pooled"}))
    assert decide(judge_sites(without), without).sites[0].decision.federation == "A"  # nothing to choose
    only = replace(of, methods=("alone", "pooled"))
    assert decide(judge_sites(only), only).sites[0].decision.federation is None


def test_small_sites_borrow_strength_and_an_outlier_keeps_its_loss():
    """Twenty sites with eight rows each, of which none distinguishes anything, and one that loses on 200 rows."""
    rng = np.random.default_rng(1)
    sizes = np.array([8] * 20 + [200])
    party = np.repeat(np.arange(21), sizes)
    alone = (rng.random(party.size) < 0.4).astype(float)
    gains, keeps = rng.random(party.size) < 0.5, rng.random(party.size) < 0.3
    method = np.where(party < 20, np.maximum(alone, gains), alone * keeps)
    rows = RowValues(np.zeros(party.size, int), party, np.arange(party.size), {"alone": alone, "A": method})
    table = [("A", 1, k, "validation", "accuracy", 0.7, 0) for k in range(21)]
    table += [("alone", 1, k, "validation", "accuracy", 0.4, 0) for k in range(21)]
    metrics = pd.DataFrame(table, columns=["method", "round", "party", "split", "metric", "value", "seed"])
    of = Evidence("accuracy", "test", True, ("alone", "A"), "alone", [f"site {k}" for k in range(21)], metrics, (0,),
                  rows)
    decided = decide(judge_sites(of), of).sites
    assert sum(site.gains["A"].sign > 0 for site in decided[:20]) <= 10
    assert sum(site.decision.advice in ("join", "probably join") for site in decided[:20]) >= 18
    assert decided[20].decision.advice == "stay alone"
    assert decided[20].decision.expected.high < 0


def test_the_cost_of_a_loss_moves_the_advice():
    rng = np.random.default_rng(0)
    alone = (rng.random((6, 1, 60)) < 0.6).astype(float)
    method = np.where(rng.random((6, 1, 60)) < 0.1, 1 - alone, alone)
    method[:, :, :2] = 1.0
    of = evidence({"alone": alone, "A": method}, validation={"alone": [[0.5]] * 6, "A": [[0.6]] * 6})
    joins = [sum(s.decision.method == "A" for s in decide(judge_sites(of), of, DecisionRule(cost=cost)).sites)
             for cost in (0.2, 1.0, 20.0)]
    assert joins[0] >= joins[1] >= joins[2]
    assert joins[0] > joins[2]
    with pytest.raises(InputError, match="cost"):
        DecisionRule(cost=0.0)


def test_without_validation_rows_no_method_is_chosen_among_several():
    values = {"alone": rows_with(0, 50), "A": rows_with(50, 50), "B": rows_with(50, 50)}
    site, = judge(evidence(values)).sites.sites
    assert site.decision[:2] == ("alone", "stay alone")
    assert site.decision.federation is None
    only, = judge(evidence({"alone": values["alone"], "A": values["A"]})).sites.sites
    assert only.decision[:2] == ("A", "join")  # there is nothing to choose


def test_a_site_without_both_classes_has_no_balanced_accuracy_and_the_advice_of_the_population():
    rng = np.random.default_rng(0)
    labels = (rng.random((6, 60)) < 0.3).astype(int)
    labels[5] = 0
    metric = BalancedAccuracy()
    values = {}
    for name, right in (("alone", 0.6), ("A", 0.9)):
        predicted = np.where(rng.random((6, 60)) < right, labels, 1 - labels)
        values[name] = np.concatenate([metric.row_values(Predictions(y, p, None, np.eye(2)[p]))
                                       for y, p in zip(labels, predicted, strict=True)])
    rows = RowValues(np.zeros(360, int), np.repeat(np.arange(6), 60), np.tile(np.arange(60), 6), values, "classes",
                     labels.ravel())
    metrics = evidence({"alone": np.zeros((6, 1, 1)), "A": np.zeros((6, 1, 1))}).metrics
    of = Evidence("balanced_accuracy", "test", True, ("alone", "A"), "alone", [f"site {k}" for k in range(6)], metrics,
                  (0,), rows)
    decided = judge(of).sites.sites
    assert np.isnan(decided[5].scores["alone"].value)
    assert np.isnan(decided[5].gains["A"].value)
    assert decided[5].decision.advice in ("join", "probably join")
    assert decided[5].decision.expected.low < decided[0].decision.expected.low


def test_where_less_is_better_a_gain_is_less():
    rng = np.random.default_rng(0)
    values = {"alone": 1 + rng.random((1, 1, 80)), "A": rng.random((1, 1, 80))}
    verdict = judge(evidence(values, score="squared_error", higher=False,
                             validation={"alone": [[1.0]], "A": [[0.1]]}))
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
    rows = RowValues(np.zeros(40, int), np.zeros(40, int), np.arange(40), values, "classes", labels)
    metrics = evidence({"alone": np.zeros((1, 1, 1)), "A": np.zeros((1, 1, 1))}).metrics
    site, = judge_sites(Evidence("cost", "test", False, ("alone", "A"), "alone", ["a"], metrics, (0,), rows)).sites
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
    assert site.decision is None
    assert verdict.recommendations()["use"].tolist() == [None]
    assert verdict.table[["better", "level", "worse"]].to_numpy().sum() == 0
    assert verdict.finding == ("alone diverged at every site, so that there is no gain over training alone; B has the "
                               "best mean over the sites (squared error 0.5).")


@pytest.mark.when_changed
def test_a_site_without_large_losses_by_chance_does_not_count_more_than_the_others():
    """Rare large losses: where few rows have none, gain and variance are small, which pulled every advice to alone."""
    probabilities = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        loss = {m: rng.exponential(0.1, (8, 1, 30)) + 3.0 * (rng.random((8, 1, 30)) < share)
                for m, share in (("alone", 0.05), ("A", 0.02))}
        sites = judge(evidence(loss, score="log_loss", higher=False)).sites.sites
        probabilities += [site.decision.probability for site in sites]
    assert np.mean(probabilities) > 0.7  # every site gains 0.09; with the sites' own variances it is 0.68


def test_means_are_plain_and_weighted_by_rows():
    rows = RowValues(np.zeros(110, int), np.repeat([0, 1], [10, 100]), np.arange(110),
                     {"alone": np.zeros(110), "A": np.repeat([1.0, 0.0], [10, 100])})
    metrics = evidence({"alone": np.zeros((2, 1, 1)), "A": np.zeros((2, 1, 1))}).metrics
    means = judge_sites(Evidence("accuracy", "test", True, ("alone", "A"), "alone", ["a", "b"], metrics, (0,),
                                 rows)).means
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
    validation = {m: rng.random((60, 1)) for m in values}
    verdict = judge(evidence(values, validation=validation))
    signs = np.array([[gain.sign for gain in site.gains.values()] for site in verdict.sites.sites])
    assert 0.01 <= (signs != 0).mean() <= 0.08
    assert (verdict.recommendations()["use"] != "alone").mean() <= 0.1
    assert all(abs(gain.value) < 0.03 for gain in verdict.sites.means.plain_gains.values())


def test_the_finding_says_what_is_left_after_a_correction_for_the_number_of_comparisons():
    """Equal methods at 30 sites: some site is nearly always better by chance; a gain of 50 points is left."""
    rng = np.random.default_rng(2)
    values = {name: (rng.random((30, 1, 60)) < 0.7).astype(float) for name in ("alone", *"ABC")}
    verdict = judge(evidence(values))
    assert verdict.table["better"].sum() > 0
    assert "; with intervals that hold for all 90 comparisons together, no site is better off" in verdict.finding
    for name in values:
        values[name][4] = 1.0 if name == "A" else np.arange(60) % 2
    assert "for all 90 comparisons together, 1 site is better off" in judge(evidence(values)).finding
    values["A"][:], values["alone"][:] = 1.0, np.arange(60) % 2
    assert "together" not in judge(evidence({name: values[name] for name in ("alone", "A")})).finding


def test_the_best_of_several_methods_has_the_interval_of_the_best_unless_validation_rows_have_chosen_it():
    values = {"alone": rows_with(50, 100), "A": rows_with(59, 100), "B": rows_with(60, 100)}
    values = {name: np.repeat(of, 2, axis=0) for name, of in values.items()}
    texts = {}
    for chosen in "AB":
        scores = {name: np.full((2, 1), float(name == chosen)) for name in values}
        verdict = judge(evidence(values, validation=scores))
        assert verdict.sites.choice.method == chosen
        texts[chosen] = verdict.finding
    gain = verdict.sites.means.plain_gains["B"]
    assert format_gain(gain, "accuracy") + " over alone)." in texts["B"]
    assert f"{format_gain(gain.of_several(2, 1.0), 'accuracy')} over alone as the best of 2 methods" in texts["A"]
    without = judge(evidence(values)).finding
    assert "as the best of 2 methods on these rows" in without


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
