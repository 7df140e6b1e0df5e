r"""Fed+: every party keeps its own model, pulled to a robust centre by a proximal penalty.

.. math::

    z_k = R(\tilde w, w_k), \qquad
    w_k \approx \arg\min f_k(w) + \tfrac\sigma2\|w-z_k\|^2 \text{ from } (1-\lambda)w_k+\lambda\tilde w, \qquad
    \tilde w \leftarrow \mathcal A(w_1,\dots,w_N)

with :math:`R(\tilde w, w_k) = \tilde w + \mathrm{prox}_{\delta\varphi}(w_k - \tilde w)` for a penalty
:math:`\Psi = \sigma\delta\varphi` and A the Moreau centre of the same penalty; or, by Proposition 3 of the first paper,
any aggregator with the pull :math:`R = (1-\gamma_k)w_k + \gamma_k\tilde w`.

Source: Kundu, Yu, Wynter, Lim, *Robustness and Personalization in Federated Learning: A Unified Approach via
Regularization*, Algorithm 1; Yu, Kundu, Wynter, Lim, *Fed+: A Unified Approach to Robust Personalized Federated
Learning*, Proposition 3.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float, Int, PyTree
from typing_extensions import override

from resolvent.algorithms.aggregators import Aggregator
from resolvent.algorithms.algorithm import Info, Iterate, OnePhaseMethod, PartyPart, Replies, local_work
from resolvent.algorithms.per_party import check_length, of_party
from resolvent.arguments import CheckedArguments
from resolvent.math import tree
from resolvent.math.penalties import Penalty
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
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

    Attributes:
        penalty: phi of Psi = sigma*delta*phi.
        delta: smoothing.
    """

    penalty: Penalty
    delta: Annotated[ArrayLike, "(0, inf)"]

    @override
    def __call__(self, centre: Vector, model: Vector, parameter: PyTree[Any]) -> Vector:
        return tree.axpy(1, self.penalty.prox(tree.sub(model, centre), self.delta), centre)


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
    parameter: PyTree[Any]  # the anchor's parameter for this party


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
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Vector:
        return w0

    @override
    def message(self, state: Vector, k: Int[Array, ""]) -> AnchorMessage:
        return AnchorMessage(state, self.anchor.parameter(k))

    @override
    def server_model(self, state: Vector) -> Vector:
        return state


class FedPlus(AnchoredMethod):
    """Fed+, Algorithm 1. A party stores its model w_k, the server stores the centre w~.

    Attributes:
        lam: lambda in [0, 1], the start of local work on the line from the party's model (0) to the centre (1).
    """

    lam: Annotated[ArrayLike, "[0, 1]"] = 0.0

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, state: Vector, message: AnchorMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        z = self.anchor(message.centre, state, message.parameter)
        start = tree.lerp(state, message.centre, self.lam)
        w, info = local_work(self.solver, Subproblem(oracle, z, self.sigma), start, key, effort)
        return w, w, info

    @override
    def server(self, state: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return self.aggregator(replies, state, key)

    @override
    def personal_model(self, state: Vector, message: AnchorMessage, oracle: Oracle) -> Vector:
        return state

    @property
    @override
    def iterate(self) -> Iterate:
        """Every w_k and the centre."""
        return Iterate(is_whole=False, party=PartyPart(
            read=lambda model, message: model,
            work=lambda point, state, message, oracle, key, effort: self.party(point, message, oracle, key, effort),
            closing_message=lambda centre: ()))
