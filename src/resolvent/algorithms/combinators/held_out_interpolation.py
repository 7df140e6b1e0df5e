"""Interpolation between the local and the joint model, chosen by each party on its held-out data."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Message, PartyState, Reply, local_work
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty
from resolvent.algorithms.combinators.held_out import Measure, best_held_out, check_measure
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.round import Private
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["HeldOutInterpolation", "InterpolationState"]

_OWN_WORK = 302  # number of the work on the local model, different from those of inner algorithms


class InterpolationState(NamedTuple):
    """A party's state."""

    inner: PartyState
    local: Private  # v_k, which keeps its progress if the inner reply is refused


class HeldOutInterpolation(Combinator):
    """Each party chooses between local training, the joint model and mixtures of them on its held-out data.

    A party also trains a local model v_k, exactly as ``local`` does, and never sends it. A solver that adds noise draws
    it anew for v_k. With J_k the inner algorithm's personal model, its personal model is

    .. code-block:: text

        M_k(s*),   M_k(s) = (1 - s) v_k + s J_k,   s* = argmin over s in {0, 1/(points-1), ..., 1} of L_k(M_k(s))

    where L_k is its held-out loss (or minus the score), and s* the smallest of several minimisers. Since s = 0 is among
    the choices, L_k(M_k(s*)) <= L_k(v_k): no party is worse off on its held-out data than with local training, whatever
    the others do. Communication is the inner algorithm's; only the party knows its choice.

    Source: the guarantee is the participation constraint of incentive theory; choosing the mixture on held-out data is
    model interpolation in Mansour, Mohri, Ro, Suresh, *Three Approaches for Personalization*, here with whole
    histories.

    A party without held-out samples uses its local model. The local model is trained in the rounds in which the party
    takes part; if partial work is dropped, so is that of this model.

    Attributes:
        inner: any algorithm; its models must have the shape of the first model.
        solver: local solver of the local model.
        points: number of mixtures, including both ends, at least 2; with 2 a party chooses between the two models.
        by: the measure that is compared: held-out ``loss`` or ``score``.

    Example:
        >>> algorithm = rv.combinators.HeldOutInterpolation(rv.fedavg(rv.SGD(0.1)), rv.SGD(0.1), points=5)
    """

    solver: LocalSolver
    points: int = eqx.field(static=True, default=11)
    by: Measure = eqx.field(static=True, default="loss")

    def __check_init__(self) -> None:
        if self.points < 2:
            raise InputError(f"HeldOutInterpolation(points={self.points}) must be at least 2: the local and the joint "
                             "model")
        check_measure(self, self.by)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> InterpolationState:
        return InterpolationState(self.inner.init_party(w0, oracle, key), Private(w0))

    @override
    def party(self, inner: InnerParty, state: InterpolationState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""], phase: int) -> tuple[InterpolationState, Reply, Info]:
        local = state.local
        if phase == 0:
            # Without noise both works draw the same minibatches, so that v_k is exactly the model of ``local``. With
            # the same noise in both, their difference would have none.
            own_key = substep_key(key, _OWN_WORK) if self.solver.adds_noise else key
            v, _ = local_work(self.solver, Subproblem(oracle, local.value), local.value, own_key, effort)
            local = Private(v)
        after, reply, info = inner(state.inner, message, oracle, key, effort)
        return InterpolationState(after, local), reply, info

    @override
    def personal_model(self, state: InterpolationState, message: Message, oracle: Oracle) -> Vector:
        joint = self.inner.personal_model(state.inner, message, oracle)
        local = state.local.value
        return _interpolated(local, joint, self._best_weight(local, joint, oracle))

    def joint_weight(self, state: InterpolationState, message: Message, oracle: Oracle) -> Float[Array, ""]:
        """s*, the weight of the joint model: 0 is local training, 1 the inner algorithm's model."""
        joint = self.inner.personal_model(state.inner, message, oracle)
        return self._best_weight(state.local.value, joint, oracle)

    def _best_weight(self, local: Vector, joint: Vector, oracle: Oracle) -> Float[Array, ""]:
        weights = jnp.linspace(0, 1, self.points, dtype=tree.dtype(local))
        best: Array = weights[best_held_out(oracle, partial(_interpolated, local, joint), weights, self.by)]
        return best


def _interpolated(local: Vector, joint: Vector, weight: Float[Array, ""]) -> Vector:
    """The mixture, and at either end the model itself: 0 times a model that diverged is not 0."""
    def of_leaf(a: Array, b: Array, mixture: Array) -> Array:
        return jnp.where(weight == 0, a, jnp.where(weight == 1, b, mixture)).astype(a.dtype)
    return jax.tree.map(of_leaf, local, joint, tree.lerp(local, joint, weight))
