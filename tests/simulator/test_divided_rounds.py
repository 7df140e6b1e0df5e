"""Divided rounds: the bits of fused ones, and programs that methods share."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.persistent_memory import with_memory
from resolvent.algorithms.participation import Full, Stragglers, Uniform
from resolvent.simulator.engine import chunks
from resolvent.simulator.engine.chunks import ChunkInputs, ChunkRunner
from resolvent.simulator.engine.compiled_rounds import initial_state
from resolvent.simulator.engine.predrawn import draw_cohorts
from resolvent.simulator.engine.schedulers import Sequential
from resolvent.simulator.record.evaluate import personal_models, program_of_models

SGD = rv.SGD(0.1, batch_size=5, epochs=2)
STRAGGLERS = Stragglers(Uniform(3), share=0.5)
RECORD = ("steps", "model_change")
ROUNDS = 3
CASES = {
    "FedAvg": (rv.fedavg(SGD), Full()),
    "FedProx": (rv.fedprox(SGD, mu=0.3), STRAGGLERS),
    "FedProx without stragglers": (rv.fedprox(SGD, mu=0.3, stragglers="drop"), STRAGGLERS),
    "local": (rv.local(SGD), Full()),
    "FedGeoMed+": (rv.fedgeomed_plus(SGD), Full()),
    "FedCoMed+": (rv.fedcomed_plus(SGD), STRAGGLERS),
    "two phases": (rv.feddane(SGD), Uniform(3)),
    "a codec": (rv.combinators.Compressed(rv.scaffold(SGD), rv.codecs.QSGD()), Uniform(3)),
    "refused replies": (rv.attacked(rv.rfa(SGD), rv.attacks.NaN(), share=0.3), Full()),
}
# Of each kind one: several phases, messages that are encoded, personal models with late parties, refused replies.
EVERY_COMMIT = ["two phases", "a codec", "FedCoMed+", "refused replies"]


@pytest.fixture(scope="module")
def problem():
    return rv.problems.LearningProblem(rv.models.logistic(64, 10), rv.datasets.digits(parties=4))


def run(algorithm, problem, participation, *, is_divided):
    algorithm = with_memory(algorithm, problem)
    cohorts, _ = draw_cohorts(participation, problem.sizes, 0, 0, rounds=ROUNDS)
    runner = ChunkRunner(algorithm, 0, ROUNDS, RECORD, Sequential(), is_divided)
    state = initial_state(algorithm, problem, participation, jnp.array(0))
    first = runner(ChunkInputs(problem, cohorts, replace(state, participation=())), 0, 1)
    return first._replace(state=None), runner(ChunkInputs(problem, cohorts, first.state), 1, ROUNDS - 1)


@nightly.parametrize("name", sorted(CASES, key=EVERY_COMMIT.__contains__, reverse=True), per_commit=len(EVERY_COMMIT))
def test_divided_rounds_have_the_bits_of_fused_ones(name, problem, monkeypatch):
    expected = run(CASES[name][0], problem, CASES[name][1], is_divided=False)
    monkeypatch.delattr("resolvent.simulator.engine.chunks.run_chunk")
    divided = run(CASES[name][0], problem, CASES[name][1], is_divided=True)
    assert jax.tree.structure(divided) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(divided), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other, strict=True)


def test_methods_with_the_same_local_work_share_its_program(problem):
    def compiled(algorithm):
        before = {*chunks._compiled}
        run(algorithm, problem, Full(), is_divided=True)
        return len({*chunks._compiled} - before)

    chunks._divided.cache_clear()
    # The keys; before the local work, the local work, and after it; the mean, and after it.
    assert compiled(rv.fedavg(SGD)) == 6
    assert compiled(rv.fedavg(replace(SGD, learning_rate=0.2))) == 0
    assert compiled(rv.robust(SGD, rv.aggregators.CoordinateMedian())) == 2  # before the local work, and after it
    assert compiled(rv.rfa(SGD)) == 2  # before the local work, and the median
    # Before the local work, the median of distances, and after the server's step.
    assert compiled(rv.fedgeomed_plus(SGD, sigma=0.5)) == 3


def test_personal_models_in_parts_are_those_of_one_program(problem):
    """The choice on held-out samples is a part that the rounds with ``model_change`` have as well."""
    algorithm = with_memory(rv.fedgeomed_plus(SGD), problem)
    state, index = initial_state(algorithm, problem, Full(), jnp.array(0)), jnp.arange(problem.parties)
    state = replace(state, parties=jax.tree.map(lambda leaf: leaf + 0.1, state.parties))
    expected = program_of_models(algorithm, problem, state, index)
    with chunks.share_programs(True):
        chunks._divided.cache_clear()
        run(rv.fedgeomed_plus(SGD), problem, Full(), is_divided=True)
        before = {*chunks._compiled}
        in_parts = personal_models(algorithm, problem, state, index)
    assert 0 < len({*chunks._compiled} - before) <= 2  # before and after the choice
    jax.tree.map(np.testing.assert_array_equal, in_parts, expected)


def test_methods_of_a_comparison_share_programs_and_a_single_run_is_fused():
    model, data = rv.models.logistic(64, 10), rv.datasets.digits(parties=3)
    chunks._divided.cache_clear()
    before = {*chunks._compiled}
    single = rv.simulate(rv.rfa(SGD), model, data, rounds=2, progress=False)
    assert {*chunks._compiled} == before
    compared = rv.compare({"FedAvg": rv.fedavg(SGD), "RFA": rv.rfa(SGD)}, model, data, rounds=2, progress=False)
    assert {*chunks._compiled} > before
    jax.tree.map(np.testing.assert_array_equal, single.server_model, compared.results["RFA"].server_model)


def test_a_round_whose_local_work_is_in_a_loop_is_fused(problem):
    assert chunks.run_divided(*inputs_of(rv.pfedme(SGD, steps=2), problem), 0, 1, capacity=1, record=()) is None


def inputs_of(algorithm, problem):
    cohorts, _ = draw_cohorts(Full(), problem.sizes, 0, 0, rounds=1)
    return algorithm, problem, cohorts, replace(initial_state(algorithm, problem, Full(), jnp.array(0)),
                                               participation=()), jnp.array(0)


class Rescaled(rv.solvers.LocalSolver):
    change: Callable = eqx.field(static=True)

    def __call__(self, subproblem, start, key, effort):
        def move(w, g):
            return w - 0.1 * self.change(g.reshape(-1, 10)).reshape(w.shape)

        return jax.tree.map(move, start, subproblem.smooth(start)), jnp.array(1)


@pytest.mark.parametrize("scale", [
    lambda factor: lambda z: z * jnp.full(10, factor, jnp.float32),  # a constant of the program
    lambda factor: lambda z: jax.pure_callback(  # a function that it calls back
        lambda z: np.asarray(z) * np.float32(factor), jax.ShapeDtypeStruct(z.shape, z.dtype), z,
        vmap_method="sequential")])
def test_local_works_that_differ_in_a_constant_or_a_function_share_nothing(scale):
    def trained(factor, *, is_divided):
        problem = rv.problems.LearningProblem(rv.models.logistic(64, 10), rv.datasets.digits(parties=2))
        return run(rv.fedavg(Rescaled(scale(factor))), problem, Full(), is_divided=is_divided)[1].state.server

    first, second = trained(1.0, is_divided=True), trained(2.0, is_divided=True)
    expected = trained(2.0, is_divided=False)
    for leaf, other, before in zip(*map(jax.tree.leaves, (second, expected, first)), strict=True):
        np.testing.assert_array_equal(leaf, other)
        assert np.abs(leaf - before).max() > 0.01
