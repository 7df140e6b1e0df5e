"""A run with a privacy budget: epsilon of each party in the metrics, and a stop before it exceeds the limit."""

import json
import math

import numpy as np
import pytest

import resolvent as rv
from resolvent.differential_privacy import ledger as budgets
from resolvent.math import accounting
from resolvent.math.accounting import Releases

SOLVER = rv.solvers.DPSGD(0.1, noise_multiplier=2.0, batch_size=4, steps=2)
EVERY_SECOND = {"evaluate_every": 2, "progress": False}


@pytest.fixture
def simple_accountant(monkeypatch):
    """An accountant that needs no library: epsilon = rate * steps / noise, so that the expected numbers are exact."""
    def epsilon(noise, rate, steps, delta, accountant, earlier=()):
        return rate * steps / noise + sum(part.rate * part.steps / part.noise_multiplier for part in earlier)

    def steps_within(limit, noise, rate, delta, accountant, earlier=()):
        return math.floor((limit - epsilon(1, 1, 0, delta, accountant, earlier)) * noise / rate + 1e-9)

    monkeypatch.setattr(budgets, "_gaussian_epsilon", epsilon)
    monkeypatch.setattr(budgets, "_steps_within", steps_within)


@pytest.fixture(scope="module")
def data():
    """Three parties with 8, 16 and 40 training samples."""
    rng = np.random.default_rng(0)
    return rv.FederatedData.from_arrays([rng.normal(size=(n, 3)) for n in (10, 20, 50)],
                                        [rng.integers(0, 3, n) for n in (10, 20, 50)], validation=0, test=0.2,
                                        classes=["0", "1", "2"])


def run(data, rounds, epsilon=None, algorithm=None, participation=None, **settings):
    budget = rv.privacy.PrivacyBudget(delta=1e-3, epsilon=epsilon)
    return rv.simulate(rv.fedavg(SOLVER) if algorithm is None else algorithm, rv.models.logistic(3, 3), data,
                       rounds=rounds, participation=participation, privacy=budget, **EVERY_SECOND, **settings)


def epsilons(result):
    return result.scores("train", "epsilon")


@pytest.mark.when_changed
@pytest.mark.usefixtures("simple_accountant")
def test_every_evaluation_has_the_epsilon_of_each_party(data):
    """Two steps a round with noise 2 on 4 of n samples: 4/n a round."""
    table = epsilons(run(data, rounds=4))
    np.testing.assert_allclose(table.loc[[0, 2, 4]].to_numpy(), np.outer([0, 2, 4], [4 / 8, 4 / 16, 4 / 40]))


@pytest.mark.usefixtures("simple_accountant")
def test_the_run_stops_before_a_party_exceeds_the_budget(data):
    """The smallest party may make 5 rounds, which is not a multiple of the rounds between evaluations."""
    result = run(data, rounds=20, epsilon=2.6)
    assert result.rounds == 5
    assert epsilons(result).index[-1] == 5
    assert epsilons(result).to_numpy().max() == pytest.approx(2.5)
    assert "one more round could exceed 2.6" in result.facts["stopped"]
    plain = rv.simulate(rv.fedavg(SOLVER), rv.models.logistic(3, 3), data, rounds=5, **EVERY_SECOND)
    np.testing.assert_array_equal(result.server_model["weight"], plain.server_model["weight"])


@pytest.mark.when_changed
@pytest.mark.usefixtures("simple_accountant")
def test_parties_that_are_drawn_spend_only_in_their_rounds(data):
    """A party spends in the rounds for which it is asked to work, and a run stops when one of them may not go on."""
    participation = rv.participation.Uniform(cohort=1)
    result = run(data, rounds=40, epsilon=2.0, participation=participation, diagnostics=["steps"])
    steps = result.metrics[result.metrics["metric"] == "steps"]
    rounds = steps.groupby("party")["value"].count().reindex(range(3), fill_value=0).to_numpy()
    assert rounds.sum() == result.rounds < 40
    np.testing.assert_allclose(epsilons(result).iloc[-1], rounds * [4 / 8, 4 / 16, 4 / 40])
    assert rounds[0] == 4


@pytest.mark.usefixtures("simple_accountant")
def test_a_resumed_run_continues_its_account(data, tmp_path):
    run(data, rounds=2, epsilon=2.6, checkpoint=tmp_path / "run")
    result = run(data, rounds=20, epsilon=2.6, checkpoint=tmp_path / "run", resume=True)
    assert result.rounds == 5
    assert epsilons(result).loc[4].tolist() == pytest.approx([2.0, 1.0, 0.4])


@pytest.mark.when_changed
@pytest.mark.usefixtures("simple_accountant")
def test_a_run_that_starts_from_a_private_one_adds_what_it_spent(data, tmp_path):
    """Also from a saved result, and again from the second run; each party by its name."""
    first = run(data, rounds=2)
    first.save(tmp_path / "first")
    for start in (first, rv.load(tmp_path / "first")):
        second = run(data, rounds=20, epsilon=2.6, start=start)
        assert second.rounds == 3
        assert epsilons(second).loc[[0, 3]].to_numpy() == pytest.approx(np.outer([2, 5], [4 / 8, 4 / 16, 4 / 40]))
    third = run(data, rounds=1, start=second, algorithm=rv.fedavg(rv.solvers.DPSGD(
        0.1, noise_multiplier=1.0, batch_size=4, steps=2)))
    assert epsilons(third).iloc[-1].tolist() == pytest.approx([7 * 4 / 8, 7 * 4 / 16, 7 * 4 / 40])


@pytest.mark.when_changed
@pytest.mark.usefixtures("simple_accountant")
def test_only_parties_with_the_same_name_have_spent_before(data):
    def named(*names):
        return rv.FederatedData.from_arrays(*([split[k] for k in range(len(names))] for split in zip(*(
            (data.x[:8], np.asarray(data.y[:8])) for _ in names), strict=True)), parties=names, validation=0, test=0.25,
            classes=["0", "1", "2"])

    first = run(named("a", "b"), rounds=2)
    assert epsilons(run(named("b", "c"), rounds=1, start=first)).loc[0].tolist() == [pytest.approx(2 * 4 / 6), 0.0]


@pytest.mark.when_changed
@pytest.mark.usefixtures("simple_accountant")
def test_a_start_whose_account_is_unknown_or_of_another_unit_is_refused(data):
    plain = rv.simulate(rv.fedavg(SOLVER), rv.models.logistic(3, 3), data, rounds=1, **EVERY_SECOND)
    with pytest.raises(rv.InputError, match=r"did not count what its parties released.*result\.server_model"):
        run(data, rounds=1, start=plain)
    assert epsilons(run(data, rounds=1, start=plain.server_model)).loc[0].tolist() == [0, 0, 0]
    private = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1, batch_size=4)), cohort=3, noise_multiplier=1.0)
    with pytest.raises(rv.InputError, match="protects records and this one parties"):
        run(data, rounds=1, start=run(data, rounds=1), algorithm=private)
    with pytest.raises(rv.InputError, match=r"together with the run to start from, 1\.5"):
        run(data, rounds=1, epsilon=1.2, start=run(data, rounds=2))


@pytest.mark.nightly
@pytest.mark.usefixtures("simple_accountant")
def test_private_parties_spend_in_every_round(data):
    private = rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1, batch_size=4)), cohort=1.5, noise_multiplier=1.0)
    result = run(data, rounds=20, epsilon=2.0, algorithm=private, participation=rv.participation.Bernoulli(0.5))
    assert result.rounds == 4
    assert (epsilons(result).loc[2] == 1.0).all()


@pytest.mark.usefixtures("simple_accountant")
@pytest.mark.parametrize(("settings", "message"), [
    ({"algorithm": rv.fedavg(rv.SGD(0.1, batch_size=4))}, "not differentially private"),
    ({"algorithm": rv.pooled(SOLVER)}, "pooled samples"),
    ({"epsilon": 0.1}, "less than the first round spends"),
    ({"algorithm": rv.combinators.PrivateParties(rv.fedavg(rv.SGD(0.1)), cohort=1),
      "participation": rv.participation.Uniform(cohort=1)}, "use Bernoulli or Full"),
], ids=["sgd", "pooled", "first round", "cohorts of a fixed size"])
def test_runs_that_cannot_be_accounted_for_are_refused(data, settings, message):
    with pytest.raises(rv.InputError, match=message):
        run(data, rounds=4, **settings)


@pytest.mark.when_changed
@pytest.mark.usefixtures("simple_accountant")
def test_the_report_of_a_comparison_has_the_epsilon_of_each_party(data, tmp_path):
    budget = rv.privacy.PrivacyBudget(delta=1e-3, epsilon=2.6)
    rv.compare({"alone": rv.local(SOLVER), "FedAvg": rv.fedavg(SOLVER)}, rv.models.logistic(3, 3), data, rounds=2,
               privacy=budget, out=tmp_path / "run", progress=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"]["epsilons"]["FedAvg"] == pytest.approx({"party 0": 1.0, "party 1": 0.5, "party 2": 0.2})
    report = (tmp_path / "run" / "report.html").read_text()
    assert '<table id="privacy">' in report
    assert "An ε compares data sets in which one record of a party is replaced by one with the gradient zero" in report
    assert "party 2</span></td><td>0.2</td><td>0.2</td>" in report


class TestLibrary:
    """With the extra ``privacy``."""

    @pytest.fixture(autouse=True)
    def _library(self):
        pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")

    @pytest.mark.nightly
    def test_the_rounds_are_those_of_rounds_within(self, data):
        algorithm, model = rv.fedavg(SOLVER), rv.models.logistic(3, 3)
        w0 = {"weight": np.zeros((3, 3)), "bias": np.zeros(3)}
        expected = rv.privacy.rounds_within(algorithm, w0, data.sizes(), epsilon=3, delta=1e-3)
        budget = rv.privacy.PrivacyBudget(delta=1e-3, epsilon=3)
        result = rv.simulate(algorithm, model, data, rounds=expected + 50, evaluate_every=expected + 50,
                             privacy=budget, progress=False)
        assert result.rounds == expected
        assert epsilons(result).iloc[-1].tolist() == pytest.approx(
            rv.privacy.record_epsilons(algorithm, w0, data.sizes(), rounds=expected, delta=1e-3))

    def test_the_releases_of_two_runs_compose(self):
        """Two halves are the whole; over all records two settings are one Gaussian release."""
        half, whole = (Releases(2.0, 0.1, n) for n in (50, 100))
        assert accounting.gaussian_epsilon(*half, 1e-4, earlier=(half,)) == accounting.gaussian_epsilon(*whole, 1e-4)
        assert accounting.gaussian_epsilon(4.0, 1.0, 8, 1e-5, earlier=(Releases(2.0, 1.0, 2),)) == pytest.approx(
            accounting.gaussian_epsilon(1.0, 1.0, 1, 1e-5))

    @pytest.mark.nightly
    def test_the_steps_after_an_earlier_run_are_within_the_budget_of_both(self):
        half = Releases(2.0, 0.1, 50)
        both = accounting.gaussian_epsilon(1.5, 0.1, 50, 1e-4, earlier=(half,))
        assert both > max(accounting.gaussian_epsilon(1.5, 0.1, 50, 1e-4), accounting.gaussian_epsilon(*half, 1e-4))
        steps = accounting.steps_within(both, 1.5, 0.1, 1e-4, earlier=(half,))
        assert steps == 50

    def test_large_epsilons_are_tight_and_the_loose_accountant_warns(self):
        """The tight value is that of long intervals too, all of which bound epsilon from above."""
        setting = (0.5, 0.5, 200, 1e-5)
        tight = accounting.gaussian_epsilon(*setting)
        assert tight == pytest.approx(231.05, abs=0.02)  # with intervals of 1e-4, which takes 8 s of CPU
        assert tight <= accounting._epsilon((Releases(*setting[:3]),), 1e-5, "pld", 10.0) < 1.001 * tight
        with pytest.warns(UserWarning, match=r"by 403\.9, which is loose.*'pld', the default, bounds it by 231"):
            assert accounting.gaussian_epsilon(*setting, "rdp") > 1.7 * tight

    def test_a_value_is_computed_once(self, monkeypatch):
        first = accounting.gaussian_epsilon(2.0, 0.3, 7, 1e-5)
        monkeypatch.setattr(accounting, "_composed", None)
        assert accounting.gaussian_epsilon(2.0, 0.3, 7, 1e-5) == first
        assert accounting.gaussian_epsilon(2.0, 0.3, 3, 1e-5, earlier=(Releases(2.0, 0.3, 4),)) == first

    @pytest.mark.nightly
    def test_the_noise_within_a_budget_is_the_smallest(self):
        noise = accounting.noise_within(2.0, 0.1, 100, 1e-4)
        assert 1.98 < accounting.gaussian_epsilon(noise, 0.1, 100, 1e-4) <= 2.0
