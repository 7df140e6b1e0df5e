"""Random compositions keep the contract, and those that make no sense are refused when they are built."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compositions import AGGREGATORS, BASES, COMBINATORS, PARTICIPATIONS, SOLVERS, sample

import contract
import resolvent as rv
from resolvent.simulate.engine import initial, run_chunk
from resolvent.simulate.tree_files import digest
from twin import python_rounds

ROUNDS = 3
BUILT, REFUSED = sample(36)


@cache
def classification(double):
    """Five parties of different sizes and kinds, one of them with one sample."""
    rng = np.random.default_rng(0)
    sizes = (1, 5, 9, 4, 6)
    x = [rng.normal(k / 3, 1, size=(n, 3)) for k, n in enumerate(sizes)]
    y = [rng.integers(0, 3, n) for n in sizes]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    with jax.enable_x64(double):
        return rv.problems.LearningProblem(rv.models.logistic(3, 3), data, block=4)


@cache
def quadratic(double):
    """Five strongly convex quadratics, which compile faster."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(5, 7, 3))
    with jax.enable_x64(double):
        return rv.problems.QuadraticProblem.least_squares(jnp.asarray(a) / 3, jnp.asarray(rng.normal(size=(5, 7))))


PROBLEMS = {"quadratic": quadratic, "classification": classification}


@pytest.mark.parametrize("composition", BUILT, ids=str)
def test_composition_keeps_the_contract(composition):
    """Pure, the twin of a plain Python loop, finite, unmoved by an empty round, and in its own precision."""
    algorithm, who, p = composition.build(), composition.who(), PROBLEMS[composition.problem](True)
    history = python_rounds(algorithm, p, who, 7, ROUNDS)
    state = start = initial(algorithm, p, who, jnp.array(7))
    before = digest((algorithm, p, start))
    for t in range(ROUNDS):
        state = contract.run(algorithm, p, who, start=state, rounds=1, first=t)
        server, parties = history[t + 1]
        contract.close((state.server, state.parties), (server, contract.stacked(parties)), 1e-10)
    assert digest(contract.run(algorithm, p, who, start=start)) == digest(state)
    assert digest((algorithm, p, start)) == before
    assert digest(contract.run(algorithm, p, who.nobody(), start=state, first=ROUNDS)) == digest(state)
    row = jax.tree.map(lambda leaf: leaf[1], state.parties)
    model = algorithm.personal_model(row, algorithm.model_message(state.server, jnp.array(1)), p.oracle(jnp.array(1)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((model, algorithm.server_model(state.server))))
    assert jax.tree.structure(model) == jax.tree.structure(p.init(jax.random.key(0)))
    assert kinds(start) == kinds(state)
    assert reals(state) == {"float64"}
    with jax.enable_x64(False):
        small = jax.eval_shape(initial, composition.build(), PROBLEMS[composition.problem](False), who, jnp.array(7))
        assert reals(small) == {"float32"}
        after = jax.eval_shape(partial(run_chunk, capacity=1, record=(), scheduler="lanes"), composition.build(),
                               PROBLEMS[composition.problem](False), who, small, *map(jnp.array, (7, 0, 1))).state
        assert kinds(small) == kinds(after)


def reals(state):
    """The types of the real numbers."""
    return {leaf.dtype.name for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)}


def kinds(state):
    """Shapes and types, and whether a type is weak: where it changes, the next round compiles again."""
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), state)


def test_every_part_is_in_some_composition():
    used = {part for c in BUILT for part in (c.base, c.solver, c.aggregator, c.participation, *c.combinators)}
    assert used >= {*BASES, *SOLVERS, *AGGREGATORS, *PARTICIPATIONS, *COMBINATORS}
    assert len(set(BUILT)) == len(BUILT)


def test_what_the_draw_refused_says_what_to_use():
    assert REFUSED
    for composition, error in REFUSED:
        assert re.search(r"got \w+.*: (use|nothing could stand|the server stores)", str(error)), (composition, error)


SGD, EXACT = SOLVERS["SGD"], rv.solvers.ClosedForm()
SPLITTING = rv.splitting(SGD)
NONSENSE = {
    "Anderson of local": (lambda: rv.combinators.Anderson(rv.local(SGD)),
                          r"Anderson needs .* got LocalTraining: use splitting\(...\), fedpi"),
    "Anderson of Scaffold": (lambda: rv.combinators.Anderson(rv.scaffold(SGD)), r"Anderson needs .* got Scaffold: use splitting"),
    "Anderson of two phases": (lambda: rv.combinators.Anderson(rv.feddane(SGD)), r"of one phase .* got FedDANE: use splitting"),
    "Anderson of remembered Fed+": (lambda: rv.combinators.Anderson(rv.fedplus(SGD, rv.penalties.L1(), aggregate="all")),
                                    r"Anderson needs .* got StaleReplies: use splitting"),
    "no memory": (lambda: rv.combinators.Anderson(SPLITTING, history_size=0), r"history_size=0\) must be at least 1"),
    "optimizer of local": (lambda: rv.combinators.ServerOptimizer(rv.local(SGD), rv.solvers.traced_optimizer(optax.sgd, learning_rate=1.0)),
                           r"ServerOptimizer needs .* got LocalTraining: use fedavg"),
    "optimizer's argument": (lambda: rv.combinators.ServerOptimizer(rv.fedavg(SGD), rv.solvers.traced_optimizer(optax.sgd, rate=1.0)),
                             r"ServerOptimizer\(sgd\) got .*rate.*: use settings such as"),
    "remembered differences": (lambda: rv.combinators.StaleReplies(rv.scaffold(SGD)), r"replies are models, got Scaffold: nothing"),
    "remembered nothing": (lambda: rv.combinators.StaleReplies(rv.local(SGD)), r"replies are models, got LocalTraining: nothing"),
    "remembered twice": (lambda: rv.combinators.StaleReplies(rv.combinators.ServerOptimizer(rv.combinators.StaleReplies(rv.fedavg(SGD)), optax.sgd,
                                                                  {"learning_rate": 1.0})),
                         r"StaleReplies got .* remembers every reply already: use it once"),
    "accelerated twice": (lambda: rv.combinators.Anderson(rv.combinators.StaleReplies(rv.combinators.Anderson(SPLITTING))),
                          r"Anderson got .* accelerated already: use a larger memory"),
    "memory and medians": (lambda: rv.combinators.Compressed(rv.rfa(SGD), rv.codecs.RandK(), step=0.5),
                           r"Compressed\(step=0.5\) needs a linear aggregator, got GeometricMedian: the server stores "
                           r"only the mean of h_k. Use Mean\(\) or step=0."),
    "compressed twice": (lambda: rv.combinators.Compressed(rv.combinators.Compressed(rv.fedavg(SGD), rv.codecs.QSGD()), rv.codecs.TopK()),
                         r"got Compressed: use one codec"),
    "averaged local": (lambda: rv.combinators.ErgodicAveraging(rv.local(SGD)), r"ErgodicAveraging needs .* got LocalTraining: use fedavg"),
    "decentralised Anderson of FedAvg": (lambda: rv.combinators.DecentralisedAnderson(rv.fedavg(SGD)),
                                         r"parties hold the iterate, got ModelAggregation: use splitting"),
    "Anderson of decentralised splitting": (lambda: rv.combinators.Anderson(rv.fedpi(SGD, decentralised=True)),
                                            r"got DecentralisedSplitting: use .*DecentralisedAnderson"),
    "Anderson on no mean": (lambda: rv.combinators.Anderson(rv.fedprox(SGD), on="mean"), r"got ModelAggregation: .* use on='u'"),
    "share of bad": (lambda: rv.combinators.Attacked(rv.fedavg(SGD), rv.attacks.NaN(), share=1.5), r"share=1.5\) must lie in"),
    "alpha of FLIX": (lambda: rv.fedmix(SGD, alpha=1.5), r"alpha.*must lie in \[0, 1\]"),
    "momentum in FedNova": (lambda: rv.fednova(rv.solvers.momentum(0.1)), r"got Optax: use SGD or GD"),
    "Scaffold with exact solves": (lambda: rv.scaffold(EXACT), r"plain gradient steps, got ClosedForm: use SGD or GD"),
    "alpha": (lambda: rv.splitting(SGD, alpha=2.5), r"alpha=2.5 must lie in \[0, 2\]"),
    "beta": (lambda: rv.splitting(SGD, beta=rv.schedules.Constant(-1.0)), r"beta=-1.0 must lie in \[0, 2\]"),
    "eta": (lambda: rv.fedpi(SGD, eta=rv.schedules.InversePower(0.0)), r"eta=0.0 must be positive"),
    "mu": (lambda: rv.fedprox(SGD, mu=-0.1), r"ModelAggregation\(mu=-0.1\) must lie in \[0, inf\)"),
    "sigma": (lambda: rv.fedavg_plus(SGD, sigma=-1.0), r"FedPlus\(sigma=-1.0\) must lie in \[0, inf\)"),
    "lam": (lambda: rv.fedavg_plus(SGD, lam=1.5), r"FedPlus\(lam=1.5\) must lie in \[0, 1\]"),
    "delta": (lambda: rv.fedgeomed_plus(SGD, delta=0.0), r"ProxAnchor\(delta=0.0\) must lie in \(0, inf\)"),
    "gamma": (lambda: rv.fedplus_pull(SGD, rv.aggregators.Mean(), gamma=0.0), r"PullAnchor\(gamma=0.0\) must lie in \(0, 1\]"),
    "smoothing": (lambda: rv.rfa(SGD, smoothing=-1e-6), r"GeometricMedian\(smoothing=-1e-06\) must lie in \(0, inf\)"),
    "lam of Ditto": (lambda: rv.ditto(SGD, lam=-1.0), r"Ditto\(lam=-1.0\) must lie in \[0, inf\)"),
    "mu of FedDANE": (lambda: rv.feddane(SGD, mu=-1.0), r"FedDANE\(mu=-1.0\) must lie in \[0, inf\)"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_when_it_is_built(name):
    build, message = NONSENSE[name]
    with pytest.raises((TypeError, ValueError), match=message):
        build()
