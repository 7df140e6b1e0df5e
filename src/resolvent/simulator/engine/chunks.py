"""Chunks of rounds: the compiled calls of a run, with everything that is the same in all of them."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from resolvent.algorithms.algorithm import Algorithm
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.cohorts import DrawnCohorts
from resolvent.simulator.engine.compiled_rounds import run_chunk
from resolvent.simulator.engine.schedulers import Scheduler
from resolvent.simulator.engine.states import Chunk, Federation


class ChunkInputs(NamedTuple):
    """What a chunk of rounds reads.

    Attributes:
        problem: the objectives of all parties, or of the parties of the chunk's cohorts.
        cohorts: the cohorts of its rounds.
        state: the state before the chunk; running the chunk donates its buffers.
    """

    problem: Problem
    cohorts: DrawnCohorts
    state: Federation


@dataclass(frozen=True, eq=False)
class ChunkRunner:
    """Runs chunks of rounds.

    Attributes:
        record: names of what each round records, see ``engine.run_chunk``.
    """

    algorithm: Algorithm
    seed: int
    record: tuple[str, ...]
    scheduler: Scheduler

    def __call__(self, inputs: ChunkInputs, start: int, rounds: int) -> Chunk:
        """Run rounds start, ..., start+rounds-1."""
        return run_chunk(
            self.algorithm, *inputs, jnp.array(self.seed), jnp.array(start), jnp.array(rounds),
            record=self.record, scheduler=self.scheduler)

    def check(self, inputs: ChunkInputs) -> None:
        """Trace a chunk without running it, which raises the errors of parts that do not fit together.

        The trace is cached: the first chunk does not trace again.
        """
        run_chunk.eval_shape(
            self.algorithm, *inputs, jnp.array(self.seed), jnp.array(0), jnp.array(1),
            record=self.record, scheduler=self.scheduler)

    def run_copy(self, inputs: ChunkInputs, scheduler: Scheduler) -> Chunk:
        """Run the first round with another scheduler, and leave ``inputs`` as they are."""
        copied = inputs._replace(state=jax.tree.map(jnp.copy, inputs.state))
        return replace(self, scheduler=scheduler)(copied, 0, 1)
