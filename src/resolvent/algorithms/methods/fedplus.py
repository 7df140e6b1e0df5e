r"""Fed+: every party keeps its own model, pulled to a robust centre.

.. math::

    z_k = R(\tilde w, w_k), \qquad
    w_k \approx \arg\min f_k(w) + \tfrac\sigma2\|w-z_k\|^2 \text{ from } (1-\lambda)w_k+\lambda\tilde w, \qquad
    \tilde w \leftarrow \mathcal A(w_1,\dots,w_N)

with :math:`R(\tilde w, w_k) = \tilde w + \mathrm{prox}_{\delta\varphi}(w_k - \tilde w)` for a penalty
:math:`\Psi = \sigma\delta\varphi`, and A the Moreau centre of the same penalty; or, Proposition 3 of the first paper,
any aggregator with the pull :math:`R = (1-\gamma_k)w_k + \gamma_k\tilde w`.

Source: Kundu, Yu, Wynter, Lim, *Robustness and Personalization in Federated Learning: A Unified Approach via
Regularization*, Algorithm 1; Yu, Kundu, Wynter, Lim, *Fed+: A Unified Approach to Robust Personalized Federated
Learning*, Proposition 3.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Info, Method, Phase, Replies, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.penalties import Penalty
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["Anchor", "FedPlus", "ProxAnchor", "PullAnchor"]


class Anchor(eqx.Module):
    """R: where a party's model is pulled to, from the centre and its own model."""

    def sent(self, k: Int[Array, ""]) -> PyTree[Any]:
        """What party k must be told beside the centre; nothing by default."""
        return ()

    def check(self, parties: int) -> None:
        """Refuse what does not fit that many parties; by default everything fits."""

    @abstractmethod
    def __call__(self, centre: Vector, own: Vector, sent: PyTree[Any]) -> Vector:
        """z_k = R(centre, own)."""


class ProxAnchor(Anchor):
    """z_k = w~ + theta_k, theta_k = prox_{delta*phi}(w_k - w~). Source: Fed+ (11).

    Attributes:
        penalty: phi of Psi = sigma*delta*phi.
        delta: the smoothing.
    """

    penalty: Penalty
    delta: ArrayLike

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", delta=self.delta)

    def __call__(self, centre: Vector, own: Vector, sent: PyTree[Any]) -> Vector:
        """The centre plus the personal component."""
        return tree.axpy(1, self.penalty.prox(tree.sub(own, centre), self.delta), centre)


class PullAnchor(Anchor):
    """z_k = (1 - gamma_k) w_k + gamma_k w~. Source: Fed+ (first paper), Proposition 3.

    Attributes:
        gamma: in (0, 1], one for all or [N], one per party.
    """

    gamma: ArrayLike

    def __check_init__(self) -> None:
        check_range(self, "(0, 1]", gamma=self.gamma)

    def check(self, parties: int) -> None:
        """Refuse another number of pulls than of parties."""
        if jnp.ndim(self.gamma) and jnp.shape(self.gamma) != (parties,):
            raise ValueError(f"gamma needs one number, or one per party ({parties}), got shape {jnp.shape(self.gamma)}")

    def sent(self, k: Int[Array, ""]) -> Float[Array, ""]:
        """gamma_k."""
        gamma = jnp.asarray(self.gamma, dtype=None if hasattr(self.gamma, "dtype") else jnp.zeros(()).dtype)
        return gamma[k] if gamma.ndim else gamma

    def __call__(self, centre: Vector, own: Vector, sent: PyTree[Any]) -> Vector:
        """A step of gamma_k from the own model to the centre."""
        return tree.lerp(own, centre, sent)


class FedPlus(Method):
    """Fed+, Algorithm 1.

    Attributes:
        solver: the local solver; E_k is its budget times the party's effort.
        anchor: R.
        aggregator: A; for the theory, the ``MoreauCentre`` of the anchor's penalty and delta.
        sigma: the penalty on |w_k - z_k|^2 / 2.
        lam: lambda, how far the local work starts from the own model towards the centre, in [0, 1].
    """

    solver: LocalSolver
    anchor: Anchor
    aggregator: Aggregator
    sigma: ArrayLike
    lam: ArrayLike = 0.0
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, inf)", sigma=self.sigma)
        check_range(self, "[0, 1]", lam=self.lam)

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Vector:
        """The server holds the centre."""
        self.anchor.check(len(weights))
        return w0

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """A party keeps its own model."""
        return w0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(self._message, self._party, self._server),)

    def _message(self, centre: Vector, k: Int[Array, ""]) -> tuple[Vector, PyTree[Any]]:
        return centre, self.anchor.sent(k)

    def own_iterate(self, own: Vector, message: Any) -> Vector:
        """w_k: a party's part of what a round maps to the next."""
        return own

    def work(self, point: Vector, own: Vector, message: tuple[Vector, PyTree[Any]], oracle: Oracle, key: Array,
             effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        """The round of a party whose model is ``point``."""
        centre, sent = message
        subproblem = Subproblem(oracle, self.anchor(centre, point, sent), self.sigma)
        w, info = local_work(self.solver, subproblem, tree.lerp(point, centre, self.lam), key, effort)
        return w, w, info

    def _party(self, own: Vector, message: tuple[Vector, PyTree[Any]], oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        return self.work(own, own, message, oracle, key, effort)

    def closing(self, centre: Vector) -> tuple[()]:
        """Nothing: a party knows its new model."""
        return ()

    def shared_iterate(self, centre: Vector) -> Vector:
        """The centre: the server's part of what a round maps to the next."""
        return centre

    def with_shared_iterate(self, centre: Vector, point: Vector) -> Vector:
        """Another centre."""
        return point

    def _server(self, centre: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return self.aggregator(replies, centre)

    def personal_model(self, state: Vector, message: tuple[Vector, PyTree[Any]], oracle: Oracle) -> Vector:
        """The party's own model."""
        return state

    def server_model(self, state: Vector) -> Vector:
        """The robust centre."""
        return state
