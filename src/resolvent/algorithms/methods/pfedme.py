r"""pFedMe: the shared model descends on the parties' Moreau envelopes; a party uses its proximal point.

.. code-block:: text

    party:   w_k = w~;  R times:  theta_k ~ argmin f_k + lam/2 |. - w_k|^2,  w_k <- w_k - eta*lam*(w_k - theta_k)
    server:  w~ <- (1 - beta) w~ + beta * mean(w_k)

A straggler makes effort*R steps on the envelope, of which the last one may be solved with a part of the solver's work.
lam (w - theta_k) is the gradient of the envelope min_theta f_k(theta) + lam/2 |theta - w|^2.

Source: T Dinh, Tran, Nguyen, *Personalized Federated Learning with Moreau Envelopes*, Algorithm 1. In the paper every
party works and a sample of them replies; here only the sample works. As in the authors' code the first theta_k starts
at w~ and each later one at its predecessor; the paper leaves it open.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies, inexactness_if_recorded
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.methods.aggregation import AggregatingMethod
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.solvers.minibatches import scale_budget
from resolvent.problem.subproblem import Subproblem

__all__ = ["PFedMe"]


class _EnvelopeDescent(NamedTuple):
    """The loop state of the steps on the envelope."""

    w: Vector  # w_k
    theta: Vector  # the last proximal point
    center: Vector  # w_k before the last step
    key: Array  # key of the next solve
    steps: Float[Array, ""]  # gradient steps of the solver so far


class PFedMe(AggregatingMethod):
    """pFedMe. A party stores its personal model theta_k.

    Attributes:
        solver: approximates theta_k.
        lam: weight of the distance between theta_k and w_k.
        eta: step size on the envelope.
        steps: R, number of steps on the envelope; a straggler makes ceil(effort * R).
        beta: step size of the server towards the mean; may exceed 1.
    """

    solver: LocalSolver
    lam: ArrayLike = 15.0
    eta: ArrayLike = 0.005
    steps: ArrayLike = 20
    beta: ArrayLike = 1.0
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "(0, inf)", lam=self.lam, eta=self.eta, steps=self.steps, beta=self.beta)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, state: Vector, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        def descend(i: Array, carry: _EnvelopeDescent) -> _EnvelopeDescent:
            w, theta, _, key, total = carry
            work = jnp.clip(effort * self.steps - i, 0, 1).astype(effort.dtype)
            theta, steps = self.solver(Subproblem(oracle, w, self.lam), theta, key, work)
            # The key changes after the solve, so that the first solve draws FedProx's minibatches.
            return _EnvelopeDescent(tree.lerp(w, theta, self.eta * self.lam), theta, w, substep_key(key, 1),
                                    total + steps.astype(total.dtype))

        start = _EnvelopeDescent(shared, shared, shared, key, jnp.zeros((), tree.dtype(shared)))
        w, theta, center, _, total = jax.lax.fori_loop(0, scale_budget(self.steps, effort), descend, start)
        inexactness = inexactness_if_recorded(Subproblem(oracle, center, self.lam), theta, shared)
        return theta, w, {"model": theta, "steps": total, **inexactness}

    @override
    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        mean, info = self.aggregator(replies, shared, key)
        return tree.lerp(shared, mean, self.beta), info

    @override
    def personal_model(self, state: Vector, message: Vector, oracle: Oracle) -> Vector:
        return state
