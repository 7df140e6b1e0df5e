"""Attacks against NumPy, the draw of malicious parties, and replies that are not finite."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import classification, equal, quadratic, trajectory
from scipy.stats import norm

import nightly
import resolvent as rv
from resolvent.algorithms.round import reply_shapes
from resolvent.simulator.engine.rounds import initial_state

EQUAL_WEIGHTS = rv.participation.Full("uniform")
MALICIOUS, HONEST = [1, 4], [0, 2, 3, 5]
RATE, STEPS = 0.1, 3
GD = rv.solvers.GD(RATE, steps=STEPS)


def honest_models(problem, w):
    """Each party's model after its gradient steps from w."""
    models = []
    for h, g in zip(np.asarray(problem.hessians), np.asarray(problem.linears), strict=True):
        x = w
        for _ in range(STEPS):
            x = x - RATE * (h @ x - g)
        models.append(x)
    return np.array(models)


def attack_two(algorithm, attack, problem=None, rounds=2):
    """The states of the inner algorithm's server when the parties 1 and 4 attack."""
    attacked = rv.combinators.Attacked(algorithm, attack, parties=(1, 4))
    states = trajectory(attacked, quadratic() if problem is None else problem, rounds, EQUAL_WEIGHTS)
    return [state.server.inner for state in states]


def received_models(attack, rounds=2):
    """The models that the server received in the last round, the shared model before it, and that after it."""
    before, after = attack_two(rv.combinators.StaleReplies(rv.fedavg(GD)), attack, rounds=rounds)[-2:]
    return after.extra.replies, before.inner, after.inner


@nightly.parametrize(("attack", "malicious_update"), [
    (rv.attacks.SignFlip(2.5), lambda u: -2.5 * u[MALICIOUS]),
    (rv.attacks.ALIE(1.3), lambda u: u[HONEST].mean(axis=0) - 1.3 * u[HONEST].std(axis=0)),
    (rv.attacks.SignFlip(), lambda u: -u[MALICIOUS]),
    (rv.attacks.Scaled(7.0), lambda u: 7 * u[MALICIOUS]),
    # n = 6 and m = 2, so s = 2 supporters are needed: Phi(z) = (6 - 2 - 2)/4.
    (rv.attacks.ALIE(), lambda u: u[HONEST].mean(axis=0) - norm.ppf(0.5) * u[HONEST].std(axis=0)),
    (rv.attacks.IPM(0.8), lambda u: -0.8 * u[HONEST].mean(axis=0)),
], ids=lambda part: repr(part) if isinstance(part, rv.attacks.Attack) else "", per_commit=2)
def test_malicious_updates_by_numpy(attack, malicious_update):
    """In the second round the shared model is not zero: an update is the difference from the model that was sent."""
    received, before, after = received_models(attack)
    models = honest_models(quadratic(), before)
    expected = models.copy()
    expected[MALICIOUS] = before + malicious_update(models - before)
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(received, expected, atol=1e-12)
    np.testing.assert_allclose(after, expected.mean(axis=0), atol=1e-12)


def test_updates_of_scaled_and_inner_product_attacks():
    updates, malicious = np.random.default_rng(1).normal(size=(6, 3)), np.isin(np.arange(6), MALICIOUS)
    ipm = rv.attacks.IPM(0.8).collude(jnp.asarray(updates), jnp.asarray(~malicious), jnp.asarray(malicious))
    np.testing.assert_allclose(ipm, -0.8 * updates[HONEST].mean(axis=0), atol=1e-12)
    scaled = rv.attacks.Scaled(7.0).update(jnp.asarray(updates[1]), jax.random.key(0))
    np.testing.assert_allclose(scaled, 7 * updates[1], atol=1e-12)


@nightly.parametrize(("malicious", "parties"), [(3, 10), (9, 20), (1, 10)])
def test_default_z_of_alie(malicious, parties):
    """Phi(z) = (n - m - s)/(n - m), s = floor(n/2 + 1) - m; z is 0 if that is below one half."""
    is_malicious = jnp.arange(parties) < malicious
    supporters = parties // 2 + 1 - malicious
    z = max(norm.ppf((parties - malicious - supporters) / (parties - malicious)), 0)
    updates = np.random.default_rng(0).normal(size=(parties, 3))
    update = jax.jit(rv.attacks.ALIE().collude)(jnp.asarray(updates), ~is_malicious, is_malicious)
    honest = updates[malicious:]
    np.testing.assert_allclose(update, honest.mean(axis=0) - z * honest.std(axis=0), atol=1e-12)


@pytest.mark.nightly
def test_gaussian_noise_replaces_the_update():
    (small, before, _), (large, _, _) = (received_models(rv.attacks.Gaussian(std), rounds=1) for std in (1.0, 3.0))
    np.testing.assert_allclose(small[HONEST], honest_models(quadratic(), before)[HONEST], atol=1e-12)
    np.testing.assert_allclose((large - before)[MALICIOUS], 3 * (small - before)[MALICIOUS], atol=1e-12)
    assert np.abs(small[1] - small[4]).min() > 1e-3  # each party draws its own noise
    noise = rv.attacks.Gaussian(2.0).update({"a": jnp.ones((100, 100)), "b": jnp.ones(9)}, jax.random.key(0))
    assert float(jnp.mean(noise["a"])) == pytest.approx(0, abs=0.1)
    assert float(jnp.std(noise["a"])) == pytest.approx(2, abs=0.1)
    assert not np.allclose(noise["a"].ravel()[:9], noise["b"])


@pytest.mark.when_changed
def test_the_update_is_the_reply_itself_if_replies_are_no_models():
    """Scaffold replies differences, and FedDANE's first phase gradients; its second phase replies models."""
    problem, flip = quadratic(), rv.attacks.SignFlip()
    sign = np.where(np.isin(np.arange(6), MALICIOUS), -1.0, 1.0)[:, None]
    before, after = attack_two(rv.scaffold(GD), flip, rounds=1)
    changes = honest_models(problem, before.model) - before.model
    np.testing.assert_allclose(after.model, np.mean(sign * changes, axis=0), atol=1e-12)

    mu = 0.7
    h, g, w = np.asarray(problem.hessians), np.asarray(problem.linears), np.zeros(4)
    for state in attack_two(rv.feddane(rv.solvers.ClosedForm(), mu=mu), flip)[1:]:
        gradients = h @ w - g
        mean = np.mean(sign * gradients, axis=0)
        solutions = np.array([np.linalg.solve(h[k] + mu * np.eye(4), g[k] - (mean - gradients[k]) + mu * w)
                              for k in range(6)])
        w = w + np.mean(sign * (solutions - w), axis=0)
        np.testing.assert_allclose(state.gradient, mean, atol=1e-12)
        np.testing.assert_allclose(state.model, w, atol=1e-12)


def test_the_update_is_measured_from_the_partys_own_message():
    """Splitting sends another u_k to every party; the attack reflects P_f(u_k) about this u_k."""
    problem = quadratic()
    before, after = attack_two(rv.fedpi(rv.solvers.ClosedForm(), eta=0.5), rv.attacks.SignFlip(), rounds=3)[-2:]
    h, g, u = np.asarray(problem.hessians), np.asarray(problem.linears), before.u
    p = np.array([np.linalg.solve(h[k] + 2 * np.eye(4), g[k] + 2 * u[k]) for k in range(6)])
    p[MALICIOUS] = 2 * u[MALICIOUS] - p[MALICIOUS]
    assert np.abs(u[1] - u[4]).max() > 1e-2
    np.testing.assert_allclose(after.z, 2 * p - u, atol=1e-12)


@nightly.parametrize("classes", [3, 2], per_commit=0)
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
    with pytest.raises(TypeError, match=r"LabelFlip.*QuadraticOracle"):
        trajectory(rv.attacked(rv.fedavg(GD), rv.attacks.LabelFlip()), quadratic(), 1)


def test_label_flip_leaves_shapes_unchanged():
    attacked = rv.attacked(rv.fedavg(GD), rv.attacks.LabelFlip())
    assert reply_shapes(attacked, jnp.zeros(3)) == reply_shapes(rv.fedavg(GD), jnp.zeros(3))


# The draw of malicious parties.


@pytest.mark.nightly
def test_malicious_parties_are_the_same_for_every_method():
    def malicious(algorithm, share, parties=(), seed=0):
        attacked = rv.attacked(algorithm, rv.attacks.SignFlip(), share=share, parties=parties, seed=seed)
        return np.flatnonzero(initial_state(attacked, classification()).server.extra).tolist()

    for share, count in ((0.0, 0), (0.2, 1), (0.5, 3), (1.0, 6)):
        drawn = malicious(rv.fedavg(GD), share)
        assert len(drawn) == count
        assert malicious(rv.scaffold(GD), share) == drawn
    assert set(malicious(rv.fedavg(GD), 0.2)) < set(malicious(rv.fedavg(GD), 0.5))
    assert malicious(rv.fedavg(GD), 0.0, parties=(4, 2)) == [2, 4]
    assert len({tuple(malicious(rv.fedavg(GD), 0.5, seed=seed)) for seed in range(5)}) > 1


def test_wrong_shares_and_parties_are_refused():
    with pytest.raises(ValueError, match="share"):
        rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), share=1.2)
    with pytest.raises(rv.InputError, match="party 6"):
        rv.simulate(rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), parties=(6,)), quadratic(), rounds=1, progress=False)


@pytest.mark.nightly
def test_without_malicious_parties_nothing_changes():
    participation = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
    plain = trajectory(rv.fedavg(GD), quadratic(), 3, participation)
    same = trajectory(rv.attacked(rv.fedavg(GD), rv.attacks.ALIE(), share=0.0), quadratic(), 3, participation)
    equal([s.server.inner for s in same], [s.server for s in plain])


@pytest.mark.nightly
def test_a_composition_has_the_same_result_in_lanes():
    attacked = rv.attacked(rv.robust(GD, rv.aggregators.TrimmedMean(0.3)), rv.attacks.ALIE(1.0), share=0.3)
    sequential, lanes = (
        rv.simulate(rv.combinators.Anderson(attacked), quadratic(), rounds=3, progress=False, scheduler=scheduler,
                    evaluate_every=3, participation=rv.participation.Uniform(cohort=5)).state
        for scheduler in ("sequential", "lanes"))
    equal(sequential, lanes)


# Replies that are not finite.


class Without(rv.participation.Full):
    """All parties are selected, and some are absent."""

    absent: jax.Array = eqx.field(default=None, kw_only=True)

    def draw(self, state, key, t, sizes):
        cohort, after = super().draw(state, key, t, sizes)
        return eqx.tree_at(lambda c: c.alive, cohort, ~self.absent), after


@pytest.mark.when_changed
@nightly.parametrize("share", [0.5, 1.0, 0.2, 0.8])
def test_nan_replies_count_as_absent_and_are_reported(share):
    """At any share the trajectory is that without those parties, bit for bit."""
    problem, algorithm = classification(), rv.attacked(rv.fedavg(GD), rv.attacks.NaN(), share=share)
    result = rv.simulate(algorithm, problem, rounds=4, progress=False, evaluate_every=2)
    malicious = np.flatnonzero(result.state.server.extra)
    assert result.refused == {str(k): 4 for k in malicious}
    rows = result.metrics[result.metrics["metric"] == "refused"]
    assert sorted(zip(rows["round"], rows["party"], strict=True)) == [(t, k) for t in range(1, 5) for k in malicious]
    assert result.metrics.query("metric == 'replies'")["value"].tolist() == [6.0 - len(malicious)] * 4
    expected = rv.simulate(rv.fedavg(GD), problem, rounds=4, progress=False, evaluate_every=2,
                           participation=Without(absent=result.state.server.extra))
    jax.tree.map(np.testing.assert_array_equal, result.server_model, expected.server_model)
    assert expected.refused == {}


@pytest.mark.when_changed
def test_a_party_refused_in_one_phase_is_absent_in_the_next_and_keeps_its_state():
    """An infinite gradient in FedDANE's first phase, and Scaffold's control variates with NaN replies."""
    problem = quadratic()
    broken = eqx.tree_at(lambda p: p.linears, problem, problem.linears.at[2].set(jnp.inf))
    result = rv.simulate(rv.feddane(rv.solvers.ClosedForm()), broken, rounds=3, progress=False)
    expected = rv.simulate(rv.feddane(rv.solvers.ClosedForm()), problem, rounds=3, progress=False,
                           participation=Without(absent=jnp.arange(6) == 2))
    assert result.refused == {"2": 3}
    jax.tree.map(np.testing.assert_array_equal, result.state.server, expected.state.server)
    shares = np.arange(1, 7) / 21
    for state in trajectory(rv.combinators.Attacked(rv.scaffold(GD), rv.attacks.NaN(), parties=(1, 4)), problem, 3):
        assert (state.parties.inner[MALICIOUS] == 0).all()
        np.testing.assert_allclose(state.server.inner.control, shares @ state.parties.inner, atol=1e-13)


def test_a_diverging_party_is_refused():
    """The steps are unstable for one party only: the model of the others stays finite, and the party is reported."""
    problem = quadratic()
    steep = rv.problems.QuadraticProblem(problem.hessians.at[3].multiply(1e9), problem.linears, sizes=problem.sizes)
    result = rv.simulate(rv.fedavg(rv.solvers.GD(0.1, steps=60)), steep, rounds=2, progress=False)
    assert result.refused == {"3": 2}
    assert np.isfinite(result.server_model).all()


# The purpose of robust aggregators.


@nightly.parametrize(("attack", "aggregator"), [
    (rv.attacks.SignFlip(4.0), rv.aggregators.TrimmedMean(0.2)),  # two of ten, as long as the other eight together
    (rv.attacks.Scaled(100.0), rv.aggregators.MultiKrum(0.2)),
], ids=["sign flip", "scaled"], per_commit=0)
def test_one_party_in_five_breaks_fedavg_but_no_robust_aggregator(attack, aggregator):
    """Digits, ten parties alike, two of them malicious. The loss shows it: scaling a linear model changes no label."""
    data = rv.datasets.digits(parties=10, classes_per_party=10, size_spread=0.0, test=0.3, seed=1)
    solver = rv.SGD(0.3, batch_size=16, epochs=2)

    def loss_and_accuracy(algorithm):
        result = rv.simulate(rv.attacked(algorithm, attack), rv.models.logistic(64, 10), data, rounds=15,
                             evaluate_every=15, participation=EQUAL_WEIGHTS, progress=False)
        return [float(result.scores(metric=m).iloc[-1].mean()) for m in ("loss", "accuracy")]

    assert loss_and_accuracy(rv.fedavg(solver))[0] > 2  # guessing has log 10 = 2.3
    loss, accuracy = loss_and_accuracy(rv.robust(solver, aggregator))
    assert loss < 0.8
    assert accuracy > 0.85
