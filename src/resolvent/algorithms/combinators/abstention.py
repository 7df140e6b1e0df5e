"""Fed+ in which a party abstains from rounds whose centre is worse for it than the first model."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, Reply
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty
from resolvent.algorithms.combinators.iterates import PartyIterate, party_iterate, through_combinator, work_from_state
from resolvent.algorithms.combinators.relative_delta import RelativeDelta, RelativeDeltaMessage
from resolvent.algorithms.methods.fedplus import AnchorMessage, FedPlus
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Abstention", "AbstentionState"]


class AbstentionState(NamedTuple):
    """A party's state."""

    inner: Vector  # w_k, the state of Fed+
    first_loss: Float[Array, ""]  # f_k(w0)


class Abstention(Combinator):
    """A party trains alone, and does not move the centre, in rounds whose centre is worse for it than the first model.

    .. code-block:: text

        party:   f_k(w~) <= f_k(w0):   the inner algorithm's work; it replies w_k
                 otherwise:            the same work with its own model as the centre; it replies w~

    A party with inverted images, for example, is never pulled to a centre that fits the other parties, and its own
    model, which is far away, does not pull the centre: a reply w~ is a vote for no change. The comparison does not
    depend on the scale of the parameters or of the loss. A loss that is not a number counts as worse. A party evaluates
    its loss once a round, and stores one number. The rule is this library's own.

    Attributes:
        inner: Fed+, or ``RelativeDelta`` around it.

    Raises:
        InputError: the inner algorithm is not Fed+, or its solver adds noise: the comparison would not be private.

    Example:
        >>> algorithm = rv.combinators.Abstention(rv.fedavg_plus(rv.SGD(0.1), sigma=0.5))
    """

    inner: FedPlus | RelativeDelta

    def __check_init__(self) -> None:
        method = self.inner.inner if isinstance(self.inner, RelativeDelta) else self.inner
        if not isinstance(method, FedPlus):
            raise InputError(f"Abstention needs Fed+, got {type(method).__name__}: use fedplus(...) with a sigma, and "
                             "put other combinators around")
        if method.solver.adds_noise:
            raise InputError(f"Abstention compares losses on the samples that {type(method.solver).__name__} protects: "
                             "use Fed+ without it, or another solver")

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> AbstentionState:
        return AbstentionState(self.inner.init_party(w0, oracle, key), oracle.value(w0))

    @override
    def party(self, inner: InnerParty, state: AbstentionState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[AbstentionState, Reply, Info]:
        centre = _centre(message)
        takes_part = oracle.value(centre) <= state.first_loss
        message = _with_centre(message, tree.where(takes_part, centre, state.inner))
        model, reply, info = inner(state.inner, message, oracle, key, effort)
        return AbstentionState(model, state.first_loss), tree.where(takes_part, reply, centre), info

    @override
    def personal_model(self, state: AbstentionState, message: Message, oracle: Oracle) -> Vector:
        return self.inner.personal_model(state.inner, message, oracle)


def _centre(message: RelativeDeltaMessage | AnchorMessage) -> Vector:
    """w~ in the message to a party."""
    return _centre(message.message) if isinstance(message, RelativeDeltaMessage) else message.centre


def _with_centre(message: Any, centre: Vector) -> Any:
    """The message with another centre."""
    if isinstance(message, RelativeDeltaMessage):
        return message._replace(message=_with_centre(message.message, centre))
    return message._replace(centre=centre)


@party_iterate.register
def _(algorithm: Abstention) -> PartyIterate | None:
    inner = party_iterate(algorithm.inner)
    if inner is None:
        return None
    return PartyIterate(
        read=lambda state, message: inner.read(state.inner, message),
        work=work_from_state(algorithm, lambda state, point: state._replace(inner=point)),
        closing_message=lambda state: inner.closing_message(state.inner),
        shared=through_combinator(inner.shared),
    )
