"""Newton's method by sums: parties send the value, the gradient and the Hessian of their objectives."""

from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import OnePhaseMethod
from resolvent.math import newton, tree
from resolvent.math.fixed_point import is_in_range
from resolvent.math.newton import NewtonState, SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

TOLERANCE_POWER = 0.75
"""Of the rounding error, for the default tolerance: after the last step, a decrease of about its square is left."""


class FederatedNewtonState(NamedTuple):
    """The server's state.

    Attributes:
        search: the state of Newton's method, with models as vectors.
        model: the accepted model.
        candidate: the model that the parties evaluate next.
    """

    search: NewtonState
    model: Vector
    candidate: Vector


class NewtonReply(NamedTuple):
    """A party's reply.

    Attributes:
        evaluation: its objective at the candidate; zeros if a number is not finite, or beyond ``largest``.
        has_failed: 1 if so, otherwise 0: a step of the server can be far too long for one party.
    """

    evaluation: SecondOrder
    has_failed: Float[Array, ""]


class FederatedNewton(OnePhaseMethod):
    r"""Newton's method with a line search on the average objective, exact for any division of the rows.

    .. math:: d = -\Big(\sum_k\lambda_k \nabla^2 f_k(w)\Big)^{-1} \sum_k\lambda_k\nabla f_k(w), \quad
              w \leftarrow w + t d

    A round is one evaluation of f, its gradient and its Hessian at a candidate w + t d, t = 1, 1/2, ...; the server
    accepts it if f has fallen enough (Armijo) and is finite at every party. For a generalised linear model with its
    canonical link this is iteratively reweighted least squares. With ``l1`` it is the proximal Newton method, for the
    lasso and the elastic net. The server needs sums only. All parties must take part: sums over other cohorts are of
    other objectives.

    Attributes:
        l1: [P] weights of the absolute values of the parameters, as one vector; None: zero.
        tolerance: the predicted decrease of the objective at which it takes the last step and stays, relative to the
            largest objective so far; None: the precision to the power 0.75.
        largest: a number that is not smaller, times the party's number of samples, counts as one that is not finite:
            the range of ``FixedPointSums``. None: every finite number counts.
    """

    l1: Annotated[Float[Array, " P"] | None, "[0, inf)"] = None
    tolerance: Annotated[ArrayLike | None, "(0, inf)"] = None
    largest: Annotated[float | None, "(0, inf)"] = eqx.field(static=True, default=None)
    replies_models: ClassVar[bool] = False
    needs_individual_replies: ClassVar[bool] = False
    norm_multiple: ClassVar[float | None] = None  # the Hessian of one party can be far larger than those of others

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FederatedNewtonState:
        return FederatedNewtonState(newton.start(ravel_pytree(w0)[0]), w0, w0)

    @override
    def message(self, state: FederatedNewtonState, k: Int[Array, ""]) -> Vector:
        return state.candidate

    @override
    def party(self, state: PartyState, message: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, NewtonReply, Info]:
        evaluation = oracle.second_order(message)
        is_finite = tree.finite(evaluation)
        if self.largest is not None:
            for leaf in evaluation:
                is_finite &= is_in_range(leaf * oracle.samples, self.largest)
        sent: SecondOrder = jax.tree.map(lambda leaf: jnp.where(is_finite, leaf, 0), evaluation)
        unit = jnp.ones((), tree.dtype(message))
        return state, NewtonReply(sent, jnp.where(is_finite, 0, unit)), {"model": message, "steps": unit}

    @override
    def server(self, state: FederatedNewtonState, replies: Replies, key: Array) -> tuple[FederatedNewtonState, Info]:
        tolerance = newton.precision(state.search.point)**TOLERANCE_POWER if self.tolerance is None else self.tolerance
        mean: NewtonReply = replies.mean()
        value = jnp.where(mean.has_failed > 0, jnp.inf, mean.evaluation.value)
        search = newton.advance(state.search, mean.evaluation._replace(value=value), tolerance, self.l1)
        restore = ravel_pytree(state.model)[1]
        return FederatedNewtonState(search, restore(search.point), restore(search.candidate)), {}

    @override
    def model_message(self, state: FederatedNewtonState, k: Int[Array, ""]) -> Vector:
        return state.model

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: FederatedNewtonState) -> Vector:
        return state.model
