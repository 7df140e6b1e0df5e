"""Scaffold, FedDANE and Ditto against closed forms and plain loops."""

import jax
import numpy as np
import pytest
from helpers import classification, equal, limit, quadratic, trajectory

import nightly
import resolvent as rv

EQUAL_WEIGHTS = rv.participation.Full("uniform")
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
DROPPING = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5, work="drop")
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)


def optimum(problem):
    return np.linalg.solve(np.mean(problem.hessians, axis=0), np.mean(problem.linears, axis=0))


@nightly.parametrize("option", ["I", "II"])
def test_scaffold_converges_to_the_optimum_and_fedavg_does_not(option):
    problem, solver = quadratic(), rv.solvers.GD(0.05, steps=5)
    scaffold, fedavg = (limit(a, problem).server for a in (rv.scaffold(solver, option=option), rv.fedavg(solver)))
    np.testing.assert_allclose(scaffold.model, optimum(problem), atol=1e-10)
    assert np.abs(fedavg - optimum(problem)).max() > 1e-3


@pytest.mark.when_changed
@nightly.parametrize("option", ["II", "I"])
@nightly.parametrize("participation", [
    DROPPING, rv.participation.BySize(3), rv.participation.Bernoulli(0.5), rv.participation.Uniform(2, "uniform"),
], ids=lambda participation: type(participation).__name__)
def test_scaffolds_server_control_is_the_weighted_mean_of_the_parties(option, participation):
    """c = sum_k lambda_k c_k after every round, whichever parties are absent or late."""
    problem = classification()
    shares = np.asarray(participation.shares(problem.sizes))
    for state in trajectory(rv.scaffold(SOLVER, option=option), problem, 5, participation):
        equal(state.server.control, jax.tree.map(lambda c: np.tensordot(shares, c, 1), state.parties))


def test_scaffolds_second_option_is_the_mean_of_the_local_gradients():
    problem, eta, steps = quadratic(), 0.05, 4
    before, after = trajectory(rv.scaffold(rv.solvers.GD(eta, steps=steps)), problem, 1, EQUAL_WEIGHTS)
    for k in range(6):
        w, gradients = before.server.model, []
        for _ in range(steps):
            gradients.append(np.asarray(problem.hessians[k]) @ w - np.asarray(problem.linears[k]))
            w = w - eta * gradients[-1]  # c = c_k = 0 in the first round
        np.testing.assert_allclose(after.parties[k], np.mean(gradients, axis=0), atol=1e-12)


def test_scaffold_needs_gradient_steps():
    with pytest.raises(rv.InputError, match="plain gradient steps, got ClosedForm"):
        rv.scaffold(rv.solvers.ClosedForm())
    with pytest.raises(ValueError, match="option='III'"):
        rv.scaffold(SOLVER, option="III")


@pytest.mark.nightly
def test_feddane_with_exact_solves_converges_to_the_optimum():
    """At a fixed point w_k = w~ for all k, so g = 0: the optimum of the average loss. FedProx converges elsewhere."""
    problem, exact = quadratic(), rv.solvers.ClosedForm()
    feddane, fedprox = (limit(preset(exact, mu=4.0), problem, 3000).server for preset in (rv.feddane, rv.fedprox))
    np.testing.assert_allclose(feddane.model, optimum(problem), atol=1e-10)
    assert np.abs(fedprox - optimum(problem)).max() > 1e-3


def test_feddanes_phases_by_numpy():
    problem, mu = quadratic(), 0.7
    states = trajectory(rv.feddane(rv.solvers.ClosedForm(), mu=mu), problem, 3, EQUAL_WEIGHTS)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    w = np.zeros(4)
    for state in states[1:]:
        gradients = h @ w - g
        mean = gradients.mean(axis=0)
        solutions = [np.linalg.solve(h[k] + mu * np.eye(4), g[k] - (mean - gradients[k]) + mu * w) for k in range(6)]
        w = np.mean(solutions, axis=0)
        np.testing.assert_allclose(state.server.gradient, mean, atol=1e-12)
        np.testing.assert_allclose(state.server.model, w, atol=1e-12)


def test_dittos_two_models_by_numpy():
    problem, lam = quadratic(), 0.6
    state = limit(rv.ditto(rv.solvers.ClosedForm(), lam=lam), problem, 3)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    alone = np.linalg.solve(h, g[..., None])[..., 0]
    shared = alone.mean(axis=0)
    np.testing.assert_allclose(state.server, shared, atol=1e-12)
    personal = [np.linalg.solve(h[k] + lam * np.eye(4), g[k] + lam * shared) for k in range(6)]
    np.testing.assert_allclose(state.parties, personal, atol=1e-12)


@pytest.mark.nightly
def test_ditto_with_lam_0_is_fedavg_and_local_training():
    solver = rv.solvers.GD(0.2, steps=3)
    ditto, fedavg, local = (trajectory(algorithm, classification(), 4, SAMPLED) for algorithm in (
        rv.ditto(solver, lam=0.0), rv.fedavg(solver), rv.local(solver)))
    equal([state.server for state in ditto], [state.server for state in fedavg])
    equal([state.parties for state in ditto], [state.parties for state in local])


@pytest.mark.when_changed
@nightly.parametrize("kind", ["numbers", "classes"])
def test_training_alone_with_ridge_is_scikit_learns_at_every_party(kind):
    from sklearn.linear_model import LogisticRegression, Ridge

    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=(n, 3)) for n in (6, 9, 40)]
    numbers = [x @ [3.0, -2.0, 1.0] + 7.0 + rng.normal(size=len(x)) for x in inputs]
    classes = [(y > np.median(y)).astype(int) for y in numbers]
    alone = rv.local(rv.solvers.LBFGS(), ridge=2.0)
    model, labels, peer = {
        "numbers": (rv.models.linear(3), numbers, Ridge(2.0)),
        "classes": (rv.models.logistic(3, 2), classes, LogisticRegression(C=0.5, tol=1e-10))}[kind]
    data = rv.FederatedData.from_arrays(inputs, labels, test=0, validation=0)
    with jax.enable_x64(True):
        models = rv.simulate(alone, model, data, rounds=60, progress=False).models_of(np.arange(3))
    for k in range(3):
        exact = peer.fit(*data.party(k))
        np.testing.assert_allclose(models["weight"][k].ravel(), exact.coef_.ravel(), atol=1e-4)
        np.testing.assert_allclose(models["bias"][k].ravel(), exact.intercept_, atol=1e-4)
    with pytest.raises(rv.InputError, match="ridge"):
        rv.local(SOLVER, ridge=0)
