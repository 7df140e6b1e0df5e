"""One trace of an algorithm without data: what its parties are sent, store, read and release.

The plan of a run, the table of algorithms, the check of privacy and a network read this description. ``jax.jit`` caches
it: for one algorithm and one model it is made once in a process, whatever its numbers are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import (
    Algorithm,
    Message,
    PartyState,
    Reply,
    ServerState,
    check_arrays,
    check_models,
    checked_phases,
    checked_work,
)
from resolvent.algorithms.keys import key_shape, root_key
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.objective import Batch, LocalObjective
from resolvent.problem.oracle import NO_MEMORY, Oracle, PartyMemory, ShapeOracle
from resolvent.problem.problem import Problem
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.xla.known_values import count_marked
from resolvent.xla.shapes import shapes_of

PRIVATE_WORK = "private_work"  # name of the operation that stands for DPSGD in the traced programs


@dataclass(frozen=True, eq=False)
class Description:
    """Facts of an algorithm. Trees have leaves with the shapes and dtypes of arrays.

    Attributes:
        messages: the message of each phase.
        replies: the reply of each phase.
        model_message: the message from which a party computes its personal model.
        shared: the shared model; None if the algorithm has none.
        server: the server's state.
        party: a party's state.
        personal: a party's personal model.
        reads: what parties read of their samples before and in a round outside ``DPSGD``, in words, in order.
        info: names of the numbers that parties return for a run to record, by phase and in order.
        uses_held_out: whether a party looks at its held-out samples.
        needs_held_out: whether a run in which no party has any is refused.
        is_personal: whether a party's model depends on its state, its samples or its number.
        uses_shared_model: whether the personal model of every party is the shared model.
        needs_individual_replies: see ``Algorithm``.
        first_program: (algorithm, key, model, oracle) -> a party's first state, with ``PRIVATE_WORK`` for ``DPSGD``.
        phase_programs: for each phase, (algorithm, party, key, effort, server's state, party's state, oracle) -> the
            party's results and the message.
        model_program: (algorithm, model, server's state, party's state, party, oracle) -> personal model, ...
    """

    model: Vector
    messages: tuple[Message, ...]
    replies: tuple[Reply, ...]
    model_message: Message
    shared: Vector | None
    server: ServerState
    party: PartyState
    personal: Vector
    reads: tuple[str, ...]
    info: tuple[str, ...]
    uses_held_out: bool
    needs_held_out: bool
    is_personal: bool
    uses_shared_model: bool
    needs_individual_replies: bool
    first_program: ClosedJaxpr
    phase_programs: tuple[ClosedJaxpr, ...]
    model_program: ClosedJaxpr

    @property
    def has_party_states(self) -> bool:
        """Whether a party stores something between rounds."""
        return bool(jax.tree.leaves(self.party))

    @property
    def trains_on_held_out(self) -> bool:
        """Whether a party looks at its held-out samples before or in a round, not only to choose its model."""
        return _HELD_OUT in self.reads


def describe(algorithm: Algorithm, source: Problem | Vector, *, parties: int = 1,
             oracle: Callable[[], Oracle] | None = None) -> Description:
    """The description of an algorithm on a problem, or for a model of which there are only the shapes.

    Args:
        source: the problem, or a model or its shapes.
        parties: number of parties, on which the shapes of the server's state can depend.
        oracle: the shapes of a party's oracle, for an algorithm that asks for something that ``ShapeOracle`` does not
            have; its reads of samples are not described. A problem has its own.

    Raises:
        TypeError: the algorithm asks its oracle for something that it does not have.
        AttributeError: the same.
        InputError: the functions return something else than a phase should.
    """
    memory: PyTree[Any] = ()
    if isinstance(source, Problem):
        problem, k = source, jax.eval_shape(lambda: jnp.array(0))
        source, of_party = shapes_of(problem.init, key_shape()), shapes_of(shapes_of(problem.at, k).oracle, k)
        memory, oracle = shapes_of(of_party.init_memory, source), lambda: of_party
    shares = jax.ShapeDtypeStruct((parties,), jnp.result_type(float))  # type: ignore[no-untyped-call]
    shapes_for: Callable[..., _Static] = partial(_trace.eval_shape, algorithm, source, shares, memory)
    try:
        return shapes_for(None).description
    except (TypeError, AttributeError):
        if oracle is None:
            raise
    return shapes_for(oracle()).description  # raises the error again if it is another mistake


class _Static(eqx.Module):
    description: Description = eqx.field(static=True)


@jax.jit
def _trace(algorithm: Algorithm, w0: Vector, shares: Float[Array, " N"], memory: PyTree[Any],
           oracle: Oracle | None) -> _Static:
    """Party 0 in a round. Each function is traced as a program of its own, from shapes: nothing is computed here."""
    needs_individual, count = algorithm.needs_individual_replies, len(checked_phases(algorithm))
    algorithm, w0, shares, memory, oracle = jax.tree.map(_shape, (algorithm, w0, shares, memory, oracle))
    k, key, effort = jax.eval_shape(lambda: (jnp.array(0), root_key(0), jnp.ones(())))
    log = _Log()
    oracle = _Probe(k, first_memory=memory, log=log) if oracle is None else oracle
    facts: dict[str, bool] = {}
    numbers: dict[str, None] = {}

    def first_state(algorithm: Algorithm, key: Array, w0: Vector, oracle: Oracle) -> PartyState:
        return tree.strongly_typed(_marked(algorithm).init_party(w0, oracle, key))

    def work(number: int, algorithm: Algorithm, k: Int[Array, ""], key: Array, effort: Float[Array, ""],
             server: ServerState, state: PartyState, oracle: Oracle) -> Any:
        phase = checked_phases(_marked(algorithm))[number]
        message = phase.message(server, k)
        check_arrays(f"a message of {type(algorithm).__name__}", message)
        after, reply, info = checked_work(phase, state, phase.party(state, message, oracle, key, effort))
        numbers.update({name: None for name, value in info.items()
                        if jax.tree_util.all_leaves([value]) and jnp.shape(value) == ()})
        return after, reply, message

    def models(algorithm: Algorithm, w0: Vector, server: ServerState, state: PartyState, k: Int[Array, ""],
               oracle: Oracle) -> Any:
        algorithm = _marked(algorithm)
        message = algorithm.model_message(server, k)
        personal, shared = algorithm.personal_model(state, message, oracle), algorithm.server_model(server)
        check_models(algorithm, w0, personal, shared)
        facts["uses_shared_model"] = are_same(personal, shared)
        return personal, shared, message

    server = jax.eval_shape(lambda a, w, s: tree.strongly_typed(a.init(w, s)), algorithm, w0, shares)
    first_program, state = jax.make_jaxpr(first_state, return_shape=True)(algorithm, key, w0, oracle)
    results = []
    for number in range(count):
        traced = jax.make_jaxpr(work, static_argnums=0, return_shape=True)
        results.append(traced(number, algorithm, k, key, effort, server, state, oracle))
    reads = tuple(log.reads)
    log.reads.clear()
    shared_inputs = algorithm, w0, server
    model_program, (personal, shared, model_message) = jax.make_jaxpr(models, return_shape=True)(
        *shared_inputs, state, k, oracle)
    reads_samples = bool(log.reads) or count_marked(model_program.jaxpr, PRIVATE_WORK) > 0
    is_personal = reads_samples or _reads_inputs_after(len(jax.tree.leaves(shared_inputs)), model_program,
                                                       outputs=len(jax.tree.leaves(personal)))
    uses_held_out = _HELD_OUT in (*reads, *log.reads)
    return _Static(Description(
        w0, tuple(message for _, (_, _, message) in results), tuple(reply for _, (_, reply, _) in results),
        model_message, shared, server, state, personal, reads=reads, info=tuple(numbers),
        uses_held_out=uses_held_out, needs_held_out=uses_held_out and not algorithm.works_without_held_out,
        is_personal=is_personal,
        needs_individual_replies=needs_individual, first_program=first_program,
        phase_programs=tuple(program for program, _ in results), model_program=model_program, **facts))


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    kind = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)  # type: ignore[no-untyped-call]


def are_same(x: PyTree[Any], y: PyTree[Any]) -> bool:
    """Whether two trees have the same values, which are one object in a trace then; false without values."""
    of_x, of_y = jax.tree.leaves(x), jax.tree.leaves(y)
    return bool(of_y) and len(of_x) == len(of_y) and all(a is b for a, b in zip(of_x, of_y, strict=True))


def _reads_inputs_after(first: int, program: ClosedJaxpr, *, outputs: int) -> bool:
    """Whether the first outputs of a program depend on an input from this number on."""
    count = len(program.jaxpr.outvars)
    _, is_read = dce_jaxpr(program.jaxpr, [i < outputs for i in range(count)])
    return any(is_read[first:])


_LOSS, _GRADIENT, _MINIBATCH, _MINIMISER, _HELD_OUT, _SUMS = (
    "the loss", "a gradient", "a minibatch gradient", "the exact minimiser", "held-out samples",
    "sums over the samples")


class _Log:
    """The reads of samples that a trace has met, in words and in order."""

    def __init__(self) -> None:
        self.reads: dict[str, None] = {}


class _Probe(ShapeOracle):
    """An oracle that records its calls. JAX copies the object, and the copies share the log."""

    first_memory: PyTree[Any] = eqx.field(kw_only=True)
    log: _Log = eqx.field(static=True, kw_only=True)

    @override
    def init_memory(self, w: Vector) -> PyTree[Any]:
        return super().init_memory(w) or self.first_memory

    @override
    def with_objective(self, objective: LocalObjective, **values: Any) -> "_Probe":
        if objective.reads is not None:
            self.log.reads.setdefault(objective.reads)
        return self

    @override
    def total(self, f: Callable[[Batch, Model], PyTree[Any]], zero: PyTree[Any]) -> PyTree[Any]:
        self.log.reads.setdefault(_SUMS)
        return super().total(f, zero)

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        self.log.reads.setdefault(_LOSS)
        return super().value(w)

    @override
    def grad(self, w: Vector) -> Vector:
        self.log.reads.setdefault(_GRADIENT)
        return super().grad(w)

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        self.log.reads.setdefault(_MINIBATCH)
        return super().batch_grad(w, positions, mask, memory)

    @override
    def proximal_point(self, center: Vector, weight: Any, linear: Vector | None) -> Vector:
        self.log.reads.setdefault(_MINIMISER)
        return super().proximal_point(center, weight, linear)

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        self.log.reads.setdefault(_HELD_OUT)
        return super().held_out(w)


class _Marker(LocalSolver):
    """Stands for DPSGD in a trace: it reads no samples, and its key is the first input of an operation."""

    adds_noise: ClassVar[bool] = True

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
                 memory: PartyMemory = NO_MEMORY) -> tuple[Vector, Int[Array, ""], PartyMemory]:
        data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        return jax.jit(_private_work)(data, start), jnp.array(1), memory


def _marked(algorithm: Any) -> Any:
    """The algorithm with a marker for each DPSGD."""
    if not any(solver.adds_noise for solver in tree.parts(algorithm, LocalSolver)):
        return algorithm
    from resolvent.problem.solvers.dpsgd import DPSGD  # few algorithms are private

    return tree.map_parts(lambda solver: _Marker(), algorithm, DPSGD)


def _private_work(key_data: Array, start: Vector) -> Vector:
    return jax.tree.map(lambda leaf: leaf + key_data[0].astype(leaf.dtype), start)


_private_work.__name__ = PRIVATE_WORK
