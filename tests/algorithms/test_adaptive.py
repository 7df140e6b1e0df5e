"""FedProx's adaptive mu against a plain twin of the rule, and centralised training."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SEED, classification, equal, quadratic, trajectory

import resolvent as rv
from resolvent.algorithms.combinators.adaptive_mu import MuRule
from resolvent.simulate.diagnostics import pooled_optimum

ALIKE = rv.participation.Full("uniform")


def twin(losses, mu, step=0.1, patience=5):
    """FedProx, 5.3.2, in so many words: mu after each loss."""
    found, streak, last = [], 0, None
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
        found.append(mu)
    return found


@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0])
def test_mu_follows_the_rule_on_any_losses(mu):
    rng = np.random.default_rng(0)
    losses = np.concatenate([np.linspace(9, 5, 60), [5, 4, 3, 3, 2, 1.5, 1.4, 1.3, 1.2, 1.1],
                             rng.normal(size=60), np.linspace(2, 1, 40)])
    rule, found = MuRule(jnp.array(mu), jnp.array(jnp.inf), jnp.array(0)), []
    for loss in losses:
        rule = rule.after(jnp.array(loss), 0.1, 5)
        found.append(float(rule.mu))
    expected = twin(losses, mu)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert min(expected) == 0
    assert max(expected) > mu + 0.1
    broken = rule.after(jnp.array(jnp.nan), 0.1, 5)  # a loss that is no number is an increase, and is not remembered
    assert float(broken.mu) == pytest.approx(float(rule.mu) + 0.1)
    assert float(broken.loss) == losses[-1]


def test_a_run_is_fedprox_with_the_mu_of_the_round():
    """The closed form of every round by NumPy, with mu from the plain twin: it grows and falls on the way."""
    problem, patience = quadratic(), 2
    algorithm = rv.combinators.ServerOptimizer(rv.fedprox_adaptive(rv.solvers.ClosedForm(), mu=0.2, step=0.3, patience=patience),
                                   rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.9))
    states = trajectory(algorithm, problem, 12, ALIKE)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    w, losses, used = np.zeros(4), [], []
    for before, after in pairwise(states):
        losses.append(np.mean([w @ h[k] @ w / 2 - g[k] @ w for k in range(6)]))
        mu = float(before.server.inner.rule.mu)
        used.append(mu)
        solved = [np.linalg.solve(h[k] + mu * np.eye(4), g[k] + mu * w) for k in range(6)]
        w = w + 1.9 * (np.mean(solved, axis=0) - w)
        np.testing.assert_allclose(after.server.inner.inner, w, atol=1e-11)
        np.testing.assert_allclose(after.server.inner.rule.loss, losses[-1], atol=1e-11)
    np.testing.assert_allclose(used[1:], twin(losses, 0.2, 0.3, patience)[:-1], atol=1e-12)
    assert max(used) > 0.2
    assert (np.diff(used) < 0).any()


def cohort_key(t):
    """The key of round t's cohort in ``trajectory``."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), t), 2**31 - 1)


def test_while_the_loss_falls_from_mu_zero_it_is_fedavg():
    solver = rv.solvers.GD(0.2, steps=3)
    ours = trajectory(rv.fedprox_adaptive(solver), classification(), 6)
    equal([s.server.inner for s in ours],
          [s.server for s in trajectory(rv.fedavg(solver, stragglers="keep"), classification(), 6)])
    assert all(float(s.server.rule.mu) == 0 for s in ours)


def test_paired_losses_are_of_the_same_parties():
    """With everybody present paired or not is the same; with a cohort mu follows the cohort's own change of loss."""
    problem, settings = quadratic(), {"mu": 0.2, "step": 0.3, "patience": 2}

    def states(paired, participation):
        algorithm = rv.fedprox_adaptive(rv.solvers.ClosedForm(), paired=paired, **settings)
        return trajectory(rv.combinators.ServerOptimizer(algorithm, rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.9)), problem, 12,
                          participation)

    equal(*([(s.server.inner.inner, s.server.inner.rule.mu) for s in states(p, ALIKE)] for p in (True, False)), 1e-12)
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    found, cohorts = states(True, rv.participation.Uniform(2, "uniform")), set()
    models = [np.asarray(s.server.inner.inner) for s in found]
    signs = 0
    for t, (before, after) in enumerate(pairwise(found)):
        cohort = np.asarray(rv.participation.Uniform(2)(cohort_key(t), problem.sizes).index)
        cohorts.add(tuple(cohort))
        now, last = (np.mean([w @ h[k] @ w / 2 - g[k] @ w for k in cohort]) for w in (models[t], models[max(t - 1, 0)]))
        np.testing.assert_allclose(after.server.inner.rule.loss, now, atol=1e-11)
        grew = float(after.server.inner.rule.mu) > float(before.server.inner.rule.mu) + 0.1
        assert grew == (t > 0 and now > last)
        signs |= 1 << grew
    assert len(cohorts) > 3
    assert signs == 3


def test_adaptive_mu_refuses_what_has_no_mu():
    with pytest.raises(TypeError, match=r"AdaptiveMu needs an algorithm with a proximal weight, got FedPlus: use"):
        rv.combinators.AdaptiveMu(rv.fedgeomed_plus(rv.solvers.GD(0.1)))
    with pytest.raises(ValueError, match=r"AdaptiveMu\(patience=0\) must be at least 1"):
        rv.fedprox_adaptive(rv.solvers.GD(0.1), patience=0)
    with pytest.raises(TypeError, match="StaleReplies needs an algorithm of one phase whose replies are models"):
        rv.combinators.StaleReplies(rv.fedprox_adaptive(rv.solvers.GD(0.1)))


def federation():
    rng = np.random.default_rng(4)
    sizes = rng.integers(9, 30, 5)
    x = [rng.normal(rng.normal(size=3), 1, size=(n, 3)) for n in sizes]
    y = [(a @ rng.normal(size=3) > 0).astype(int) for a in x]
    return rv.FederatedData.from_arrays(x, y, validation=0.2, test=0.3, classes=["0", "1"]), rv.models.logistic(
        3, 2, l2=0.1)


def test_pooled_training_is_training_on_the_samples_put_together():
    """FedAvg on one party that was given them all, wherever the others' validation and test rows lay."""
    data, model = federation()
    parts = [data.party(k) for k in range(len(data))]
    together = rv.FederatedData.from_arrays([np.concatenate([x for x, _ in parts])],
                                            [np.concatenate([y for _, y in parts])], validation=0, test=0)
    shuffled = {tuple(row) for row in np.asarray(rv.problems.LearningProblem(model, together).x)}
    ours = rv.problems.LearningProblem(model, data).pooled()
    assert {tuple(row) for row in np.asarray(ours.x)} == shuffled
    solver = rv.solvers.GD(0.4, steps=7)
    one = rv.simulate(rv.pooled(solver), model, data, rounds=3, participation=rv.participation.Stragglers(rv.participation.Uniform(2), share=0.5),
                      diagnostics=["steps", "model_change", "line", "dissimilarity"], progress=False)
    other = rv.simulate(rv.fedavg(solver), model, together, rounds=3, progress=False)
    equal(one.server_model, other.server_model, 1e-13)
    assert one.facts["bytes"] == {"down": 0, "up": 0}
    last = one.metrics[(one.metrics["round"] == 3) & (one.metrics["metric"] == "accuracy")]
    assert sorted(last["party"][last["split"] == "test"]) == list(range(5))
    assert "dissimilarity" in set(one.metrics["metric"])
    assert "steps" not in set(one.metrics["metric"])
    assert [leaf.shape[0] for leaf in jax.tree.leaves(one.personal_models)] == [5, 5]


def test_pooled_training_reaches_the_optimum_that_no_party_finds_alone():
    data, model = federation()
    problem = rv.problems.LearningProblem(model, data)
    run = rv.simulate(rv.pooled(rv.solvers.LBFGS(steps=100, tolerance=1e-10)), problem, rounds=1, progress=False)
    best, _, _ = pooled_optimum(problem, problem.init(jax.random.key(0)), tolerance=1e-10)
    equal(run.server_model, best, 1e-9)
    weights = np.asarray(problem.sizes) / np.sum(np.asarray(problem.sizes))

    def loss(w):
        return weights @ [float(problem.oracle(jnp.array(k)).value(w)) for k in range(5)]

    alone = rv.simulate(rv.local(rv.solvers.GD(0.5, steps=200)), problem, rounds=1, progress=False)
    assert all(loss(run.server_model) < loss(alone.personal_model(k)) - 1e-3 for k in range(5))


def test_pooled_quadratics_are_the_weighted_sum():
    problem = quadratic()
    weights = np.asarray(problem.sizes) / np.sum(np.asarray(problem.sizes))
    run = rv.simulate(rv.pooled(rv.solvers.ClosedForm()), problem, rounds=1, progress=False)
    exact = np.linalg.solve(np.tensordot(weights, problem.hessians, 1), weights @ np.asarray(problem.linears))
    np.testing.assert_allclose(run.server_model, exact, atol=1e-12)


def test_centralised_refuses_parties_that_keep_something():
    with pytest.raises(TypeError, match="PooledData needs an algorithm whose parties keep nothing, got FedPlus: use"):
        rv.combinators.PooledData(rv.fedgeomed_plus(rv.solvers.GD(0.1)))
