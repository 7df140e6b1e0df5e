"""simulate: results, diagnostics against closed forms, checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.simulate import checkpoints as saved
from resolvent.simulate import evaluate as ev
from resolvent.simulate import tree_files as store

DATA = rv.datasets.digits(parties=4, classes_per_party=4, outliers=1, seed=3)
MODEL = rv.models.logistic(64, 10)
SOLVER = rv.SGD(0.1, batch_size=16, epochs=2)
WHO = rv.participation.Stragglers(rv.participation.Uniform(cohort=3), share=0.4)


def simulate(algorithm, **options):
    settings = {"rounds": 6, "evaluate_every": 2, "participation": WHO, "progress": False} | options
    return rv.simulate(algorithm, MODEL, DATA, **settings)


@pytest.fixture(scope="module")
def plus():
    return simulate(rv.fedgeomed_plus(SOLVER),
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


def test_the_table_of_metrics(plus):
    assert list(plus.metrics.columns) == ["method", "round", "party", "split", "metric", "value"]
    assert sorted(plus.metrics.query("metric == 'accuracy'")["round"].unique()) == [0, 2, 4, 6]
    assert plus.metrics.query("metric == 'replies'")["value"].tolist() == [3.0] * 6
    assert set(plus.metrics["split"].dropna()) == {"train", "validation", "test"}


def test_personal_by_name_and_refusals(plus):
    np.testing.assert_array_equal(plus.personal_model("party 1")["bias"], plus.personal_model(1)["bias"])
    with pytest.raises(rv.InputError, match=r"no party 'party 11'; did you mean 'party 1'\?"):
        plus.personal_model("party 11")
    with pytest.raises(rv.InputError, match="no party 4: they are numbered 0 to 3"):
        plus.personal_model(4)


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


def test_fed_plus_never_overwrites_a_model_and_fedavg_always_does(plus):
    assert (plus.metrics.query("metric == 'model_change'")["value"] == 0).all()
    jump = simulate(rv.fedavg(SOLVER), diagnostics=("model_change",)).metrics.query("metric == 'model_change'")["value"]
    assert (jump > 0.01).all()


def test_the_line_runs_from_the_local_to_the_shared_model(plus):
    at = plus.metrics.query("round == 6 and split == 'train'").set_index(["metric", "party"])["value"]
    for party in plus.metrics.query("round == 6 and metric == 'line_0.0'")["party"]:
        assert at["line_1.0", party] == pytest.approx(at["global_loss", party], rel=1e-5)
        assert at["line_0.0", party] == pytest.approx(at["loss", party], rel=1e-5)  # Fed+ deploys its local model


def test_bytes_count_messages_and_replies():
    model = 4 * (64 * 10 + 10)
    assert simulate(rv.fedavg(SOLVER, stragglers="keep")).facts["bytes"] == {"down": 18 * model, "up": 18 * model}
    dropped = simulate(rv.fedavg(SOLVER))
    replies = dropped.metrics.query("metric == 'replies'")["value"].sum()
    assert replies < 18
    assert dropped.facts["bytes"] == {"down": 18 * model, "up": int(replies) * model}
    assert simulate(rv.local(SOLVER)).facts["bytes"] == {"down": 0, "up": 0}
    pull = rv.fedplus_pull(SOLVER, rv.aggregators.Mean(), gamma=0.3)
    assert simulate(pull).facts["bytes"] == {"down": 18 * (model + 4), "up": 18 * model}  # gamma_k travels


def test_the_world_is_common_to_all_methods():
    """The same cohorts, stragglers and minibatches: FedProx with mu = 0 is FedAvg keeping partial work, to the bit."""
    assert simulate(rv.fedprox(SOLVER, mu=0.0)).digest == simulate(rv.fedavg(SOLVER, stragglers="keep")).digest
    cohorts = [simulate(a, diagnostics=("steps",)).metrics.query("metric == 'steps'")[["round", "party", "value"]]
               for a in (rv.local(SOLVER), rv.fedcomed_plus(SOLVER))]
    assert cohorts[0].reset_index(drop=True).equals(cohorts[1].reset_index(drop=True))


def test_seeds_matter_and_repeat():
    one, two, other = (simulate(rv.fedprox(SOLVER), seed=s) for s in (0, 0, 1))
    assert one.digest == two.digest != other.digest


def test_how_often_it_is_evaluated_changes_nothing():
    seldom, often = (simulate(rv.fedprox(SOLVER), evaluate_every=every).digest for every in (4, 1))
    assert seldom == often


def test_checkpoints_resume_to_the_same_digest(tmp_path):
    whole = simulate(rv.fedgeomed_plus(SOLVER))
    simulate(rv.fedgeomed_plus(SOLVER), rounds=4, checkpoint=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["000000004"]
    rest = simulate(rv.fedgeomed_plus(SOLVER), checkpoint=tmp_path, resume=True)
    assert rest.digest == whole.digest
    assert rest.metrics.equals(whole.metrics)
    assert rest.facts["bytes"] == whole.facts["bytes"]
    with pytest.raises(rv.InputError, match=r"is of round 6, beyond rounds=2"):
        simulate(rv.fedgeomed_plus(SOLVER), rounds=2, checkpoint=tmp_path, resume=True)
    with pytest.raises(rv.InputError, match="belongs to another run"):
        simulate(rv.fedgeomed_plus(SOLVER, sigma=0.2), checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(("rounds", "who", "evaluations"), [
    (3, rv.participation.Full(), 3), (40, rv.participation.Full(), 20), (41, rv.participation.Full(), 21), (40, rv.participation.Uniform(2), 20), (40, rv.participation.Uniform(1), 10),
    (10, rv.participation.Uniform(1), 5)])
def test_small_cohorts_are_evaluated_more_seldom(rounds, who, evaluations):
    """Twenty times, and perhaps after the last; fewer, but five, if the rounds have not room for the four parties."""
    result = simulate(rv.fedavg(rv.SGD(0.1, steps=1)), rounds=rounds, participation=who, evaluate_every=None)
    assert result.metrics.query("metric == 'accuracy'")["round"].nunique() == 1 + evaluations


def test_writing_takes_a_twentieth_of_the_time(monkeypatch):
    """A clock of its own: writes of 2 seconds, work of 3 between two questions."""
    now = {"s": 0.0}
    monkeypatch.setattr(saved.time, "monotonic", lambda: now["s"])
    pace, written = saved.Pace(), 0.0
    for _ in range(1000):
        now["s"] += 3
        if pace.due():
            with pace.writing():
                now["s"] += 2
                written += 2
    assert 0.04 < written / now["s"] <= 0.051


def test_the_last_checkpoint_goes_when_the_next_is_on_the_disk(tmp_path, monkeypatch):
    """All of its files, then its name in the folder: so a loss of power leaves one of them."""
    kept = []
    plain = store._to_disk

    def noted(path):
        plain(path)
        kept.append((path.name, sorted(p.name for p in tmp_path.iterdir())))

    monkeypatch.setattr(store, "_to_disk", noted)
    for rounds in (1, 2):
        store.Checkpoint(rounds, {"w": jnp.ones(2)}, pd.DataFrame({"value": [1.0]}), {}).write(tmp_path, "this run")
    state, *files, own, folder = kept[5:]
    assert {state[0], *(name for name, _ in files)} == {".state.safetensors.partial", "metrics.parquet", "facts.json"}
    assert own == (".000000002.partial", [".000000002.partial", "000000001"])
    assert folder == (tmp_path.name, ["000000001", "000000002"])
    assert [p.name for p in tmp_path.iterdir()] == ["000000002"]


def test_a_damaged_checkpoint_is_named(tmp_path):
    simulate(rv.fedavg(SOLVER), rounds=2, checkpoint=tmp_path)
    state = tmp_path / "000000002" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-40])
    with pytest.raises(rv.InputError, match=r"000000002 cannot be read: .* It may be damaged; remove it"):
        simulate(rv.fedavg(SOLVER), rounds=4, checkpoint=tmp_path, resume=True)


def test_plot_draws_mean_and_spread(plus, tmp_path):
    figure = plus.plot()
    line = figure.axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), plus.scores().mean(axis=1))
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000


def test_progress_is_reported():
    seen = []
    simulate(rv.fedavg(SOLVER), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 6), (2, 6), (4, 6), (6, 6)]


@pytest.mark.parametrize(("change", "message"), [
    ({"rounds": 0}, "rounds=0"),
    ({"diagnostics": ("inexact",)}, r"no diagnostic 'inexact'; did you mean 'inexactness'\?"),
    ({"evaluate_every": 0}, "evaluate_every=0"),
    ({"participation": rv.participation.Uniform(9)}, "a cohort of 9 cannot be drawn from 4 parties"),
])
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(rv.fedavg(SOLVER), **change)


def test_an_algorithm_that_does_not_fit_is_refused_before_any_work():
    layers = rv.penalties.PerLayer({"weights": rv.penalties.L1()}, default=rv.penalties.Zero())
    with pytest.raises(rv.InputError, match="run: PerLayer names layer 'weights', but the parameters have"):
        simulate(rv.fedplus(SOLVER, layers))
    with pytest.raises(rv.InputError, match=r"gamma needs one number, or one per party \(4\), got shape \(3,\)"):
        simulate(rv.fedplus_pull(SOLVER, rv.aggregators.Mean(), gamma=jnp.ones(3)))


def test_a_model_without_data_and_a_problem_with_it_are_refused():
    with pytest.raises(rv.InputError, match="needs data="):
        rv.simulate(rv.fedavg(SOLVER), MODEL, rounds=1)
    with pytest.raises(rv.InputError, match="brings its own data"):
        rv.simulate(rv.fedavg(SOLVER), rv.problems.LearningProblem(MODEL, DATA), DATA, rounds=1)


def quadratics(seed=0, parties=5, d=3):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(parties, 8, d)), rng.normal(size=(parties, 8))
    return a, b, rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(b))


def test_dissimilarity_by_numpy():
    with jax.enable_x64(True):
        a, b, problem = quadratics()
        problem = rv.problems.QuadraticProblem(problem.hessians, problem.linears, problem.constants, jnp.arange(1, 6))
        w = np.array([0.3, -1, 2])
        found = ev.dissimilarity(problem, jnp.asarray(w))
        grads = np.einsum("kni,kn->ki", a, np.einsum("kni,i->kn", a, w) - b)
        p = np.arange(1, 6) / 15
        mean = p @ grads
        assert float(found.b) == pytest.approx(np.sqrt(p @ (grads**2).sum(1) / (mean**2).sum()), rel=1e-12)
        assert float(found.gradient_variance) == pytest.approx(p @ ((grads - mean) ** 2).sum(1), rel=1e-12)
        assert float(found.heterogeneity) == pytest.approx((grads**2).sum(1).mean(), rel=1e-12)


def test_parties_that_agree_have_b_one_also_where_every_gradient_vanishes():
    same = rv.problems.QuadraticProblem(jnp.tile(jnp.eye(2), (3, 1, 1)), jnp.ones((3, 2)))
    found = ev.dissimilarity(same, jnp.zeros(2))
    assert (float(found.b), float(found.gradient_variance)) == (1.0, 0.0)
    assert float(ev.dissimilarity(same, jnp.ones(2)).b) == 1.0


def test_heterogeneity_of_the_run_is_h_at_the_pooled_optimum():
    """H of the operator-splitting paper, A.1: the mean of |grad f_i(w*)|^2 at the least-squares solution."""
    with jax.enable_x64(True):
        a, b, problem = quadratics()
        result = rv.simulate(rv.fedavg(rv.solvers.GD(0.01)), problem, rounds=1, diagnostics=("heterogeneity",), progress=False)
        w, *_ = np.linalg.lstsq(a.reshape(-1, 3), b.ravel(), rcond=None)
        grads = np.einsum("kni,kn->ki", a, np.einsum("kni,i->kn", a, w) - b)
        found = result.metrics.set_index("metric")["value"]
        assert found["heterogeneity"] == pytest.approx((grads**2).sum(1).mean(), rel=1e-5)
        assert found["heterogeneity_gradient"] <= 1e-6


def test_many_parties_cost_a_cohort():
    """Nothing of size N x cohort or N x samples appears: twenty thousand parties run in a small cohort."""
    data = rv.datasets.synthetic(parties=20_000, samples=4, features=3, test=0.25)
    result = rv.simulate(rv.fedavg_plus(rv.SGD(0.1, batch_size=4)), rv.models.linear(3), data, rounds=2,
                         participation=rv.participation.Uniform(5), evaluate_every=2, progress=False)
    moved = np.abs(np.asarray(result.state.parties["weight"])).sum(axis=(1, 2)) > 0
    assert 5 <= moved.sum() <= 10
