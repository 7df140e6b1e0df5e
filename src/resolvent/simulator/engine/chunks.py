"""Chunks of rounds: the compiled calls of a run, with everything that is the same in all of them.

A chunk is one call of ``run_chunk``. In a short run of a comparison a round is divided into several programs, because
methods that differ in the server's step share the local work: a round is cut before and after the local work of its
cohort. The program of the local work is the same for all methods with the same solver, model and data, and is compiled
once for all of them; ``run_chunk`` would compile it again for each. The same holds for other marked calls: keys, the
mean and the median of replies, and choices by held-out samples. Starting several programs takes 0.6 to 1.5 milliseconds
a round, so single runs and long ones use ``run_chunk``.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jax.stages import Compiled, Traced
from jaxtyping import Array, ArrayLike, Int, PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation import Participation
from resolvent.math import tree
from resolvent.problem.problem import Problem
from resolvent.simulator.checkpoint.program_digest import digest_of_program
from resolvent.simulator.engine.compiled_rounds import SHARED_PART, program_of_round, run_chunk
from resolvent.simulator.engine.predrawn import draw_round
from resolvent.simulator.engine.schedulers import LOCAL_WORK, Scheduler
from resolvent.simulator.engine.states import Chunk, Federation, Snapshot
from resolvent.xla.programs import Part, cut, divide_loops

_MAX_DIVIDED_ROUNDS = 300  # of a run
_MAX_BYTES = 2**26  # of what the local work reads, for the whole cohort; in a fused round it exists for one party
_COHORT_WORK = "local_work_of_cohort"

_is_sharing: ContextVar[bool] = ContextVar("is_sharing", default=False)
# Digest of a program -> it. JAX's cache of compiled programs may be off, and loading from it takes a tenth of a second.
_compiled: WeakValueDictionary[str, Compiled] = WeakValueDictionary()


@contextlib.contextmanager
def share_programs(is_sharing: bool) -> Iterator[None]:
    """Whether the short runs within share programs: runs of several methods on the same data."""
    token = _is_sharing.set(is_sharing)
    try:
        yield
    finally:
        _is_sharing.reset(token)


def shares_programs(rounds: int) -> bool:
    """Whether a run of this number of rounds shares programs."""
    return _is_sharing.get() and rounds <= _MAX_DIVIDED_ROUNDS


class ChunkInputs(NamedTuple):
    """What a chunk of rounds reads.

    Attributes:
        problem: the objectives of all parties, or of the parties of the chunk's cohorts.
        participation: draws the cohorts.
        state: the state before the chunk; running the chunk donates its buffers.
    """

    problem: Problem
    participation: Participation
    state: Federation


@dataclass(frozen=True, eq=False)
class ChunkRunner:
    """Runs chunks of rounds.

    Attributes:
        record: names of what each round records, see ``engine.run_chunk``.
        is_divided: whether rounds are several programs if they can be, see ``run_divided``.
    """

    algorithm: Algorithm
    seed: int
    capacity: int
    record: tuple[str, ...]
    scheduler: Scheduler
    is_divided: bool = False
    _traces: "_Traces" = field(default_factory=dict, init=False, repr=False)

    def __call__(self, inputs: ChunkInputs, start: int, rounds: int) -> Chunk:
        """Run rounds start, ..., start+rounds-1."""
        if self.is_divided and (chunk := run_divided(
                self.algorithm, *inputs, jnp.array(self.seed), start, rounds, capacity=self.capacity,
                record=self.record, traces=self._traces)) is not None:
            return chunk
        return run_chunk(
            self.algorithm, *inputs, jnp.array(self.seed), jnp.array(start), jnp.array(rounds),
            capacity=self.capacity, record=self.record, scheduler=self.scheduler)

    def check(self, inputs: ChunkInputs) -> None:
        """Trace a chunk without running it, which raises the errors of parts that do not fit together.

        The trace is cached: the first chunk does not trace again.
        """
        if self.is_divided:
            program_of_round(self.algorithm, *inputs, self.record)
            return
        run_chunk.eval_shape(
            self.algorithm, *inputs, jnp.array(self.seed), jnp.array(0), jnp.array(1),
            capacity=self.capacity, record=self.record, scheduler=self.scheduler)

    def run_copy(self, inputs: ChunkInputs, scheduler: Scheduler) -> Chunk:
        """Run the first round with another scheduler, and leave ``inputs`` as they are."""
        copied = inputs._replace(state=jax.tree.map(jnp.copy, inputs.state))
        return replace(self, scheduler=scheduler)(copied, 0, 1)


class _Program(NamedTuple):
    """A part of a round.

    Attributes:
        run: the compiled function.
        arguments: positions of its arguments among the values of a round.
    """

    run: Compiled
    arguments: tuple[int, ...]


class _Round(NamedTuple):
    """A round: its values are its arguments and the results of its parts, one after the other.

    Attributes:
        results: positions of its results among its values, or results that do not depend on the arguments.
    """

    programs: tuple[_Program, ...]
    results: tuple[int | Array, ...]

    def __call__(self, arguments: Sequence[Any]) -> list[Array]:
        values = [*arguments]
        for program in self.programs:
            values += program.run(*(values[i] for i in program.arguments))
        return [values[i] if isinstance(i, int) else i for i in self.results]


class _InParts(NamedTuple):
    """A traced function: its compiled parts, None if it is not divided, and the structure of its results."""

    run: _Round | None
    structure: Any


_Traces: TypeAlias = dict[Any, _InParts]  # by structures and types of arguments: to find a trace of JAX takes 1 ms


def _types(args: PyTree[Any]) -> Any:
    leaves, structure = jax.tree.flatten(args)
    return structure, *map(jax.typeof, leaves)


def _structure(traced: Traced) -> Any:
    return jax.tree.structure(traced.out_info)


def _arrays(args: Any) -> Any:
    """The arguments with arrays for numbers of Python and NumPy, which compiled programs do not convert."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), args)


def run_divided(algorithm: Algorithm, problem: Problem, participation: Participation, state: Federation,
                seed: ArrayLike, start: int, rounds: int, *, capacity: int, record: tuple[str, ...],
                traces: _Traces | None = None) -> Chunk | None:
    """As ``run_chunk`` with the scheduler ``Sequential``, and the same bits.

    Args:
        traces: what earlier calls with the same algorithm and ``record`` have divided.

    Returns:
        None if the round cannot be divided: no party's work can be cut, the arrays between the parts would be large, or
        the compiler refuses a part.
    """
    traces = {} if traces is None else traces
    key = _types((problem, participation, state))
    drawn, without = state.participation, replace(state, participation=())
    if key not in traces:
        traced = program_of_round(algorithm, problem, participation, state, record)
        traces[key] = _InParts(_divided(traced.jaxpr, len(jax.tree.leaves(without)), _COHORT_WORK), _structure(traced))
    (of_round, structure), state = traces[key], without
    if of_round is None:
        return None
    algorithm, problem = _arrays((algorithm, problem))
    records = []
    for t in np.arange(start, start + rounds, dtype=jnp.result_type(int)):
        cohort, key, drawn = _draw(participation, problem.sizes, drawn, seed, t)
        shares = participation.shares(problem.sizes) if "gap" in record else None
        values = jax.tree.leaves((algorithm, problem, cohort, shares, key, state, t))
        state, snapshot = jax.tree.unflatten(structure, of_round(values))
        records.append(snapshot.record)
    return _chunk(replace(state, participation=drawn), snapshot, records, capacity)


class CallInParts:
    """A function of ``jax.jit``, which is called in parts if it shares one with the rounds of a comparison."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._traces: _Traces = {}

    def __call__(self, *args: Any) -> Any:
        """The results of the function."""
        key = _types(args)
        if key not in self._traces:
            traced: Traced = self._function.trace(*args)
            self._traces[key] = _InParts(_divided(traced.jaxpr, 0, SHARED_PART, must_be_compiled=not _is_sharing.get()),
                                         _structure(traced))
        run, structure = self._traces[key]
        if run is None:
            return self._function(*args)
        return jax.tree.unflatten(structure, run(jax.tree.leaves(_arrays(args))))


@jax.jit
def _draw(participation: Participation, sizes: Int[Array, " N"], state: Any, seed: Int[Array, ""],
          t: Int[Array, ""]) -> tuple[Cohort, Array, Any]:
    cohort, after = draw_round(participation, sizes, state, seed, t)
    return tree.strongly_typed(cohort), keys.root_key(seed), after


def _chunk(state: Federation, snapshot: Snapshot, records: list[Any], capacity: int) -> Chunk:
    def of_leaf(*rows: Array) -> Array:
        column = np.zeros((capacity, *rows[0].shape), rows[0].dtype)
        column[:len(rows)] = rows
        return jnp.asarray(column)

    donated = {id(leaf) for leaf in jax.tree.leaves(state)}  # by the next chunk
    return Chunk(state, jax.tree.map(of_leaf, *records),
                 jax.tree.map(lambda leaf: jnp.copy(leaf) if id(leaf) in donated else leaf, snapshot))


@lru_cache(maxsize=32)
def _divided(closed: ClosedJaxpr, of_state: int, kind: str, *, must_be_compiled: bool = False) -> _Round | None:
    """The compiled parts of a round or of another program; None if it is not divided.

    Args:
        of_state: number of arrays of the state.
        kind: name of the parts without which it is not divided.
        must_be_compiled: whether another program must have compiled one of these parts.
    """
    if closed.effects:
        return None
    divided = divide_loops(closed, LOCAL_WORK, _COHORT_WORK)
    jaxpr, parts = divided.jaxpr, cut(divided, _COHORT_WORK, SHARED_PART)
    read: set[Any] = {v for part in parts if part.name == _COHORT_WORK for v in part.arguments}
    between: list[Any] = [v.aval for v in read.difference(jaxpr.invars)]
    of_kind = [part for part in parts if part.name == kind]
    if must_be_compiled:
        of_kind = [part for part in of_kind if _digest(part, ()) in _compiled]
    if not of_kind or sum(aval.size * aval.dtype.itemsize for aval in between) > _MAX_BYTES:
        return None
    positions = {v: i for i, v in enumerate([*jaxpr.invars, *(v for part in parts for v in part.closed.jaxpr.outvars)])}
    try:
        programs = [_Program(_compile(part, donated), tuple(positions[v] for v in part.arguments))
                    for part, donated in zip(parts, _donated(jaxpr, parts, of_state), strict=True)]
    except jax.errors.JaxRuntimeError:  # run_chunk has another form of the program
        return None
    return _Round(tuple(programs), tuple(
        jnp.asarray(v.val, getattr(v.aval, "dtype", None)) if isinstance(v, Literal) else positions[v]
        for v in jaxpr.outvars))


def _donated(jaxpr: Jaxpr, parts: Sequence[Part], of_state: int) -> Iterator[tuple[int, ...]]:
    """For each part, its arguments whose buffers it takes over: those of the state that it replaces.

    The state is before the number of the round, the last argument, and first among the results.
    """
    state = jaxpr.invars[-1 - of_state:-1]
    replaced = dict(zip(state, jaxpr.outvars, strict=False))
    for n, part in enumerate(parts):
        read = {v for v in jaxpr.outvars if isinstance(v, Var)}.union(
            *(later.arguments for later in parts[n + 1:]))
        yield () if part.name else tuple(
            i for i, v in enumerate(part.arguments)
            if v in replaced and v not in read and replaced[v] in part.closed.jaxpr.outvars)


def _compile(part: Part, donated: tuple[int, ...]) -> Compiled:
    """The compiled part, or that of an equal one."""
    def run(*args: Array) -> list[Array]:
        return list(jaxpr_as_fun(part.closed)(*args))

    run.__name__ = run.__qualname__ = part.name or "part_of_round"
    digest = _digest(part, donated)
    compiled = _compiled.get(digest)
    if compiled is None:
        shape: Callable[..., Any] = jax.ShapeDtypeStruct
        avals: list[Any] = [v.aval for v in part.closed.jaxpr.invars]
        compiled = _compiled[digest] = jax.jit(run, donate_argnums=donated, keep_unused=True).lower(
            *(shape(aval.shape, aval.dtype) for aval in avals)).compile()
    return compiled


def _digest(part: Part, donated: tuple[int, ...]) -> str:
    return f"{digest_of_program(part.closed)} {donated}"
