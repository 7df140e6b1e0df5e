"""Methods for parties that take part at different rates: MIFA, FedVARP and FedAU."""

from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.method import OnePhaseMethod, ServerStateMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

Step = Literal["memory", "corrected"]


class StoredUpdatesState(NamedTuple):
    """The server's state."""

    model: Vector  # w~
    mean: Vector  # h = sum_k lambda_k h_k over all N parties


class StoredUpdates(ServerStateMethod):
    """The server steps with the last updates of all parties, those of absent parties included.

    .. code-block:: text

        party:   w_k = local work from w~;   reply d_k = (w_k - w~) - h_k;   h_k <- w_k - w~
        server:  g = h + sum over replies of lambda_k d_k    (memory: MIFA)
                 g = h + mean of d_k                         (corrected: FedVARP)
                 w~ <- w~ + server_rate * g;   h <- h + sum over replies of lambda_k d_k

    A party stores its last update h_k, so that the server needs only their mean h. Before its first reply h_k is zero.
    In MIFA's paper G_k is -h_k/eta. In a round without a reply nothing changes; there the server would repeat its last
    step.
    """

    solver: LocalSolver
    step: Step = eqx.field(static=True, default="memory")
    server_rate: Annotated[ArrayLike, "(0, inf)"] = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> StoredUpdatesState:
        return StoredUpdatesState(w0, jax.tree.map(jnp.zeros_like, w0))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return jax.tree.map(jnp.zeros_like, w0)

    @override
    def party(self, h_k: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        update = tree.sub(w, shared)
        return update, tree.sub(update, h_k), info

    @override
    def server(self, state: StoredUpdatesState, replies: Replies, key: Array) -> tuple[StoredUpdatesState, Info]:
        mean = tree.axpy(1, replies.total(replies.payload), state.mean)
        step = mean if self.step == "memory" else tree.axpy(1, replies.mean(), state.mean)
        return StoredUpdatesState(tree.axpy(self.server_rate, step, state.model), mean), {}


class FedAUMessage(NamedTuple):
    """The server's state, which is also the message to every party."""

    model: Vector  # w~
    round: Int[Array, ""]  # t, the number of rounds with a reply so far


class FedAUParty(NamedTuple):
    """A party's state."""

    intervals: Int[Array, ""]  # M, the number of intervals so far
    weight: Float[Array, ""]  # omega_k, their mean length
    start: Int[Array, ""]  # the round in which the current interval began


class FedAUReply(NamedTuple):
    """A party's reply."""

    update: Vector  # omega_k (w_k - w~)


class FedAU(OnePhaseMethod):
    """FedAU: updates weighted by the mean interval between two rounds of the party, which estimates 1/rate.

    .. code-block:: text

        party:   S = rounds since the last one in which it took part; intervals longer than the cutoff K are divided
                 omega_k = mean length of the earlier intervals, 1 if there are none
                 reply omega_k (w_k - w~)
        server:  w~ <- w~ + server_rate * sum over replies of lambda_k omega_k (w_k - w~)

    The server learns nothing but the weighted update. Rounds without a reply are not counted, which multiplies all
    omega_k by the same factor.
    """

    solver: LocalSolver
    cutoff: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=50)
    server_rate: Annotated[ArrayLike, "(0, inf)"] = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FedAUMessage:
        return FedAUMessage(w0, jnp.zeros((), jnp.int32))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> FedAUParty:
        return FedAUParty(jnp.zeros((), jnp.int32), jnp.ones((), tree.dtype(w0)), jnp.zeros((), jnp.int32))

    @override
    def party(self, state: FedAUParty, message: FedAUMessage, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[FedAUParty, FedAUReply, Info]:
        shared, t = message
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        # Since the interval began, the cutoff has ended this many intervals.
        full = (t - state.start) // self.cutoff
        earlier = _with_intervals(state, full, self.cutoff)
        start = state.start + full * self.cutoff
        after = _with_intervals(earlier, jnp.ones_like(full), t + 1 - start)._replace(start=t + 1)
        reply = FedAUReply(tree.scale(earlier.weight, tree.sub(w, shared)))
        return after, reply, {**info, "omega": earlier.weight}

    @override
    def server(self, state: FedAUMessage, replies: Replies, key: Array) -> tuple[FedAUMessage, Info]:
        step = replies.total(replies.payload.update)
        return FedAUMessage(tree.axpy(self.server_rate, step, state.model), state.round + 1), {}

    @override
    def personal_model(self, state: FedAUParty, message: FedAUMessage, oracle: Oracle) -> Vector:
        return message.model

    @override
    def server_model(self, state: FedAUMessage) -> Vector:
        return state.model


def _with_intervals(state: FedAUParty, number: Int[Array, ""], length: Int[ArrayLike, ""]) -> FedAUParty:
    """The state with this number of further intervals of this length in the mean."""
    intervals = state.intervals + number
    total = (state.intervals * state.weight + number * length).astype(state.weight.dtype)
    mean = jnp.where(intervals > 0, total / jnp.maximum(intervals, 1), state.weight)
    return state._replace(intervals=intervals, weight=mean.astype(state.weight.dtype))
