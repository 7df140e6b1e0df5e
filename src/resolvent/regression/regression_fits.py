"""What follows the fit of a regression: the sums from which it is reported, and each party's own fit."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import OnePhaseMethod
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.newton import Newton
from resolvent.problem.subproblem import Subproblem
from resolvent.regression.families import RowTerms
from resolvent.regression.objective import FitSums, RegressionOracle, ScoreWeights, inverse_of


class FitQuestion(NamedTuple):
    """The server's message.

    Attributes:
        estimates: [P] the common estimates.
        inverse: [P, P] of the information of all rows; zero before it is known, None where it is not needed.
    """

    estimates: Vector
    inverse: Float[Array, "P P"] | None


class FitReply(NamedTuple):
    """A party's reply.

    Attributes:
        means: of the party's rows at the common estimates.
        local: the party's own estimates, and the means of its rows there; None if they do not leave it.
    """

    means: FitSums
    local: tuple[Vector, FitSums] | None


class FitReport(NamedTuple):
    """The server's state; all but the estimates are zero before the round.

    Attributes:
        estimates: [P] the common estimates.
        means: over all rows at the estimates.
        local: leaves [N, ...], the parties' own estimates and means.
    """

    estimates: Vector
    means: FitSums
    local: tuple[Vector, FitSums] | None


class SumsOfFit(OnePhaseMethod):
    """The means of a fit over all rows at the first model: information, scores, deviance; see ``FitSums``.

    It is one round after the fit, and its first model is the estimate. Without ``with_local_fits`` the server needs
    sums only. All parties must take part.

    Attributes:
        with_local_fits: whether each party also fits its own rows, as a meta-analysis needs: these numbers are of one
            party each.
        leverage_power: of the weights of the scores, see ``ScoreWeights``. Where it is not zero, a second round has the
            inverse of the information that the first one has found.
        rows: the number of all rows, which the leverages need.
        scores: whether the outer products of the rows' gradients leave the parties; otherwise they are zero.
    """

    with_local_fits: bool = eqx.field(static=True, default=False)
    leverage_power: float = eqx.field(static=True, default=0.0)
    rows: int = eqx.field(static=True, default=1)
    scores: bool = eqx.field(static=True, default=True)
    replies_models: ClassVar[bool] = False
    norm_multiple: ClassVar[float | None] = None  # the sums of one party can be far larger than those of others

    @property
    def needs_individual_replies(self) -> bool:
        """Only for the parties' own fits."""
        return self.with_local_fits

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FitReport:
        square, zero = jnp.zeros((w0.size, w0.size), w0.dtype), jnp.zeros((), w0.dtype)
        means = FitSums(jnp.zeros_like(w0), square, square, square, square, square, RowTerms(zero, zero, zero, zero),
                        zero, zero)
        local = jax.tree.map(lambda leaf: jnp.zeros((*shares.shape, *leaf.shape), leaf.dtype), (w0, means))
        return FitReport(w0, means, local if self.with_local_fits else None)

    @override
    def message(self, state: FitReport, k: Int[Array, ""]) -> FitQuestion:
        if not self.leverage_power:
            return FitQuestion(state.estimates, None)
        return FitQuestion(state.estimates, inverse_of(self.rows * state.means.information))

    @override
    def model_message(self, state: FitReport, k: Int[Array, ""]) -> Vector:
        return state.estimates

    @override
    def party(self, state: PartyState, message: FitQuestion, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, FitReply, Info]:
        if not isinstance(oracle, RegressionOracle):
            raise TypeError("SumsOfFit is for the problem of a regression")
        w, inverse = message
        local = fit_of_party(oracle, w) if self.with_local_fits else None
        weights = None if inverse is None else ScoreWeights(inverse, self.leverage_power)
        reply = FitReply(oracle.fit_sums(w, weights), local)
        if not self.scores:
            reply = eqx.tree_at(lambda r: [sums.scores for sums in (r.means, *(r.local or ())[1:])], reply,
                                replace_fn=jnp.zeros_like)
        return state, reply, {"model": w, "steps": jnp.ones((), w.dtype)}

    @override
    def server(self, state: FitReport, replies: Replies, key: Array) -> tuple[FitReport, Info]:
        local = jax.tree.map(lambda old, new: old.at[replies.index].set(new), state.local, replies.payload.local)
        return FitReport(state.estimates, replies.mean(replies.payload.means), local), {}

    @override
    def personal_model(self, state: PartyState, message: Vector, oracle: Oracle) -> Vector:
        return message

    @override
    def server_model(self, state: FitReport) -> Vector:
        return state.estimates


def fit_of_party(oracle: RegressionOracle, start: Vector) -> tuple[Vector, FitSums]:
    """[P] the estimates of one party from its own rows, and the means of its fit."""
    w, _, _ = Newton()(Subproblem(oracle, start, 0.0), start, jax.random.key(0), jnp.ones((), tree.dtype(start)))
    return w, oracle.fit_sums(w)
