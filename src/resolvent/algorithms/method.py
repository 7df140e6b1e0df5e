"""Methods: their base classes, the local work that most of them share, and the origin of updates."""

from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.algorithm import (
    Algorithm,
    Info,
    Iterate,
    Message,
    PartyState,
    Phase,
    Replies,
    Reply,
    ServerState,
)
from resolvent.errors import InputError, shorten
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle, PartyMemory
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


class Method(Algorithm):
    """An algorithm that is not a combinator around another one. By default a party stores nothing between rounds."""

    steps_without_replies: ClassVar[bool] = False

    def _repr_html_(self) -> str:
        from resolvent.algorithms.traits import overview_html  # for notebooks

        return overview_html(self)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        return ()


class OnePhaseMethod(Method):
    """A method of one phase, of which a subclass defines the three functions, see ``Phase``."""

    def message(self, state: ServerState, k: Int[Array, ""]) -> Message:
        """The message to party k; by default the server's state."""
        return state

    def origin(self, message: Message) -> Vector:
        """The model of which a reply is an update, see ``Phase``; by default the message, if ``replies_models``."""
        return message

    @abstractmethod
    def party(self, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, Reply, Info]:
        """A party's work: its next state, its reply, and what a run can record."""

    @abstractmethod
    def server(self, state: ServerState, replies: Replies, key: Array) -> tuple[ServerState, Info]:
        """The server's next state, and what a run can record."""

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.message, self.party, self.server, self.origin if self.replies_models else None),)


class SharedModelMethod(OnePhaseMethod):
    """A method of one phase whose server state is one model, which it sends unchanged and replaces.

    A subclass defines ``party`` and ``server``, and ``init_party`` and ``personal_model`` if parties keep a state.
    """

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Vector:
        return w0

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: Vector) -> Vector:
        return state

    @property
    @override
    def iterate(self) -> Iterate:
        return Iterate()


class ServerStateMethod(OnePhaseMethod):
    """A method of one phase whose server knows more than the shared model, which is ``model`` in its state.

    It sends the model alone. A subclass defines ``init``, ``party`` and ``server``, and ``init_party`` if parties keep
    a state.
    """

    @override
    def message(self, state: ServerState, k: Int[Array, ""]) -> Vector:
        return state.model

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: ServerState) -> Vector:
        return state.model


def local_work(solver: LocalSolver, subproblem: Subproblem, start: Vector, key: Array, effort: Float[Array, ""],
               name: str = "") -> tuple[Vector, Info]:
    """Solve a subproblem; the info has ``model``, ``steps`` and ``memory``, and ``inexactness`` if it is recorded.

    The work begins with the memory of its name in ``Oracle.memory``. A party that works several times in a phase gives
    each work a name of its own, and returns ``info_of_all`` of their infos.
    """
    recording, memory = subproblem.oracle.recording, memory_before(solver, subproblem, start, name)
    if recording is not None and recording.on_work is not None:
        recording.on_work(name)
        return start, {"model": start, "steps": jnp.zeros((), tree.dtype(start)), "memory": {name: memory}}
    w, steps, after = solver(subproblem, start, key, effort, memory)
    return w, {"model": w, "steps": steps.astype(tree.dtype(w)), **inexactness_if_recorded(subproblem, w, start),
               "memory": {name: after}}


def memory_before(solver: LocalSolver, subproblem: Subproblem, start: Vector, name: str = "") -> PartyMemory:
    """The memory with which local work of this name begins: the last one, or before the first work a new one."""
    oracle = subproblem.oracle
    return oracle.memory.get(name) or PartyMemory(oracle.init_memory(start), solver.init_memory(start))


def info_of_all(*infos: Info) -> Info:
    """The last of several infos, with the memories of all."""
    return infos[-1] | {"memory": {name: memory for info in infos for name, memory in info.get("memory", {}).items()}}


def inexactness_if_recorded(subproblem: Subproblem, w: Vector, start: Vector) -> Info:
    """``inexactness`` if the oracle records this name, otherwise nothing.

    Inexactness is gamma = |grad h(w)| / |grad h(start)|. Source: FedProx, Definition 2. Its two gradients over all
    samples take most of the time in which local work is traced.
    """
    recording = subproblem.oracle.recording
    is_recorded = recording is not None and "inexactness" in recording.names
    return {"inexactness": subproblem.inexactness(w, start)} if is_recorded else {}


def algorithm_of_round(algorithm: Algorithm, t: Int[Array, ""]) -> Algorithm:
    """The algorithm with the learning rates that the schedules of its local solvers have in round t."""
    solvers = local_solvers(algorithm)
    if all(solver.at(t) is solver for solver in solvers):
        return algorithm
    of_round: Algorithm = tree.map_parts(lambda solver: solver.at(t), algorithm, LocalSolver)
    return of_round


def local_solvers(algorithm: Algorithm) -> list[LocalSolver]:
    """All local solvers of an algorithm and of those inside it."""
    return tree.parts(algorithm, LocalSolver)


def solver_memories(algorithm: Algorithm, w: Vector) -> list[PyTree[Any]]:
    """The memories of the algorithm's local solvers before the first round, without those that are empty."""
    return [memory for solver in local_solvers(algorithm) if jax.tree.leaves(memory := solver.init_memory(w))]


def update_origin(algorithm: Algorithm, message: Message, reply: PyTree[Any], phase: int) -> Vector:
    """The model in the message of which the reply is an update (``Phase.origin``), or zero if the reply is no model.

    Raises:
        InputError: the origin does not have the structure and the shapes of the reply.
    """
    of_phase = algorithm.phases[phase].origin
    if of_phase is None:
        return jax.tree.map(jnp.zeros_like, reply)
    origin = of_phase(message)
    same = jax.tree.structure(origin) == jax.tree.structure(reply)  # type: ignore[operator]
    if not same or _shapes(origin) != _shapes(reply):
        raise InputError(f"{type(algorithm).__name__}: replies_models is True, and the origin of an update, "
                         f"{shorten(_shapes(origin))}, does not have the shapes of a reply, {shorten(_shapes(reply))}: "
                         "define origin(...), which returns the model in the message, such as `message.model`")
    return origin


def _shapes(x: PyTree[Any]) -> dict[str, list[int]]:
    return {name: list(jnp.shape(leaf)) for name, leaf in tree.named_leaves(x)}
