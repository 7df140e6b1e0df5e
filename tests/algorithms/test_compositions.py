"""Random compositions keep the contract, and compositions that make no sense are refused when they are built."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compositions import AGGREGATORS, BASES, COMBINATORS, PARTICIPATIONS, PARTIES, SOLVERS, sample

import nightly
import resolvent as rv
from resolvent.algorithms.description import describe
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.storage.tree_files import digest
from resolvent.testing import assert_close, python_rounds, without_parties

SEED, ROUNDS = 7, 3
BUILT, REFUSED = sample(60, complete=True)  # building takes little time, running them is for the night


@cache
def classification(double):
    """Five parties of different sizes and distributions; one has a single sample."""
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
    a = rng.normal(size=(PARTIES, 7, 3))
    with jax.enable_x64(double):
        b = jnp.asarray(rng.normal(size=(PARTIES, 7)))
        return rv.problems.QuadraticProblem.least_squares(jnp.asarray(a) / 3, b)


PROBLEMS = {"quadratic": quadratic, "classification": classification}


@nightly.parametrize("composition", BUILT, ids=str, per_commit=0)
def test_composition_keeps_the_contract(composition):
    """Repeatable, equal to the Python loop, unchanged by an empty round, with finite models and its own precision.

    The sequential scheduler in float64; ``resolvent.testing`` has a queue in float64 and the other clauses.
    """
    algorithm, participation = composition.build(), composition.build_participation()
    problem = PROBLEMS[composition.problem](True)
    run = partial(run_rounds, algorithm, problem, seed=SEED)
    state = start = initial_state(algorithm, problem, participation, SEED)
    before = digest((algorithm, problem, start))
    for t, expected in enumerate(python_rounds(algorithm, problem, participation, SEED, ROUNDS)[1:]):
        state = run(participation, state=state, start=t)
        assert_close(state, expected, 1e-10)
    assert digest(run(participation, state=start, rounds=ROUNDS)) == digest(state)
    assert digest((algorithm, problem, start)) == before
    assert digest(run(without_parties(participation), state=state, start=ROUNDS, rounds=ROUNDS)) == digest(state)
    row = jax.tree.map(lambda leaf: leaf[1], state.parties)
    message = algorithm.model_message(state.server, jnp.array(1))
    model = algorithm.personal_model(row, message, problem.oracle(jnp.array(1)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((model, algorithm.server_model(state.server))))
    assert jax.tree.structure(model) == jax.tree.structure(problem.init(jax.random.key(0)))
    assert types(start) == types(state)
    assert precisions(state) == {"float64"}


@nightly.parametrize("composition", BUILT, ids=str, per_commit=0)
def test_composition_stays_in_float32(composition):
    """From a trace, with parties side by side under vmap."""
    with jax.enable_x64(False):
        algorithm, participation = composition.build(), composition.build_participation()
        problem = PROBLEMS[composition.problem](False)
        before = jax.eval_shape(partial(initial_state, algorithm, problem, participation))
        after = jax.eval_shape(lambda state: run_rounds(algorithm, problem, participation, state=state,
                                                        scheduler="lanes"), before)
    assert precisions(before) == {"float32"}
    assert types(before) == types(after)


def precisions(state):
    """The dtypes of the real numbers."""
    return {leaf.dtype.name for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)}


def types(state):
    """Shapes and dtypes, and whether a dtype is weak: if that changes, the next round compiles again."""
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), state)


def test_every_part_is_in_a_composition():
    used = {part for c in BUILT for part in (c.base, c.solver, c.aggregator, c.participation, *c.combinators)}
    assert used >= {*BASES, *SOLVERS, *AGGREGATORS, *PARTICIPATIONS, *COMBINATORS}
    assert len(set(BUILT)) == len(BUILT)


def test_refusals_of_random_compositions_say_what_to_use():
    assert REFUSED
    for composition, error in REFUSED:
        advice = re.search(r"got \w+.*: (use|there is no reply to use|the server stores)", str(error))
        assert advice, (composition, error)


SGD, EXACT = SOLVERS["SGD"], rv.solvers.ClosedForm()
SPLITTING = rv.splitting(SGD)
SPARSE = rv.codecs.RandK()
combine = rv.combinators


def server_sgd(inner, **settings):
    return combine.ServerOptimizer(inner, rv.solvers.traced_optimizer(optax.sgd, **settings))


# name -> (what is built, what the error names)
REFUSALS = {
    "Anderson of local": (lambda: combine.Anderson(rv.local(SGD)), "got LocalTraining"),
    "Anderson of Scaffold": (lambda: combine.Anderson(rv.scaffold(SGD)), "got Scaffold"),
    "Anderson of two phases": (lambda: combine.Anderson(rv.feddane(SGD)), "got FedDANE"),
    "Anderson of stale replies": (lambda: combine.Anderson(rv.fedplus(SGD, rv.penalties.L1(), sigma=1.0,
                                                                      aggregate="all")),
                                  "got StaleReplies"),
    "Anderson of Anderson": (lambda: combine.Anderson(combine.StaleReplies(combine.Anderson(SPLITTING))),
                             "accelerated already"),
    "Anderson of decentralised splitting": (lambda: combine.Anderson(rv.fedpi(SGD, decentralised=True)),
                                            "got DecentralisedSplitting.*DecentralisedAnderson"),
    "Anderson on a mean that is not there": (lambda: combine.Anderson(rv.fedprox(SGD), on="mean"),
                                             "got ModelAggregation.*on='u'"),
    "history_size": (lambda: combine.Anderson(SPLITTING, history_size=0), "history_size=0"),
    "decentralised Anderson of FedAvg": (lambda: combine.DecentralisedAnderson(rv.fedavg(SGD)),
                                         "got ModelAggregation"),
    "server optimizer of local": (lambda: server_sgd(rv.local(SGD), learning_rate=1.0), "got LocalTraining"),
    "argument of an optimizer": (lambda: server_sgd(rv.fedavg(SGD), rate=1.0), "rate"),
    "stale differences": (lambda: combine.StaleReplies(rv.scaffold(SGD)), "got Scaffold"),
    "stale replies of local": (lambda: combine.StaleReplies(rv.local(SGD)), "got LocalTraining"),
    "stale replies twice": (lambda: combine.StaleReplies(server_sgd(combine.StaleReplies(rv.fedavg(SGD)),
                                                                    learning_rate=1.0)), "StaleReplies .* once"),
    "shifts and medians": (lambda: combine.Compressed(rv.rfa(SGD), SPARSE, step=0.5), "got GeometricMedian.*step=0"),
    "compressed twice": (lambda: combine.Compressed(combine.Compressed(rv.fedavg(SGD), SPARSE), SPARSE),
                         "got Compressed"),
    "average of local": (lambda: combine.ErgodicAveraging(rv.local(SGD)), "got LocalTraining"),
    "share of attackers": (lambda: combine.Attacked(rv.fedavg(SGD), rv.attacks.NaN(), share=1.5), "share=1.5"),
    "alpha of FedMix": (lambda: rv.fedmix(SGD, alpha=1.5), "alpha"),
    "Adam in FedNova": (lambda: rv.fednova(rv.OptaxSolver(optax.adam(0.1))), "got OptaxSolver"),
    "Scaffold with exact solutions": (lambda: rv.scaffold(EXACT), "got ClosedForm"),
    "alpha": (lambda: rv.splitting(SGD, alpha=2.5), "alpha=2.5"),
    "beta": (lambda: rv.splitting(SGD, beta=rv.schedules.Constant(-1.0)), "beta=-1.0"),
    "eta": (lambda: rv.fedpi(SGD, eta=rv.schedules.InversePower(0.0)), "eta=0.0"),
    "mu": (lambda: rv.fedprox(SGD, mu=-0.1), "mu=-0.1"),
    "sigma": (lambda: rv.fedavg_plus(SGD, sigma=-1.0), "sigma=-1.0"),
    "lam": (lambda: rv.fedavg_plus(SGD, lam=1.5), "lam=1.5"),
    "delta": (lambda: rv.fedgeomed_plus(SGD, delta=0.0), "delta=0.0"),
    "gamma": (lambda: rv.fedplus_pull(SGD, rv.aggregators.Mean(), gamma=0.0), "gamma=0.0"),
    "smoothing": (lambda: rv.rfa(SGD, smoothing=-1e-6), "smoothing=-1e-06"),
    "lam of Ditto": (lambda: rv.ditto(SGD, lam=-1.0), "lam=-1.0"),
    "mu of FedDANE": (lambda: rv.feddane(SGD, mu=-1.0), "mu=-1.0"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_settings_that_make_no_sense_are_refused_when_built(name):
    build, noun = REFUSALS[name]
    with pytest.raises((TypeError, ValueError), match=noun):
        build()


@pytest.mark.nightly
def test_shifts_need_a_server_that_reads_means_only():
    """An aggregator that is linear is enough; replies that are not models have shifts as well."""
    for inner in (rv.fednova(SGD), rv.fedprox_adaptive(SGD), rv.feddane(SGD)):
        algorithm = combine.Compressed(inner, rv.codecs.RandK(k=2))
        state = run_rounds(algorithm, quadratic(True), rounds=2)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


class EncodedReplies(type(rv.scaffold(SOLVERS["GD"]))):
    """An algorithm that is not a part of the library: Scaffold whose changes of the control variates are encoded."""

    def party(self, state, message, oracle, key, effort):
        after, reply, info = super().party(state, message, oracle, key, effort)
        wire = rv.codecs.TopK(k=1).encode(reply.control_update, key)
        return after, reply._replace(control_update=wire), info


def test_errors_about_an_own_algorithm_say_how_to_combine_it():
    algorithm = EncodedReplies(SOLVERS["GD"])
    for build in (rv.combinators.Anderson, rv.combinators.ErgodicAveraging):
        with pytest.raises(rv.InputError, match=r"Or give EncodedReplies the property iterate, see resolvent\.extend"):
            build(algorithm)
    with pytest.raises(rv.InputError, match="those of EncodedReplies are encoded already"):
        describe(rv.combinators.Compressed(algorithm, rv.codecs.TopK(k=1)), jnp.ones(3))
