"""The shapes of all that is sent in a round, and what a party's work asks for, from one trace without data.

The checks of a run, the sizes of its messages, the simulator and a network read them. ``jax.jit`` caches the trace: for
one algorithm and one model it is made once in a process, whatever its numbers are.
"""


import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.exchange import AlgorithmFunctions, Message, PartyState, Reply, ServerState
from resolvent.algorithms.keys import root_key
from resolvent.algorithms.phase_results import check_arrays, check_models, checked_phases, party_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle, PartyMemory, ShapeOracle, recording, remembering

__all__ = ["ExchangeShapes", "exchange_shapes"]


class ExchangeShapes(eqx.Module):
    """Trees whose leaves have the shapes and dtypes of the arrays that are sent, and facts of a party's work.

    The facts are static, so that ``jax.jit`` caches them with the shapes.

    Attributes:
        model: a model.
        messages: the message of each phase.
        replies: the reply of each phase.
        model_message: the message from which a party computes its personal model.
        shared: the shared model; None if the algorithm has none.
        server: the state of a server with one party.
        party: a party's state.
        personal: a party's personal model.
        local_work: in each phase, how often a party works with a local solver; a loop counts once.
        returns_memory: whether a party's work hands on the memory with which it began.
        uses_held_out: whether the algorithm looks at a party's held-out samples.
    """

    model: Vector
    messages: tuple[Message, ...]
    replies: tuple[Reply, ...]
    model_message: Message
    shared: Vector | None
    server: ServerState
    party: PartyState
    personal: Vector
    local_work: tuple[int, ...] = eqx.field(static=True)
    returns_memory: bool = eqx.field(static=True)
    uses_held_out: bool = eqx.field(static=True)

    @property
    def has_party_states(self) -> bool:
        """Whether a party stores something between rounds."""
        return bool(jax.tree.leaves(self.party))


def exchange_shapes(algorithm: AlgorithmFunctions, model: Vector, *, oracle: Oracle | None = None,
                    memory: PartyMemory | None = None) -> ExchangeShapes:
    """The shapes of an algorithm's exchanges.

    Args:
        algorithm: the algorithm.
        model: a model, or its shapes.
        oracle: the shapes of a party's oracle, for an algorithm that asks for something that ``ShapeOracle`` does not
            have.
        memory: the shapes of the memory with which a party's work begins.

    Raises:
        TypeError: the algorithm asks its oracle for something that it does not have.
        AttributeError: the same.
        InputError: see ``phase_results``.
    """
    if oracle is not None:
        try:
            return exchange_shapes(algorithm, model, memory=memory)
        except (TypeError, AttributeError):
            pass
    shapes: ExchangeShapes = _trace.eval_shape(algorithm, model, oracle, memory)  # type: ignore[no-untyped-call]
    return shapes


@jax.jit
def _trace(algorithm: AlgorithmFunctions, w0: Vector, oracle: Oracle | None,
           memory: PartyMemory | None) -> ExchangeShapes:
    """Party 0 in a round. No shape depends on the party or on the number of parties."""
    k, key, questions = jnp.array(0), root_key(0), _Questions()
    oracle = _QuestionedOracle(questions=questions) if oracle is None else oracle
    server = tree.strongly_typed(algorithm.init(w0, jnp.ones(1)))
    state = algorithm.init_party(w0, oracle, key)
    at_work = recording(oracle if memory is None else remembering(oracle, memory), on_work=questions.count_work)
    messages, replies, work, infos = [], [], [], []
    for phase in checked_phases(algorithm):
        messages.append(phase.message(server, k))
        check_arrays(f"a message of {type(algorithm).__name__}", messages[-1])
        before = questions.local_work
        _, reply, info = party_work(phase, state, messages[-1], at_work, key, jnp.ones(()))
        replies.append(reply)
        work.append(questions.local_work - before)
        infos.append(info)
    model_message = algorithm.model_message(server, k)
    personal, shared = algorithm.personal_model(state, model_message, oracle), algorithm.server_model(server)
    check_models(algorithm, w0, personal, shared)
    return ExchangeShapes(
        w0, tuple(messages), tuple(replies), model_message, shared, server, state, personal, tuple(work),
        any("memory" in info for info in infos), questions.held_out)


class _Questions:
    """What an algorithm has asked an oracle."""

    held_out = False
    local_work = 0

    def count_work(self) -> None:
        self.local_work += 1


class _QuestionedOracle(ShapeOracle):
    """Records what is asked of an oracle. JAX copies the object, and the copies share the record."""

    questions: _Questions = eqx.field(static=True, kw_only=True)

    @override
    def held_out(self, w: Vector) -> tuple[Float[Array, ""], Float[Array, ""]]:
        self.questions.held_out = True
        return super().held_out(w)
