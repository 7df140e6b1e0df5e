r"""Consensus by dual variables at the parties: FedPD with an exchange in every round, and FedSpeed.

.. code-block:: text

    party:   w_k = argmin f_k(w) - <g_k, w> + 1/(2 eta) |w - w~|^2;   g_k <- g_k - (w_k - w~)/eta
             reply w_k - eta g_k
    server:  w~ <- mean of the replies

At a fixed point w_k = w~ and g_k = grad f_k(w~), whose mean is zero: the minimiser of the average loss. With all
parties in every round it is Douglas-Rachford splitting, FedPi, for u_k = w~ + eta g_k, and FedDyn with alpha = 1/eta.

Source: Zhang, Hong, Dhople, Yin, Liu, *FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data*,
Algorithm 1 with p = 0 and local work that starts at the shared model; Sun, Shen, Huang, Ding, Tao, *FedSpeed*,
Algorithm 1.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["PrimalDual", "dual_step"]


def dual_step(solver: LocalSolver, weight: ArrayLike, g: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
    """Local work with a dual variable, of FedPD and of FedDyn: the next g_k, w_k, and the info of the work.

    w_k = argmin f_k(w) - <g_k, w> + weight/2 |w - w~|^2 from w~;   g_k <- g_k - weight (w_k - w~)
    """
    linear = jax.tree.map(jnp.negative, g)
    w, info = local_work(solver, Subproblem(oracle, shared, weight, linear), shared, key, effort)
    return tree.axpy(-jnp.asarray(weight), tree.sub(w, shared), g), w, info


class PrimalDual(SharedModelMethod):
    """Consensus by dual variables. A party stores g_k.

    Attributes:
        eta: length of the proximal step, positive.
    """

    solver: LocalSolver
    eta: ArrayLike = 1.0
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", eta=self.eta)

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
