r"""Fed+: every party keeps its own model, pulled to a robust centre by a proximal penalty.

.. math::

    z_k = R(\tilde w, w_k), \qquad
    w_k \approx \operatorname{argmin} f_k(w) + \tfrac\sigma2\|w-z_k\|^2 \text{ from } (1-\lambda)w_k+\lambda\tilde w,
    \qquad
    \tilde w \leftarrow \mathcal A(w_1,\dots,w_N)

with :math:`R(\tilde w, w_k) = \tilde w + \mathrm{prox}_{\delta\varphi}(w_k - \tilde w)` for a penalty
:math:`\Psi = \sigma\delta\varphi` and A the Moreau centre of the same penalty; or, by Proposition 3 of the first paper,
any aggregator with the pull :math:`R = (1-\gamma_k)w_k + \gamma_k\tilde w`.

Source: Kundu, Yu, Wynter, Lim, *Robustness and Personalization in Federated Learning: A Unified Approach via
Regularization*, Algorithm 1; Yu, Kundu, Wynter, Lim, *Fed+: A Unified Approach to Robust Personalized Federated
Learning*, Proposition 3.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.aggregators.medians import median_threshold
from resolvent.algorithms.algorithm import Info, Iterate, Part, PartyPart, Replies
from resolvent.algorithms.method import OnePhaseMethod, local_work
from resolvent.algorithms.per_party import check_length, of_party
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.penalties import Penalty
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


class Anchor(CheckedArguments, eqx.Module):
    """R: the point z_k to which a party's model is pulled, from the centre and its own model."""

    def parameter(self, k: Int[Array, ""]) -> PyTree[Any]:
        """What party k is sent in addition to the centre; nothing by default."""
        return ()

    def check(self, parties: int) -> None:
        """Refuse settings that do not fit the number of parties; everything fits by default."""

    @abstractmethod
    def __call__(self, centre: Vector, model: Vector, parameter: PyTree[Any]) -> Vector:
        """z_k = R(centre, model)."""


class ProxAnchor(Anchor):
    """z_k = w~ + theta_k with the personal component theta_k = prox_{delta*phi}(w_k - w~). Source: Fed+ (11).

    A relative delta is a multiple of the spread of the models, which the server measures in every round, and sends:

    .. code-block:: text

        distance_k(w) = the smallest t for which prox_{t phi}(w_k - w) is zero: |w_k - w| for phi = |theta|
        delta <- multiple * median_k distance_k(w~)             from the new centre w~

    The median is weighted like the aggregate, so that parties with less than half of the weight cannot move it far. If
    all parameters are multiplied by a number, delta is multiplied by it too. In the first round, in which all models
    are equal, it is zero. With a multiple of 1, half of the parties are pulled to the centre completely. The centre
    then is a ``MoreauCentre`` that is relative too.

    Attributes:
        penalty: phi of Psi = sigma*delta*phi.
        delta: smoothing, or the multiple.
        is_relative: whether delta is a multiple of the median distance of the replies from the centre.

    Raises:
        InputError: ``is_relative`` with a penalty that is not a norm, or norms of layers.
    """

    penalty: Penalty
    delta: Annotated[ArrayLike, "(0, inf)"]
    is_relative: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if self.is_relative and not self.penalty.has_bounded_pull:
            raise InputError("a delta that is relative to the spread of the models needs a norm as the penalty, got "
                             f"{type(self.penalty).__name__}: give delta as a number")

    @override
    def __call__(self, centre: Vector, model: Vector, parameter: PyTree[Any]) -> Vector:
        delta = parameter if self.is_relative else self.delta
        return tree.axpy(1, self.penalty.prox(tree.sub(model, centre), delta), centre)


class PullAnchor(Anchor):
    """z_k = (1 - gamma_k) w_k + gamma_k w~. Source: Fed+ (first paper), Proposition 3.

    Attributes:
        gamma: pull in (0, 1], one number for all parties or [N], one per party.
    """

    gamma: Annotated[ArrayLike | Float[Array, " N"], "(0, 1]"]

    @override
    def check(self, parties: int) -> None:
        check_length("gamma", self.gamma, parties)

    @override
    def parameter(self, k: Int[Array, ""]) -> Float[Array, ""]:
        return of_party(self.gamma, k, keep_dtype=True)

    @override
    def __call__(self, centre: Vector, model: Vector, parameter: PyTree[Any]) -> Vector:
        return tree.lerp(model, centre, parameter)


class AnchorMessage(NamedTuple):
    """The server's message to a party."""

    centre: Vector  # w~
    parameter: PyTree[Any]  # the anchor's parameter for this party, or delta if it is relative


class CentreAndDelta(NamedTuple):
    """The server's state if delta is relative."""

    centre: Vector  # w~
    delta: Float[Array, ""]


ServerCentre: TypeAlias = Vector | CentreAndDelta


class AnchoredMethod(OnePhaseMethod):
    """A method whose parties have models of their own, pulled to the aggregate of the replies, the centre.

    Attributes:
        solver: local solver; E_k is its budget times the party's effort.
        anchor: R.
        aggregator: A; in the theory the ``MoreauCentre`` of the anchor's penalty and delta.
        sigma: weight of |w_k - z_k|^2 / 2, with z_k the anchor's point.
    """

    solver: LocalSolver
    anchor: Anchor
    aggregator: Aggregator
    sigma: Annotated[ArrayLike, "[0, inf)"]
    replies_models: ClassVar[bool] = True

    @property
    @override
    def needs_individual_replies(self) -> bool:
        return not self.aggregator.linear

    @override
    def check(self, parties: int) -> None:
        self.anchor.check(parties)

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> ServerCentre:
        is_relative = isinstance(self.anchor, ProxAnchor) and self.anchor.is_relative
        return CentreAndDelta(w0, jnp.zeros((), tree.dtype(w0))) if is_relative else w0

    @override
    def message(self, state: ServerCentre, k: Int[Array, ""]) -> AnchorMessage:
        if not isinstance(state, CentreAndDelta):
            return AnchorMessage(state, self.anchor.parameter(k))
        tiny = jnp.finfo(state.delta.dtype).tiny  # type: ignore[no-untyped-call]
        return AnchorMessage(state.centre, jnp.maximum(state.delta, tiny))

    @override
    def origin(self, message: AnchorMessage) -> Vector:
        return message.centre

    @override
    def server(self, state: ServerCentre, replies: Replies, key: Array) -> tuple[ServerCentre, Info]:
        if not isinstance(state, CentreAndDelta):
            return self.aggregator(replies, state, key)
        assert isinstance(self.anchor, ProxAnchor)
        centre, info = self.aggregator(replies, state.centre, key)
        delta = median_threshold(self.anchor.penalty, replies, centre, self.anchor.delta).astype(state.delta.dtype)
        return CentreAndDelta(centre, delta), {**info, "delta": delta}

    @override
    def server_model(self, state: ServerCentre) -> Vector:
        return state.centre if isinstance(state, CentreAndDelta) else state


class FirstLoss(NamedTuple):
    """The state of a party that can abstain."""

    model: Vector  # w_k
    first_loss: Float[Array, ""]  # f_k(w0)


PlusState: TypeAlias = Vector | FirstLoss


class FedPlus(AnchoredMethod):
    """Fed+, Algorithm 1. A party stores its model w_k, the server stores the centre w~.

    With ``abstains``, a party trains alone, and does not move the centre, in rounds whose centre is worse for it than
    the first model:

    .. code-block:: text

        party:   f_k(w~) <= f_k(w0):   its work as above; it replies w_k
                 otherwise:            the same work with its own model as the centre; it replies w~

    A party with inverted images, for example, is never pulled to a centre that fits the other parties, and its own
    model, which is far away, does not pull the centre: a reply w~ is a vote for no change. The comparison does not
    depend on the scale of the parameters or of the loss. A loss that is not a number counts as worse. A party evaluates
    its loss once a round, and stores one number. The rule is this library's own.

    Attributes:
        lam: lambda in [0, 1], the start of local work on the line from the party's model (0) to the centre (1).
        abstains: whether parties abstain from rounds whose centre does not suit them.

    Raises:
        InputError: ``abstains`` with a solver that adds noise: the comparison would not be private.
    """

    lam: Annotated[ArrayLike, "[0, 1]"] = 0.0
    abstains: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self) -> None:
        if self.abstains and self.solver.adds_noise:
            raise InputError(f"parties that abstain compare losses on the samples that {type(self.solver).__name__} "
                             "protects: leave abstains out, or use another solver")

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PlusState:
        return FirstLoss(w0, oracle.value(w0)) if self.abstains else w0

    @override
    def party(self, state: PlusState, message: AnchorMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PlusState, Vector, Info]:
        if not isinstance(state, FirstLoss):
            w, info = self._work(state, message, oracle, key, effort)
            return w, w, info
        takes_part = oracle.value(message.centre) <= state.first_loss
        own = message._replace(centre=tree.where(takes_part, message.centre, state.model))
        w, info = self._work(state.model, own, oracle, key, effort)
        return FirstLoss(w, state.first_loss), tree.where(takes_part, w, message.centre), info

    def _work(self, model: Vector, message: AnchorMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Info]:
        z = self.anchor(message.centre, model, message.parameter)
        start = tree.lerp(model, message.centre, self.lam)
        return local_work(self.solver, Subproblem(oracle, z, self.sigma), start, key, effort)

    @override
    def personal_model(self, state: PlusState, message: AnchorMessage, oracle: Oracle) -> Vector:
        return state.model if isinstance(state, FirstLoss) else state

    @property
    @override
    def iterate(self) -> Iterate:
        """Every w_k and the centre."""
        def with_centre(state: ServerCentre, centre: Vector) -> ServerCentre:
            return state._replace(centre=centre) if isinstance(state, CentreAndDelta) else centre

        def work(model: Vector, state: PlusState, message: AnchorMessage, oracle: Oracle, key: Array,
                 effort: Float[Array, ""]) -> tuple[PlusState, Vector, Info]:
            own = state._replace(model=model) if isinstance(state, FirstLoss) else model
            return self.party(own, message, oracle, key, effort)

        return Iterate(Part(self.server_model, with_centre), is_whole=False, party=PartyPart(
            read=lambda state, message: state.model if isinstance(state, FirstLoss) else state, work=work,
            closing_message=lambda state: ()))
