"""q-FedAvg, TERM, AFL, FedDisco and FedACG against NumPy and FedAvg."""

from itertools import pairwise

import numpy as np
import pytest
from helpers import classification, equal, quadratic, trajectory

import resolvent as rv

EQUAL_WEIGHTS, BY_SIZE = rv.participation.Full("uniform"), rv.participation.Full("size")
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER, RATE = rv.solvers.GD(0.1, steps=3), 0.1


def losses(problem, w):
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    return np.array([w @ h[k] @ w / 2 - g[k] @ w + problem.constants[k] for k in range(len(h))])


def trained(problem, w, pull=0.0):
    """The models after three gradient steps of each party on f_k, each with an implicit step on pull/2 |. - w|^2."""
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    models = np.repeat(w[None], len(h), axis=0)
    for _ in range(3):
        models = (models - RATE * (np.einsum("kij,kj->ki", h, models) - g - pull * w)) / (1 + RATE * pull)
    return models


def positive():
    """Quadratics whose losses are positive, as those of models are: 0.1 to 0.6 at their minima."""
    problem = quadratic()
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    lowest = np.einsum("ki,ki->k", g, np.linalg.solve(h, g[..., None])[..., 0]) / 2
    return rv.problems.QuadraticProblem(h, g, lowest + np.arange(1, 7) / 10, problem.sizes)


def test_qfedavg_by_numpy():
    problem, q, lipschitz = positive(), 2.5, 7.0
    states = trajectory(rv.qfedavg(SOLVER, q=q, L=lipschitz), problem, 3, BY_SIZE)
    shares = np.arange(1, 7) / 21  # q-FFL weighs party k by lambda_k
    for before, state in pairwise(states):
        w = np.asarray(before.server)
        change, loss = lipschitz * (w - trained(problem, w)), losses(problem, w)
        delta = loss[:, None]**q * change
        h = q * loss**(q - 1) * np.sum(change**2, axis=1) + lipschitz * loss**q
        np.testing.assert_allclose(state.server, w - shares @ delta / (shares @ h), atol=1e-12)


def test_qfedavg_with_q_0_is_fedavg_whatever_the_lipschitz_constant_is():
    equal(trajectory(rv.qfedavg(SOLVER, q=0.0, L=3.0), positive(), 3, SAMPLED),
          trajectory(rv.fedavg(SOLVER), positive(), 3, SAMPLED))


def test_one_gradient_step_of_qfedavg_is_qfedsgd():
    """Algorithm 1 of the paper: Delta_k = f_k^q grad f_k, with the default L = 1/learning rate."""
    problem, q = positive(), 1.5
    before, after = trajectory(rv.qfedavg(rv.solvers.GD(RATE, steps=1), q=q), problem, 1, EQUAL_WEIGHTS)
    w = np.asarray(before.server)
    gradient, loss = np.asarray(problem.hessians) @ w - np.asarray(problem.linears), losses(problem, w)
    h = q * loss**(q - 1) * np.sum(gradient**2, axis=1) + loss**q / RATE
    np.testing.assert_allclose(after.server, w - loss**q @ gradient / h.sum(), atol=1e-12)


@pytest.mark.when_changed
def test_more_of_q_makes_the_losses_more_even():
    finals = [trajectory(rv.qfedavg(rv.solvers.GD(0.05), q=q), positive(), 300)[-1].server for q in (0.0, 1.0, 4.0)]
    spreads = [losses(positive(), np.asarray(w)).std() for w in finals]
    assert spreads[0] > spreads[1] > spreads[2]


def test_a_model_without_loss_stays():
    """All losses to the power q are below the smallest number: no step, and no nan."""
    problem = rv.problems.QuadraticProblem(np.stack([np.eye(2)] * 3), np.zeros((3, 2)))
    after = trajectory(rv.qfedavg(SOLVER, q=50.0), problem, 1)[-1].server
    np.testing.assert_array_equal(after, np.zeros(2))


def test_fedacg_by_numpy():
    """The paper's server: theta <- theta + m, m <- lam m + Delta; the point that is sent is theta + lam m."""
    problem, lam, beta = quadratic(), 0.8, 0.3
    states = trajectory(rv.fedacg(SOLVER, lam=lam, beta=beta), problem, 5, BY_SIZE)
    shares, theta, m = np.arange(1, 7) / 21, np.zeros(4), np.zeros(4)
    for state in states[1:]:
        sent = theta + lam * m
        m = lam * m + shares @ (trained(problem, sent, beta) - sent)
        theta = theta + m
        np.testing.assert_allclose(state.server.inner, theta + lam * m, atol=1e-12)


def test_fedacg_without_momentum_is_fedprox():
    equal([s.server.inner for s in trajectory(rv.fedacg(SOLVER, lam=0.0, beta=0.2), quadratic(), 3, SAMPLED)],
          [s.server for s in trajectory(rv.fedprox(SOLVER, mu=0.2), quadratic(), 3, SAMPLED)])


def test_term_by_numpy():
    problem, t = positive(), 1.7
    for before, state in pairwise(trajectory(rv.term(SOLVER, t=t), problem, 3, BY_SIZE)):
        w = np.asarray(before.server)
        omega = np.arange(1, 7) * np.exp(t * losses(problem, w))
        np.testing.assert_allclose(state.server, omega @ trained(problem, w) / omega.sum(), atol=1e-12)


@pytest.mark.parametrize("build", [lambda: rv.term(SOLVER, t=0.0), lambda: rv.term(SOLVER, t=1e-14)])
def test_term_with_a_small_tilt_is_fedavg(build):
    equal(trajectory(build(), positive(), 3, SAMPLED), trajectory(rv.fedavg(SOLVER), positive(), 3, SAMPLED))


@pytest.mark.parametrize(("t", "party"), [(1e6, np.argmax), (-1e6, np.argmin)])
def test_term_with_a_huge_tilt_follows_one_party(t, party):
    """The one with the largest or the smallest loss; exp(t f_k) itself would overflow."""
    before, after = trajectory(rv.term(SOLVER, t=t), positive(), 1)
    w = np.asarray(before.server)
    equal(after.server, trained(positive(), w)[party(losses(positive(), w))])


def nearest_in_simplex(x):
    """By bisection: the shift s for which the positive parts of x - s sum to one."""
    low, high = x.min() - 1, x.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(x - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(x - low, 0)


def test_afl_by_numpy():
    problem, gamma = positive(), 0.02
    states = trajectory(rv.afl(SOLVER, gamma=gamma), problem, 5, BY_SIZE)
    w, weights, zeros = np.zeros(4), np.arange(1, 7) / 21, []
    for state in states[1:]:
        w, weights = weights @ trained(problem, w), nearest_in_simplex(weights + gamma * losses(problem, w))
        zeros.append(np.sum(weights == 0))
        np.testing.assert_allclose(state.server.model, w, atol=1e-12)
        np.testing.assert_allclose(state.server.weights, weights, atol=1e-12)
    assert max(zeros) > 0  # the projection is not only a shift


@pytest.mark.when_changed
def test_afl_makes_the_largest_loss_smaller_than_fedavg_does():
    problem, solver = positive(), rv.solvers.GD(0.05)
    fair = trajectory(rv.afl(solver, gamma=0.01), problem, 500)[-1].server.model
    plain = trajectory(rv.fedavg(solver), problem, 500)[-1].server
    assert losses(problem, np.asarray(fair)).max() < 0.9 * losses(problem, np.asarray(plain)).max()


def test_afl_without_ascent_is_fedavg():
    equal([s.server.model for s in trajectory(rv.afl(SOLVER, gamma=0.0), positive(), 3)],
          [s.server for s in trajectory(rv.fedavg(SOLVER), positive(), 3)])


def test_feddisco_by_numpy():
    """A step of softmax regression from zero at each party; the last one, of one class, counts nothing."""
    rng, a, b = np.random.default_rng(4), 0.3, 0.05
    y = [np.arange(12) % 3, np.repeat([0, 1, 2], [6, 1, 1]), np.repeat([0, 1], [3, 1]), np.array([2, 2])]
    x = [rng.normal(size=(len(labels), 3)) for labels in y]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    problem = rv.problems.LearningProblem(rv.models.logistic(3, 3), data)
    before, after = trajectory(rv.feddisco(rv.solvers.GD(RATE, steps=1), classes=3, a=a, b=b), problem, 1)
    sizes = np.array([len(labels) for labels in y])
    shares = np.stack([np.bincount(labels, minlength=3) / len(labels) for labels in y])
    d = np.sum(shares * np.log(np.where(shares > 0, 3 * shares, 1)), axis=1)
    np.testing.assert_allclose(d[[0, 3]], [0, np.log(3)], atol=1e-15)
    p = np.maximum(sizes / sizes.sum() - a * d + b, 0)
    assert (p == 0).tolist() == [False, False, False, True]
    weight, bias = np.asarray(before.server["weight"]), np.asarray(before.server["bias"])
    for inputs, labels, part in zip(x, y, p / p.sum(), strict=True):
        outputs = np.exp(inputs @ np.asarray(before.server["weight"]).T + np.asarray(before.server["bias"]))
        residual = (outputs / outputs.sum(axis=1, keepdims=True) - np.eye(3)[labels]) / len(labels)
        weight, bias = weight - part * RATE * residual.T @ inputs, bias - part * RATE * residual.sum(axis=0)
    np.testing.assert_allclose(after.server["weight"], weight, atol=1e-12)
    np.testing.assert_allclose(after.server["bias"], bias, atol=1e-12)


def test_feddisco_without_discrepancy_is_fedavg():
    equal(trajectory(rv.feddisco(SOLVER, classes=3, a=0.0, b=0.0), classification(), 3, SAMPLED),
          trajectory(rv.fedavg(SOLVER), classification(), 3, SAMPLED))


def test_feddisco_with_weights_of_0_alone_stays():
    before, after = trajectory(rv.feddisco(SOLVER, classes=3, a=1e6, b=0.0), classification(), 1)
    equal(before.server, after.server, 0)


def test_afl_keeps_absent_parties_at_their_weight_before_the_projection():
    """Which parties replied shows itself in the weights; the model moves by their mean with the weights of lambda."""
    problem, gamma = positive(), 1e-4
    before, after = trajectory(rv.afl(SOLVER, gamma=gamma), problem, 1, rv.participation.Uniform(3))
    w, moved = np.asarray(before.server.model), np.asarray(after.server.weights) - np.asarray(before.server.weights)
    assert abs(moved.sum()) < 1e-12
    replied = moved > moved.min() + 1e-12
    assert replied.sum() == 3
    steps = np.where(replied, gamma * losses(problem, w), 0)
    np.testing.assert_allclose(moved, steps - steps.mean(), atol=1e-12)
    weights = np.where(replied, np.asarray(before.server.weights), 0)
    np.testing.assert_allclose(after.server.model, weights @ trained(problem, w) / weights.sum(), atol=1e-12)


def test_feddisco_refuses_another_number_of_classes():
    with pytest.raises(rv.InputError, match=r"feddisco\(classes=4\), but for a sample the model has outputs \[3\]"):
        trajectory(rv.feddisco(SOLVER, classes=4), classification(), 1)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: rv.qfedavg(SOLVER, q=-1.0), r"q=-1.0"), (lambda: rv.qfedavg(SOLVER, L=0.0), r"L=0.0"),
    (lambda: rv.qfedavg(rv.solvers.ClosedForm()), "ClosedForm has no learning rate: give it, such as L=10"),
    (lambda: rv.term(SOLVER, t=float("inf")), r"t=inf"), (lambda: rv.afl(SOLVER, gamma=-1.0), r"gamma=-1.0"),
    (lambda: rv.feddisco(SOLVER, a=-1.0), r"a=-1.0"), (lambda: rv.feddisco(SOLVER, classes=0), r"classes=0"),
    (lambda: rv.fedacg(SOLVER, lam=1.0), r"fedacg\(lam=1.0\)"),
    (lambda: rv.fedacg(SOLVER, beta=-0.1), r"fedacg\(beta=-0.1\)")])
def test_wrong_settings_are_refused(build, message):
    with pytest.raises(rv.InputError, match=message):
        build()
