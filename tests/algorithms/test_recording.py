"""What a run records is an argument of the party function: a compiled one cannot answer for another run."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.algorithms.method import SharedModelMethod, local_work
from resolvent.problem.oracle import recording
from resolvent.simulator.engine.rounds import record_rounds

PROBLEM = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2), 3 * jnp.eye(2)]), jnp.array([[1.0, 2.0], [0.0, 1.0]]))


@jax.jit
def train(solver, shared, oracle, key, effort):
    return local_work(solver, rv.problems.Subproblem(oracle, shared), shared, key, effort)


class CompiledWork(SharedModelMethod):
    solver: rv.solvers.LocalSolver
    replies_models: ClassVar[bool] = True
    needs_individual_replies: ClassVar[bool] = False

    def party(self, state, shared, oracle, key, effort):
        w, info = train(self.solver, shared, oracle, key, effort)
        return state, w, info

    def server(self, shared, replies, key):
        return replies.mean(), {}


def inexactness(algorithm):
    return np.asarray(record_rounds(algorithm, PROBLEM, rounds=2, record=("inexactness",)).record.party["inexactness"])


@pytest.mark.when_changed
def test_a_compiled_party_function_records_what_the_next_run_asks_for():
    """With the names in a global variable, the trace without inexactness answered the second run."""
    algorithm = CompiledWork(rv.solvers.GD(0.1))
    without = record_rounds(algorithm, PROBLEM, rounds=2, record=("steps",)).record.party
    assert set(without) == {"steps"}
    np.testing.assert_array_equal(inexactness(algorithm), inexactness(rv.fedavg(rv.solvers.GD(0.1))))


def test_a_compiled_phase_records_what_its_oracle_asks_for():
    [phase] = rv.fedavg(rv.solvers.GD(0.1)).phases
    party, oracle, key = jax.jit(phase.party), PROBLEM.oracle(jnp.array(1)), jax.random.key(0)
    inputs = (), jnp.zeros(2)
    assert "inexactness" not in party(*inputs, oracle, key, 1.0)[2]
    info = party(*inputs, recording(oracle, ("inexactness",)), key, 1.0)[2]
    w = info["model"]
    at_end, at_start = oracle.grad(w), oracle.grad(jnp.zeros(2))
    np.testing.assert_allclose(info["inexactness"], jnp.linalg.norm(at_end) / jnp.linalg.norm(at_start), rtol=1e-6)
    assert "inexactness" not in party(*inputs, oracle, key, 1.0)[2]


@nightly.parametrize("make", [
    lambda s: rv.fedmix(s, alpha=0.5, inner=rv.fedavg(s)), rv.fedavg, lambda s: rv.apfl(s), lambda s: rv.pfedme(s)],
    ids=["composed objective", "plain", "two models", "inner loop"], others=nightly.WHEN_CHANGED)
def test_objectives_made_from_the_oracle_record_too(make):
    values = inexactness(make(rv.solvers.GD(0.01)))
    assert values.shape == (2, 2)
    assert np.isfinite(values).all()
    assert (values > 0).all()
