"""Anderson acceleration in both forms, and ergodic averaging."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, limit, quadratic, trajectory

import resolvent as rv
from resolvent.algorithms.combinators.decentralised_anderson import OwnHistory, Slots
from resolvent.math.anderson import Control, History, Rule, mixing_weights
from resolvent.problem.learning import LearningProblem
from resolvent.simulate.engine import initial, run_chunk
from resolvent.simulate.evaluate import personal_models

ALIKE = rv.participation.Full("uniform")
EXACT = rv.solvers.ClosedForm()


def models(algorithm, problem, states):
    """What every party would use after each round."""
    everyone = jnp.arange(problem.parties)
    return [personal_models(algorithm, problem, jax.tree.map(jnp.asarray, s), everyone) for s in states]


# ----------------------------------------------------------------------------------------------------- the two forms

@pytest.mark.parametrize(("setting", "eta"), [((2, 2, 0.5), 3.0), ((1.3, 0.6, 0.4), rv.schedules.InversePower(3.0, 0.1))])
def test_centralised_anderson_is_decentralised_anderson(setting, eta):
    """Whole trajectories, with combinations and undone points among them; parties weigh by their sizes."""
    alpha, beta, gamma = setting
    make = [rv.splitting(rv.solvers.GD(2.0, steps=3), eta=eta, alpha=alpha, beta=beta, gamma=gamma, decentralised=d)
            for d in (False, True)]
    algorithms = (rv.combinators.Anderson(make[0], history_size=4, forward=0.0), rv.combinators.DecentralisedAnderson(make[1], history_size=4, forward=0.0))
    central, local = (trajectory(a, classification(), 25, rv.participation.Full()) for a in algorithms)
    equal([s.server.inner.mean for s in central], [s.server.inner[0] for s in local], 1e-9)
    equal(*(models(a, classification(), s) for a, s in zip(algorithms, (central, local), strict=True)), 1e-9)
    assert sum(not s.server.control.plain for s in central) > 3
    assert central[-1].server.control.patience > 1


@pytest.mark.parametrize("on", ["u", "mean"])
def test_where_every_u_is_the_mean_all_anderson_is_fedproxs(on):
    """(1, 1, 1): the inner product (6) of equal parts is the plain one, so that all three are one algorithm."""
    solver = rv.solvers.GD(1.0, steps=4)
    one = trajectory(rv.combinators.Anderson(rv.splitting(solver, eta=2.0), on=on, history_size=4), classification(), 12, rv.participation.Full())
    other = trajectory(rv.combinators.Anderson(rv.fedprox(solver, mu=0.5), history_size=4), classification(), 12, rv.participation.Full())
    for k in (0, 5):
        own = [jax.tree.map(lambda u, k=k: u[k], s.server.inner.u) for s in one]
        equal(own, [s.server.inner for s in other], 1e-10)
    assert any(not s.server.control.plain for s in other)


def test_another_mean_leads_to_the_u_that_it_would_have_led_to():
    """(25) and (26) again, by plain arithmetic; B.8 of the paper."""
    algorithm = rv.fedpi(rv.solvers.GD(0.3, steps=2), eta=2.0)
    before, after = (s.server for s in trajectory(algorithm, quadratic(), 4, ALIKE)[-2:])
    mean = np.arange(4.0)
    moved = algorithm.with_mean(after, jnp.asarray(mean))
    np.testing.assert_allclose(moved.u, before.u / 2 + (2 * mean - after.z) / 2, atol=1e-12)
    np.testing.assert_array_equal(moved.mean, mean)


def test_a_party_that_missed_rounds_goes_on_with_what_it_has():
    algorithm = rv.combinators.DecentralisedAnderson(rv.fedavg_plus(rv.solvers.GD(0.1)), history_size=3)
    history = History(jnp.zeros((3, 1)), jnp.array([[1.0], [10], [100]]))
    control = Control.first(3, jnp.float64)
    control = Control(jnp.array([0.5, 2.0, -1.5]), *(getattr(control, f) for f in (
        "filled", "last", "residual", "plain", "wait", "patience")))  # last = 2
    slots = Slots(control, jnp.array([4, 5, 6]), jnp.array(7))

    def starts(rounds):
        own = OwnHistory(jnp.array([7.0]), history, jnp.array(rounds))
        return float(algorithm._point(own, ((), slots))[0])

    assert starts([4, 5, 6]) == 0.5 * 1 + 2 * 10 - 1.5 * 100
    assert starts([4, 2, 6]) == 0.5 * 1 + (2 - 1.5) * 100
    assert starts([4, 5, 3]) == 7


def test_fed_pluss_own_fixed_point_is_reached_in_half_the_rounds():
    """The joint iterate: every w_k and the centre. Same limit, and a combination of both sides by one pi."""
    plain = rv.fedavg_plus(rv.solvers.GD(0.1, steps=5), sigma=0.1, delta=0.5)
    target = limit(plain, quadratic(), 20_000)
    scale = np.linalg.norm(target.parties)

    def rounds(algorithm, own, most):
        far = [np.linalg.norm(own(s) - target.parties) > 1e-8 * scale for s in trajectory(algorithm, quadratic(), most)]
        return len(far) - far[::-1].index(True)

    fast = rv.combinators.DecentralisedAnderson(plain, history_size=8)
    state = limit(fast, quadratic(), 300)
    np.testing.assert_allclose(fast.server_model(state.server), target.server, atol=1e-9)
    slow, quick = rounds(plain, lambda s: s.parties, 400), rounds(fast, lambda s: s.parties.inner, 150)
    assert quick <= slow / 2, (quick, slow)


# --------------------------------------------------------------------------------------------------------- safeguard

@cache
def digits(seed):
    """Eight parties of 40 images of three digits each, and a small network: nonconvex."""
    rng = np.random.default_rng(seed)
    whole = rv.datasets.digits(parties=4, seed=0)
    pairs = [whole.party(k, s) for k in range(4) for s in ("train", "validation", "test")]
    x, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
    rows = [rng.choice(np.flatnonzero(np.isin(y, (np.arange(3) + k) % 10)), 40, replace=False) for k in range(8)]
    data = rv.FederatedData.from_arrays([x[i] for i in rows], [y[i] for i in rows], validation=0, test=0,
                                        classes=[str(c) for c in range(10)])
    return LearningProblem(rv.models.mlp(x.shape[1], 10, width=16), data, block=64)


@jax.jit
def objective(problem, w):
    return jnp.mean(jax.lax.map(lambda k: problem.oracle(k).value(w), jnp.arange(problem.parties)))


def objectives(algorithm, problem, rounds, seed):
    """The training objective of the shared model after each round."""
    state = initial(algorithm, problem, ALIKE, jnp.array(seed))
    seen = []
    for t in range(rounds):
        state = run_chunk(algorithm, problem, ALIKE, state, jnp.array(seed), jnp.array(t), jnp.array(1), capacity=1,
                          record=(), scheduler="lanes").state
        seen.append(float(objective(problem, algorithm.server_model(state.server))))
    return np.array(seen)


@pytest.mark.parametrize(("make", "on"), [(rv.fedavg, "u"), (rv.fedpi, "u"), (rv.fedrp, "mean")])
def test_on_nonconvex_runs_acceleration_is_never_much_worse(make, on):
    """After no round does the training objective exceed 1.5 times the plain method's, whatever the seed.

    Without the rule that combinations go forward, FedPi's does: residuals are small where it came from.
    """
    plain = make(rv.solvers.GD(0.5, steps=5), **({} if make is rv.fedavg else {"eta": 2.0}))
    worst, careless = [], []
    for seed in range(3):
        problem = digits(seed)
        without = objectives(plain, problem, 30, seed)
        worst.append((objectives(rv.combinators.Anderson(plain, history_size=6, on=on), problem, 30, seed) / without).max())
        if make is rv.fedpi:
            any_way = rv.combinators.Anderson(plain, history_size=6, on=on, forward=-1e9)
            careless.append((objectives(any_way, problem, 30, seed) / without).max())
    assert max(worst) <= 1.5
    assert not careless or max(careless) > 1.2


def judged(control, residual, *, forward=1.0, advance=1e6):
    """A round whose residual has this norm; other rows orthogonal to it and as long."""
    m = len(control.weights)
    gram = jnp.eye(m).at[control.row, control.row].set(residual**2)
    return control.update(gram, jnp.full(m, advance), Rule(1.0, forward))


def test_however_bad_combinations_are_few_rounds_are_lost():
    """Every combination doubles the residual: of T rounds at most log2(T) + 1 are undone, and from the last kept."""
    control, lost = Control.first(4, jnp.float64), 0
    for _ in range(300):
        last, residual, was_plain = int(control.last), float(control.residual), bool(control.plain)
        control, undo = judged(control, 1.0 if was_plain else 2 * residual)
        assert bool(undo) == (not was_plain)
        if undo:
            lost += 1
            np.testing.assert_array_equal(control.weights, np.eye(4)[last])
            assert control.residual == residual
            assert control.plain
        np.testing.assert_allclose(control.weights.sum(), 1)
    assert 1 < lost <= np.log2(300) + 1


def test_what_is_kept_and_what_is_forgotten():
    control, undo = judged(Control.first(3, jnp.float64), 2.0)
    assert not undo
    assert control.plain  # one point is nothing to combine
    grew, undo = judged(control, 3.0)
    assert not undo  # the plain method would keep it
    assert int(grew.filled.sum()) == 1
    fell, _ = judged(control, 1.0)
    assert int(fell.filled.sum()) == 2
    assert not fell.plain
    assert judged(control, 1.0, advance=0.5)[0].plain  # half a plain step ahead is less than one
    assert not judged(control, 1.0, advance=0.5, forward=0.4)[0].plain
    broken, undo = judged(fell, jnp.nan)
    assert undo
    np.testing.assert_array_equal(History(jnp.zeros((3, 1)), jnp.array([[1.0], [2], [jnp.nan]])).combine(
        broken.weights), [2.0])
    fixed, _ = judged(control, 0.0, advance=0.0)
    np.testing.assert_array_equal(fixed.weights, np.eye(3)[1])  # a fixed point is stayed at


def test_products_are_those_of_the_weighted_space():
    rng = np.random.default_rng(0)
    u, t, w = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 5, 2)), rng.random(5)
    gram, advance = History({"a": jnp.asarray(u)}, {"a": jnp.asarray(t)}).inner_products(jnp.array(1), jnp.asarray(w))
    np.testing.assert_allclose(gram, np.einsum("k,ikd,jkd->ij", w, u - t, u - t), atol=1e-12)
    np.testing.assert_allclose(advance, np.einsum("k,ikd,kd->i", w, t - u[1], t[1] - u[1]), atol=1e-12)


def test_the_relative_cutoff_bounds_the_weights():
    """Nearly equal residuals cancel only by huge weights: |pi| <= 1 / (cutoff sqrt(m)) for residuals of one length."""
    r = np.ones(3) + 1e-4 * np.eye(3)
    gram, sizes, left = jnp.asarray(r @ r.T), [], []
    for cutoff in (1e-1, 1e-4, 1e-7):
        tilted = gram.at[0, 0].add(1e-6)  # else the equal weights are best
        pi = np.asarray(mixing_weights(tilted, jnp.ones(3, bool), cutoff=cutoff))
        assert pi.sum() == pytest.approx(1)
        sizes.append(np.linalg.norm(pi))
        left.append(pi @ np.asarray(tilted) @ pi)
        assert sizes[-1] <= 1.01 / (cutoff * np.sqrt(3))
    assert sizes[0] < sizes[1] < sizes[2]
    assert left[0] > left[1] > left[2]


# --------------------------------------------------------------------------------------------------------- averaging

@pytest.mark.parametrize("decentralised", [False, True])
def test_the_incremental_average_is_the_weighted_sum_over_the_trajectory(decentralised):
    who = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
    weight = rv.schedules.InversePower(0.7, 0.8)
    plain = rv.fedpi(rv.SGD(0.2, batch_size=4), eta=1.0, decentralised=decentralised)
    averaged = rv.combinators.ErgodicAveraging(plain, weight=weight)
    alone, states = (trajectory(a, classification(), 9, who) for a in (plain, averaged))
    equal([s.server.inner for s in states], [s.server for s in alone])
    equal([s.parties for s in states], [s.parties for s in alone])
    w = np.asarray([weight(jnp.array(t)) for t in range(10)])
    for t in range(10):
        direct = jax.tree.map(lambda *leaves, t=t: np.tensordot(w[:t + 1] / w[:t + 1].sum(), np.stack(leaves), 1),
                              *(plain.server_model(s.server) for s in alone[:t + 1]))
        equal(averaged.server_model(states[t].server), direct)
    used = models(averaged, classification(), states[-1:])[0]
    equal(used, jax.tree.map(lambda x: np.stack([x] * 6), direct))


def test_fedprox_with_vanishing_steps_and_averaging_solves_the_problem():
    """Theorem 2: with eta_t ~ 1/t the averages tend to the minimiser of (1); a constant step stops at that of (13)."""
    problem, first = quadratic(), 3.0
    optimum = np.linalg.solve(np.mean(problem.hessians, axis=0), np.mean(problem.linears, axis=0))

    def gap(eta, rounds):
        algorithm = rv.combinators.ErgodicAveraging(rv.splitting(EXACT, eta=eta), weight=eta)
        return float(np.linalg.norm(algorithm.server_model(limit(algorithm, problem, rounds).server) - optimum))

    constant = gap(first, 2000)
    assert abs(gap(first, 4000) - constant) < 0.01 * constant  # its average has come to rest, elsewhere
    falling = rv.schedules.InversePower(first, 1.0)
    steps = np.cumsum(np.asarray(jax.vmap(falling)(jnp.arange(10_001))))
    near, far = gap(falling, 1000), gap(falling, 10_000)
    # the theorem's rate: the distance falls as 1 / sum of the steps, so to zero, if slowly
    assert far * steps[10_000] == pytest.approx(near * steps[1000], rel=0.03)
    assert far < 0.8 * constant
    assert gap(rv.schedules.InversePower(first, 0.75), 10_000) < 0.3 * constant


def test_averages_of_anderson_at_the_parties():
    """The average moves in a round's last phase, once."""
    inner = rv.combinators.DecentralisedAnderson(rv.fedrp(EXACT, eta=1.0, decentralised=True), history_size=6)
    states = trajectory(rv.combinators.ErgodicAveraging(inner), quadratic(), 6, ALIKE)
    shared = [s.server.inner.inner[0] for s in states]
    for t, state in enumerate(states):
        np.testing.assert_allclose(state.server.average, np.mean(shared[:t + 1], axis=0), atol=1e-12)


# ----------------------------------------------------------------------------------------------------------- refusals

@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.combinators.Anderson(rv.fedprox(EXACT), on="mean"), "needs a splitting scheme, got ModelAggregation: .* use on='u'"),
    (lambda: rv.combinators.Anderson(rv.fedpi(EXACT), on="v"), "use 'u' or 'mean'"),
    (lambda: rv.combinators.Anderson(rv.fedpi(EXACT), safeguard=0.0), r"Anderson\(safeguard=0.0\) must be positive"),
    (lambda: rv.combinators.Anderson(rv.fedavg_plus(EXACT)), "where the parties hold it, DecentralisedAnderson"),
    (lambda: rv.combinators.DecentralisedAnderson(rv.fedprox(EXACT)), "or Anderson where the server holds it"),
    (lambda: rv.combinators.DecentralisedAnderson(rv.fedavg_plus(EXACT, aggregate="all")), "got StaleReplies"),
    (lambda: rv.combinators.DecentralisedAnderson(rv.fedavg_plus(EXACT), history_size=0), r"DecentralisedAnderson\(history_size=0\)"),
    (lambda: rv.combinators.ErgodicAveraging(rv.local(EXACT)), "got LocalTraining: use fedavg"),
    (lambda: rv.combinators.ErgodicAveraging(rv.fedavg_plus(EXACT)), "got FedPlus: use fedavg"),
    (lambda: rv.combinators.ErgodicAveraging(rv.fedprox(EXACT), weight=0.0), r"ErgodicAveraging\(weight=0.0\) must be positive"),
])
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
