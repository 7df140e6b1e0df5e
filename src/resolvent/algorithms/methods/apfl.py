r"""APFL: a party's model is a mixture of its own and the shared one, in a proportion that it learns.

.. code-block:: text

    party:   w_k = w~;   alpha_k <- clip(alpha_k - rate <v_k - w_k, grad f_k(m_k)>, 0, 1), once a round
             each local step:  w_k <- w_k - eta grad f_k(w_k)  and  v_k <- v_k - eta alpha_k grad f_k(m_k)
    server:  w~ <- mean(w_k)

with m_k = alpha_k v_k + (1 - alpha_k) w_k, which with w~ for w_k is what the party uses.

Source: Deng, Kamani, Mahdavi, *Adaptive Personalized Federated Learning*, Algorithm 1. Both steps start from the same
w_k and v_k and see one minibatch; alpha_k's gradient is over all samples, at the models with which the round begins.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.algorithm import Info, Replies, SharedModelMethod, local_work
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["APFL"]

Pair = tuple[Vector, Vector]
Own = tuple[Vector, Float[Array, ""]]


class _Joint(Oracle):
    """f_k(w) and, as a function of v alone, f_k(alpha v + (1 - alpha) w): what a step on (w, v) descends.

    Attributes:
        inner: f_k.
        alpha: the share of v.
    """

    inner: Oracle
    alpha: Float[Array, ""]

    def _personal(self, w: Vector) -> Oracle:
        return through(self.inner, Mixture(self.alpha, w))

    def value(self, pair: Pair) -> Float[Array, ""]:
        """The sum; its gradient in w is not ``grad``'s, which holds w fixed where v is concerned."""
        return self.inner.value(pair[0]) + self._personal(pair[0]).value(pair[1])

    def grad(self, pair: Pair) -> Pair:
        """Each model's own gradient."""
        return self.inner.grad(pair[0]), self._personal(pair[0]).grad(pair[1])

    def batch_grad(self, pair: Pair, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> Pair:
        """The same, over one minibatch."""
        return (self.inner.batch_grad(pair[0], positions, mask),
                self._personal(pair[0]).batch_grad(pair[1], positions, mask))


class APFL(SharedModelMethod):
    """APFL.

    Attributes:
        solver: gradient steps, taken by both models at once.
        alpha: the own model's share in the mixture, at first.
        alpha_rate: the length of alpha's step, one a round; 0 keeps it.
        aggregator: of the shared model.
    """

    solver: SGD | GD
    alpha: ArrayLike = 0.5
    alpha_rate: ArrayLike = 0.1
    aggregator: Aggregator = Mean()
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", alpha=self.alpha)
        check_range(self, "[0, inf)", alpha_rate=self.alpha_rate)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Own:
        """The own model and alpha."""
        return w0, jnp.asarray(self.alpha, tree.dtype(w0))

    def party(self, own: Own, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Own, Vector, Info]:
        """Alpha's step, then local work on both models."""
        v, alpha = own
        slope = tree.full_dot(tree.sub(v, shared), oracle.grad(tree.lerp(shared, v, alpha)))
        alpha = jnp.clip(alpha - self.alpha_rate * slope, 0, 1).astype(alpha.dtype)
        start = (shared, v)
        (w, v), info = local_work(self.solver, Subproblem(_Joint(oracle.samples, oracle, alpha), start), start, key,
                                  effort)
        return (v, alpha), w, info | {"model": tree.lerp(w, v, alpha)}

    def server(self, shared: Vector, replies: Replies, key: Array) -> tuple[Vector, Info]:
        """The aggregate."""
        return self.aggregator(replies, shared)

    def personal_model(self, state: Own, message: Vector, oracle: Oracle) -> Vector:
        """The mixture of the own and the shared model."""
        return tree.lerp(message, *state)
