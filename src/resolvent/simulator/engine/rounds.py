"""Rounds without evaluation, metrics and checkpoints: for tests, benchmarks and studies of an algorithm's states.

The rounds are those of ``simulate``: the same compiled program, the same keys, the same bits. All functions can be
traced, so that a sweep over a number of the algorithm is one ``jax.vmap``, and ``jax.eval_shape`` gives the shapes.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.prepared import with_memory
from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.problem.problem import Problem
from resolvent.simulator.engine import compiled_rounds as engine
from resolvent.simulator.engine.cohorts import draw_cohorts
from resolvent.simulator.engine.schedulers import SchedulerName, Sharded, scheduler_named
from resolvent.simulator.states import Chunk, Federation

_MIN_CAPACITY = 4


def initial_state(algorithm: Algorithm, problem: Problem, participation: Participation | None = None,
                  seed: ArrayLike = 0) -> Federation:
    """The state of the server and of every party before the first round.

    Args:
        participation: gives the shares lambda_k; default: all parties take part, weighted by size.

    Example:
        >>> problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 3), jnp.ones((3, 2)))
        >>> initial_state(rv.fedavg(rv.solvers.GD(0.1)), problem).server.shape
        (2,)
    """
    shares = _participation(participation).shares(problem.sizes)
    state: Federation = engine.initial_state(with_memory(algorithm, problem), problem, shares, jnp.array(seed))
    return state


def run_rounds(algorithm: Algorithm, problem: Problem, participation: Participation | None = None, *,
               state: Federation | None = None, seed: ArrayLike = 0, start: ArrayLike = 0, rounds: int = 1,
               scheduler: SchedulerName | Sharded = "sequential", record: tuple[str, ...] = ()) -> Federation:
    """The state after rounds start, ..., start+rounds-1.

    Args:
        problem: the objectives of the N parties.
        participation: draws the cohorts; default: all parties take part, weighted by size.
        state: the state before round ``start``; default: ``initial_state``. It is copied and stays usable.
        start: number of the first round; 0 is the first round of a run.
        rounds: number of rounds, at least 1. Up to the next power of two, another number does not compile again.
        scheduler: a scheduler, or ``sequential``, ``lanes`` or ``queue``.
        record: names of what each round records (see ``record_rounds``). It does not change the state.

    Example:
        >>> problem = rv.problems.QuadraticProblem(jnp.stack([jnp.eye(2)] * 3), jnp.ones((3, 2)))
        >>> run_rounds(rv.fedavg(rv.solvers.GD(0.5)), problem, rounds=20).server.round(3).tolist()
        [1.0, 1.0]
    """
    return record_rounds(algorithm, problem, participation, state=state, seed=seed, start=start, rounds=rounds,
                         scheduler=scheduler, record=record).state


def record_rounds(algorithm: Algorithm, problem: Problem, participation: Participation | None = None, *,
                  state: Federation | None = None, seed: ArrayLike = 0, start: ArrayLike = 0, rounds: int = 1,
                  scheduler: SchedulerName | Sharded = "sequential", record: tuple[str, ...] = ()) -> Chunk:
    """As ``run_rounds``, with the record of each round and the last aggregation.

    Args:
        record: names of scalars of the parties (``steps``, ``inexactness``, ``model_change``), and ``gap`` for a
            ``SolvedProblem``. The other arguments are those of ``run_rounds``.

    Returns:
        The state; the record, leaves [rounds, ...]; the cohort's models and the server's state before the last
        aggregation.
    """
    algorithm, participation = with_memory(algorithm, problem), _participation(participation)
    # A copy, because run_chunk takes over the buffers of its argument.
    state = initial_state(algorithm, problem, participation, seed) if state is None else jax.tree.map(jnp.array, state)
    capacity = max(_MIN_CAPACITY, 1 << (rounds - 1).bit_length())
    cohorts = draw_cohorts(participation, problem.sizes, seed, start, rounds=rounds, capacity=capacity)
    arguments = (algorithm, problem, cohorts, state, jnp.array(seed), jnp.array(start), jnp.array(rounds))
    # Within a transformation the compiled function would donate buffers that the transformation owns, and could not
    # fall back to the plain form.
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))
    run: Callable[..., Chunk] = partial(engine.run_chunk.function, plain=True) if is_traced else engine.run_chunk
    inner, mesh = scheduler if isinstance(scheduler, Sharded) else (scheduler_named(scheduler), None)
    chunk = run(*arguments, record=record, scheduler=inner, mesh=mesh)
    return chunk._replace(record=jax.tree.map(lambda leaf: leaf[:rounds], chunk.record))


def trajectory(algorithm: Algorithm, problem: Problem, rounds: int, participation: Participation | None = None, *,
               seed: ArrayLike = 0, scheduler: SchedulerName | Sharded = "sequential") -> list[Federation]:
    """The state before the first round and after each round, as NumPy arrays: ``rounds + 1`` states."""
    state = initial_state(algorithm, problem, participation, seed)
    states = [jax.tree.map(np.asarray, state)]
    for t in range(rounds):
        state = run_rounds(algorithm, problem, participation, state=state, seed=seed, start=t, scheduler=scheduler)
        states.append(jax.tree.map(np.asarray, state))
    return states


def compiled_programs() -> int:
    """The number of programs for rounds that this process has compiled, since ``jax.clear_caches()`` if it was called.

    A test that neither a second call nor another number compiles again compares two counts.
    """
    return engine.run_chunk.cache_size()


def _participation(participation: Participation | None) -> Participation:
    return Full() if participation is None else participation
