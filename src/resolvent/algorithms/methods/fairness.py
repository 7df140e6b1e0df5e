"""Parties count by their losses, or by the balance of their labels: q-FedAvg, TERM, AFL and FedDisco."""

from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from optax.projections import projection_simplex
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, PartyState, Replies
from resolvent.algorithms.method import ServerStateMethod, SharedModelMethod, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model
from resolvent.problem.objective import Batch, Context
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

_SMALLEST_LOSS = 1e-10  # the authors' code adds it to every loss


class QUpdate(NamedTuple):
    """A party's reply."""

    change: Vector  # Delta_k
    curvature: Float[Array, ""]  # h_k


class QFedAvg(SharedModelMethod):
    """q-FedAvg: FedAvg in which the update of party k counts by the q-th power of its loss.

    .. code-block:: text

        party:   dw_k = L (w~ - w_k) after the local work on f_k from w~
                 reply Delta_k = f_k(w~)^q dw_k  and  h_k = q f_k(w~)^(q-1) |dw_k|^2 + L f_k(w~)^q
        server:  w~ <- w~ - mean(Delta_k) / mean(h_k)

    The server needs means only. If no party has a loss, both means are zero, and the model stays.

    Attributes:
        L: the Lipschitz constant of the gradients.
    """

    solver: LocalSolver
    q: Annotated[ArrayLike, "[0, inf)"]
    L: Annotated[ArrayLike, "(0, inf)"]
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, QUpdate, Info]:
        change, info = _change(self.solver, shared, oracle, key, effort)
        change = tree.scale(-jnp.asarray(self.L), change)
        loss = jnp.maximum(oracle.value(shared), _SMALLEST_LOSS)
        power = loss**self.q
        curvature = power * (self.q * tree.full_dot(change, change) / loss + self.L)
        return state, QUpdate(tree.scale(power, change), curvature.astype(loss.dtype)), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean = replies.mean()
        step = 1 / jnp.where(mean.curvature > 0, mean.curvature, 1)
        return tree.axpy(-step, mean.change, shared), {"server_step": step}


class MeasuredChange(NamedTuple):
    """A party's reply."""

    change: Vector  # w_k - w~
    measure: Float[Array, ""]  # a number by which the server weighs the change


class TERM(SharedModelMethod):
    """TERM over parties: FedAvg in which party k counts in proportion to exp(t f_k(w~)).

    .. code-block:: text

        party:   w_k = local work on f_k from w~;   reply w_k - w~ and f_k(w~)
        server:  omega_k = lambda_k exp(t f_k(w~)) / sum of the same;   w~ <- w~ + sum of omega_k (w_k - w~)

    Attributes:
        t: the tilt.
    """

    solver: LocalSolver
    t: Annotated[ArrayLike, "(-inf, inf)"]
    needs_individual_replies: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, MeasuredChange, Info]:
        change, info = _change(self.solver, shared, oracle, key, effort)
        return state, MeasuredChange(change, oracle.value(shared)), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        tilts = jnp.where(replies.weight > 0, self.t * replies.payload.measure, -jnp.inf)
        weight = replies.weight * jnp.exp(tilts - jnp.max(tilts))  # the largest exponent is 0: no overflow
        return tree.axpy(1, _mean_change(replies, weight), shared), {}


class AFLState(NamedTuple):
    """The server's state."""

    model: Vector  # w~
    weights: Float[Array, " N"]  # lambda, the weights of all parties


class AFL(ServerStateMethod):
    """AFL, agnostic federated learning: descent in the model, ascent in the weights of the parties.

    .. code-block:: text

        party:   w_k = local work on f_k from w~;   reply w_k - w~ and f_k(w~)
        server:  w~ <- w~ + sum of lambda_k (w_k - w~) / sum of lambda_k, over the replies
                 lambda <- the point of the simplex that is nearest to lambda + gamma (f_1(w~), ..., f_N(w~))

    The first lambda is the parties' shares. A party that does not reply counts as one with the loss 0 in the second
    step. If the weights of all replies are 0, the model stays.

    Attributes:
        gamma: step of the ascent.
    """

    solver: LocalSolver
    gamma: Annotated[ArrayLike, "[0, inf)"]
    needs_individual_replies: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> AFLState:
        return AFLState(w0, shares)

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, MeasuredChange, Info]:
        change, info = _change(self.solver, shared, oracle, key, effort)
        return state, MeasuredChange(change, oracle.value(shared)), info

    @override
    def server(self, state: AFLState, replies: Replies, key: Array) -> tuple[AFLState, Info]:
        change = _mean_change(replies, jnp.where(replies.alive, state.weights[replies.index], 0))
        losses = jnp.where(replies.alive, replies.payload.measure, 0).astype(state.weights.dtype)
        weights = projection_simplex(state.weights.at[replies.index].add(self.gamma * losses))
        return AFLState(tree.axpy(1, change, state.model), weights), {"largest_weight": jnp.max(weights)}


class FedDisco(SharedModelMethod):
    """FedDisco: FedAvg in which a party counts less the further its labels are from balance.

    .. code-block:: text

        party:   w_k = local work on f_k from w~
                 d_k = sum over classes c of D_k[c] log(C D_k[c]),   D_k[c] the share of its samples of class c
                 reply w_k - w~ and d_k
        server:  p_k = relu(n_k - a d_k + b) / sum of the same;   w~ <- w~ + sum of p_k (w_k - w~)

    n_k is the share of the party in the weight of the replies. If all p_k are 0, the model stays.

    Attributes:
        classes: C, the number of classes.
    """

    solver: LocalSolver
    a: Annotated[ArrayLike, "[0, inf)"]
    b: Annotated[ArrayLike, "[0, inf)"]
    classes: Annotated[int, "[1, inf)"] = eqx.field(static=True)
    needs_individual_replies: ClassVar[bool] = True
    replies_models: ClassVar[bool] = False

    @override
    def party(self, state: PartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[PartyState, MeasuredChange, Info]:
        change, info = _change(self.solver, shared, oracle, key, effort)

        def counts(batch: Batch, model: Model) -> Array:
            context = Context(model, {})
            outputs = jax.eval_shape(context.outputs, shared, batch)
            if outputs.shape[1:] != (self.classes,):
                raise InputError(f"feddisco(classes={self.classes}), but for a sample the model has outputs "
                                 f"{list(outputs.shape[1:])}: set classes to their number")
            return jnp.sum((context.classes(batch)[:, None] == jnp.arange(self.classes)) & batch.mask[:, None], axis=0,
                           dtype=jnp.int32)

        total = oracle.total(counts, jnp.zeros(self.classes, jnp.int32)).astype(tree.dtype(change))
        shares = total / jnp.maximum(jnp.sum(total), 1)
        discrepancy = jnp.sum(shares * jnp.log(jnp.where(shares > 0, self.classes * shares, 1)))
        return state, MeasuredChange(change, discrepancy), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        sizes = replies.weight / jnp.sum(replies.weight)
        weight = jnp.where(replies.alive, jnp.maximum(sizes - self.a * replies.payload.measure + self.b, 0), 0)
        return tree.axpy(1, _mean_change(replies, weight), shared), {}


def _change(solver: LocalSolver, shared: Vector, oracle: Oracle, key: Array,
            effort: Float[Array, ""]) -> tuple[Vector, Info]:
    """w_k - w~ after the local work on f_k from w~."""
    w, info = local_work(solver, Subproblem(oracle, shared), shared, key, effort)
    return tree.sub(w, shared), info


def _mean_change(replies: Replies, weight: Float[Array, " C"]) -> Vector:
    """The mean of the changes with other weights; 0 if all weights are."""
    is_positive = jnp.sum(weight) > 0
    weighted = replace(replies, weight=jnp.where(is_positive, weight, replies.weight).astype(replies.weight.dtype))
    return tree.scale(jnp.where(is_positive, 1.0, 0.0), weighted.mean(replies.payload.change))
