r"""pFedMe: the shared model descends on the parties' Moreau envelopes; a party uses its proximal point.

.. code-block:: text

    party:   w_k = w~;  R times:  theta_k ~ argmin f_k + lam/2 |. - w_k|^2,  w_k <- w_k - eta*lam*(w_k - theta_k)
    server:  w~ <- (1 - beta) w~ + beta * mean(w_k)

lam (w - theta_k) is the gradient of the envelope min_theta f_k(theta) + lam/2 |theta - w|^2.

Source: T Dinh, Tran, Nguyen, *Personalized Federated Learning with Moreau Envelopes*, Algorithm 1. There every party
works and a sample of them replies; here only the sample works. As in the authors' code the first theta_k starts at w~
and each later one at the one before; the paper leaves it open.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, Replies, SharedModelMethod
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["PFedMe"]


class PFedMe(SharedModelMethod):
    """pFedMe.

    Attributes:
        solver: finds theta_k.
        lam: how strongly theta_k is held to w_k.
        eta: the length of a step on the envelope.
        steps: R, how many of these.
        beta: how far the server goes to the mean; beyond 1 it goes further.
        aggregator: in place of the mean.
    """

    solver: LocalSolver
    lam: ArrayLike = 15.0
    eta: ArrayLike = 0.005
    steps: ArrayLike = 20
    beta: ArrayLike = 1.0
    aggregator: Aggregator = Mean()
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", lam=self.lam, eta=self.eta, steps=self.steps, beta=self.beta)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """The personal model."""
        return w0

    def party(self, own: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        """R steps on the Moreau envelope."""
        def descend(_: Array, carry: tuple[Vector, Vector, Vector, Array, Array]) -> tuple[
                Vector, Vector, Vector, Array, Array]:
            w, theta, _, key, made = carry
            theta, steps = self.solver(Subproblem(oracle, w, self.lam), theta, key, effort)
            # The key changes after the step: the first one meets FedProx's minibatches.
            return (tree.lerp(w, theta, self.eta * self.lam), theta, w, jax.random.fold_in(key, 1),
                    made + steps.astype(made.dtype))

        start = (shared, shared, shared, key, jnp.zeros((), tree.dtype(shared)))
        w, theta, centre, _, made = jax.lax.fori_loop(0, self.steps, descend, start)
        last = Subproblem(oracle, centre, self.lam)
        return theta, w, {"model": theta, "steps": made, "inexactness": last.inexactness(theta, shared)}

    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """Part of the way to the aggregate, or beyond."""
        mean, info = self.aggregator(replies, shared)
        return tree.lerp(shared, mean, self.beta), info

    def personal_model(self, state: Vector, message: Vector, oracle: Oracle) -> Vector:
        """The personal model."""
        return state
