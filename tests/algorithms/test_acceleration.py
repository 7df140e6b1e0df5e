"""Anderson acceleration in both forms, and ergodic averaging."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, personal_models, quadratic, trajectory

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.anderson import PartyHistory, Slots
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.math.anderson import Control, History, Rule, mixing_weights
from resolvent.simulator.engine import rounds as simulator

Anderson, DecentralisedAnderson = rv.combinators.Anderson, rv.combinators.DecentralisedAnderson
FULL = rv.participation.Full()
UNIFORM = rv.participation.Full("uniform")
EXACT = rv.solvers.ClosedForm()


# ----------------------------------------------------------------------------------------------------- the two forms

@pytest.mark.nightly
@nightly.parametrize(("setting", "eta"), [
    ((1.3, 0.6, 0.4), rv.schedules.InversePower(3.0, 0.1)),
    ((2, 2, 0.5), 3.0),
])
def test_centralised_anderson_is_decentralised_anderson(setting, eta):
    """Whole trajectories with combinations and undone points; the parties are weighted by size."""
    alpha, beta, gamma = setting
    central, local = (rv.splitting(rv.solvers.GD(2.0, steps=3), eta=eta, alpha=alpha, beta=beta, gamma=gamma,
                                   decentralised=decentralised) for decentralised in (False, True))
    algorithms = (Anderson(central, history_size=4, forward=0.0),
                  DecentralisedAnderson(local, history_size=4, forward=0.0))
    trajectories = [trajectory(a, classification(), 25, FULL) for a in algorithms]
    equal(*([s.server.inner.mean for s in states] for states in trajectories), 1e-9)
    equal(*([personal_models(a, classification(), s) for s in states]
            for a, states in zip(algorithms, trajectories, strict=True)), 1e-9)
    controls = [s.server.extra.control for s in trajectories[0]]
    assert sum(not control.plain for control in controls) > 3
    assert controls[-1].patience > 1


@pytest.mark.nightly
@nightly.parametrize("on", ["u", "mean"])
def test_if_every_u_is_the_mean_anderson_is_that_of_fedprox(on):
    """(1, 1, 1): the inner product (6) of equal parts is the plain one, so that all three are one algorithm."""
    solver = rv.solvers.GD(1.0, steps=4)
    split = trajectory(Anderson(rv.splitting(solver, eta=2.0), on=on, history_size=4), classification(), 12, FULL)
    fedprox = trajectory(Anderson(rv.fedprox(solver, mu=0.5), history_size=4), classification(), 12, FULL)
    for k in (0, 5):
        equal([jax.tree.map(lambda u, k=k: u[k], s.server.inner.u) for s in split],
              [s.server.inner for s in fedprox], 1e-10)
    assert any(not s.server.extra.control.plain for s in fedprox)


@pytest.mark.when_changed
def test_replacing_the_mean_replaces_u_by_equations_25_and_26():
    """By plain arithmetic; B.8 of the paper."""
    algorithm = rv.fedpi(rv.solvers.GD(0.3, steps=2), eta=2.0)
    before, after = (s.server for s in trajectory(algorithm, quadratic(), 4, UNIFORM)[-2:])
    mean = np.arange(4.0)
    moved = algorithm.iterate.mean.replace(after, jnp.asarray(mean))
    np.testing.assert_allclose(moved.u, before.u / 2 + (2 * mean - after.z) / 2, atol=1e-12)
    np.testing.assert_array_equal(moved.mean, mean)


def test_a_party_that_missed_rounds_uses_its_last_image():
    algorithm = DecentralisedAnderson(rv.fedavg_plus(rv.solvers.GD(0.1), sigma=0.5), history_size=3)
    history = History(jnp.zeros((3, 1)), jnp.array([[1.0], [10], [100]]))
    control = Control.first(3, jnp.float64)
    control = Control(jnp.array([0.5, 2.0, -1.5]), *(getattr(control, f) for f in (
        "filled", "last", "residual", "plain", "wait", "patience")))  # last = 2
    slots = Slots(control, jnp.array([4, 5, 6]), jnp.array(7))

    def point(rounds):
        state = Wrapped(jnp.array([7.0]), PartyHistory(history, jnp.array(rounds)))
        return float(algorithm._point(state, Wrapped((), slots))[0])

    assert point([4, 5, 6]) == 0.5 * 1 + 2 * 10 - 1.5 * 100
    assert point([4, 2, 6]) == 0.5 * 1 + (2 - 1.5) * 100
    assert point([4, 5, 3]) == 7


@pytest.mark.nightly
def test_the_fixed_point_of_fed_plus_is_reached_in_half_the_rounds():
    """The joint iterate is every w_k and the centre: the same limit, and one pi for both sides."""
    plain = rv.fedavg_plus(rv.solvers.GD(0.1, steps=5), sigma=0.1, delta=0.5)
    target = limit(plain, quadratic(), 20_000)
    scale = np.linalg.norm(target.parties)

    def rounds_needed(algorithm, models, rounds):
        far = [np.linalg.norm(models(s) - target.parties) > 1e-8 * scale
               for s in trajectory(algorithm, quadratic(), rounds)]
        return len(far) - far[::-1].index(True)

    fast = DecentralisedAnderson(plain, history_size=8)
    state = limit(fast, quadratic(), 300)
    np.testing.assert_allclose(fast.server_model(state.server), target.server, atol=1e-9)
    without = rounds_needed(plain, lambda s: s.parties, 400)
    accelerated = rounds_needed(fast, lambda s: s.parties.inner, 150)
    assert accelerated <= without / 2, (accelerated, without)


# --------------------------------------------------------------------------------------------------------- safeguard

@cache
def nonconvex(seed):
    """Eight parties with 40 images of three digits each, and a small network."""
    rng = np.random.default_rng(seed)
    digits = rv.datasets.digits(parties=4, seed=0)
    pairs = [digits.party(k, split) for k in range(4) for split in ("train", "validation", "test")]
    x, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
    rows = [rng.choice(np.flatnonzero(np.isin(y, (np.arange(3) + k) % 10)), 40, replace=False) for k in range(8)]
    data = rv.FederatedData.from_arrays([x[i] for i in rows], [y[i] for i in rows], validation=0, test=0,
                                        classes=[str(c) for c in range(10)])
    return rv.problems.LearningProblem(rv.models.mlp(x.shape[1], 10, width=16), data, block=64)


@jax.jit
def objective(problem, w):
    return jnp.mean(jax.lax.map(lambda k: problem.oracle(k).value(w), jnp.arange(problem.parties)))


def objectives(algorithm, problem, rounds, seed):
    """The training objective of the shared model after each round."""
    states = simulator.trajectory(algorithm, problem, rounds, UNIFORM, seed=seed, scheduler="lanes")
    return np.array([float(objective(problem, algorithm.server_model(s.server))) for s in states[1:]])


@pytest.mark.nightly
@pytest.mark.parametrize(("make", "on"), [(rv.fedavg, "u"), (rv.fedpi, "u"), (rv.fedrp, "mean")])
def test_on_nonconvex_runs_acceleration_is_never_much_worse(make, on):
    """After no round does the training objective exceed 1.5 times that of the plain method, for 3 seeds.

    Without the rule ``forward``, that of FedPi does: residuals are small at the points that it has left.
    """
    plain = make(rv.solvers.GD(0.5, steps=5), **({} if make is rv.fedavg else {"eta": 2.0}))
    ratios, ratios_without_rule = [], []
    for seed in range(3):
        problem = nonconvex(seed)
        without = objectives(plain, problem, 30, seed)
        accelerated = Anderson(plain, history_size=6, on=on)
        ratios.append((objectives(accelerated, problem, 30, seed) / without).max())
        if make is rv.fedpi:
            any_direction = Anderson(plain, history_size=6, on=on, forward=-1e9)
            ratios_without_rule.append((objectives(any_direction, problem, 30, seed) / without).max())
    assert max(ratios) <= 1.5
    assert not ratios_without_rule or max(ratios_without_rule) > 1.2


@jax.jit
def control_after(control, residual, *, forward=1.0, advance=1e6):
    """The control after a round whose residual has this norm; the other rows are orthogonal to it, with norm 1."""
    m = len(control.weights)
    gram = jnp.eye(m).at[control.row, control.row].set(residual**2)
    return control.update(gram, jnp.full(m, advance), Rule(1.0, forward))


def test_at_most_log2_of_the_rounds_are_lost():
    """Every combination doubles the residual: of T rounds at most log2(T) + 1 are undone."""
    control, lost = Control.first(4, jnp.float64), 0
    for _ in range(300):
        last, residual, was_plain = int(control.last), float(control.residual), bool(control.plain)
        control, undo = control_after(control, 1.0 if was_plain else 2 * residual)
        assert bool(undo) == (not was_plain)
        if undo:
            lost += 1
            np.testing.assert_array_equal(control.weights, np.eye(4)[last])
            assert control.residual == residual
            assert control.plain
        np.testing.assert_allclose(control.weights.sum(), 1)
    assert 1 < lost <= np.log2(300) + 1


def test_when_points_are_undone_and_rows_removed():
    control, undo = control_after(Control.first(3, jnp.float64), 2.0)
    assert not undo
    assert control.plain  # a combination needs two points
    grew, undo = control_after(control, 3.0)
    assert not undo  # the plain method would accept it
    assert int(grew.filled.sum()) == 1
    fell, _ = control_after(control, 1.0)
    assert int(fell.filled.sum()) == 2
    assert not fell.plain
    assert control_after(control, 1.0, advance=0.5)[0].plain  # the progress is half a plain step
    assert not control_after(control, 1.0, advance=0.5, forward=0.4)[0].plain
    broken, undo = control_after(fell, jnp.nan)
    assert undo
    np.testing.assert_array_equal(History(jnp.zeros((3, 1)), jnp.array([[1.0], [2], [jnp.nan]])).combine(
        broken.weights), [2.0])
    fixed, _ = control_after(control, 0.0, advance=0.0)
    np.testing.assert_array_equal(fixed.weights, np.eye(3)[1])  # a fixed point


def test_inner_products_are_those_of_the_weighted_space():
    rng = np.random.default_rng(0)
    u, t, w = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 5, 2)), rng.random(5)
    gram, advance = History({"a": jnp.asarray(u)}, {"a": jnp.asarray(t)}).inner_products(jnp.array(1), jnp.asarray(w))
    np.testing.assert_allclose(gram, np.einsum("k,ikd,jkd->ij", w, u - t, u - t), atol=1e-12)
    np.testing.assert_allclose(advance, np.einsum("k,ikd,kd->i", w, t - u[1], t[1] - u[1]), atol=1e-12)


@pytest.mark.when_changed
def test_the_relative_cutoff_bounds_the_weights():
    """Nearly equal residuals cancel only by huge weights: |pi| <= 1 / (cutoff sqrt(m)) for residuals of one length."""
    r = np.ones(3) + 1e-4 * np.eye(3)
    gram, norms, residuals = jnp.asarray(r @ r.T), [], []
    for cutoff in (1e-1, 1e-4, 1e-7):
        tilted = gram.at[0, 0].add(1e-6)  # otherwise equal weights are optimal
        pi = np.asarray(mixing_weights(tilted, jnp.ones(3, bool), cutoff=cutoff))
        assert pi.sum() == pytest.approx(1)
        norms.append(np.linalg.norm(pi))
        residuals.append(pi @ np.asarray(tilted) @ pi)
        assert norms[-1] <= 1.01 / (cutoff * np.sqrt(3))
    assert norms[0] < norms[1] < norms[2]
    assert residuals[0] > residuals[1] > residuals[2]


# --------------------------------------------------------------------------------------------------------- averaging

@nightly.parametrize("decentralised", [True, False], per_commit=0)
def test_the_incremental_average_is_the_weighted_sum_over_the_trajectory(decentralised):
    participation = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
    weight = rv.schedules.InversePower(0.7, 0.8)
    plain = rv.fedpi(rv.SGD(0.2, batch_size=4), eta=1.0, decentralised=decentralised)
    averaged = rv.combinators.ErgodicAveraging(plain, weight=weight)
    inner, states = (trajectory(a, classification(), 9, participation) for a in (plain, averaged))
    equal([s.server.inner for s in states], [s.server for s in inner])
    equal([s.parties for s in states], [s.parties for s in inner])
    w = np.asarray([weight(jnp.array(t)) for t in range(10)])
    for t in range(10):
        direct = jax.tree.map(lambda *leaves, t=t: np.tensordot(w[:t + 1] / w[:t + 1].sum(), np.stack(leaves), 1),
                              *(plain.server_model(s.server) for s in inner[:t + 1]))
        equal(averaged.server_model(states[t].server), direct)
    equal(personal_models(averaged, classification(), states[-1]), jax.tree.map(lambda x: np.stack([x] * 6), direct))


@pytest.mark.nightly
def test_fedprox_with_vanishing_steps_and_averaging_solves_the_problem():
    """Theorem 2: with eta_t ~ 1/t the averages tend to the minimiser of (1); a constant step stops at that of (13)."""
    problem, first = quadratic(), 3.0
    optimum = np.linalg.solve(np.mean(problem.hessians, axis=0), np.mean(problem.linears, axis=0))

    def gap(eta, rounds):
        algorithm = rv.combinators.ErgodicAveraging(rv.splitting(EXACT, eta=eta), weight=eta)
        return float(np.linalg.norm(algorithm.server_model(limit(algorithm, problem, rounds).server) - optimum))

    constant = gap(first, 2000)
    assert abs(gap(first, 4000) - constant) < 0.01 * constant  # the average has converged to another point
    falling = rv.schedules.InversePower(first, 1.0)
    steps = np.cumsum(np.asarray(jax.vmap(falling)(jnp.arange(10_001))))
    near, far = gap(falling, 1000), gap(falling, 10_000)
    # The rate of the theorem: the distance is proportional to 1 / sum of the steps.
    assert far * steps[10_000] == pytest.approx(near * steps[1000], rel=0.03)
    assert far < 0.8 * constant
    assert gap(rv.schedules.InversePower(first, 0.75), 10_000) < 0.3 * constant


@pytest.mark.when_changed
def test_averages_of_anderson_at_the_parties():
    """The average is updated once a round, in the last phase."""
    inner = DecentralisedAnderson(rv.fedrp(EXACT, eta=1.0, decentralised=True), history_size=6)
    states = trajectory(rv.combinators.ErgodicAveraging(inner), quadratic(), 6, UNIFORM)
    shared = [s.server.inner.inner.mean for s in states]
    for t, state in enumerate(states):
        np.testing.assert_allclose(state.server.extra.average, np.mean(shared[:t + 1], axis=0), atol=1e-12)


# ----------------------------------------------------------------------------------------------------------- refusals

@pytest.mark.parametrize(("make", "noun"), [
    (lambda: Anderson(rv.fedpi(EXACT), on="v"), "on='v'"),
    (lambda: Anderson(rv.fedpi(EXACT), safeguard=0.0), "safeguard=0.0"),
    (lambda: Anderson(rv.fedavg_plus(EXACT, sigma=0.5)), "DecentralisedAnderson"),
    (lambda: DecentralisedAnderson(rv.fedprox(EXACT)), "Anderson if the server holds it"),
    (lambda: DecentralisedAnderson(rv.fedavg_plus(EXACT, sigma=0.5, aggregate="all")), "got StaleReplies"),
    (lambda: DecentralisedAnderson(rv.fedavg_plus(EXACT, sigma=0.5), history_size=0), "history_size=0"),
    (lambda: rv.combinators.ErgodicAveraging(rv.fedavg_plus(EXACT, sigma=0.5)), "got FedPlus"),
    (lambda: rv.combinators.ErgodicAveraging(rv.fedprox(EXACT), weight=0.0), "weight=0.0"),
])
def test_settings_that_make_no_sense_are_refused(make, noun):
    with pytest.raises((TypeError, ValueError), match=noun):
        make()
