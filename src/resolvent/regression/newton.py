"""Newton's method by sums: parties send the value, the gradient and the Hessian of their objectives."""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Phase, Replies
from resolvent.algorithms.method import Method
from resolvent.math import newton, tree
from resolvent.math.newton import NewtonState, SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.regression.objective import RegressionOracle, inverse_of, log_determinant

TOLERANCE_POWER = 0.75
"""Of the rounding error, for the default tolerance: after the last step, a decrease of about its square is left."""

INEXACT_POWER = 1.2
"""The same where the Hessian lacks terms, as that of Firth's penalty: a step leaves a part of the decrease, not its
square."""


class FederatedNewtonState(NamedTuple):
    """The server's state.

    Attributes:
        search: the state of Newton's method, with models as vectors.
        model: the accepted model.
        candidate: the model that the parties evaluate next.
        evaluation: the mean at the candidate, between the two phases of a fit with Firth's penalty; otherwise None.
    """

    search: NewtonState
    model: Vector
    candidate: Vector
    evaluation: SecondOrder | None = None


class NewtonReply(NamedTuple):
    """A party's reply.

    Attributes:
        evaluation: its objective at the candidate; zeros if a number is not finite, or beyond ``largest``.
        has_failed: 1 if so, otherwise 0: a step of the server can be far too long for one party.
    """

    evaluation: SecondOrder
    has_failed: Float[Array, ""]


class FirthQuestion(NamedTuple):
    """The server's message in the second phase of a round with Firth's penalty.

    Attributes:
        w: [..., P] the candidates.
        inverse: [..., P, P] of the information of all rows at each.
    """

    w: Float[Array, "... P"]
    inverse: Float[Array, "... P P"]


class DerivativeSums(Method):
    r"""Methods whose rounds are evaluations of f = sum_k lambda_k f_k, its gradient and its Hessian at candidates.

    With Firth's penalty, f is minus the penalised log-likelihood over n, and a round has a second phase:

    .. math:: f(w) - \frac{1}{2n}\log\det(n H(w)), \qquad
              \nabla f(w) - \frac{1}{2n}\sum_i \ell^{(3)}_i\, x_i'(nH)^{-1}x_i\, x_i

    for rows with the losses l_i in their linear predictors. The second derivatives remain H, so that Newton's method is
    Fisher's scoring, which converges linearly. Sites send P more numbers, the sum over i, for the inverse that they
    get.

    Source: Firth, *Bias reduction of maximum likelihood estimates*, 1993.

    Attributes:
        largest: a number that is not smaller, times the party's number of samples, counts as one that is not finite:
            the range of ``FixedPointSums``. None: every finite number counts.
        firth: the number of all rows, for Firth's penalty; None: without it.
    """

    largest: Annotated[float | None, "(0, inf)"] = eqx.field(static=True, default=None, kw_only=True)
    firth: Annotated[int | None, "[1, inf)"] = eqx.field(static=True, default=None, kw_only=True)

    @abstractmethod
    def candidates(self, state: Any) -> Vector:
        """The model that the parties evaluate next, or [K, P] several."""

    @abstractmethod
    def after(self, state: Any, evaluation: SecondOrder) -> Any:
        """The state after the evaluation at the candidates; a value is infinite where a number is not finite."""

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        first = Phase(lambda state, k: self.candidates(state), self.party, self._collect)
        return (first,) if self.firth is None else (first, Phase(self._question, self._answer, self._adjust))

    def party(self, state: PartyState, message: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, NewtonReply, Info]:
        """The evaluation at the candidates."""
        def evaluate(w: Vector) -> NewtonReply:
            evaluation = oracle.second_order(w)
            is_finite = tree.finite(evaluation)
            if self.largest is not None:
                from resolvent.math.fixed_point import is_in_range  # of secure sums

                for leaf in evaluation:
                    is_finite &= is_in_range(leaf * oracle.samples, self.largest)
            sent: SecondOrder = jax.tree.map(lambda leaf: jnp.where(is_finite, leaf, 0), evaluation)
            return NewtonReply(sent, jnp.where(is_finite, 0, unit))

        unit = jnp.ones((), tree.dtype(message))
        several = isinstance(message, jax.Array) and message.ndim == 2
        reply = jax.lax.map(evaluate, message) if several else evaluate(message)
        return state, reply, {"model": message[0] if several else message, "steps": unit}

    def _collect(self, state: Any, replies: Replies, key: Array) -> tuple[Any, Info]:
        mean: NewtonReply = replies.mean()
        value = jnp.where(mean.has_failed > 0, jnp.inf, mean.evaluation.value)
        evaluation = mean.evaluation._replace(value=value)
        return (self.after(state, evaluation) if self.firth is None else state._replace(evaluation=evaluation)), {}

    def _question(self, state: Any, k: Int[Array, ""]) -> FirthQuestion:
        inverse = jnp.vectorize(inverse_of, signature="(p,p)->(p,p)")(self.firth * state.evaluation.hessian)
        return FirthQuestion(self.candidates(state), inverse)

    def _answer(self, state: PartyState, message: FirthQuestion, oracle: Oracle, key: Array,
                effort: Float[Array, ""]) -> tuple[PartyState, Float[Array, "... P"], Info]:
        if not isinstance(oracle, RegressionOracle):
            raise TypeError("Firth's penalty is for the problem of a regression")
        several = message.w.ndim == 2
        slopes = (jax.lax.map(lambda m: oracle.firth_gradient(m.w, m.inverse), message) if several
                  else oracle.firth_gradient(*message))
        slopes = jnp.where(jnp.isfinite(slopes), slopes, 0)  # as at candidates whose evaluation has failed
        return state, slopes, {"model": message.w[0] if several else message.w, "steps": jnp.ones((), slopes.dtype)}

    def _adjust(self, state: Any, replies: Replies, key: Array) -> tuple[Any, Info]:
        (value, gradient, hessian), rows = state.evaluation, self.firth or 1
        bonus = jnp.vectorize(log_determinant, signature="(p,p)->()")(rows * hessian) / (2 * rows)
        penalised = SecondOrder(value - bonus, gradient - replies.mean(), hessian)
        return self.after(state, penalised), {}


class FederatedNewton(DerivativeSums):
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
    """

    l1: Annotated[Float[Array, " P"] | None, "[0, inf)"] = None
    tolerance: Annotated[ArrayLike | None, "(0, inf)"] = None
    replies_models: ClassVar[bool] = False
    needs_individual_replies: ClassVar[bool] = False
    norm_multiple: ClassVar[float | None] = None  # the Hessian of one party can be far larger than those of others

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FederatedNewtonState:
        return FederatedNewtonState(newton.start(ravel_pytree(w0)[0]), w0, w0, self._no_evaluation(w0))

    def _no_evaluation(self, w0: Vector) -> SecondOrder | None:
        if self.firth is None:
            return None
        w = ravel_pytree(w0)[0]
        return SecondOrder(jnp.zeros((), w.dtype), jnp.zeros_like(w), jnp.zeros((w.size, w.size), w.dtype))

    @override
    def candidates(self, state: FederatedNewtonState) -> Vector:
        return state.candidate

    @override
    def after(self, state: FederatedNewtonState, evaluation: SecondOrder) -> FederatedNewtonState:
        power = TOLERANCE_POWER if self.firth is None else INEXACT_POWER
        tolerance = newton.precision(state.search.point)**power if self.tolerance is None else self.tolerance
        search = newton.advance(state.search, evaluation, tolerance, self.l1)
        restore = ravel_pytree(state.model)[1]
        return state._replace(search=search, model=restore(search.point), candidate=restore(search.candidate))

    @override
    def model_message(self, state: FederatedNewtonState, k: Int[Array, ""]) -> Vector:
        return state.model

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: FederatedNewtonState) -> Vector:
        return state.model
