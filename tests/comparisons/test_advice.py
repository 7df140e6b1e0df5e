"""The advice to sites: evidence in, advice out. Worlds of known truth are in benchmarks/advice.py."""

import math
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.preprocessing import StandardScaler

import resolvent as rv
from resolvent.comparisons.judgement.advice import Candidate, SiteEvidence, advise, base_loss, site_evidence
from resolvent.comparisons.judgement.calibration_slope import calibration_slope
from resolvent.comparisons.judgement.column_tests import column_sums, opposite_columns
from resolvent.errors import InputError

GOOD = SiteEvidence(0.10, 0.02**2, 200, 1.0, 0.2**2)
LITTLE = SiteEvidence(0.002, 0.003**2, 5000, 1.0, 0.05**2)


def answers(*sites, **options):
    advice = advise([Candidate("FedAvg", sites, **options)])
    return [site.answer for site in advice.sites], [site.reason for site in advice.sites]


def test_sites_alike_join_and_a_reversed_one_stays_alone():
    said, reasons = answers(*[GOOD] * 10, SiteEvidence(-0.6, 0.1**2, 100, -0.9, 0.25**2))
    assert said == ["join"] * 10 + ["stay alone"]
    assert reasons[-1] == "another relation"


def test_the_evidence_of_a_site_is_never_outvoted():
    """By the population of forty sites it would gain; its own rows are against it, or have another relation."""
    many = [GOOD] * 40
    against = SiteEvidence(-0.04, 0.04**2, 200, 1.0, 0.3**2)
    outvoted = SiteEvidence(-0.02, 0.04**2, 200, 1.0, 0.3**2)  # P(gain > 0) is above 0.2
    other = SiteEvidence(0.1, 0.02**2, 200, -0.2, 0.2**2)
    imprecise = SiteEvidence(0.1, 0.02**2, 200, 0.4, 0.3**2)  # its slope may be that of the others
    said, reasons = answers(*many, against, outvoted, other, imprecise)
    assert said[40:] == ["unclear", "join", "unclear", "join"]
    assert (reasons[40], reasons[42]) == ("own evidence", "another relation")


def test_a_low_slope_that_all_sites_have_is_no_other_relation():
    overfitted = SiteEvidence(0.10, 0.02**2, 200, 0.3, 0.05**2)
    assert answers(*[overfitted] * 8)[0] == ["join"] * 8


@pytest.mark.parametrize(("common", "slope", "is_other"), [
    # below the others' by 1.96 standard deviations of the difference: hypot(0.1 sqrt(1.2), 0.25 max(1, common))
    (1.0, 0.45, True), (1.0, 0.48, False), (1.6, 0.76, True), (1.6, 0.80, False)])
def test_a_slope_that_is_clearly_below_the_other_sites_is_another_relation(common, slope, is_other):
    others, site = (SiteEvidence(0.10, 0.02**2, 200, value, 0.1**2) for value in (common, slope))
    said, reasons = answers(*[others] * 8, site)
    assert said == ["join"] * 8 + ["unclear" if is_other else "join"]
    assert (reasons[-1] == "another relation") == is_other


def test_two_of_five_reversed_do_not_move_the_common_slope():
    strange = SiteEvidence(-0.5, 0.1**2, 100, -1.0, 0.3**2)
    assert answers(GOOD, strange, GOOD, strange, GOOD)[0] == ["join", "stay alone", "join", "stay alone", "join"]


def test_without_converged_training_or_evidence_there_is_no_advice_to_join():
    assert answers(GOOD, GOOD, is_settled=False) == (["unclear"] * 2, ["not converged"] * 2)
    assert answers(GOOD, GOOD, is_settled=[False, True]) == (["unclear", "join"], ["not converged", "expected gain"])
    said, reasons = answers(GOOD, GOOD, SiteEvidence(math.nan, math.inf, 0), SiteEvidence(-math.inf, math.inf, 50))
    assert said == ["join", "join", "unclear", "stay alone"]
    assert reasons[2:] == ["no evidence", "diverged"]
    assert answers(SiteEvidence(math.nan, math.inf, 0))[1] == ["no evidence"]


def test_no_difference_only_if_the_interval_lies_inside_the_margin():
    said, reasons = answers(*[LITTLE] * 5)
    assert (said[0], reasons[0]) == ("stay alone", "no difference")
    assert answers(*[LITTLE._replace(variance=0.03**2)] * 5)[1][0] == "few rows"


def test_what_would_settle_it_is_capped_at_ten_times_the_rows():
    unclear = advise([Candidate("FedAvg", [SiteEvidence(0.02, 0.04**2, 100, 1.0, 0.3**2)])]).sites[0]
    hopeless = advise([Candidate("FedAvg", [SiteEvidence(0.01, 0.3**2, 100, 1.0, 0.3**2)])]).sites[0]
    assert unclear.answer == hopeless.answer == "unclear"
    assert 100 < unclear.further_rows <= 1000
    assert unclear.settled_by == f"about {unclear.further_rows:,} more rows would tell"
    assert hopeless.further_rows is None
    assert hopeless.settled_by == "more rows of this kind would not tell"


def random_sites(rng, number):
    gain, variance = rng.normal(0.03, 0.1, number), rng.uniform(0.01, 0.15, number) ** 2
    slope, slope_variance = rng.normal(0.8, 0.8, number), rng.uniform(0.1, 0.6, number) ** 2
    covariance = rng.uniform(-0.5, 0.8, number) * np.sqrt(variance * slope_variance)
    return [SiteEvidence(*map(float, parts)) for parts in zip(
        gain, variance, rng.integers(20, 2000, number), slope, slope_variance, covariance,
        rng.uniform(0, 0.05, number), strict=True)]


def test_joining_needs_a_probable_gain_in_all_of_many_federations():
    rng = np.random.default_rng(0)
    said = []
    for number in (1, 2, 3, 5, 12, 30) * 3:
        advice = advise([Candidate("FedAvg", random_sites(rng, number))])
        for site in advice.sites:
            said.append(site.answer)
            assert 0 <= site.probability <= 1
            assert site.expected.low <= site.expected.value <= site.expected.high
            assert (site.model == "alone") == (site.answer != "join")
            if site.answer == "join":
                assert site.probability > 0.5
                assert site.expected.value > 0.01
            elif site.answer == "stay alone" and site.reason != "no difference":
                assert site.expected.value < 0
        assert (advice.method is None) == all(site.answer != "join" for site in advice.sites)
        assert advice.not_shared == tuple(site.answer != "join" for site in advice.sites)
    assert set(said) == {"join", "stay alone", "unclear"}


def test_the_order_of_the_sites_does_not_matter():
    rng = np.random.default_rng(1)
    sites, order = random_sites(rng, 12), rng.permutation(12)
    first = advise([Candidate("FedAvg", sites)])
    second = advise([Candidate("FedAvg", [sites[k] for k in order])])
    assert [first.sites[k].answer for k in order] == [site.answer for site in second.sites]
    assert [first.sites[k].expected for k in order] == [pytest.approx(site.expected) for site in second.sites]


def test_rows_that_are_lucky_for_the_slope_are_lucky_for_the_gain():
    """Where both vary together, a slope that is above the others' by chance lowers the gain that is to be expected."""
    steep = SiteEvidence(0.10, 0.05**2, 100, 1.8, 0.6**2)
    together = steep._replace(covariance=0.9 * 0.05 * 0.6)
    gains = [advise([Candidate("FedAvg", [GOOD] * 5 + [site])]).sites[-1].expected.value for site in (steep, together)]
    assert gains[1] < gains[0] - 0.01


HARMED = SiteEvidence(-0.3, 0.05**2, 200, -0.8, 0.2**2)


def test_the_method_that_harms_nobody_is_run_and_each_site_takes_its_best_model():
    shared = Candidate("Fed+", [*[GOOD._replace(gain=0.09)] * 6, HARMED])
    personal = Candidate("Fed+", [SiteEvidence(0.12, 0.01**2, 200)] * 7, "personal")
    fedavg = Candidate("FedAvg", [*[GOOD] * 6, HARMED])
    advice = advise([fedavg, shared, personal])
    assert advice.method == "Fed+"
    assert [site.answer for site in advice.sites] == ["join"] * 7
    assert advice.sites[-1].model == "personal"
    assert advice.not_shared == (False,) * 6 + (True,)
    assert advice.values["Fed+"] > advice.values["FedAvg"] + 0.01


def test_a_tie_goes_to_the_simpler_method_and_the_choice_is_paid_for():
    better = [GOOD._replace(gain=0.104)] * 6
    advice = advise([Candidate("FedAvg", [GOOD] * 6), Candidate("FedProx", better)])
    assert advice.method == "FedAvg"
    single = advise([Candidate("FedAvg", [GOOD] * 6)])
    assert single.gain == pytest.approx(np.mean([site.expected.value for site in single.sites]))
    assert advice.gain < single.gain - 0.001
    clearly_better = [GOOD._replace(gain=0.25)] * 6
    assert advise([Candidate("FedAvg", [GOOD] * 6), Candidate("FedProx", clearly_better)]).method == "FedProx"


def test_evidence_from_rows():
    rng = np.random.default_rng(0)
    eta = rng.normal(0, 1.5, 300)
    labels = (rng.random(300) < 1 / (1 + np.exp(-eta))).astype(float)
    model, alone = (np.logaddexp(0, x) - labels * x for x in (eta, 0.6 * eta + rng.normal(0, 0.5, 300)))
    calibration = calibration_slope(labels, eta, is_binary=True)
    found = site_evidence(alone, model, labels, calibration, kind="binary", coefficients=9)
    gains = (alone - model) / base_loss(labels, kind="binary")
    assert found[:3] == (pytest.approx(gains.mean()), pytest.approx(gains.var(ddof=1) / 300),
                         2 * min(labels.sum(), 300 - labels.sum()))
    assert (found.slope, found.slope_variance) == (calibration.slope, calibration.covariance[1, 1])
    samples = [rng.integers(0, 300, 300) for _ in range(400)]
    pairs = [[gains[rows].mean(), calibration_slope(labels[rows], eta[rows], is_binary=True).slope] for rows in samples]
    assert found.covariance == pytest.approx(np.cov(np.transpose(pairs))[0, 1], rel=0.35)
    assert found.luck == pytest.approx(0.5 * math.sqrt(18) / 300 / base_loss(labels, kind="binary"))
    assert site_evidence(alone, model + np.inf, labels, kind="binary").gain == -math.inf
    assert math.isnan(site_evidence(alone[:9], model[:9], labels[:9], kind="binary").gain)
    assert math.isfinite(site_evidence(alone[:10], model[:10], labels[:10], kind="binary").gain)
    in_halves = site_evidence(alone, model, labels, kind="binary", base=2.0)
    assert in_halves.gain == pytest.approx((alone - model).mean() / 2)


def test_a_site_that_cannot_be_judged_is_in_no_mean():
    few = SiteEvidence(math.nan, math.inf, 2)
    with_few, without = (advise([Candidate("FedAvg", sites)]) for sites in ([*[GOOD] * 5, few], [GOOD] * 5))
    assert (with_few.sites[-1].answer, with_few.sites[-1].settled_by) == ("unclear", "more test rows")
    assert with_few.gain == pytest.approx(without.gain, rel=0.02)
    assert with_few.values["FedAvg"] == pytest.approx(without.values["FedAvg"], rel=0.02)


@pytest.mark.when_changed
def test_the_unit_of_skill_is_of_all_labels_of_a_site():
    """Sites with two test rows of one class: their entropy would be a third of the site's."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(40, 2)) for _ in range(3)]
    y = [np.r_[np.zeros(19, int), np.ones(19, int), 1, 1] for _ in x]
    data = rv.FederatedData.from_arrays(x, y, validation=0.0, test=[2, 2, 2])
    solver = rv.SGD(0.1)
    methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver)}
    comparison = rv.compare(methods, rv.models.logistic(2, 2), data, rounds=2, progress=False)
    for site, labels in zip(comparison.verdict.sites.sites, y, strict=True):
        assert site.facts.unit == pytest.approx(base_loss(labels, kind="classes"))
        assert site.advice.answer == "unclear"
        assert site.facts.losses[comparison.verdict.baseline] == pytest.approx(math.log(2), rel=1e-6)


@pytest.mark.when_changed
def test_a_reversed_feature_and_a_reversed_site_are_named():
    """Six sites of 150 rows; at one all effects are reversed, at another the effect of one column."""
    rng = np.random.default_rng(4)
    effects = np.tile([1.5, -1.2, 0.8], (6, 1))
    effects[1] *= -1
    effects[4, 0] *= -1
    xs = [rng.normal(size=(150, 3)) for _ in effects]
    ys = [(rng.random(150) < 1 / (1 + np.exp(-x @ w))).astype(int) for x, w in zip(xs, effects, strict=True)]
    data = rv.FederatedData.from_arrays(xs, ys, features=["age", "pulse", "weight"])
    solver = rv.solvers.LBFGS(10)
    comparison = rv.compare({"alone": rv.local(solver), "FedAvg": rv.fedavg(solver)}, rv.models.logistic(3, 2), data,
                            rounds=6, evaluate_every=1, diagnostics=(), folds=2, progress=False)
    sites = comparison.verdict.sites.sites
    assert [site.advice.reason == "another relation" for site in sites if site.name != "party 4"] == [
        False, True, False, False, False]
    named = {site.name: [column.column for column in site.facts.columns.get("FedAvg", ())] for site in sites}
    assert set(named["party 1"]) == {"age", "pulse", "weight"}
    assert named["party 4"] == ["age"]
    assert not any(named[f"party {k}"] for k in (0, 2, 3, 5))
    assert "At party 1, the order of the risks is reversed: slope \N{MINUS SIGN}" in comparison.finding
    assert "At party 4, the coefficient of age is \N{MINUS SIGN}" in comparison.finding
    assert comparison.recommend().set_index("site").loc["party 1", "use"] == "alone"


def test_no_column_is_named_where_sites_are_equal_and_columns_nearly_depend_on_each_other():
    """Patients divided at random over six sites. The maximum of the likelihood is far from every regularised model."""
    frame = load_breast_cancer(as_frame=True).frame
    x = StandardScaler().fit_transform(frame.filter(regex="texture|smoothness|compactness|symmetry|fractal dimension"))
    y, rng, names = frame["target"].to_numpy(float), np.random.default_rng(0), [*map(str, range(x.shape[1]))]
    for _ in range(8):
        sites = np.split(rng.permutation(len(y)), np.cumsum([180, 126, 90, 64, 45]))
        sums = {}
        for fold in range(5):
            trained = np.concatenate([rows[np.arange(len(rows)) % 5 != fold] for rows in sites])
            shared = LogisticRegression(C=3, max_iter=300).fit(x[trained], y[trained])
            for site, rows in enumerate(sites):
                held = rows[np.arange(len(rows)) % 5 == fold]
                found = column_sums(x[held], y[held], shared.decision_function(x[held]), shared.coef_[0],
                                    is_binary=True)
                sums[site] = sums[site] + found if site in sums else found
        assert not any(opposite_columns(found, names, len(names) * len(sites)) for found in sums.values())


@pytest.mark.when_changed
def test_where_nothing_was_learnt_no_method_is_praised():
    """Labels are coins."""
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(40, 8)) for _ in range(4)],
                                        [rng.integers(0, 2, 40) for _ in range(4)])
    solver = rv.SGD(0.5, epochs=5)
    comparison = rv.compare({"alone": rv.local(solver), "FedAvg": rv.fedavg(solver)}, rv.models.logistic(8, 2), data,
                            rounds=6, evaluate_every=1, diagnostics=(), folds=2, progress=False)
    assert comparison.finding.startswith("Nothing was learnt: on average over the sites, no method has a smaller test "
                                         "loss than the majority class. No site should join")
    assert {site.advice.model for site in comparison.verdict.sites.sites} == {"alone"}
    with pytest.raises(InputError, match="no site has a model that is worth using: party 0: on its test rows the model "
                                         "is worse than the majority class"):
        comparison.refit(progress=False)


def test_candidates_of_different_sites_are_refused():
    for candidates in ([], [Candidate("FedAvg", [])], [Candidate("a", [GOOD]), Candidate("b", [GOOD] * 2)]):
        with pytest.raises(InputError, match="same sites"):
            advise(candidates)


@pytest.fixture(scope="module")
def worlds():
    """benchmarks/advice.py."""
    spec = spec_from_file_location("advice_worlds", Path(__file__).parents[2] / "benchmarks" / "advice.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_alone_of_the_worlds_is_the_cross_validated_regression_of_scikit_learn(worlds):
    """The same strength of the path, and the same coefficients up to the small ridge of the intercept."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (100, 8))
    y = (rng.random(100) < 1 / (1 + np.exp(-x[:, 0] + 0.7 * x[:, 1] - 0.4))).astype(float)
    inner = np.arange(100) % worlds.INNER
    found = worlds.tuned(x, y, np.arange(100) % worlds.FOLDS, inner, labels="binary")[-1, 0]
    folds = [(np.flatnonzero(inner != i), np.flatnonzero(inner == i)) for i in range(worlds.INNER)]
    expected = LogisticRegressionCV(Cs=1 / worlds.PATH, cv=folds, scoring="neg_log_loss", l1_ratios=(0,), tol=1e-10,
                                    max_iter=5000, use_legacy_attributes=False).fit(x, y)
    assert 0.03 < 1 / expected.C_ < 1e8
    assert found == pytest.approx([*expected.coef_[0], expected.intercept_[0]], abs=1e-3)


@pytest.mark.when_changed
def test_in_worlds_of_known_truth_reversed_sites_are_not_told_to_join(worlds):
    """The quick form of benchmarks/advice.py: eight draws of two worlds."""
    alike, mixed = ([row for sites in worlds.draws_of(name, 8, None) for row in worlds.decisions(name, sites)]
                    for name in worlds.QUICK)
    reversed_sites = [row for row in mixed if row["odd"]]
    assert len(reversed_sites) == 16
    assert all(row["gain"] < -0.05 for row in reversed_sites)
    assert sum(row["answer"] == "join" for row in reversed_sites) <= 1
    assert np.mean([row["answer"] == "join" for row in alike]) > 0.7  # where all gain, advice to nobody is no advice
    assert np.mean([row["regret"] for row in alike]) < np.mean([row["regret_alone"] for row in alike]) / 2
