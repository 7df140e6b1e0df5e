"""Choices by held-out data: never worse than alone, and the best of several settings."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SEED, classification, equal, quadratic, trajectory

import resolvent as rv
from resolvent.math import tree
from resolvent.problem.maps import Mixture, through
from resolvent.simulate.engine import initial
from resolvent.simulate.evaluate import deployed, evaluate
from resolvent.simulate.measure import message_bytes
from resolvent.study.experiment import ExperimentFile

WHO = rv.participation.Stragglers(rv.participation.Uniform(cohort=4), share=0.5)
SOLVER = rv.SGD(0.3, batch_size=4, epochs=2)
VALIDATION = jnp.array(1)


@cache
def federation():
    """Six parties that agree but for the last, whose inputs are inverted; one has no validation samples."""
    rng = np.random.default_rng(0)
    sizes = [20, 30, 45, 60, 2, 40]
    x = [rng.normal(size=(n, 4)) for n in sizes]
    y = [(a @ [1, 2, -1, 0.5] + 0.5 * rng.normal(size=len(a)) > 0).astype(int) for a in x]
    x[-1] = -x[-1]
    data = rv.FederatedData.from_arrays(x, y, validation=0.2, test=0.2, classes=["0", "1"])
    assert list(data.sizes("validation") == 0) == [False] * 4 + [True, False]
    return rv.problems.LearningProblem(rv.models.logistic(4, 2), data)


def validation(problem, models, number=0):
    everyone = jnp.arange(problem.parties)
    return np.asarray(evaluate(problem, models, everyone, everyone, VALIDATION)[number])


INNER = {
    "fedavg": rv.fedavg(SOLVER, stragglers="keep"),
    "personal": rv.fedgeomed_plus(SOLVER, sigma=0.5, delta=0.2),
    "diverging": rv.fedavg(rv.solvers.GD(jnp.inf, steps=2), stragglers="keep"),
}


@pytest.mark.parametrize("name", INNER)
def test_nobody_is_worse_than_alone_on_its_held_out_data(name):
    problem, inner = federation(), INNER[name]
    ours = rv.model_interpolation(SOLVER, inner)
    states, plain, alone = (trajectory(a, problem, 5, WHO) for a in (ours, inner, rv.local(SOLVER)))
    everyone = jnp.arange(problem.parties)
    equal([s.parties.alone for s in states], [s.parties for s in alone], 0)  # to the bit the models of local training
    for state, other, by_itself in zip(states, plain, alone, strict=True):
        equal((state.server, state.parties.inner), (other.server, other.parties), 0)  # the others notice nothing
        models = deployed(ours, problem, state, everyone)
        mine, theirs = validation(problem, models), validation(problem, by_itself.parties)
        assert np.isfinite(mine).sum() == 5
        assert (mine[[0, 1, 2, 3, 5]] <= theirs[[0, 1, 2, 3, 5]]).all()
        equal(tree.rows(models, 4), tree.rows(by_itself.parties, 4), 0)  # nothing held out: it stays alone
    if name == "fedavg":
        joined = validation(problem, deployed(inner, problem, plain[-1], everyone))
        assert joined[5] > 2 * theirs[5]  # the inverted party, which joining would have hurt
        assert (mine < theirs - 1e-3).any()  # while somebody gains
        shares = [float(ours.joining(tree.rows(states[-1].parties, k), states[-1].server, problem.oracle(jnp.array(k))))
                  for k in range(6)]
        assert shares[4] == 0
        assert max(shares) > 0
        tried = [validation(problem, jax.vmap(tree.lerp, (0, None, None))(by_itself.parties, plain[-1].server, s))
                 for s in np.linspace(0, 1, 11)]
        np.testing.assert_allclose(mine[:4], np.min(tried, axis=0)[:4], atol=1e-14)
        np.testing.assert_allclose(shares[:4], np.argmin(tried, axis=0)[:4] / 10, atol=1e-14)


def test_what_travels_is_what_the_inner_algorithm_sends():
    def bytes_of(algorithm):
        return message_bytes(algorithm, federation(), initial(algorithm, federation(), WHO, SEED))

    assert bytes_of(rv.model_interpolation(SOLVER, rv.feddane(SOLVER))) == bytes_of(rv.feddane(SOLVER))


def test_to_join_or_to_stay_alone_by_the_score():
    """With two points there is no mixture, and the accuracy is what is never worse."""
    problem, who = federation(), rv.participation.Full()
    ours = rv.model_interpolation(SOLVER, rv.fedavg(SOLVER), points=2, by="score")
    last = trajectory(ours, problem, 4, who)[-1]
    models = deployed(ours, problem, last, jnp.arange(6))
    for k in range(6):
        mine = tree.rows(models, k)
        ends = (last.server, tree.rows(last.parties.alone.value, k))
        assert any(all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(end), strict=True))
                   for end in ends)
    gains = validation(problem, models, 1) - validation(problem, last.parties.alone.value, 1)
    assert (gains[[0, 1, 2, 3, 5]] >= 0).all()


PAIRS = [(s, d) for s in (2.0, 0.2) for d in (1.5, 0.5, 0.1)]  # the most binding first


def test_the_federation_is_fed_plus_for_the_largest_pair_and_nothing_else_travels():
    problem = federation()
    ours = rv.fedplus_auto(SOLVER, sigmas=(0.2, 2.0), deltas=(0.5, 0.1, 1.5))
    plain = rv.fedgeomed_plus(SOLVER, sigma=2.0, delta=1.5)
    states, others = trajectory(ours, problem, 4, WHO), trajectory(plain, problem, 4, WHO)
    equal([(s.server, jax.tree.map(lambda x: x[:, 0], s.parties)) for s in states],
          [(s.server, s.parties) for s in others])
    bytes_of = [message_bytes(a, problem, initial(a, problem, WHO, SEED)) for a in (ours, plain)]
    assert bytes_of[0] == bytes_of[1]


def test_each_candidate_is_fed_plus_around_that_centre_and_the_best_is_deployed():
    """A plain NumPy loop over parties and pairs. On a quadratic, f_k itself is the held-out measure."""
    problem = quadratic()
    ours = rv.fedplus_auto(rv.solvers.ClosedForm(), rv.penalties.SquaredL2(), sigmas=(0.2, 2.0), deltas=(0.5, 0.1, 1.5))
    assert [(a.sigma, a.anchor.delta) for a in (ours.inner, *ours.others)] == PAIRS
    states = trajectory(ours, problem, 8, rv.participation.Full("uniform"))
    h, g = np.asarray(problem.hessians), np.asarray(problem.linears)
    for before, after in pairwise(states):
        own, centre = np.array(before.parties), np.asarray(before.server)
        values = np.zeros((6, 6))
        for k in range(6):
            for j, (sigma, delta) in enumerate(PAIRS):
                anchor = centre + (own[k, j] - centre) / (1 + delta)
                own[k, j] = np.linalg.solve(h[k] + sigma * np.eye(4), g[k] + sigma * anchor)
                values[k, j] = own[k, j] @ h[k] @ own[k, j] / 2 - g[k] @ own[k, j]
        np.testing.assert_allclose(after.parties, own, atol=1e-11)
        np.testing.assert_allclose(after.server, own[:, 0].mean(axis=0), atol=1e-6)  # the Moreau centre is iterative
    best = values.argmin(axis=1)
    np.testing.assert_allclose(deployed(ours, problem, after, jnp.arange(6)), own[np.arange(6), best], atol=1e-11)
    chosen = [int(ours.chosen(tree.rows(after.parties, k), (after.server, ()), problem.oracle(k))) for k in range(6)]
    assert chosen == list(best)
    assert max(best) > 0


@pytest.mark.parametrize("by", ["score", "loss"])
def test_a_party_deploys_its_best_and_without_held_out_samples_the_first(by):
    """Of any algorithm; a candidate that diverges is not chosen."""
    problem = federation()
    bad, *good = (rv.ditto(rv.solvers.GD(rate, steps=2), lam=lam) for rate, lam in ((jnp.inf, 1.0), (0.3, 1.0), (0.3, 0.0)))
    algorithm = rv.combinators.HeldOutSelection(good[0], (bad, good[1]), by)
    last = trajectory(algorithm, problem, 5)[-1]
    losses, scores = (np.array([validation(problem, jax.tree.map(lambda x, j=j: x[:, j], last.parties), number)
                                for j in range(3)]) for number in (0, 1))
    models = deployed(algorithm, problem, last, jnp.arange(6))
    assert np.isnan(losses[1]).all()
    for k in range(6):
        ranks = [(-scores[j, k], losses[j, k]) if by == "score" else (losses[j, k],) for j in (0, 2)]
        best = 0 if k == 4 else (0, 2)[ranks.index(min(ranks))]
        equal(tree.rows(models, k), jax.tree.map(lambda x, k=k, best=best: x[k, best], last.parties), 0)


def test_held_out_measures_are_the_problems_evaluation():
    problem = federation()
    w = jax.tree.map(lambda x: x + 0.3, problem.init(jax.random.key(0)))
    models = tree.stack(w, 6)
    for k in (0, 4, 5):
        loss, score = problem.oracle(jnp.array(k)).held_out(w)
        np.testing.assert_array_equal([loss, score], [validation(problem, models, i)[k] for i in (0, 1)])
    mixed = through(problem.oracle(jnp.array(0)), Mixture(0.25, jax.tree.map(jnp.zeros_like, w)))
    np.testing.assert_array_equal(mixed.held_out(w)[0],
                                  problem.oracle(jnp.array(0)).held_out(jax.tree.map(lambda x: 0.25 * x, w))[0])


def test_what_cannot_choose_is_refused():
    with pytest.raises(rv.InputError, match="HeldOutSelection chooses by validation samples, and none of the 6 parties"):
        rv.simulate(rv.fedplus_auto(SOLVER), classification(), rounds=1, progress=False)
    with pytest.raises(rv.InputError, match="HeldOutInterpolation chooses by validation samples"):
        rv.simulate(rv.combinators.ServerOptimizer(rv.model_interpolation(SOLVER, rv.fedavg(SOLVER)), rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.0)),
                    classification(), rounds=1, progress=False)
    with pytest.raises(TypeError, match="HeldOutSelection needs candidates that are one algorithm with other numbers, got Av"):
        rv.combinators.HeldOutSelection(rv.fedavg(SOLVER), (rv.local(SOLVER),))
    with pytest.raises(ValueError, match=r"fedplus_auto\(sigmas=\[\]\) must be at least one number"):
        rv.fedplus_auto(SOLVER, sigmas=())
    with pytest.raises(ValueError, match=r"HeldOutSelection\(by='auc'\) is not known"):
        rv.fedplus_auto(SOLVER, by="auc")
    with pytest.raises(ValueError, match=r"HeldOutInterpolation\(points=1\) must be at least 2"):
        rv.model_interpolation(SOLVER, rv.fedavg(SOLVER), points=1)


def test_an_experiment_file_nests_the_algorithm_that_is_joined(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("data: {name: digits, parties: 2}\nmodel: logistic\nsolver: {name: adam, learning_rate: 0.01}\n"
                    "algorithms:\n  safe: {name: model_interpolation, inner: {name: fedprox, mu: 0.3, solver: LBFGS}}\n")
    safe = ExperimentFile.load(str(file)).build().algorithms["safe"]
    assert isinstance(safe.solver, rv.OptaxSolver)
    assert (safe.inner.mu, type(safe.inner.solver)) == (0.3, rv.solvers.LBFGS)
    with pytest.raises(rv.InputError, match=r"algorithms.safe: HeldOutInterpolation chooses by validation samples"):
        ExperimentFile.load(str(file), ["data.validation=0"]).build()
