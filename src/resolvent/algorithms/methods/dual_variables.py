"""Dual variables at the parties: FedPD and FedSpeed, FedDyn, and consensus ADMM."""

from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.method import ServerStateMethod, SharedModelMethod, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


def dual_step(solver: LocalSolver, weight: ArrayLike, g: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
    """Local work with a dual variable, of FedPD and of FedDyn: the next g_k, w_k, and the info of the work.

    w_k = argmin f_k(w) - <g_k, w> + weight/2 |w - w~|^2 from w~;   g_k <- g_k - weight (w_k - w~)
    """
    linear = jax.tree.map(jnp.negative, g)
    w, info = local_work(solver, Subproblem(oracle, shared, weight, linear), shared, key, effort)
    return tree.axpy(-jnp.asarray(weight), tree.sub(w, shared), g), w, info


class PrimalDual(SharedModelMethod):
    """Consensus by dual variables at the parties: FedPD with an exchange in every round, and FedSpeed.

    .. code-block:: text

        party:   w_k = argmin f_k(w) - <g_k, w> + 1/(2 eta) |w - w~|^2;   g_k <- g_k - (w_k - w~)/eta
                 reply w_k - eta g_k
        server:  w~ <- mean of the replies

    At a fixed point w_k = w~ and g_k = grad f_k(w~), whose mean is zero: the minimiser of the average loss. With all
    parties in every round it is Douglas-Rachford splitting, FedPi, for u_k = w~ + eta g_k, and FedDyn with alpha =
    1/eta. A party stores g_k.
    """

    solver: LocalSolver
    eta: Annotated[ArrayLike, "(0, inf)"] = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return jax.tree.map(jnp.zeros_like, w0)

    @override
    def party(self, state: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        g, w, info = dual_step(self.solver, 1 / jnp.asarray(self.eta), state, shared, oracle, key, effort)
        return g, tree.axpy(-jnp.asarray(self.eta), g, w), info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return replies.mean(), {}


class FedDynState(NamedTuple):
    """The server's state; only the model is sent."""

    model: Vector  # w~
    correction: Vector  # h, the weighted mean of all g_k


class FedDyn(ServerStateMethod):
    """FedDyn: a linear term at each party that removes the bias of local work.

    .. code-block:: text

        party:   w_k = argmin f_k(w) - <g_k, w> + alpha/2 |w - w~|^2;   g_k <- g_k - alpha (w_k - w~)
        server:  h <- h - alpha * sum over replies of lambda_k (w_k - w~);   w~ <- mean(w_k) - h/alpha

    At a fixed point w_k = w~ for all k, so that g_k = grad f_k(w~) and h = sum_k lambda_k g_k = 0: the minimiser of the
    average loss. Here h is that sum after every round, under any sampling and any drop-outs.

    In the paper h is the mean over m parties of equal weight. With all parties in every round it is consensus ADMM, and
    so the splitting FedPi with eta = 1/alpha. A party stores g_k.
    """

    solver: LocalSolver
    alpha: Annotated[ArrayLike, "(0, inf)"] = 0.1
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> FedDynState:
        return FedDynState(w0, jax.tree.map(jnp.zeros_like, w0))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return jax.tree.map(jnp.zeros_like, w0)

    @override
    def party(self, g: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        return dual_step(self.solver, self.alpha, g, shared, oracle, key, effort)

    @override
    def server(self, state: FedDynState, replies: Replies, key: Array) -> tuple[FedDynState, Info]:
        changes = jax.tree.map(lambda w, shared: jnp.where(replies.column(w), w - shared, 0), replies.payload,
                               state.model)
        correction = tree.axpy(-jnp.asarray(self.alpha), replies.total(changes), state.correction)
        return FedDynState(tree.axpy(-1 / jnp.asarray(self.alpha), correction, replies.mean()), correction), {}


class ConsensusADMM(SharedModelMethod):
    """Over-relaxed consensus ADMM with scaled dual variables; the shared model is z.

    .. code-block:: text

        party:   y_k = v_k - z;   x_k = argmin f_k(x) + rho/2 |x - (z - y_k)|^2
                 v_k <- r x_k + (1 - r) z + y_k;   reply v_k
        server:  z <- mean of the replies

    The difference of v_k from the next z is the next y_k, so that a party stores v_k only. With all parties in every
    round the y_k sum to zero, z is the mean of the relaxed x_k, and z - y_k is the iterate of the splitting (alpha,
    beta, gamma) = (2, 2, r/2) with eta = 1/rho, whose shared model, the mean of 2 x_k - (z - y_k), is another point
    until both have converged.

    Attributes:
        relaxation: r.
    """

    solver: LocalSolver
    rho: Annotated[ArrayLike, "(0, inf)"] = 1.0
    relaxation: Annotated[ArrayLike, "(0, 2)"] = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, state: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        y = tree.sub(state, shared)
        center = tree.sub(shared, y)
        x, info = local_work(self.solver, Subproblem(oracle, center, self.rho), center, key, effort)
        v = tree.axpy(1, y, tree.lerp(shared, x, self.relaxation))
        return v, v, info

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        return replies.mean(), {}
