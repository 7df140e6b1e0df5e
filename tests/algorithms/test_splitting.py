"""Operator splitting against closed forms, and its acceleration. Parties have equal weights, as in the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SEED, classification, equal, limit, personal_models, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.math.anderson import mixing_weights
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.states import Federation

UNIFORM = rv.participation.Full("uniform")
EXACT = rv.solvers.ClosedForm()


def least_squares(seed=0, parties=6, samples=9, d=4):
    """The operator-splitting paper's least squares (A.1): b_i = A_i w_i + noise."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(parties, samples, d)) / np.sqrt(samples)
    b = np.einsum("kni,ki->kn", a, rng.normal(size=d) + 0.7 * rng.normal(size=(parties, d)))
    b += 0.1 * rng.normal(size=b.shape)
    return a, b, rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(b))


A, B, PROBLEM = None, None, None


@pytest.fixture(autouse=True)
def problem(float64):
    global A, B, PROBLEM
    if PROBLEM is None:
        A, B, PROBLEM = least_squares()


def optimum():
    return np.linalg.lstsq(A.reshape(-1, A.shape[2]), B.ravel(), rcond=None)[0]


def value(w):
    return 0.5 * ((np.einsum("kni,i->kn", A, w) - B) ** 2).sum()


def shared(algorithm, rounds=3000):
    state = limit(algorithm, PROBLEM, rounds, UNIFORM)
    return np.asarray(algorithm.server_model(state.server))


@pytest.mark.nightly
@pytest.mark.parametrize("preset", [rv.fedpi, rv.fedsplit])
@pytest.mark.parametrize("decentralised", [False, True])
def test_fedpi_and_fedsplit_solve_the_problem_with_a_constant_step(preset, decentralised):
    gap = value(shared(preset(EXACT, eta=0.9, decentralised=decentralised))) / value(optimum()) - 1
    assert abs(gap) < 1e-12


@pytest.mark.when_changed
@nightly.parametrize(("k", "eta"), [(4, 0.1), (1, 0.3), (1, 0.1), (10, 0.05)])
def test_fedavg_reaches_its_own_fixed_point(k, eta):
    """Equation (10): (sum_i 1/k sum_j A'A (I - eta A'A)^j)^-1 (sum_i 1/k sum_j (I - eta A'A)^j A'b)."""
    left, right = 0.0, 0.0
    for a, b in zip(A, B, strict=True):
        h = a.T @ a
        powers = sum(np.linalg.matrix_power(np.eye(len(h)) - eta * h, j) for j in range(k)) / k
        left, right = left + h @ powers, right + powers @ a.T @ b
    fixed = np.linalg.solve(left, right)
    gradient_steps = rv.splitting(rv.solvers.GD(eta, steps=k), local_step="gradient")
    np.testing.assert_allclose(shared(gradient_steps), fixed, atol=1e-10)
    np.testing.assert_allclose(shared(rv.fedavg(rv.solvers.GD(eta, steps=k))), fixed, atol=1e-10)
    assert (np.abs(fixed - optimum()).max() < 1e-10) == (k == 1)


@pytest.mark.when_changed
def test_users_who_take_different_numbers_of_steps_weigh_by_them():
    """FedAvg with k_i steps of user i: (10) without the factor 1/k; for small steps the minimiser of sum_i k_i f_i."""
    steps = np.array([5, 4, 3, 2, 1, 1])
    work = rv.participation.FixedEffort(jnp.asarray(steps / 5), UNIFORM)

    def fixed_point(eta):
        sums = [sum(np.linalg.matrix_power(np.eye(4) - eta * a.T @ a, j) for j in range(k))
                for a, k in zip(A, steps, strict=True)]
        return np.linalg.solve(sum(s @ a.T @ a for s, a in zip(sums, A, strict=True)),
                               sum(s @ a.T @ b for s, a, b in zip(sums, A, B, strict=True)))

    algorithm = rv.fedavg(rv.solvers.GD(0.1, steps=5))
    model = np.asarray(algorithm.server_model(limit(algorithm, PROBLEM, 3000, work).server))
    np.testing.assert_allclose(model, fixed_point(0.1), atol=1e-10)
    roots = np.sqrt(steps)[:, None]
    weighted = np.linalg.lstsq((roots[..., None] * A).reshape(-1, 4), (roots * B).ravel(), rcond=None)[0]
    gap = [np.linalg.norm(fixed_point(eta) - weighted) for eta in (1e-2, 1e-3)]
    assert gap[1] < 0.11 * gap[0] < 0.1 * np.linalg.norm(weighted - optimum())


@pytest.mark.nightly
def test_the_product_of_step_and_steps_decides_fedavgs_gap():
    """Around (11): for small eta the fixed point depends on eta*(k-1) alone."""
    points = [shared(rv.fedavg(rv.solvers.GD(0.02 / (k - 1), steps=k)), 20_000) for k in (2, 3, 5)]
    others = shared(rv.fedavg(rv.solvers.GD(0.04, steps=2)), 20_000)
    spread = max(np.abs(p - points[0]).max() for p in points)
    assert spread < 0.1 * np.abs(others - points[0]).max()


@pytest.mark.nightly
def test_fedprox_and_fedrp_share_fixed_points_which_solve_the_regularised_problem():
    """(13): the mean of the Moreau envelopes' gradients (u - P_f(u))/eta vanishes."""
    eta = 0.8
    algorithms = rv.splitting(EXACT, eta=eta), rv.fedrp(EXACT, eta=eta), rv.fedprox(EXACT, mu=1 / eta)
    models = [shared(algorithm) for algorithm in algorithms]
    w = models[0]
    gradient = sum((w - np.linalg.solve(a.T @ a + np.eye(4) / eta, a.T @ b + w / eta)) / eta
                   for a, b in zip(A, B, strict=True))
    np.testing.assert_allclose(gradient, 0, atol=1e-10)
    for other in models[1:]:
        np.testing.assert_allclose(other, w, atol=1e-10)
    assert np.abs(w - optimum()).max() > 1e-3


@pytest.mark.nightly
def test_fedprox_as_a_splitting_scheme_is_fedprox():
    solver = rv.SGD(0.2, batch_size=4, epochs=3)
    split = trajectory(rv.splitting(solver, eta=1 / 0.7), classification(), 5)
    fedprox = trajectory(rv.fedprox(solver, mu=0.7), classification(), 5)
    equal([s.server.mean for s in split], [s.server for s in fedprox])


@nightly.parametrize("setting", [(1.3, 0.6, 0.4), (1, 1, 1), (2, 2, 1), (2, 2, 0.5), (2, 1, 1), (1, 2, 1)],
                     per_commit=0)
def test_centralised_is_decentralised_under_full_participation(setting):
    alpha, beta, gamma = setting
    solver = rv.SGD(0.2, batch_size=4, epochs=2)
    algorithms = [rv.splitting(solver, eta=rv.schedules.InversePower(1.5, 0.7), alpha=alpha, beta=beta, gamma=gamma,
                               decentralised=decentralised) for decentralised in (False, True)]
    participation = rv.participation.Stragglers(rv.participation.Full(), share=0.4)
    central, local = (trajectory(algorithm, classification(), 6, participation) for algorithm in algorithms)
    equal([s.server.mean for s in central], [s.server.mean for s in local])
    equal([s.server.z for s in central], [s.parties.z for s in local])


@pytest.mark.when_changed
def test_an_absent_party_keeps_its_z_and_is_sent_a_new_u():
    """Algorithm 1 of the paper."""
    algorithm, participation = rv.fedpi(rv.solvers.GD(0.2, steps=5)), rv.participation.Uniform(cohort=2)
    states = [s.server for s in trajectory(algorithm, classification(), 3, participation)]
    for t in range(3):
        changed = [np.any(states[t + 1].z["weight"][k] != states[t].z["weight"][k]) for k in range(6)]
        assert sum(changed) == 2
    mixed = jax.tree.map(lambda u, z, mean: u / 2 + (2 * mean - z) / 2, states[2].u, states[3].z,
                         jax.tree.map(lambda leaf: leaf[None], states[3].mean))
    equal(states[3].u, mixed)


@pytest.mark.nightly
def test_example_1_needs_steps_that_vanish_but_not_too_fast():
    """f+ = (w+1)^2/2 and 2 f- = (w-1)^2: the minimiser is 1/3. Source: the paper, Example 1 and Theorem 2."""
    problem = rv.problems.QuadraticProblem(jnp.array([[[1.0]], [[2.0]]]), jnp.array([[-1.0], [2.0]]))

    def final(eta, rounds=20_000):
        algorithm = rv.splitting(EXACT, eta=eta)
        return float(limit(algorithm, problem, rounds, UNIFORM).server.mean[0])

    assert abs(final(1.0) - 1 / 3) > 0.05
    assert abs(final(rv.schedules.InversePower(1.0)) - 1 / 3) < 1e-3
    assert abs(final(rv.schedules.Exponential(0.5, factor=0.5)) - 1 / 3) > 0.05
    # With equal curvatures a constant step is enough: w_{t+1} = w_t/(1 + eta)
    same = rv.problems.QuadraticProblem(jnp.ones((2, 1, 1)), jnp.array([[-1.0], [1.0]]))
    assert abs(float(limit(rv.splitting(EXACT, eta=1.0), same, 200, UNIFORM).server.mean[0])) < 1e-12


@pytest.mark.parametrize(("schedule", "diverges", "squares"), [
    (rv.schedules.Constant(0.5), True, False),
    (rv.schedules.InversePower(0.5), True, True),
    (rv.schedules.InversePower(0.5, 0.5), True, False),
    (rv.schedules.InversePower(0.5, 1.5), False, True), (rv.schedules.InverseLog(0.5), True, False),
    (rv.schedules.Exponential(0.5, factor=0.9, period=3), False, True)])
def test_schedules_say_whether_theorem_2_holds(schedule, diverges, squares):
    assert (schedule.sum_diverges, schedule.squares_converge) == (diverges, squares)
    assert schedule.finds_the_optimum == (diverges and squares)
    values = np.asarray(jax.vmap(schedule)(jnp.arange(1_000_000)))
    assert values[0] == pytest.approx(0.5)
    # Between 1e5 and 1e6 terms a divergent sum grows by more than 0.3 %, a convergent one by less.
    for sums, expected in ((np.cumsum(values), diverges), (np.cumsum(values**2), not squares)):
        assert (sums[-1] - sums[100_000] > 3e-3 * sums[-1]) == expected


@pytest.mark.nightly
def test_without_strong_convexity_fedpi_is_stable_where_fedsplit_is_not():
    """Each of three parties has a loss along one direction of the plane.

    Components of u_k that no loss depends on, and that cancel in the mean, are reflected for ever by FedSplit and
    halved by FedPi.
    """
    directions = np.array([[1.0, 0], [np.cos(2), np.sin(2)], [np.cos(4), np.sin(4)]])
    problem = rv.problems.QuadraticProblem(jnp.asarray(directions[:, :, None] * directions[:, None, :]),
                                  jnp.asarray(directions * np.array([[1.0], [2], [3]])))
    start = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))

    def last_change(algorithm):
        """The largest change of u in round 401."""
        state = initial_state(algorithm, problem, UNIFORM, SEED)
        state = Federation(algorithm.iterate.server.replace(state.server, start), state.parties)
        before = run_rounds(algorithm, problem, UNIFORM, state=state, seed=SEED, rounds=400)
        after = run_rounds(algorithm, problem, UNIFORM, state=before, seed=SEED, start=400)
        return np.abs(after.server.u - before.server.u).max()

    assert last_change(rv.fedpi(EXACT, eta=1.0)) < 1e-10
    assert last_change(rv.fedsplit(EXACT, eta=1.0)) > 0.1


def rounds_needed(algorithm, target, rounds):
    """Number of rounds until the shared model stays within a relative distance of 1e-8 of the target."""
    models = [np.asarray(algorithm.server_model(s.server)) for s in trajectory(algorithm, PROBLEM, rounds, UNIFORM)]
    far = [np.linalg.norm(model - target) > 1e-8 * np.linalg.norm(target) for model in models]
    return len(far) - far[::-1].index(True)


@nightly.parametrize("preset", ["fedpi", "fedprox", "fedrp"], per_commit=0)
def test_anderson_at_least_halves_the_rounds(preset):
    make = {"fedprox": rv.splitting, "fedpi": rv.fedpi, "fedrp": rv.fedrp}[preset]
    plain = make(EXACT, eta=1.0)
    accelerated = rv.combinators.Anderson(plain, history_size=6)
    target = shared(plain, 20_000)
    without, with_anderson = rounds_needed(plain, target, 600), rounds_needed(accelerated, target, 200)
    assert with_anderson <= without / 2, (with_anderson, without)


@pytest.mark.when_changed
def test_anderson_is_exact_after_dimension_plus_one_steps():
    """As GMRES: on a linear map, with a history longer than the dimension d, type II needs d + 1 images."""
    dimension = 4
    algorithm = rv.combinators.Anderson(rv.fedprox(EXACT, mu=1.0), history_size=dimension + 2)
    states = trajectory(algorithm, PROBLEM, dimension + 2, UNIFORM)
    target = shared(rv.fedprox(EXACT, mu=1.0))
    errors = [np.abs(s.server.inner - target).max() for s in states]
    assert errors[dimension + 1] < 1e-7 < 1e-4 < errors[dimension - 1]


@pytest.mark.nightly
def test_anderson_with_a_history_of_one_is_the_plain_method():
    plain = trajectory(rv.fedpi(EXACT, eta=0.7), PROBLEM, 20, UNIFORM)
    anderson = trajectory(rv.combinators.Anderson(rv.fedpi(EXACT, eta=0.7), history_size=1), PROBLEM, 20, UNIFORM)
    equal([s.server.u for s in plain], [s.server.inner.u for s in anderson])


def test_mixing_weights_against_a_constrained_least_squares():
    rng = np.random.default_rng(0)
    r = rng.normal(size=(4, 7)) * np.array([1.0, 1e-3, 10, 1e-6])[:, None]
    pi = np.asarray(mixing_weights(jnp.asarray(r @ r.T), jnp.ones(4, bool)))
    # Eliminate the constraint: pi = e_0 + D y with D's columns e_i - e_0
    y = np.linalg.lstsq((r[1:] - r[0]).T, -r[0], rcond=None)[0]
    expected = np.r_[1 - y.sum(), y]
    assert pi.sum() == pytest.approx(1)
    assert np.linalg.norm(pi @ r) <= np.linalg.norm(expected @ r) * (1 + 1e-6)
    partly = np.asarray(mixing_weights(jnp.asarray(r @ r.T), jnp.array([True, True, False, False])))
    assert (partly[2:] == 0).all()


def test_other_settings_that_make_no_sense_are_refused():
    """``test_compositions`` has the rest."""
    with pytest.raises(ValueError, match=r"gamma=1\.5"):
        rv.splitting(EXACT, gamma=1.5)
    with pytest.raises(ValueError, match="use Constant"):
        rv.schedules.Exponential(1.0, factor=1.0)


@nightly.parametrize(("make", "decentralised"), [
    (rv.fedpi, True), (rv.fedsplit, False), (rv.fedpi, False), (rv.fedsplit, True)])
def test_personal_models_are_the_optimum(make, decentralised):
    """Not u_k, which at the fixed point is w* + eta grad f_k(w*)."""
    problem = quadratic()
    algorithm = make(rv.solvers.ClosedForm(), eta=0.5, decentralised=decentralised)
    models = personal_models(algorithm, problem, limit(algorithm, problem))
    minimiser = np.linalg.solve(np.mean(problem.hessians, axis=0), np.mean(problem.linears, axis=0))
    np.testing.assert_allclose(models, np.tile(minimiser, (problem.parties, 1)), atol=1e-10)
