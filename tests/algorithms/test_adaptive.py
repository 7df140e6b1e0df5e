"""FedProx's adaptive mu against the rule in plain Python, and training on pooled data."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SEED, classification, equal, quadratic, trajectory

import resolvent as rv
from resolvent.algorithms import keys
from resolvent.algorithms.methods.adaptive_mu import MuRule
from resolvent.problem.solvers.lbfgs import pooled_optimum
from resolvent.simulator.record.diagnostics import dissimilarity

UNIFORM = rv.participation.Full("uniform")


def mu_after_each_loss(losses, mu, step=0.1, patience=5):
    """The rule of FedProx, section 5.3.2, in plain Python."""
    values, streak, last = [], 0, None
    for loss in losses:
        if last is not None:
            if loss > last:
                mu, streak = mu + step, 0
            elif loss < last:
                streak += 1
                if streak == patience:
                    mu, streak = max(mu - step, 0), 0
            else:
                streak = 0
        last = loss
        values.append(mu)
    return values


@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0])
def test_mu_follows_the_rule_on_any_losses(mu):
    rng = np.random.default_rng(0)
    losses = np.concatenate([np.linspace(9, 5, 60), [5, 4, 3, 3, 2, 1.5, 1.4, 1.3, 1.2, 1.1],
                             rng.normal(size=60), np.linspace(2, 1, 40)])
    rule, values = MuRule(jnp.array(mu), jnp.array(jnp.inf), jnp.array(0)), []
    update = jax.jit(lambda rule, loss: rule.update(loss, 0.1, 5))
    for loss in losses:
        rule = update(rule, loss)
        values.append(float(rule.mu))
    expected = mu_after_each_loss(losses, mu)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    assert min(expected) == 0
    assert max(expected) > mu + 0.1
    after_nan = update(rule, np.nan)  # nan counts as an increase and is not stored
    assert float(after_nan.mu) == pytest.approx(float(rule.mu) + 0.1)
    assert float(after_nan.loss) == losses[-1]


def server_step(algorithm):
    """With a server step of 1.9, so that losses also increase."""
    optimizer = rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.9)
    return rv.combinators.ServerOptimizer(algorithm, optimizer)


def mean_loss(problem, parties, w):
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    return np.mean([w @ h[k] @ w / 2 - g[k] @ w for k in parties])


@pytest.mark.when_changed
def test_a_run_is_fedprox_with_the_mu_of_the_round():
    """The closed form of every round by NumPy, with mu from the rule in plain Python. mu both grows and falls."""
    problem, patience = quadratic(), 2
    algorithm = server_step(rv.fedprox_adaptive(rv.solvers.ClosedForm(), mu=0.2, step=0.3, patience=patience))
    states = trajectory(algorithm, problem, 12, UNIFORM)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    w, losses, weights = np.zeros(4), [], []
    for before, after in pairwise(states):
        losses.append(mean_loss(problem, range(6), w))
        mu = float(before.server.inner.rule.mu)
        weights.append(mu)
        solved = [np.linalg.solve(h[k] + mu * np.eye(4), g[k] + mu * w) for k in range(6)]
        w = w + 1.9 * (np.mean(solved, axis=0) - w)
        np.testing.assert_allclose(after.server.inner.model, w, atol=1e-11)
        np.testing.assert_allclose(after.server.inner.rule.loss, losses[-1], atol=1e-11)
    np.testing.assert_allclose(weights[1:], mu_after_each_loss(losses, 0.2, 0.3, patience)[:-1], atol=1e-12)
    assert max(weights) > 0.2
    assert (np.diff(weights) < 0).any()


@pytest.mark.nightly
def test_with_mu_zero_and_falling_losses_it_is_fedavg():
    solver = rv.solvers.GD(0.2, steps=3)
    states = trajectory(rv.fedprox_adaptive(solver), classification(), 6)
    equal([s.server.model for s in states],
          [s.server for s in trajectory(rv.fedavg(solver), classification(), 6)])
    assert all(float(s.server.rule.mu) == 0 for s in states)


def trajectory_with_mu(paired, participation):
    algorithm = rv.fedprox_adaptive(rv.solvers.ClosedForm(), mu=0.2, step=0.3, patience=2, paired=paired)
    return trajectory(server_step(algorithm), quadratic(), 12, participation)


@pytest.mark.nightly
def test_if_all_parties_take_part_pairing_changes_nothing():
    equal(*([(s.server.inner.model, s.server.inner.rule.mu) for s in trajectory_with_mu(paired, UNIFORM)]
            for paired in (True, False)), 1e-12)


@pytest.mark.when_changed
def test_paired_losses_are_of_the_same_parties():
    """With a cohort, mu follows the change of the cohort's loss."""
    problem, cohorts, changes = quadratic(), set(), set()
    sampled = trajectory_with_mu(True, rv.participation.Uniform(2, "uniform"))
    models = [np.asarray(s.server.inner.model) for s in sampled]
    for t, (before, after) in enumerate(pairwise(sampled)):
        key = keys.cohort_key(keys.round_key(keys.root_key(SEED), jnp.array(t)))
        cohort = np.asarray(rv.participation.Uniform(2).draw((), key, t, problem.sizes)[0].index)
        cohorts.add(tuple(cohort))
        loss, last = (mean_loss(problem, cohort, w) for w in (models[t], models[max(t - 1, 0)]))
        rule = after.server.inner.rule
        np.testing.assert_allclose(rule.loss, loss, atol=1e-11)
        grew = float(rule.mu) > float(before.server.inner.rule.mu) + 0.1
        assert grew == (t > 0 and loss > last)
        changes.add(grew)
    assert len(cohorts) > 3
    assert changes == {True, False}


def test_mu_follows_the_dissimilarity_of_the_updates():
    """Every round in closed form by NumPy."""
    problem = quadratic()
    algorithm = rv.fedprox_adaptive(rv.solvers.ClosedForm(), mu=0.2, per_dissimilarity=0.3)
    h, g, w, mu = np.asarray(problem.hessians), np.asarray(problem.linears), np.zeros(4), 0.2
    for after in trajectory(algorithm, problem, 6, UNIFORM)[1:]:
        updates = np.array([np.linalg.solve(h[k] + mu * np.eye(4), g[k] + mu * w) for k in range(6)]) - w
        mean = updates.mean(axis=0)
        w, mu = w + mean, 0.3 * ((updates**2).sum(axis=1).mean() / (mean @ mean) - 1)
        np.testing.assert_allclose(after.server.model, w, atol=1e-11)
        np.testing.assert_allclose(after.server.rule.mu, mu, rtol=1e-9)
    assert mu > 0.2
    with pytest.raises(rv.InputError, match="paired=True, per_dissimilarity"):
        rv.fedprox_adaptive(rv.solvers.GD(0.1), paired=True, per_dissimilarity=1.0)


@pytest.mark.nightly
def test_mu_after_one_gradient_step_follows_from_the_diagnostics_b():
    problem = quadratic()
    step = rv.fedprox_adaptive(rv.solvers.GD(0.1), per_dissimilarity=1.0)
    first = trajectory(step, problem, 1, rv.participation.Full())[-1]
    b = dissimilarity(problem, jnp.zeros(4)).b
    np.testing.assert_allclose(first.server.rule.mu, b**2 - 1, rtol=1e-9)
    same = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(4)] * 3), jnp.ones((3, 4)))
    assert float(trajectory(step, same, 2, UNIFORM)[-1].server.rule.mu) < 1e-12


def test_adaptive_mu_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="patience=0"):
        rv.fedprox_adaptive(rv.solvers.GD(0.1), patience=0)
    with pytest.raises(rv.InputError, match="got AdaptiveMu"):
        rv.combinators.StaleReplies(rv.fedprox_adaptive(rv.solvers.GD(0.1)))


def federation():
    rng = np.random.default_rng(4)
    sizes = rng.integers(9, 30, 5)
    x = [rng.normal(rng.normal(size=3), 1, size=(n, 3)) for n in sizes]
    y = [(a @ rng.normal(size=3) > 0).astype(int) for a in x]
    return rv.FederatedData.from_arrays(x, y, validation=0.2, test=0.3, classes=["0", "1"]), rv.models.logistic(
        3, 2, l2=0.1)


@pytest.mark.nightly
def test_pooled_training_is_fedavg_on_one_party_with_all_training_samples():
    """The parties' validation and test samples, which lie between their training samples, are left out."""
    data, model = federation()
    parts = [data.party(k) for k in range(len(data))]
    together = rv.FederatedData.from_arrays([np.concatenate([x for x, _ in parts])],
                                            [np.concatenate([y for _, y in parts])], validation=0, test=0)
    shuffled = {tuple(row) for row in np.asarray(rv.problems.LearningProblem(model, together).x)}
    pooled = rv.problems.LearningProblem(model, data).pooled()
    assert {tuple(row) for row in np.asarray(pooled.x)} == shuffled
    solver = rv.solvers.GD(0.4, steps=7)
    participation = rv.participation.Stragglers(rv.participation.Uniform(2), share=0.5)
    run = rv.simulate(rv.pooled(solver), model, data, rounds=3, participation=participation,
                      diagnostics=["steps", "model_change", "line", "dissimilarity"], progress=False)
    fedavg = rv.simulate(rv.fedavg(solver), model, together, rounds=3, progress=False)
    equal(run.server_model, fedavg.server_model, 1e-13)
    assert run.facts["bytes"] == {"down": 0, "up": 0}
    last = run.metrics[(run.metrics["round"] == 3) & (run.metrics["metric"] == "accuracy")]
    assert sorted(last["party"][last["split"] == "test"]) == list(range(5))
    assert "dissimilarity" in set(run.metrics["metric"])
    assert "steps" not in set(run.metrics["metric"])
    assert [leaf.shape[0] for leaf in jax.tree.leaves(run.personal_models)] == [5, 5]


@pytest.mark.nightly
def test_pooled_training_reaches_the_optimum_and_local_training_does_not():
    data, model = federation()
    problem = rv.problems.LearningProblem(model, data)
    run = rv.simulate(rv.pooled(rv.solvers.LBFGS(steps=100, tolerance=1e-10)), problem, rounds=1, progress=False)
    optimum, _, _ = pooled_optimum(problem, problem.init(jax.random.key(0)), tolerance=1e-10)
    equal(run.server_model, optimum, 1e-9)
    shares = np.asarray(problem.sizes) / np.sum(np.asarray(problem.sizes))

    @jax.jit
    def loss(w):
        return shares @ jax.lax.map(lambda k: problem.oracle(k).value(w), jnp.arange(5))

    local = rv.simulate(rv.local(rv.solvers.GD(0.5, steps=200)), problem, rounds=1, progress=False)
    assert all(loss(run.server_model) < loss(local.personal_model(k)) - 1e-3 for k in range(5))


def test_pooled_quadratics_are_the_weighted_sum():
    problem = quadratic()
    shares = np.asarray(problem.sizes) / np.sum(np.asarray(problem.sizes))
    run = rv.simulate(rv.pooled(rv.solvers.ClosedForm()), problem, rounds=1, progress=False)
    exact = np.linalg.solve(np.tensordot(shares, problem.hessians, 1), shares @ np.asarray(problem.linears))
    np.testing.assert_allclose(run.server_model, exact, atol=1e-12)


def test_pooled_data_refuses_algorithms_with_party_states():
    with pytest.raises(rv.InputError, match=r"FedPlus.* must be a ModelAggregation"):
        rv.combinators.PooledData(rv.fedgeomed_plus(rv.solvers.GD(0.1)))
