"""A run traces the party functions of an algorithm once for its description, and once for its rounds."""

import itertools
import traceback
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import optax
import pytest

import resolvent as rv
from resolvent.algorithms.combinators.prepared import prepare
from resolvent.algorithms.description import describe
from resolvent.algorithms.method import SharedModelMethod, local_work
from resolvent.algorithms.methods.aggregation import ModelAggregation

LIBRARY = Path(rv.__file__).parent
# A program that another test has traced in this process is not traced again: no other test has 11 coordinates.
PROBLEM = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(11), 3 * jnp.eye(11)]), jnp.zeros((2, 11)).at[0, 1].set(1.0))


class Own(SharedModelMethod):
    solver: rv.solvers.LocalSolver
    replies_models: ClassVar[bool] = True
    needs_individual_replies: ClassVar[bool] = False

    def party(self, state, shared, oracle, key, effort):
        w, info = local_work(self.solver, rv.problems.Subproblem(oracle, shared), shared, key, effort)
        return state, w, info

    def server(self, shared, replies, key):
        return replies.mean(), {}


class NeedsHessian(Own):
    """Asks the oracle for something that only the oracle of this problem has."""

    def party(self, state, shared, oracle, key, effort):
        w, info = local_work(self.solver, rv.problems.Subproblem(oracle, shared), shared, key, effort)
        return state, w + 0 * oracle.hessian[0], info


@pytest.mark.when_changed
@pytest.mark.parametrize(("solver", "expected"), [
    (rv.solvers.GD(0.1), 2), (rv.solvers.OptaxSolver(optax.adam(0.1), steps=2, keep=True), 4)],
    ids=["without a memory", "with a memory"])
def test_a_run_traces_a_party_function_once_for_its_description_and_once_for_its_rounds(solver, expected, monkeypatch):
    """Without a validation sample, with bytes, memory and evaluation: all of them read one description.

    The first memory is found by asking the party function for it, in the description and where first states are made.
    """
    traces, party = [], ModelAggregation.party

    def counted(*inputs):
        traces.append(1)
        return party(*inputs)

    monkeypatch.setattr(ModelAggregation, "party", counted)
    for seed in range(2):
        rv.simulate(rv.fedprox(solver, mu=0.3), PROBLEM, rounds=4, evaluate_every=1, seed=seed, progress=False)
        assert len(traces) == expected


def test_the_way_from_simulate_to_the_party_function_is_short(monkeypatch):
    """In both traces the algorithm is handed down through few files, and no call goes back to an upper one."""
    ways, party = [], ModelAggregation.party

    def noted(*inputs):
        files = [Path(frame.filename) for frame in traceback.extract_stack()]
        begin = max(i for i, file in enumerate(files) if file.name == "run.py")
        names = [str(file.relative_to(LIBRARY)) for file in files[begin:] if file.is_relative_to(LIBRARY)]
        ways.append([name for name, _ in itertools.groupby(names)])
        return party(*inputs)

    monkeypatch.setattr(ModelAggregation, "party", noted)
    problem = rv.problems.least_squares(parties=3, samples=5, features=7)  # of shapes that no other test has traced
    rv.simulate(rv.fedprox(rv.solvers.GD(0.1), mu=0.3), problem, rounds=1, progress=False)
    description, rounds = ways
    assert len(description) <= 6
    assert len(rounds) <= 10
    scheduled = "simulator/engine/compiled_rounds.py"  # a scheduler calls the work that it is handed
    for way in ways:
        assert {name for name in way if way.count(name) > 1} <= {scheduled}


def test_an_algorithm_may_ask_for_what_only_the_oracle_of_its_problem_has():
    algorithm = NeedsHessian(rv.solvers.GD(0.1))
    with pytest.raises(AttributeError, match="hessian"):
        describe(algorithm, jnp.zeros(2))
    description = prepare(algorithm, PROBLEM, parties=2).description
    assert [reply.shape for reply in description.replies] == [(11,)]
    rv.simulate(algorithm, PROBLEM, rounds=1, progress=False)


def test_a_mistake_in_a_party_function_is_reported_with_the_run_and_the_line():
    class Mistaken(Own):
        def party(self, state, shared, oracle, key, effort):
            return state, shared + "1", {}

    with pytest.raises(rv.InputError, match=r"mine: test_traces.py:\d+: in party, .*shared \+ \"1\""):
        rv.simulate(Mistaken(rv.solvers.GD(0.1)), PROBLEM, rounds=1, name="mine", progress=False)


def test_the_table_of_a_notebook_says_why_an_algorithm_has_no_sizes():
    class OneLayer(Own):
        def init(self, w0, shares):
            return {"only": w0["only"]}

    table = OneLayer(rv.solvers.GD(0.1))._repr_html_()
    assert "not computed, for a model with the layers body, norm and head: &#x27;only&#x27;" in table
    assert "a party sends in a round" in rv.fedavg(rv.solvers.GD(0.1))._repr_html_()


def test_reads_outside_the_private_solver_are_described():
    model, private = jnp.zeros(2), rv.solvers.DPSGD(0.1, steps=2)
    assert describe(rv.fedavg(private), model).reads == ()
    assert describe(rv.fedavg(rv.SGD(0.1)), model).reads == ("a minibatch gradient",)
    assert describe(rv.combinators.FineTuned(rv.fedavg(private), private), model).is_personal
