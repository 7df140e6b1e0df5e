r"""L2GD: loopless local gradient descent; parties keep their own models, which are pulled to their mean.

.. code-block:: text

    min over y_1, ..., y_N of sum_k lambda_k (f_k(y_k) + lam/2 |y_k - y_bar|^2),   y_bar = sum_k lambda_k y_k     (IPFL)

    flip a coin:  heads (p):    y_k <- y_k - (eta lam / p) (y_k - y_bar)
                  tails (1-p):  y_k <- y_k - eta / (1-p) grad f_k(y_k)

Communication is only needed after a run of tails. So a round here is one run of heads, which leaves y_bar unchanged, so
that its pulls are y_bar + (1 - eta lam/p)^pulls (y_k - y_bar), followed by one run of tails. The server draws the
lengths of both runs. The first run is one step. Source: Hanzely, Richtarik, *Federated Learning of a Mixture of Global
and Local Models*, Algorithm 1, with eta for their step over n; FedMix, (IPFL).
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, OnePhaseMethod, Replies, local_work
from resolvent.algorithms.keys import substep_key
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["L2GD", "L2GDState"]


class L2GDState(NamedTuple):
    """The server's state, which is also the message to every party."""

    mean: Vector  # y_bar
    pulls: Int[Array, ""]  # length of the next run of heads
    steps: Int[Array, ""]  # length of the next run of tails


class L2GD(OnePhaseMethod):
    """L2GD with one run of pulls and one run of steps per round. A party stores its model y_k.

    The server's y_bar is the mean of all N parties' models after every round, under any participation.

    Attributes:
        solver: gradient steps; its learning rate is eta, and its number of steps is replaced by the drawn one.
        lam: weight of the distance to the mean; 0 is local training.
        p: probability of a pull, in (0, 1); the expected number of steps between two exchanges is 1/p.
    """

    solver: SGD | GD
    lam: ArrayLike = 0.1
    p: ArrayLike = 0.2
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_range(self, "(0, 1)", advice="use local(...) for 0 and dgd(...) for 1", p=self.p)
        check_range(self, "[0, inf)", lam=self.lam)
        pull = self._pull
        if isinstance(pull, int | float) and pull > 1:
            raise InputError(f"L2GD pulls by learning_rate*lam/p = {pull:.3g}, beyond the mean: lower the learning "
                             "rate or lam, or raise p")

    @property
    def _pull(self) -> ArrayLike:
        return self.solver.learning_rate * self.lam / self.p

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> L2GDState:
        return L2GDState(w0, jnp.array(0, jnp.int32), jnp.array(1, jnp.int32))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, model: Vector, message: L2GDState, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, Vector, Info]:
        distance = jnp.power(1 - jnp.asarray(self._pull, tree.dtype(model)), message.pulls)
        pulled = tree.lerp(message.mean, model, distance)
        w, info = local_work(self._steps(message.steps), Subproblem(oracle, pulled), pulled, key, effort)
        return w, tree.sub(w, model), info

    def _steps(self, steps: Int[Array, ""]) -> SGD | GD:
        rate = self.solver.learning_rate / (1 - self.p)
        if isinstance(self.solver, SGD):
            return replace(self.solver, learning_rate=rate, steps=steps, epochs=None)
        return replace(self.solver, learning_rate=rate, steps=steps)

    @override
    def server(self, state: L2GDState, replies: Replies, key: Array) -> tuple[L2GDState, Info]:
        mean = tree.axpy(1, replies.total(replies.payload), state.mean)
        # In float32, so that the same lengths are drawn in both precisions.
        p = jnp.asarray(self.p, jnp.float32)
        pulls = jax.random.geometric(substep_key(key, 0), 1 - p, dtype=jnp.int32)
        steps = jax.random.geometric(substep_key(key, 1), p, dtype=jnp.int32)
        return L2GDState(mean, pulls, steps), {"pulls": state.pulls, "local_steps": state.steps}

    @override
    def personal_model(self, state: Vector, message: L2GDState, oracle: Oracle) -> Vector:
        return state

    @override
    def server_model(self, state: L2GDState) -> Vector:
        return state.mean
