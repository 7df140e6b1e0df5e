"""Attacks: what each sends by NumPy, who is bad, and what becomes of replies that are not finite."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, quadratic, trajectory
from scipy.stats import norm

import resolvent as rv
from resolvent.simulate.engine import initial

ALIKE = rv.participation.Full("uniform")
BAD, GOOD = [1, 4], [0, 2, 3, 5]
RATE, STEPS = 0.1, 3
GD = rv.solvers.GD(RATE, steps=STEPS)


def honest_models(problem, w):
    """What each party's gradient steps make of w."""
    found = []
    for h, g in zip(np.asarray(problem.hessians), np.asarray(problem.linears), strict=True):
        x = w
        for _ in range(STEPS):
            x = x - RATE * (h @ x - g)
        found.append(x)
    return np.array(found)


def sent(attack, rounds=2):
    """The models that reached the server in the last round, and the shared model before it; uniform weights."""
    algorithm = rv.combinators.Attacked(rv.combinators.StaleReplies(rv.fedavg(GD)), attack, parties=(1, 4))
    states = trajectory(algorithm, quadratic(), rounds, ALIKE)
    return np.asarray(states[-1].server.inner.replies), np.asarray(states[-2].server.inner.inner), states[-1]


@pytest.mark.parametrize(("attack", "false"), [
    (rv.attacks.SignFlip(), lambda u: -u[BAD]),
    (rv.attacks.SignFlip(2.5), lambda u: -2.5 * u[BAD]),
    (rv.attacks.Scaled(7.0), lambda u: 7 * u[BAD]),
    (rv.attacks.ALIE(1.3), lambda u: u[GOOD].mean(axis=0) - 1.3 * u[GOOD].std(axis=0)),
    # n = 6, m = 2: s = 2 supporters are needed, Phi(z) = (6 - 2 - 2)/4
    (rv.attacks.ALIE(), lambda u: u[GOOD].mean(axis=0) - norm.ppf(0.5) * u[GOOD].std(axis=0)),
    (rv.attacks.IPM(0.8), lambda u: -0.8 * u[GOOD].mean(axis=0)),
], ids=lambda part: repr(part) if isinstance(part, rv.attacks.Attack) else "by numpy")
def test_what_bad_parties_send_by_numpy(attack, false):
    """In the second round, where the model is no longer zero: an update is the difference from what was sent."""
    got, before, state = sent(attack)
    models = honest_models(quadratic(), before)
    expected = models.copy()
    expected[BAD] = before + false(models - before)
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(got, expected, atol=1e-12)
    np.testing.assert_allclose(state.server.inner.inner, expected.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize(("bad", "of"), [(3, 10), (9, 20), (1, 10)])
def test_alies_own_z(bad, of):
    """Phi(z) = (n - m - s)/(n - m), s = floor(n/2 + 1) - m; where that is below one half nothing can be hidden."""
    is_bad = jnp.arange(of) < bad
    supporters = of // 2 + 1 - bad
    z = max(norm.ppf((of - bad - supporters) / (of - bad)), 0)
    updates = np.random.default_rng(0).normal(size=(of, 3))
    found = rv.attacks.ALIE().collude(jnp.asarray(updates), ~is_bad, is_bad)
    good = updates[bad:]
    np.testing.assert_allclose(found, good.mean(axis=0) - z * good.std(axis=0), atol=1e-12)


def test_gaussian_noise_in_place_of_the_update():
    (one, before, _), (three, _, _) = (sent(rv.attacks.Gaussian(std), rounds=1) for std in (1.0, 3.0))
    np.testing.assert_allclose(one[GOOD], honest_models(quadratic(), before)[GOOD], atol=1e-12)
    np.testing.assert_allclose((three - before)[BAD], 3 * (one - before)[BAD], atol=1e-12)
    assert np.abs(one[1] - one[4]).min() > 1e-3  # every party its own
    noise = rv.attacks.Gaussian(2.0).update({"a": jnp.ones((100, 100)), "b": jnp.ones(9)}, jax.random.key(0))
    assert float(jnp.mean(noise["a"])) == pytest.approx(0, abs=0.1)
    assert float(jnp.std(noise["a"])) == pytest.approx(2, abs=0.1)
    assert not np.allclose(noise["a"].ravel()[:9], noise["b"])


def test_replies_that_are_no_models_are_updates_themselves():
    """Scaffold's differences, and the gradients of FedDANE's first phase; its second replies models."""
    problem, flip = quadratic(), rv.attacks.SignFlip()
    sign = np.where(np.isin(np.arange(6), BAD), -1.0, 1.0)[:, None]
    before, after = (s.server.inner for s in trajectory(rv.combinators.Attacked(rv.scaffold(GD), flip, parties=(1, 4)), problem, 1,
                                                        ALIKE))
    moves = honest_models(problem, np.asarray(before[0])) - np.asarray(before[0])
    np.testing.assert_allclose(after[0], np.mean(sign * moves, axis=0), atol=1e-12)

    mu = 0.7
    states = trajectory(rv.combinators.Attacked(rv.feddane(rv.solvers.ClosedForm(), mu=mu), flip, parties=(1, 4)), problem, 2, ALIKE)
    h, g, w = np.asarray(problem.hessians), np.asarray(problem.linears), np.zeros(4)
    for state in states[1:]:
        gradients = h @ w - g
        mean = np.mean(sign * gradients, axis=0)
        solved = np.array([np.linalg.solve(h[k] + mu * np.eye(4), g[k] - (mean - gradients[k]) + mu * w)
                           for k in range(6)])
        w = w + np.mean(sign * (solved - w), axis=0)
        np.testing.assert_allclose(state.server.inner[1], mean, atol=1e-12)
        np.testing.assert_allclose(state.server.inner[0], w, atol=1e-12)


def test_an_update_is_from_the_partys_own_message():
    """Splitting sends every party another u_k; a bad party's P_f(u_k) is turned round about that."""
    problem = quadratic()
    states = trajectory(rv.combinators.Attacked(rv.fedpi(rv.solvers.ClosedForm(), eta=0.5), rv.attacks.SignFlip(), parties=(1, 4)), problem,
                        3, ALIKE)
    before, after = (s.server.inner for s in states[-2:])
    h, g, u = np.asarray(problem.hessians), np.asarray(problem.linears), np.asarray(before.u)
    p = np.array([np.linalg.solve(h[k] + 2 * np.eye(4), g[k] + 2 * u[k]) for k in range(6)])
    p[BAD] = 2 * u[BAD] - p[BAD]
    assert np.abs(u[1] - u[4]).max() > 1e-2
    np.testing.assert_allclose(after.z, 2 * p - u, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_label_flip_is_training_on_flipped_labels(classes):
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(n, 3)) for n in (5, 9, 7)]
    y = [rng.integers(0, classes, len(part)) for part in x]

    def problem(labels):
        data = rv.FederatedData.from_arrays(x, labels, validation=0, test=0, classes=[str(c) for c in range(classes)])
        return rv.problems.LearningProblem(rv.models.logistic(3, classes), data)

    solver = rv.SGD(0.3, batch_size=4, epochs=2)
    attacked = trajectory(rv.attacked(rv.fedavg(solver), rv.attacks.LabelFlip(), share=0, parties=(1,)), problem(y), 3)
    flipped = trajectory(rv.fedavg(solver), problem([y[0], classes - 1 - y[1], y[2]]), 3)
    plain = trajectory(rv.fedavg(solver), problem(y), 3)
    equal([s.server.inner for s in attacked], [s.server for s in flipped])
    assert np.abs(flipped[-1].server["weight"] - plain[-1].server["weight"]).max() > 1e-2


def test_label_flip_needs_labels():
    with pytest.raises(TypeError, match=r"LabelFlip needs a party's own samples .* got QuadraticOracle: use SignFlip"):
        trajectory(rv.attacked(rv.fedavg(GD), rv.attacks.LabelFlip()), quadratic(), 1)


# ---- who is bad


def test_the_bad_parties_are_the_same_for_every_method():
    def bad(algorithm, share, parties=(), seed=0):
        state = initial(rv.attacked(algorithm, rv.attacks.SignFlip(), share=share, parties=parties, seed=seed),
                        classification(), ALIKE, jnp.array(3))
        return np.flatnonzero(state.server.bad).tolist()

    for share, count in ((0.0, 0), (0.2, 1), (0.5, 3), (1.0, 6)):
        one = bad(rv.fedavg(GD), share)
        assert len(one) == count
        assert bad(rv.scaffold(GD), share) == one
    assert set(bad(rv.fedavg(GD), 0.2)) < set(bad(rv.fedavg(GD), 0.5))  # a larger share adds to a smaller one
    assert bad(rv.fedavg(GD), 0.0, parties=(4, 2)) == [2, 4]
    assert len({tuple(bad(rv.fedavg(GD), 0.5, seed=s)) for s in range(5)}) > 1


def test_wrong_shares_and_parties_are_refused():
    with pytest.raises(ValueError, match=r"Attacked\(share=1.2\) must lie in \[0, 1\]"):
        rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), share=1.2)
    with pytest.raises(rv.InputError, match=r"names party 6, but they are numbered 0 to 5"):
        rv.simulate(rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), parties=(6,)), quadratic(), rounds=1, progress=False)


def test_without_bad_parties_nothing_changes():
    who = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
    plain = trajectory(rv.fedavg(GD), quadratic(), 3, who)
    same = trajectory(rv.attacked(rv.fedavg(GD), rv.attacks.ALIE(), share=0.0), quadratic(), 3, who)
    equal([s.server.inner for s in same], [s.server for s in plain])


def test_a_composition_runs_alike_in_lanes():
    """Against the plain loop as well it is the contract's row, with NaN in two phases."""
    algorithm = rv.combinators.Anderson(rv.attacked(rv.robust(GD, rv.aggregators.TrimmedMean(0.2)), rv.attacks.ALIE(1.0), share=0.3))
    one, lanes = (rv.simulate(algorithm, quadratic(), rounds=3, progress=False, scheduler=scheduler, evaluate_every=3,
                              participation=rv.participation.Uniform(cohort=5)).state for scheduler in ("sequential", "lanes"))
    equal(one, lanes)


# ---- replies that are not finite


class Without(rv.participation.Full):
    """Everybody but some, who are absent."""

    absent: jax.Array = eqx.field(default=None, kw_only=True)

    def __call__(self, key, sizes):
        return eqx.tree_at(lambda c: c.alive, super().__call__(key, sizes), ~self.absent)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 1.0])
def test_nan_replies_count_as_absent_and_are_reported(share):
    """At any share: the trajectory without those parties, to the bit, and exactly they in the report."""
    problem, algorithm = classification(), rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), share=share)
    result = rv.simulate(algorithm, problem, rounds=4, progress=False, evaluate_every=2)
    bad = np.flatnonzero(result.state.server.bad)
    assert result.refused == {str(k): 4 for k in bad}
    rows = result.metrics[result.metrics["metric"] == "refused"]
    assert sorted(zip(rows["round"], rows["party"], strict=True)) == [(t, k) for t in range(1, 5) for k in bad]
    assert result.metrics.query("metric == 'replies'")["value"].tolist() == [6.0 - len(bad)] * 4
    expected = rv.simulate(rv.fedavg(GD), problem, rounds=4, progress=False, evaluate_every=2,
                           participation=Without(absent=result.state.server.bad))
    jax.tree.map(np.testing.assert_array_equal, result.server_model, expected.server_model)
    assert expected.refused == {}


def test_who_is_refused_in_one_phase_is_not_in_the_next_and_keeps_its_state():
    """An infinite gradient in FedDANE's first phase; and Scaffold's control variates under NaN."""
    problem = quadratic()
    broken = rv.problems.QuadraticProblem(problem.hessians, problem.linears.at[2].set(jnp.inf), sizes=problem.sizes)
    result = rv.simulate(rv.feddane(rv.solvers.ClosedForm()), broken, rounds=3, progress=False)
    expected = rv.simulate(rv.feddane(rv.solvers.ClosedForm()), problem, rounds=3, progress=False,
                           participation=Without(absent=jnp.arange(6) == 2))
    assert result.refused == {"2": 3}
    jax.tree.map(np.testing.assert_array_equal, result.state.server, expected.state.server)
    for state in trajectory(rv.combinators.Attacked(rv.scaffold(GD), rv.attacks.NaN(), parties=(1, 4)), problem, 3):
        assert (state.parties[BAD] == 0).all()
        shares = np.arange(1, 7) / 21
        np.testing.assert_allclose(state.server.inner[1], shares @ state.parties, atol=1e-13)


def test_a_diverging_party_is_refused_where_it_would_have_taken_all_with_it():
    """Steps far beyond stability for one party only: the others' model stays finite, and it is named."""
    problem = quadratic()
    steep = rv.problems.QuadraticProblem(problem.hessians.at[3].multiply(1e9), problem.linears, sizes=problem.sizes)
    result = rv.simulate(rv.fedavg(rv.solvers.GD(0.1, steps=60)), steep, rounds=2, progress=False)
    assert result.refused == {"3": 2}
    assert np.isfinite(result.server_model).all()


# ---- what it is for


@pytest.mark.parametrize(("attack", "aggregator"), [
    (rv.attacks.SignFlip(4.0), rv.aggregators.TrimmedMean(0.2)),  # of two in ten: as long as the other eight together
    (rv.attacks.Scaled(100.0), rv.aggregators.MultiKrum(0.2)),
], ids=["sign flip", "scaled"])
def test_one_party_in_five_breaks_fedavg_and_not_a_robust_aggregator(attack, aggregator):
    """Digits, ten parties alike, two of them bad: by the loss, since a linear model's length changes no prediction."""
    data = rv.datasets.digits(parties=10, classes_per_party=10, size_spread=0.0, test=0.3, seed=1)
    solver = rv.SGD(0.3, batch_size=16, epochs=2)

    def found(algorithm):
        result = rv.simulate(rv.attacked(algorithm, attack), rv.models.logistic(64, 10), data, rounds=15,
                             evaluate_every=15, participation=ALIKE, progress=False)
        return [float(result.scores(metric=m).iloc[-1].mean()) for m in ("loss", "accuracy")]

    assert found(rv.fedavg(solver))[0] > 2  # guessing has log 10
    loss, accuracy = found(rv.robust(solver, aggregator))
    assert loss < 0.8
    assert accuracy > 0.85
