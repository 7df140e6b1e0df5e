"""Fed+ with the relaxations of splitting: identities with both, and the problem that the fixed points solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.aggregators.medians import MoreauCentre
from resolvent.algorithms.algorithm import Replies
from resolvent.algorithms.methods.fedplus import ProxAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting

SOLVER = rv.SGD(0.2, batch_size=4, epochs=2)
SAMPLED = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SIGMA, DELTA = 0.8, 0.3
DOUGLAS_RACHFORD = (2.0, 2.0, 0.5)
SETTINGS = [(1.0, 1.0, 1.0), DOUGLAS_RACHFORD, (2.0, 2.0, 1.0), (2.0, 1.0, 1.0), (1.0, 2.0, 1.0), (1.6, 1.3, 0.9)]


def exact(penalty, setting, sigma=SIGMA, delta=DELTA):
    """Exact local solutions, and a centre with a tolerance of 1e-15."""
    centre = MoreauCentre(penalty, delta, tolerance=1e-15, max_iterations=20_000)
    return PersonalSplitting(rv.solvers.ClosedForm(), ProxAnchor(penalty, delta), centre, sigma, *setting)


def solved(setting, sigma=SIGMA, delta=DELTA):
    """(1/s, weight of phi) of the problem that the fixed points solve."""
    alpha, beta, _ = setting
    return (1 + alpha / beta - alpha) / sigma, beta / alpha * sigma * delta


# --- the two special cases ---------------------------------------------------------------------------------------

@nightly.parametrize("aggregate", ["active", "all"], per_commit=0)
def test_unrelaxed_it_is_fed_plus(aggregate):
    """Sampled parties, stragglers, inexact work: the same trajectories."""
    settings = {"sigma": 0.5, "delta": 0.3, "aggregate": aggregate}
    splitting = trajectory(rv.personal_splitting(SOLVER, rv.penalties.L2Norm(), **settings), classification(), 5,
                           SAMPLED)
    fedplus = trajectory(rv.fedgeomed_plus(SOLVER, **settings), classification(), 5, SAMPLED)
    equal([s.parties[1] for s in splitting], [s.parties for s in fedplus])
    equal(*([s.server if aggregate == "active" else s.server.inner for s in run] for run in (splitting, fedplus)))


@nightly.parametrize("setting", SETTINGS[::-1], per_commit=0)
def test_with_consensus_it_is_operator_splitting(setting):
    """(24)-(26) of the paper: the decentralised form under any participation, the centralised under a full one."""
    eta, relaxation = 1 / 0.7, dict(zip(("alpha", "beta", "gamma"), setting, strict=True))
    joined = rv.personal_splitting(SOLVER, rv.penalties.OriginIndicator(), sigma=0.7, lam=1.0, **relaxation)

    def z(state):
        u, w = state.parties
        return jax.tree.map(lambda a, b: (1 - setting[0]) * a + setting[0] * b, u, w)

    decentralised = rv.splitting(SOLVER, eta=eta, decentralised=True, **relaxation)
    for participation in (SAMPLED, rv.participation.Full()):
        personal, split = (trajectory(a, classification(), 5, participation) for a in (joined, decentralised))
        equal([s.server for s in personal], [s.server.mean for s in split])
        equal([z(s) for s in personal], [s.parties.z for s in split])
    central = trajectory(rv.splitting(SOLVER, eta=eta, **relaxation), classification(), 5)
    equal([s.server for s in personal], [s.server.mean for s in central])


# --- centre and anchor are one proximal map --------------------------------------------------------------------------

@nightly.parametrize("penalty", [rv.penalties.L1(), rv.penalties.L2Norm(), rv.penalties.SquaredL2(),
                                     rv.penalties.OriginIndicator()], ids=lambda p: type(p).__name__)
def test_centre_and_anchor_are_the_proximal_map_of_the_disagreement(penalty):
    """A = prox_{delta Phi}(Z), weighted: firmly nonexpansive; sigma (Z - A) is the gradient of Fed+'s penalty R(Z)."""
    rng, shares = np.random.default_rng(5), np.array([0.1, 0.2, 0.3, 0.4])
    aggregator = MoreauCentre(penalty, DELTA, tolerance=1e-15, max_iterations=50_000)
    cohort = {"index": jnp.arange(4), "alive": jnp.ones(4, bool), "shares": jnp.asarray(shares)}

    @jax.jit
    def centre(z):
        return aggregator(Replies(z, weight=jnp.asarray(shares), **cohort))[0]

    def anchors(z):
        c = centre(jnp.asarray(z))
        return np.asarray(jax.vmap(lambda row: ProxAnchor(penalty, DELTA)(c, row, ()))(jnp.asarray(z)))

    def joint(z):
        """R(Z) = min over w~ of sum_k lambda_k sigma delta env(z_k - w~)."""
        c = centre(jnp.asarray(z))
        each = jax.vmap(lambda row: penalty.envelope(row - c, DELTA))(jnp.asarray(z))
        return SIGMA * DELTA * float(shares @ np.asarray(each))

    def dot(x, y):
        return float(np.sum(shares[:, None] * x * y))

    for _ in range(5):
        x, y = rng.normal(size=(2, 4, 3))
        dx, da = x - y, anchors(x) - anchors(y)
        assert dot(da, da) <= dot(da, dx) + 1e-9
        h = 1e-5
        assert (joint(x + h * dx) - joint(x - h * dx)) / (2 * h) == pytest.approx(
            dot(SIGMA * (x - anchors(x)), dx), abs=1e-7)


# --- the fixed points ---------------------------------------------------------------------------------------------

@nightly.diagonal(("setting", "weighting"), SETTINGS, ["uniform", "size"])
def test_the_fixed_points_of_squares_against_a_linear_solve(setting, weighting):
    """Eliminate theta: sum_k lambda_k [f_k(w_k) + kappa/2 |w_k - c|^2] with 1/kappa = 1/s + 1/rho."""
    problem, participation = quadratic(), rv.participation.Full(weighting)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    shares = np.asarray(participation.shares(problem.sizes))
    slack, rho = solved(setting)
    kappa, eye = 1 / (slack + 1 / rho), np.eye(4)
    # w_k = inverse_k (g_k + kappa c) and sum_k lambda_k (w_k - c) = 0.
    inverses = [np.linalg.inv(h[k] + kappa * eye) for k in range(6)]
    left = sum(p * (eye - kappa * m) for p, m in zip(shares, inverses, strict=True))
    c = np.linalg.solve(left, sum(p * m @ x for p, m, x in zip(shares, inverses, g, strict=True)))
    expected = [m @ (x + kappa * c) for m, x in zip(inverses, g, strict=True)]
    state = limit(exact(rv.penalties.SquaredL2(), setting), problem, 2000, participation)
    np.testing.assert_allclose(state.parties[1], expected, atol=1e-10)
    np.testing.assert_allclose(state.server, c, atol=1e-10)
    assert np.ptp(expected, axis=0).max() > 0.1  # the models differ


def with_outlier(distance):
    """The quadratics, with party 0's minimiser moved by a distance along each axis."""
    problem = quadratic()
    shift = np.zeros((6, 4))
    shift[0] = distance
    linears = problem.linears + jnp.einsum("kij,kj->ki", problem.hessians, jnp.asarray(shift))
    return rv.problems.QuadraticProblem(problem.hessians, linears, sizes=problem.sizes)


PROXES = {  # in NumPy
    "L1": lambda x, t: np.sign(x) * np.maximum(np.abs(x) - t, 0),
    "L2Norm": lambda x, t: x * max(0.0, 1 - t / np.linalg.norm(x)),
}


@pytest.mark.when_changed
@nightly.diagonal(("setting", "name"), SETTINGS, PROXES)
def test_the_fixed_points_of_norms_by_optimality_conditions(name, setting):
    """With g_k = grad f_k(w_k): w_k + g_k/s - w~ = theta_k, -g_k in rho dphi(theta_k), sum lambda_k g_k = 0."""
    problem, delta = with_outlier(50.0), 1.5 if name == "L1" else 5.0
    penalty = {"L1": rv.penalties.L1(), "L2Norm": rv.penalties.L2Norm()}[name]
    state = limit(exact(penalty, setting, delta=delta), problem, 2000)
    w, c = np.asarray(state.parties[1]), np.asarray(state.server)
    slack, rho = solved(setting, delta=delta)
    g = np.einsum("kij,kj->ki", problem.hessians, w) - np.asarray(problem.linears)
    theta = w + slack * g - c
    np.testing.assert_allclose(theta, [PROXES[name](theta[k] - g[k], rho) for k in range(6)], atol=1e-9)
    np.testing.assert_allclose(g.mean(axis=0), 0, atol=1e-9)
    at_centre = np.abs(theta).max(axis=1) < 1e-9 if name == "L2Norm" else (np.abs(theta) < 1e-9).any(axis=1)
    assert at_centre.any()
    assert np.abs(theta[0]).max() > 10  # the outlier is far from the centre


@pytest.mark.nightly
def test_with_a_norm_the_distance_of_an_outlier_does_not_matter():
    """Fed+'s problem (2), by Douglas-Rachford. With a norm some of the other parties have equal models, which depend
    little on the distance of the outlier; with squares they depend on it."""
    def others(penalty, distance):
        algorithm = exact(penalty, DOUGLAS_RACHFORD, delta=5.0)
        return np.asarray(limit(algorithm, with_outlier(distance), 2000).parties[1])[1:]

    near, far = others(rv.penalties.L2Norm(), 50.0), others(rv.penalties.L2Norm(), 1000.0)
    spread = np.linalg.norm(near[:, None] - near[None], axis=2)
    assert (spread[np.triu_indices(5, 1)] < 1e-9).any()
    assert np.abs(far - near).max() < 0.05
    assert np.abs(others(rv.penalties.SquaredL2(), 1000.0) - others(rv.penalties.SquaredL2(), 50.0)).max() > 10


# --- convergence -----------------------------------------------------------------------------------------------------

@pytest.mark.when_changed
@pytest.mark.parametrize(("setting", "converges"), [
    ((1.0, 1.0, 1.0), True), (DOUGLAS_RACHFORD, True), ((1.6, 1.3, 0.9), True), ((1.0, 2.0, 0.9), True),
    ((2.0, 2.0, 1.0), False), ((1.0, 2.0, 1.0), False)])
def test_convergence_without_strong_convexity_is_as_proved(setting, converges):
    """f = w and -w, convex only; a full reflection at the centre is d <- 2 alpha/sigma - d for d = u_1 - u_2."""
    problem = rv.problems.QuadraticProblem(jnp.zeros((2, 1, 1)), jnp.array([[-1.0], [1.0]]))
    algorithm = exact(rv.penalties.L2Norm(), setting, sigma=1.0, delta=3.0)
    u, w = (np.asarray(limit(algorithm, problem, rounds).parties) for rounds in (1000, 1001))
    assert (np.abs(u[0] - w[0]).max() < 1e-12) == converges
    if converges:
        slack, _ = solved(setting, sigma=1.0, delta=3.0)
        np.testing.assert_allclose(u[1][1] - u[1][0], 2 * slack, atol=1e-12)  # s/2 |w_k - w~|^2 against the pull


@pytest.mark.when_changed
@pytest.mark.parametrize(("setting", "noun"), [
    ({"beta": 2.5}, "beta=2.5"),
    ({"gamma": 1.5}, "gamma=1.5"),
    ({"sigma": 0.0}, "sigma=0.0.*local"),
])
def test_settings_out_of_range_are_refused(setting, noun):
    with pytest.raises(ValueError, match=noun):
        rv.personal_splitting(SOLVER, rv.penalties.L1(), **setting)
