"""FedDyn, FedPD, FedDR, ADMM, FedLin, FedExP and Scaffnew against NumPy, their fixed points, and one another."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, quadratic, trajectory

import nightly
import resolvent as rv

EQUAL_WEIGHTS = rv.participation.Full("uniform")
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
DROPPING = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5, work="drop")
EXACT = rv.solvers.ClosedForm()
SOLVER = rv.SGD(0.2, batch_size=4, epochs=3)


def matrices(problem):
    return np.asarray(problem.hessians), np.asarray(problem.linears)


def optimum(problem, shares=None):
    h, g = matrices(problem)
    return np.linalg.solve(np.average(h, axis=0, weights=shares), np.average(g, axis=0, weights=shares))


def proximal(h, g, center, weight, linear):
    """argmin of w'Hw/2 - g'w + <linear, w> + weight/2 |w - center|^2, for stacked parties."""
    systems = h + weight * np.eye(h.shape[-1])
    return np.linalg.solve(systems, (g - linear + weight * center)[..., None])[..., 0]


def test_feddyn_by_numpy():
    problem, alpha = quadratic(), 0.7
    states = trajectory(rv.feddyn(EXACT, alpha=alpha), problem, 4, EQUAL_WEIGHTS)
    h, g = matrices(problem)
    shared, corrections, server = np.zeros(4), np.zeros((6, 4)), np.zeros(4)
    for state in states[1:]:
        models = proximal(h, g, shared, alpha, -corrections)
        corrections = corrections - alpha * (models - shared)
        server = server - alpha * np.mean(models - shared, axis=0)
        shared = np.mean(models, axis=0) - server / alpha
        np.testing.assert_allclose(state.parties, corrections, atol=1e-12)
        np.testing.assert_allclose(state.server.model, shared, atol=1e-12)


@nightly.parametrize("participation", [DROPPING, rv.participation.Uniform(2, "uniform")], ids=["stragglers", "uniform"],
                     per_commit=0)
def test_feddyns_server_correction_is_the_weighted_mean_of_the_parties(participation):
    """h = sum_k lambda_k g_k after every round, whichever parties are absent or late."""
    problem = classification()
    shares = np.asarray(participation.shares(problem.sizes))
    for state in trajectory(rv.feddyn(SOLVER, alpha=0.5), problem, 5, participation):
        equal(state.server.correction, jax.tree.map(lambda g: np.tensordot(shares, g, 1), state.parties))


@pytest.mark.when_changed
def test_feddyn_is_exact_under_sampling():
    problem, sampled = quadratic(), rv.participation.Uniform(3, "uniform")
    state = limit(rv.feddyn(EXACT, alpha=1.0), problem, 2000, sampled)
    np.testing.assert_allclose(state.server.model, optimum(problem), atol=1e-10)


@pytest.mark.when_changed
def test_feddyn_fedpd_and_fedpi_are_one_algorithm_with_all_parties():
    problem, eta = quadratic(), 0.6
    feddyn, fedpd, fedpi = (trajectory(algorithm, problem, 6, EQUAL_WEIGHTS) for algorithm in (
        rv.feddyn(EXACT, alpha=1 / eta), rv.fedpd(EXACT, eta=eta), rv.fedpi(EXACT, eta=eta, decentralised=True)))
    for a, b in zip(feddyn, fedpd, strict=True):
        equal(a.server.model, b.server)
        equal(a.parties, b.parties)
    # A message of FedPi is the mean of z_k = 2 w_k - u_k, which FedPD's parties reply as w_k - eta g_k.
    for a, b in zip(fedpd, fedpi, strict=True):
        equal(a.server, b.server.model if hasattr(b.server, "model") else jax.tree.leaves(b.server)[0])


@nightly.parametrize("relaxation", [1.6, 1.0])
def test_admm_by_numpy_with_dual_variables(relaxation):
    """Textbook ADMM with its dual variables: the shared model is z after every round, and the splitting's iterates are
    z - y_k."""
    problem, rho = quadratic(), 1.4
    algorithm = rv.admm(EXACT, rho=rho, relaxation=relaxation)
    states = trajectory(algorithm, problem, 6, EQUAL_WEIGHTS)
    split = trajectory(rv.splitting(EXACT, eta=1 / rho, alpha=2.0, beta=2.0, gamma=relaxation / 2), problem, 6,
                       EQUAL_WEIGHTS)
    h, g = matrices(problem)
    z, duals = np.zeros(4), np.zeros((6, 4))
    for state, iterates in zip(states[1:], split[1:], strict=True):
        x = relaxation * proximal(h, g, z - duals, rho, np.zeros(4)) + (1 - relaxation) * z
        z = np.mean(x + duals, axis=0)
        duals = duals + x - z
        np.testing.assert_allclose(algorithm.server_model(state.server), z, atol=1e-12)
        np.testing.assert_allclose(iterates.server.u, z - duals, atol=1e-12)
    final = limit(algorithm, problem, 300)
    np.testing.assert_allclose(algorithm.server_model(final.server), optimum(problem), atol=1e-10)


@pytest.mark.when_changed
def test_admm_with_absent_parties_averages_those_that_are_present():
    """An absent party keeps x_k + y_k; its y_k follows from the z that it is sent next."""
    problem, rho, participation = quadratic(), 1.4, rv.participation.Uniform(3, "uniform")
    algorithm = rv.admm(EXACT, rho=rho)
    h, g = matrices(problem)
    z, sums = np.zeros(4), np.zeros((6, 4))
    for before, state in pairwise(trajectory(algorithm, problem, 5, participation)):
        present = np.any(np.asarray(state.parties != before.parties), axis=-1)
        assert present.sum() == 3
        duals = sums - z
        x = proximal(h, g, z - duals, rho, np.zeros(4))
        sums = np.where(present[:, None], x + duals, sums)
        z = sums[present].mean(axis=0)
        np.testing.assert_allclose(algorithm.server_model(state.server), z, atol=1e-12)


@pytest.mark.nightly
def test_feddr_is_exact_under_sampling_and_fedpi_is_not():
    problem, sampled = quadratic(), rv.participation.Uniform(3, "uniform")
    feddr = rv.feddr(EXACT, eta=0.5)
    fedpi = rv.fedpi(EXACT, eta=0.5, decentralised=True)
    models = [algorithm.server_model(limit(algorithm, problem, 4000, sampled).server) for algorithm in (feddr, fedpi)]
    errors = [np.abs(np.asarray(model) - optimum(problem)).max() for model in models]
    assert errors[0] < 1e-9 < 1e-3 < errors[1]


@pytest.mark.when_changed
def test_feddr_by_numpy_with_half_of_the_parties():
    """Algorithm 1 of FedDR: u_k, w_k and z_k of absent parties stay, and the mean is over all N."""
    problem, eta, alpha = quadratic(), 0.5, 1.3
    participation = rv.participation.Uniform(3, "uniform")
    algorithm = rv.feddr(EXACT, eta=eta, alpha=alpha)
    states = trajectory(algorithm, problem, 8, participation)
    h, g = matrices(problem)
    u, w, z, shared = np.zeros((6, 4)), np.zeros((6, 4)), np.zeros((6, 4)), np.zeros(4)
    for before, state in pairwise(states):
        moved = np.any(np.asarray(state.parties.inner[0] != before.parties.inner[0]), axis=-1) | np.any(
            np.asarray(state.parties.inner[1] != before.parties.inner[1]), axis=-1)
        assert moved.sum() == 3
        for k in np.flatnonzero(moved):
            u[k] = u[k] + alpha * (shared - w[k])
            w[k] = proximal(h[k], g[k], u[k], 1 / eta, 0)
            z[k] = 2 * w[k] - u[k]
        shared = z.mean(axis=0)
        np.testing.assert_allclose(algorithm.server_model(state.server), shared, atol=1e-12)


@pytest.mark.when_changed
def test_fedlin_by_numpy_with_different_numbers_of_steps():
    problem, eta = quadratic(), 0.3
    efforts = np.array([1.0, 0.5, 0.25, 1.0, 0.75, 0.5])
    participation = rv.participation.FixedEffort(efforts, EQUAL_WEIGHTS)
    states = trajectory(rv.fedlin(rv.solvers.GD(eta, steps=4)), problem, 3, participation)
    h, g = matrices(problem)
    shared = np.zeros(4)
    for state in states[1:]:
        gradients = h @ shared - g
        models = []
        for k, effort in enumerate(efforts):
            steps, w = round(4 * effort), shared
            for _ in range(steps):
                w = w - eta / steps * (h[k] @ w - g[k] - gradients[k] + gradients.mean(axis=0))
            models.append(w)
        shared = np.mean(models, axis=0)
        np.testing.assert_allclose(state.server.model, shared, atol=1e-12)
    final = limit(rv.fedlin(rv.solvers.GD(eta, steps=4)), problem, 2000, participation)
    np.testing.assert_allclose(final.server.model, optimum(problem), atol=1e-10)


def test_fedexp_by_numpy():
    problem, epsilon, solver = quadratic(), 1e-3, rv.solvers.GD(0.1, steps=3)
    states = trajectory(rv.fedexp(solver, epsilon=epsilon), problem, 4, EQUAL_WEIGHTS)
    h, g = matrices(problem)
    steps = []
    for before, state in pairwise(states):
        models = np.repeat(before.server[None], 6, axis=0)
        for _ in range(3):
            models = models - 0.1 * (np.einsum("kij,kj->ki", h, models) - g)
        changes = models - before.server
        mean = changes.mean(axis=0)
        steps.append(max(1, np.mean(np.sum(changes**2, axis=1)) / (2 * (mean @ mean + epsilon))))
        np.testing.assert_allclose(state.server, before.server + steps[-1] * mean, atol=1e-12)
    assert max(steps) > 1  # the parties differ, so that the step is extrapolated at least once


@pytest.mark.nightly
def test_fedexp_with_equal_parties_is_fedavg():
    solver = rv.solvers.GD(0.1, steps=3)
    same = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 3), jnp.ones((3, 2)))
    equal([s.server for s in trajectory(rv.fedexp(solver), same, 3)],
          [s.server for s in trajectory(rv.fedavg(solver), same, 3)])


def test_scaffnew_by_numpy():
    problem, rate, p = quadratic(), 0.1, 0.4
    states = trajectory(rv.scaffnew(rv.solvers.GD(rate), p=p), problem, 5, EQUAL_WEIGHTS)
    h, g = matrices(problem)
    shared, controls = np.zeros(4), np.zeros((6, 4))
    for before, state in pairwise(states):
        models = np.repeat(shared[None], 6, axis=0)
        for _ in range(int(before.server.steps)):
            models = models - rate * (np.einsum("kij,kj->ki", h, models) - g - controls)
        shared = models.mean(axis=0)
        controls = controls + p / rate * (shared - models)
        np.testing.assert_allclose(state.server.model, shared, atol=1e-12)
        np.testing.assert_allclose(state.parties.control, controls, atol=1e-11)
    assert len({int(state.server.steps) for state in states}) > 1


@pytest.mark.nightly
def test_scaffnews_control_variates_sum_to_zero_under_sampling():
    problem = classification()
    shares = np.asarray(DROPPING.shares(problem.sizes))
    for state in trajectory(rv.scaffnew(rv.SGD(0.1, batch_size=4)), problem, 5, DROPPING):
        equal(jax.tree.map(lambda h: np.tensordot(shares, h, 1), state.parties.control),
              jax.tree.map(lambda h: np.zeros(h.shape[1:]), state.parties.control))


@pytest.mark.nightly
def test_scaffnew_needs_fewer_exchanges_than_gradient_descent_by_about_the_root_of_the_condition_number():
    """Condition number 100 with p = 1/10: at most 3 sqrt(100) rounds per factor e, gradient descent about 100."""
    rng = np.random.default_rng(0)
    hessians = np.stack([np.diag(10.0 ** np.linspace(-2, 0, 4))] * 4)
    linears = np.einsum("kij,kj->ki", hessians, rng.normal(size=(4, 4)))
    problem = rv.problems.QuadraticProblem(jnp.asarray(hessians), jnp.asarray(linears))
    solver = rv.solvers.GD(1.0)
    scaffnew = limit(rv.scaffnew(solver, p=0.1), problem, 300).server.model
    descent = limit(rv.fedavg(solver), problem, 300).server
    start = np.abs(optimum(problem)).max()
    assert np.abs(scaffnew - optimum(problem)).max() < start * np.exp(-300 / 30)
    assert np.abs(descent - optimum(problem)).max() > start * np.exp(-300 / 80)


@pytest.mark.parametrize("build", [
    lambda: rv.feddyn(SOLVER, alpha=0), lambda: rv.fedpd(SOLVER, eta=0), lambda: rv.feddr(SOLVER, alpha=2.0),
    lambda: rv.admm(SOLVER, relaxation=2.0), lambda: rv.admm(SOLVER, rho=0), lambda: rv.fedexp(SOLVER, epsilon=0),
    lambda: rv.scaffnew(SOLVER, p=0), lambda: rv.scaffnew(EXACT), lambda: rv.fedlin(EXACT)])
def test_settings_outside_their_range_are_refused(build):
    with pytest.raises(rv.InputError, match=r"alpha|eta|relaxation|rho|epsilon|p=|gradient steps"):
        build()


def test_scaffolds_control_variates_are_means_of_clipped_gradients():
    """One full step: c_k is the gradient at the shared model, shortened to the length 0.1, in the first two rounds."""
    problem = quadratic()
    h, g = matrices(problem)
    states = trajectory(rv.scaffold(rv.SGD(0.2, batch_size=64, steps=1, clip=0.1)), problem, 2, EQUAL_WEIGHTS)
    for before, after in pairwise(states):
        gradients = h @ np.asarray(before.server.model) - g
        clipped = 0.1 * gradients / np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 0.1)
        np.testing.assert_allclose(after.parties, clipped, atol=1e-12)
        np.testing.assert_allclose(after.server.control, clipped.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.scaffold(rv.SGD(0.1, clip=1.0), option="I"), r"leave clip out or use option='II'"),
    (lambda: rv.fedlin(rv.SGD(0.1, clip=1.0)), "FedDANE corrects .* not clipped.*leave clip out"),
    (lambda: rv.ef21_bc(rv.SGD(0.1, clip=1.0)), "does not clip gradients: leave clip out"),
    (lambda: rv.scaffold(rv.solvers.adam(0.1)), r"got OptaxSolver: use SGD or GD; for clipped gradients, SGD\(clip"),
])
def test_clipped_steps_with_a_correction_that_is_not_clipped_are_refused(make, message):
    with pytest.raises(rv.InputError, match=message):
        make()
