"""``simulate``: models, metrics, what changes a run and what does not, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import resolvent as rv
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.simulator.plan import choose_evaluated_parties, plan_evaluation

DATA = rv.datasets.digits(parties=4, classes_per_party=4, outliers=1, seed=3)
MODEL = rv.models.logistic(64, 10)
SOLVER = rv.SGD(0.1, batch_size=16, epochs=2)
PARTICIPATION = rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.4)


def simulate(algorithm, **options):
    settings = {"rounds": 6, "evaluate_every": 2, "participation": PARTICIPATION, "progress": False} | options
    return rv.simulate(algorithm, MODEL, DATA, **settings)


@pytest.fixture(scope="module")
def plus():
    return simulate(rv.fedavg_plus(SOLVER, sigma=0.1, delta=0.1),
                    diagnostics=("model_change", "inexactness", "steps", "line", "dissimilarity"))


def test_scores_are_those_of_the_models_by_numpy(plus):
    for party in range(4):
        w = plus.personal_model(party)
        for split in ("train", "test"):
            x, y = DATA.party(party, split)
            predicted = np.argmax(x @ np.asarray(w["weight"]).T + np.asarray(w["bias"]), axis=1)
            assert plus.scores(split).loc[6, party] == pytest.approx((predicted == y).mean(), abs=1e-6)
    shared = plus.server_model
    x, y = DATA.party(2, "test")
    rows = plus.metrics.query("metric == 'global_accuracy' and split == 'test' and party == 2 and round == 6")
    predicted = np.argmax(x @ np.asarray(shared["weight"]).T + np.asarray(shared["bias"]), axis=1)
    assert rows["value"].item() == pytest.approx((predicted == y).mean(), abs=1e-6)


def test_metrics_table(plus):
    assert list(plus.metrics.columns) == ["method", "round", "party", "split", "metric", "value"]
    assert sorted(plus.metrics.query("metric == 'accuracy'")["round"].unique()) == [0, 2, 4, 6]
    assert plus.metrics.query("metric == 'replies'")["value"].tolist() == [3.0] * 6
    assert set(plus.metrics["split"].dropna()) == {"train", "validation", "test"}


def test_personal_model_by_name_and_unknown_parties(plus):
    np.testing.assert_array_equal(plus.personal_model("party 1")["bias"], plus.personal_model(1)["bias"])
    with pytest.raises(rv.InputError, match=r"no party 'party 11'"):
        plus.personal_model("party 11")
    with pytest.raises(rv.InputError, match="no party 4"):
        plus.personal_model(4)


def test_a_run_traces_local_work_once_and_no_gradient_that_is_not_recorded(monkeypatch):
    traced = []

    def counted(name, function):
        def call(*args):
            traced.append(name)
            return function(*args)
        return call

    for name in ("grad", "batch_grad"):
        monkeypatch.setattr(SampleOracle, name, counted(name, getattr(SampleOracle, name)))
    for learning_rate in (0.1, 0.2):  # a number of the algorithm does not trace again
        simulate(rv.fedavg(rv.SGD(learning_rate, batch_size=7)), rounds=1)
    assert traced == ["batch_grad"]


def test_steps_and_inexactness_are_per_party_and_round(plus):
    steps = plus.metrics.query("metric == 'steps'")
    assert len(steps) == 18
    full = {k: 2 * -(-int(n) // 16) for k, n in enumerate(DATA.sizes())}
    assert all(row.value <= full[int(row.party)] for row in steps.itertuples())
    late = sum(row.value < full[int(row.party)] for row in steps.itertuples())
    assert 0 < late <= 6  # at most one of three is slow each round
    gamma = plus.metrics.query("metric == 'inexactness'")["value"]
    assert len(gamma) == 18
    assert gamma.between(0.01, 1.5).all()
    assert gamma.mean() < 0.9


@pytest.mark.when_changed
def test_aggregation_changes_models_of_fedavg_and_not_of_fed_plus(plus):
    assert (plus.metrics.query("metric == 'model_change'")["value"] == 0).all()
    fedavg = simulate(rv.fedavg(SOLVER), diagnostics=("model_change",))
    assert (fedavg.metrics.query("metric == 'model_change'")["value"] > 0.01).all()


def test_line_runs_from_the_local_to_the_shared_model(plus):
    metrics = plus.metrics.query("round == 6 and split == 'train'").set_index(["metric", "party"])["value"]
    for party in plus.metrics.query("round == 6 and metric == 'line_0.0'")["party"]:
        assert metrics["line_1.0", party] == pytest.approx(metrics["global_loss", party], rel=1e-5)
        assert metrics["line_0.0", party] == pytest.approx(metrics["loss", party], rel=1e-5)


@pytest.mark.nightly
def test_bytes_count_messages_and_replies():
    model = 4 * (64 * 10 + 10)
    assert simulate(rv.fedavg(SOLVER)).facts["bytes"] == {"down": 18 * model, "up": 18 * model}
    dropped = simulate(rv.fedavg(SOLVER, stragglers="drop"))
    replies = dropped.metrics.query("metric == 'replies'")["value"].sum()
    assert replies < 18
    assert dropped.facts["bytes"] == {"down": 18 * model, "up": int(replies) * model}
    assert simulate(rv.local(SOLVER)).facts["bytes"] == {"down": 0, "up": 0}
    pull = rv.fedplus_pull(SOLVER, rv.aggregators.Mean(), gamma=0.3)
    assert simulate(pull).facts["bytes"] == {"down": 18 * (model + 4), "up": 18 * model}  # gamma_k is sent as well


@pytest.mark.when_changed
def test_cohorts_and_stragglers_are_common_to_all_methods(plus):
    cohorts = [result.metrics.query("metric == 'steps'")[["round", "party", "value"]]
               for result in (simulate(rv.local(SOLVER), diagnostics=("steps",)), plus)]
    assert cohorts[0].reset_index(drop=True).equals(cohorts[1].reset_index(drop=True))


@pytest.mark.nightly
def test_fedprox_with_mu_0_is_bit_identical_to_fedavg():
    assert simulate(rv.fedprox(SOLVER, mu=0.0)).digest == simulate(rv.fedavg(SOLVER)).digest


@pytest.mark.when_changed
def test_runs_of_a_seed_are_equal_and_of_another_seed_differ():
    """How often a run is evaluated does not change it."""
    first, second, other = (simulate(rv.fedprox(SOLVER), seed=s).digest for s in (0, 0, 1))
    assert first == second == simulate(rv.fedprox(SOLVER), evaluate_every=4).digest != other


@pytest.mark.parametrize(("rounds", "cohort", "evaluations"), [
    (3, None, 3), (40, None, 20), (41, None, 21), (40, 2, 20), (40, 1, 10), (10, 1, 5)])
def test_runs_of_small_cohorts_have_fewer_evaluations(rounds, cohort, evaluations):
    """20 evaluations, and one after the last round; fewer, but at least 5, if cohorts are small."""
    participation = rv.participation.Full() if cohort is None else rv.participation.Uniform(cohort)
    index = choose_evaluated_parties(None, 4, 0, "device")
    algorithm = rv.fedavg(SOLVER)
    plan = plan_evaluation(algorithm, rounds=rounds, cohort=participation.capacity(4), every=None, parties=index,
                           diagnostics=(), clock=None)
    assert -(-rounds // plan.every) == evaluations


def test_plot_has_the_mean_over_parties(plus, tmp_path):
    figure = plus.plot()
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), plus.scores().mean(axis=1))
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000


def test_progress_is_reported():
    reports = []
    simulate(rv.fedprox(SOLVER), progress=lambda done, total: reports.append((done, total)))
    rounds = [done for done, total in reports]
    assert rounds == sorted(rounds)
    assert {0, 2, 4, 6} <= set(rounds)
    assert {total for done, total in reports} == {6}


def test_a_run_first_frees_programs_of_models_that_are_gone(monkeypatch):
    asked = []
    monkeypatch.setattr("resolvent.simulator.run.free_programs_sometimes", asked.append)
    problem = rv.problems.QuadraticProblem(jnp.ones((2, 1, 1)), jnp.ones((2, 1)))
    rv.simulate(rv.fedavg(rv.solvers.GD(0.1)), problem, rounds=1, progress=False)
    assert asked == [problem]


@pytest.mark.parametrize(("change", "message"), [
    ({"rounds": 0}, "rounds=0"),
    ({"diagnostics": ("inexact",)}, "diagnostics: there is no diagnostic 'inexact'; did you mean 'inexactness'\\?"),
    ({"evaluate_every": 0}, "evaluate_every=0"),
    ({"participation": rv.participation.Uniform(9)}, "a cohort of 9 cannot be drawn from 4 parties"),
])
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(rv.fedavg(SOLVER), **change)


def test_algorithm_that_does_not_fit_is_refused_before_the_first_round():
    layers = rv.penalties.PerLayer({"weights": rv.penalties.L1()}, default=rv.penalties.Zero())
    with pytest.raises(rv.InputError, match="run: PerLayer names layer 'weights'"):
        simulate(rv.fedplus(SOLVER, layers))
    with pytest.raises(rv.InputError, match="gamma needs one number"):
        simulate(rv.fedplus_pull(SOLVER, rv.aggregators.Mean(), gamma=jnp.ones(3)))


class ReducesLongSteps(rv.solvers.GD):
    """A mistake: Python's if with a value that is not known before the program runs."""

    def __call__(self, subproblem, start, key, effort, memory):
        if subproblem.value(start) > 1:
            return start, jnp.zeros(()), memory
        return super().__call__(subproblem, start, key, effort, memory)


class RepliesWithGradients(type(rv.fedavg(SOLVER))):
    """A mistake: the info has no model."""

    def party(self, state, shared, oracle, key, effort):
        return state, oracle.grad(shared), {}


def test_error_in_a_function_of_a_user_names_its_line_and_what_to_do():
    problem = rv.problems.QuadraticProblem(jnp.ones((2, 1, 1)), jnp.ones((2, 1)))
    with pytest.raises(rv.InputError, match=r"run: test_simulate.py:\d+: in __call__, `if subproblem.*use jnp.where"):
        rv.simulate(rv.fedavg(ReducesLongSteps(0.1)), problem, rounds=1)
    with pytest.raises(rv.InputError, match=r"RepliesWithGradients: .*has no 'model': return the info of local_work"):
        rv.simulate(RepliesWithGradients(rv.solvers.GD(0.1)), problem, rounds=1)


def test_model_without_data_and_problem_with_data_are_refused():
    with pytest.raises(rv.InputError, match="needs data="):
        rv.simulate(rv.fedavg(SOLVER), MODEL, rounds=1)
    with pytest.raises(rv.InputError, match="brings its own data"):
        rv.simulate(rv.fedavg(SOLVER), rv.problems.LearningProblem(MODEL, DATA), DATA, rounds=1)


@pytest.mark.nightly
def test_cost_depends_on_the_cohort_and_not_on_the_parties():
    """20,000 parties with cohorts of 5 run, because no array has size N x cohort or N x samples."""
    data = rv.datasets.synthetic(parties=20_000, samples=4, features=3, test=0.25)
    result = rv.simulate(rv.fedavg_plus(rv.SGD(0.1, batch_size=4), sigma=0.5), rv.models.linear(3), data, rounds=2,
                         participation=rv.participation.Uniform(5), evaluate_every=2, progress=False)
    has_moved = np.abs(np.asarray(result.state.parties["weight"])).sum(axis=(1, 2)) > 0
    assert 5 <= has_moved.sum() <= 10
