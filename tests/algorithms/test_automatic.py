"""Choices by held-out data: the mixture of the own and the joint model, and the best of several settings."""

from functools import cache
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.math import tree
from resolvent.problem.maps import Mixture, through
from resolvent.simulator.engine.evaluate import evaluate_split, personal_models
from resolvent.simulator.record.systems import message_bytes

SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.3, batch_size=4, epochs=2)
VALIDATION = jnp.array(1)
OUTLIER, WITHOUT_VALIDATION = 5, 4


@cache
def problem_with_an_outlier():
    """Six parties: the inputs of the last one are inverted, and party 4 has no validation samples."""
    rng = np.random.default_rng(0)
    sizes = [20, 30, 45, 60, 2, 40]
    x = [rng.normal(size=(n, 4)) for n in sizes]
    y = [(a @ [1, 2, -1, 0.5] + 0.5 * rng.normal(size=len(a)) > 0).astype(int) for a in x]
    x[OUTLIER] = -x[OUTLIER]
    data = rv.FederatedData.from_arrays(x, y, validation=0.2, test=0.2, classes=["0", "1"])
    assert np.flatnonzero(data.sizes("validation") == 0).tolist() == [WITHOUT_VALIDATION]
    return rv.problems.LearningProblem(rv.models.logistic(4, 2), data)


def scores(problem, models):
    """The validation loss and score of each party's model."""
    index = jnp.arange(problem.parties)
    return [np.asarray(values) for values in evaluate_split(problem, models, index, index, VALIDATION)]


def models_of(algorithm, problem, state):
    return personal_models(algorithm, problem, state, jnp.arange(problem.parties))


def bytes_of(algorithm, problem):
    return message_bytes(describe(algorithm, problem))


# Model interpolation.

INNER = {
    "fedavg": rv.fedavg(SOLVER),
    "personal": rv.fedgeomed_plus(SOLVER, sigma=0.5, delta=0.2),
    "diverging": rv.fedavg(rv.solvers.GD(3e38, steps=3)),
}


@pytest.mark.nightly
@nightly.parametrize("name", ["diverging", "fedavg", "personal"])
def test_no_party_is_worse_than_with_local_training_on_its_validation_samples(name):
    problem, inner = problem_with_an_outlier(), INNER[name]
    algorithm = rv.model_interpolation(SOLVER, inner)
    states, inner_states, local_states = (
        trajectory(a, problem, 5, SAMPLED) for a in (algorithm, inner, rv.local(SOLVER)))
    for state, inner_state, local_state in zip(states, inner_states, local_states, strict=True):
        equal(state.parties.extra, local_state.parties, 0)
        equal((state.server.inner, state.parties.inner), (inner_state.server, inner_state.parties), 0)
        models = models_of(algorithm, problem, state)
        losses, local_losses = scores(problem, models)[0], scores(problem, local_state.parties)[0]
        assert np.isfinite(losses).tolist() == [k != WITHOUT_VALIDATION for k in range(6)]
        assert (losses <= local_losses)[np.isfinite(losses)].all()
        equal(tree.rows(models, WITHOUT_VALIDATION), tree.rows(local_state.parties, WITHOUT_VALIDATION), 0)


@pytest.mark.nightly
def test_model_interpolation_takes_the_best_of_eleven_mixtures():
    problem, inner = problem_with_an_outlier(), INNER["fedavg"]
    algorithm = rv.model_interpolation(SOLVER, inner)
    state = trajectory(algorithm, problem, 5, SAMPLED)[-1]
    local, shared = state.parties.extra.value, state.server.inner
    losses, local_losses = scores(problem, models_of(algorithm, problem, state))[0], scores(problem, local)[0]
    joint_losses = scores(problem, tree.stack(shared, 6))[0]
    assert joint_losses[OUTLIER] > 2 * local_losses[OUTLIER]  # the outlier would lose by joining
    assert (losses < local_losses - 1e-3).any()  # another party gains
    message = algorithm.model_message(state.server, jnp.array(0))
    weights = [float(algorithm.joint_weight(tree.rows(state.parties, k), message, problem.oracle(jnp.array(k))))
               for k in range(6)]
    assert weights[WITHOUT_VALIDATION] == 0
    grid = [scores(problem, jax.vmap(tree.lerp, (0, None, None))(local, shared, s))[0] for s in np.linspace(0, 1, 11)]
    np.testing.assert_allclose(losses[:4], np.min(grid, axis=0)[:4], atol=1e-14)
    np.testing.assert_allclose(weights[:4], np.argmin(grid, axis=0)[:4] / 10, atol=1e-14)


def test_model_interpolation_communicates_as_the_inner_algorithm():
    problem, inner = problem_with_an_outlier(), rv.feddane(SOLVER)
    assert bytes_of(rv.model_interpolation(SOLVER, inner), problem) == bytes_of(inner, problem)


@pytest.mark.nightly
def test_with_two_points_a_party_uses_the_local_or_the_joint_model():
    """The comparison is by the score, so the accuracy is never below that of local training."""
    problem = problem_with_an_outlier()
    algorithm = rv.model_interpolation(SOLVER, rv.fedavg(SOLVER), points=2, by="score")
    state = trajectory(algorithm, problem, 4)[-1]
    models, local = models_of(algorithm, problem, state), state.parties.extra.value
    for k in range(6):
        candidates = (state.server.inner, tree.rows(local, k))
        assert any(eqx.tree_equal(tree.rows(models, k), jax.tree.map(jnp.asarray, model)) for model in candidates)
    accuracy, local_accuracy = scores(problem, models)[1], scores(problem, local)[1]
    assert (accuracy >= local_accuracy)[np.isfinite(accuracy)].all()


def test_protected_fed_plus_is_a_choice_around_abstaining_parties_and_momentum_of_the_centre():
    combine, momentum = rv.combinators, rv.fedavgm(SOLVER).optimizer
    plus = rv.fedplus(SOLVER, rv.penalties.L1(), lam=1.0, abstains=True)
    for aggregate, inner in (("active", plus), ("all", combine.StaleReplies(plus))):
        expected = combine.HeldOutInterpolation(combine.ServerOptimizer(inner, momentum), SOLVER, fallback="joint")
        assert eqx.tree_equal(rv.protected_fedplus(SOLVER, rv.penalties.L1(), aggregate=aggregate), expected)
    assert eqx.tree_equal(rv.protected_fedplus(), rv.protected_fedplus(rv.SGD(0.1)))


def test_the_momentum_of_fed_plus_by_numpy():
    """v <- v/2 + (mean of w_k) - w~ and w~ <- w~ + v; the parties' work is Fed+'s from the centre."""
    problem = quadratic()
    method = rv.fedavg_plus(rv.solvers.ClosedForm(), sigma=1.0, delta=3.0)
    algorithm = rv.combinators.ServerOptimizer(method, rv.fedavgm(SOLVER, momentum=0.5).optimizer)
    states = trajectory(algorithm, problem, 6, rv.participation.Full("uniform"))
    h, g, n = np.asarray(problem.hessians), np.asarray(problem.linears), problem.parties
    w, centre, v = np.zeros_like(g), np.zeros(g.shape[1]), np.zeros(g.shape[1])
    for state in states[1:]:
        anchors = centre + (w - centre) / 4
        w = np.stack([np.linalg.solve(h[k] + np.eye(len(centre)), g[k] + anchors[k]) for k in range(n)])
        v = v / 2 + w.mean(axis=0) - centre
        centre = centre + v
        np.testing.assert_allclose(state.parties.inner, w, atol=1e-11)
        np.testing.assert_allclose(state.server.inner, centre, atol=1e-11)


@pytest.mark.when_changed
def test_without_validation_samples_protected_fed_plus_runs_and_a_party_uses_its_joint_model():
    problem = problem_with_an_outlier()
    algorithm = rv.protected_fedplus(SOLVER)
    state = trajectory(algorithm, problem, 3)[-1]
    joint, local = state.parties.inner.inner.model, state.parties.extra.value
    models = models_of(algorithm, problem, state)
    equal(tree.rows(models, WITHOUT_VALIDATION), tree.rows(joint, WITHOUT_VALIDATION))
    assert (scores(problem, models)[0] <= scores(problem, local)[0])[np.arange(6) != WITHOUT_VALIDATION].all()
    data = rv.datasets.digits(parties=3, validation=0.0)
    with pytest.raises(rv.InputError, match="chooses by validation samples, and none of the 3 parties has any"):
        rv.simulate(rv.model_interpolation(SOLVER, algorithm), rv.models.logistic(64, 10), data, rounds=1)


# Fed+ auto and held-out selection.

PAIRS = [(sigma, delta) for sigma in (2.0, 0.2) for delta in (1.5, 0.5, 0.1)]  # the largest first


@pytest.mark.nightly
def test_the_server_runs_fed_plus_for_the_largest_pair():
    problem = problem_with_an_outlier()
    algorithm = rv.fedplus_auto(SOLVER, sigmas=(0.2, 2.0), deltas=(0.5, 0.1, 1.5))
    largest = rv.fedgeomed_plus(SOLVER, sigma=2.0, delta=1.5)
    states, expected = (trajectory(a, problem, 4, SAMPLED) for a in (algorithm, largest))
    equal([(state.server.inner, jax.tree.map(lambda x: x[:, 0], state.parties)) for state in states],
          [(state.server, state.parties) for state in expected])
    assert bytes_of(algorithm, problem) == bytes_of(largest, problem)


def test_robust_interpolation_is_a_choice_around_a_robust_shared_model():
    """FedAvgM with the Moreau centre; each party mixes it with its own."""
    centre = rv.aggregators.MoreauCentre(rv.penalties.L2Norm(), 0.3)
    momentum = rv.fedavgm(SOLVER).optimizer
    shared = rv.combinators.ServerOptimizer(rv.robust(SOLVER, centre), momentum)
    expected = rv.model_interpolation(SOLVER, shared)
    assert eqx.tree_equal(rv.robust_interpolation(SOLVER, delta=0.3), expected)
    assert eqx.tree_equal(rv.robust_interpolation(), rv.robust_interpolation(rv.SGD(0.1)))


@pytest.mark.when_changed
def test_fedplus_auto_by_numpy():
    """A loop over parties and pairs. On a quadratic problem f_k itself is the held-out measure."""
    problem = quadratic()
    algorithm = rv.fedplus_auto(rv.solvers.ClosedForm(), rv.penalties.SquaredL2(), sigmas=(0.2, 2.0),
                                deltas=(0.5, 0.1, 1.5))
    assert [(a.sigma, a.anchor.delta) for a in (algorithm.inner, *algorithm.others)] == PAIRS
    states = trajectory(algorithm, problem, 8, rv.participation.Full("uniform"))
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    for before, after in pairwise(states):
        w, centre = np.array(before.parties.inner), before.server.inner
        losses = np.zeros((6, 6))
        for k in range(6):
            for j, (sigma, delta) in enumerate(PAIRS):
                anchor = centre + (w[k, j] - centre) / (1 + delta)
                w[k, j] = np.linalg.solve(h[k] + sigma * np.eye(4), g[k] + sigma * anchor)
                losses[k, j] = w[k, j] @ h[k] @ w[k, j] / 2 - g[k] @ w[k, j]
        np.testing.assert_allclose(after.parties.inner, w, atol=1e-11)
        np.testing.assert_allclose(after.server.inner, w[:, 0].mean(axis=0), atol=1e-6)  # an iterative centre
    best = losses.argmin(axis=1)
    np.testing.assert_allclose(models_of(algorithm, problem, after), w[np.arange(6), best], atol=1e-11)
    message = algorithm.model_message(after.server, jnp.array(0))
    choices = [int(algorithm.best_candidate(tree.rows(after.parties, k), message, problem.oracle(k))) for k in range(6)]
    assert choices == list(best)
    assert max(best) > 0


@pytest.mark.when_changed
@nightly.parametrize("by", ["score", "loss"])
def test_a_party_uses_its_best_candidate_and_without_validation_samples_the_first(by):
    """The candidates may be of any algorithm; one that diverges is not chosen."""
    problem = problem_with_an_outlier()
    diverging, first, second = (rv.ditto(rv.solvers.GD(rate, steps=2, proximal="explicit"), lam=lam)
                                for rate, lam in ((3e38, 1.0), (0.3, 1.0), (0.3, 0.0)))
    algorithm = rv.combinators.HeldOutSelection(first, (diverging, second), by)
    state = trajectory(algorithm, problem, 5)[-1]
    losses, accuracies = np.array([scores(problem, jax.tree.map(lambda x, j=j: x[:, j], state.parties.inner))
                                   for j in range(3)]).swapaxes(0, 1)
    models = models_of(algorithm, problem, state)
    assert np.isnan(losses[1]).all()
    for k in range(6):
        keys = {j: (-accuracies[j, k], losses[j, k]) if by == "score" else losses[j, k] for j in (0, 2)}
        best = 0 if k == WITHOUT_VALIDATION else min(keys, key=keys.get)
        equal(tree.rows(models, k), jax.tree.map(lambda x, k=k, best=best: x[k, best], state.parties.inner), 0)


def test_held_out_measures_are_those_of_the_evaluation():
    problem = problem_with_an_outlier()
    w = jax.tree.map(lambda x: x + 0.3, problem.init(jax.random.key(0)))
    losses, accuracies = scores(problem, tree.stack(w, 6))
    for k in (0, WITHOUT_VALIDATION, OUTLIER):
        np.testing.assert_array_equal(problem.oracle(jnp.array(k)).held_out(w), [losses[k], accuracies[k]])
    oracle = problem.oracle(jnp.array(0))
    mixed = through(oracle, Mixture(0.25, jax.tree.map(jnp.zeros_like, w)))
    np.testing.assert_array_equal(mixed.held_out(w)[0], oracle.held_out(jax.tree.map(lambda x: 0.25 * x, w))[0])


def test_validation_samples_are_required():
    interpolation = rv.model_interpolation(SOLVER, rv.fedavg(SOLVER))
    for algorithm in (rv.fedplus_auto(SOLVER), rv.combinators.FineTuned(interpolation, SOLVER)):
        with pytest.raises(rv.InputError, match="validation samples"):
            rv.simulate(algorithm, classification(), rounds=1, progress=False)


@pytest.mark.parametrize(("build", "error", "message"), [
    (lambda: rv.combinators.HeldOutSelection(rv.fedavg(SOLVER), (rv.local(SOLVER),)), ValueError, "one algorithm"),
    (lambda: rv.fedplus_auto(SOLVER, sigmas=()), rv.InputError, "sigmas"),
    (lambda: rv.fedplus_auto(SOLVER, sigmas=(1.0, -1.0)), rv.InputError, "sigmas=-1"),
    (lambda: rv.fedplus_auto(SOLVER, deltas=(0.0,)), rv.InputError, "deltas=0"),
    (lambda: rv.fedplus_auto(SOLVER, by="auc"), ValueError, "by='auc'"),
    (lambda: rv.model_interpolation(SOLVER, rv.fedavg(SOLVER), points=1), ValueError, "points=1"),
])
def test_wrong_settings_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.nightly
def test_an_experiment_file_sets_the_inner_algorithm(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("data: {name: digits, parties: 2}\nmodel: logistic\nsolver: {name: adam, learning_rate: 0.01}\n"
                    "algorithms:\n"
                    "  safe: {name: model_interpolation, inner: {name: fedprox, mu: 0.3, solver: LBFGS}}\n")
    safe = ExperimentFile.load(str(file)).build().algorithms["safe"]
    assert isinstance(safe.solver, rv.OptaxSolver)
    assert (safe.inner.mu, type(safe.inner.solver)) == (0.3, rv.solvers.LBFGS)
    with pytest.raises(rv.InputError, match=r"algorithms\.safe.*validation"):
        ExperimentFile.load(str(file), ["data.validation=0"]).build()
