"""One algorithm on the example problem, with the results that several clauses of the contract read."""

from functools import cached_property, lru_cache
from typing import Any

import jax
from jaxtyping import PyTree

from resolvent.algorithms.algorithm import Algorithm
from resolvent.problem.learning import LearningProblem
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.engine.schedulers import Queue
from resolvent.simulator.engine.states import Federation
from resolvent.testing.example import (
    Make,
    example_participation,
    example_problem,
    example_solver,
    without_parties,
)
from resolvent.testing.python_loop import python_rounds

__all__ = ["PARTICIPATION", "ROUNDS", "SEED", "Trial", "trial_of", "types_of"]

ROUNDS = 3
SEED = 7
PARTICIPATION = example_participation()


class Trial:
    """One algorithm on the example problem, with the results that several clauses read."""

    def __init__(self, make: Make) -> None:
        self.make = make

    @cached_property
    def single(self) -> tuple[Algorithm, LearningProblem, Federation]:
        """The algorithm, the problem and the first state in float32."""
        with jax.enable_x64(False):
            algorithm, problem = self.make(example_solver()), example_problem()
            return algorithm, problem, initial_state(algorithm, problem, PARTICIPATION, SEED)

    @cached_property
    def double(self) -> tuple[Algorithm, LearningProblem, Federation]:
        """The algorithm, the problem and the first state in float64."""
        with jax.enable_x64(True):
            algorithm, problem = self.make(example_solver()), example_problem()
            return algorithm, problem, initial_state(algorithm, problem, PARTICIPATION, SEED)

    @cached_property
    def final(self) -> Federation:
        """The state after all rounds, in float64 with a queue of two lanes."""
        return self.run()

    @cached_property
    def trajectory(self) -> list[Federation]:
        """The state before the first round and after each round, in float64 by the Python loop."""
        algorithm, problem, _ = self.double
        with jax.enable_x64(True):
            return python_rounds(algorithm, problem, PARTICIPATION, SEED, ROUNDS)

    def run(self, state: Federation | None = None, *, algorithm: Algorithm | None = None, start: int = 0,
            rounds: int = ROUNDS, empty: bool = False) -> Federation:
        """The state after some rounds, in float64 with a queue of two lanes."""
        own_algorithm, problem, first = self.double
        participation = without_parties(PARTICIPATION) if empty else PARTICIPATION
        with jax.enable_x64(True):
            return run_rounds(own_algorithm if algorithm is None else algorithm, problem, participation,
                              state=first if state is None else state, seed=SEED, start=start, rounds=rounds,
                              scheduler=Queue(2))


@lru_cache(maxsize=1)
def trial_of(make: Make) -> Trial:
    """The trial of an algorithm; the clauses of one algorithm, one after the other, share it."""
    return Trial(make)


def types_of(tree: PyTree[Any]) -> PyTree[Any]:
    """Structure, shapes and dtypes, and whether a dtype is weak: if that changes, the next round compiles again."""
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)), tree)
