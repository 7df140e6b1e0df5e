r"""L2GD: loopless local gradient descent, whose parties keep models of their own that are pulled to their mean.

.. code-block:: text

    min over y_1, ..., y_N of sum_k lambda_k (f_k(y_k) + lam/2 |y_k - y_bar|^2),   y_bar = sum_k lambda_k y_k     (IPFL)

    flip a coin:  heads (p):    y_k <- y_k - (eta lam / p) (y_k - y_bar)
                  tails (1-p):  y_k <- y_k - eta / (1-p) grad f_k(y_k)

Nothing need travel but where a run of tails ends. So a round is one run of heads, in which y_bar stays where it is and
the pulls are y_bar + (1 - eta lam/p)^pulls (y_k - y_bar), and one run of tails; the server draws how long they are. The
first run is one step. Source: Hanzely, Richtarik, *Federated Learning of a Mixture of Global and Local Models*,
Algorithm 1, with eta for their step over n; FedMix, (IPFL).
"""

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.algorithms.algorithm import Info, Method, Phase, Replies, local_work
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["L2GD"]

Sent = tuple[Vector, Int[Array, ""], Int[Array, ""]]


class L2GD(Method):
    """L2GD, a run of pulls and a run of steps a round.

    The server's y_bar is the mean of all N parties' models after every round, whoever took part.

    Attributes:
        solver: gradient steps; its learning rate is eta, and how many are made is drawn.
        lam: how strongly a party's model is held to the mean; 0 is local training.
        p: the chance of a pull, in (0, 1); the expected number of steps between two exchanges is 1/p.
    """

    solver: SGD | GD
    lam: ArrayLike = 0.1
    p: ArrayLike = 0.2
    needs_individual_replies: ClassVar[None] = None
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if isinstance(self.p, int | float) and not 0 < self.p < 1:
            raise ValueError(f"L2GD(p={self.p}) must lie in (0, 1): use local(...) for 0 and dgd(...) for 1")
        if isinstance(self.lam, int | float) and not self.lam >= 0:
            raise ValueError(f"L2GD(lam={self.lam}) must be at least 0")
        pull = self._pull
        if isinstance(pull, int | float) and pull > 1:
            raise ValueError(f"L2GD pulls by learning_rate*lam/p = {pull:.3g}, beyond the mean: lower the learning "
                             "rate or lam, or raise p")

    @property
    def _pull(self) -> ArrayLike:
        return self.solver.learning_rate * self.lam / self.p

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> Sent:
        """The mean, and how many pulls and steps come next."""
        return w0, jnp.array(0, jnp.int32), jnp.array(1, jnp.int32)

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        """The party's model."""
        return w0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One phase."""
        return (Phase(lambda state, k: state, self._party, self._server),)

    def _party(self, own: Vector, message: Sent, oracle: Oracle, key: Array,
               effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        mean, pulls, steps = message
        kept = jnp.power(1 - jnp.asarray(self._pull, tree.dtype(own)), pulls)
        pulled = tree.lerp(mean, own, kept)
        w, info = local_work(self._steps(steps), Subproblem(oracle, pulled), pulled, key, effort)
        return w, tree.sub(w, own), info

    def _steps(self, steps: Int[Array, ""]) -> SGD | GD:
        rate = self.solver.learning_rate / (1 - self.p)
        if isinstance(self.solver, SGD):
            return replace(self.solver, learning_rate=rate, steps=steps, epochs=None)
        return replace(self.solver, learning_rate=rate, steps=steps)

    def _server(self, state: Sent, replies: Replies, key: Array) -> tuple[Sent, Info]:
        mean = tree.axpy(1, replies.total(replies.payload), state[0])
        # In float32, so that the same lengths are drawn in both precisions.
        p = jnp.asarray(self.p, jnp.float32)
        pulls = jax.random.geometric(jax.random.fold_in(key, 0), 1 - p, dtype=jnp.int32)
        steps = jax.random.geometric(jax.random.fold_in(key, 1), p, dtype=jnp.int32)
        return (mean, pulls, steps), {"pulls": state[1], "local_steps": state[2]}

    def personal_model(self, state: Vector, message: Sent, oracle: Oracle) -> Vector:
        """The party's own model."""
        return state

    def server_model(self, state: Sent) -> Vector:
        """The mean of all parties' models."""
        return state[0]
