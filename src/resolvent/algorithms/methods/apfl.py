r"""APFL: a party's model is a mixture of its own and the shared one, in a proportion that it learns.

.. code-block:: text

    party:   w_k = w~;   alpha_k <- clip(alpha_k - rate <v_k - w_k, grad f_k(m_k)>, 0, 1), once a round
             each local step:  w_k <- w_k - eta grad f_k(w_k)  and  v_k <- v_k - eta alpha_k grad f_k(m_k)
    server:  w~ <- mean(w_k)

with m_k = alpha_k v_k + (1 - alpha_k) w_k. The personal model is m_k with w~ for w_k.

Source: Deng, Kamani, Mahdavi, *Adaptive Personalized Federated Learning*, Algorithm 1. Both steps start from the same
w_k and v_k and use the same minibatch; alpha_k's gradient is over all samples, at the first models of the round.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, local_work
from resolvent.algorithms.methods.aggregation import AggregatingMethod
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.maps import Mixture, through
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers import GD, SGD
from resolvent.problem.subproblem import Subproblem

__all__ = ["APFL", "APFLPartyState"]


class APFLPartyState(NamedTuple):
    """A party's state."""

    model: Vector  # v_k
    alpha: Float[Array, ""]  # alpha_k, the weight of v_k in the mixture


class _ModelPair(NamedTuple):
    """The models that one local step moves together."""

    shared: Vector  # w_k
    personal: Vector  # v_k


class _JointObjective(Oracle):
    """f_k(w), and f_k(alpha v + (1 - alpha) w) as a function of v alone: a step on (w, v) descends both.

    Attributes:
        inner: f_k.
        alpha: the weight of v.
    """

    inner: Oracle
    alpha: Float[Array, ""]

    def _personal(self, w: Vector) -> Oracle:
        return through(self.inner, Mixture(self.alpha, w))

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.inner.has_random_layers

    @property
    @override
    def replaces_slow_operations(self) -> bool:
        return self.inner.replaces_slow_operations

    @override
    def at_step(self, key: Array) -> "_JointObjective":
        return replace(self, inner=self.inner.at_step(key))

    @override
    def value(self, w: _ModelPair) -> Float[Array, ""]:
        """The sum. Its gradient in w differs from ``grad``, which holds w fixed in the second term."""
        return self.inner.value(w.shared) + self._personal(w.shared).value(w.personal)

    @override
    def grad(self, w: _ModelPair) -> _ModelPair:
        return _ModelPair(self.inner.grad(w.shared), self._personal(w.shared).grad(w.personal))

    @override
    def batch_grad(self, w: _ModelPair, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> _ModelPair:
        return _ModelPair(self.inner.batch_grad(w.shared, positions, mask),
                          self._personal(w.shared).batch_grad(w.personal, positions, mask))


class APFL(AggregatingMethod):
    """APFL. A party stores its own model v_k and alpha_k.

    Attributes:
        solver: gradient steps, taken by both models together.
        alpha: first weight of the own model in the mixture.
        alpha_rate: step size of alpha, one step a round; 0 keeps alpha fixed.
    """

    solver: SGD | GD
    alpha: ArrayLike = 0.5
    alpha_rate: ArrayLike = 0.1
    replies_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "[0, 1]", alpha=self.alpha)
        check_range(self, "[0, inf)", alpha_rate=self.alpha_rate)

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> APFLPartyState:
        return APFLPartyState(w0, jnp.asarray(self.alpha, tree.dtype(w0)))

    @override
    def party(self, state: APFLPartyState, shared: Vector, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[APFLPartyState, Vector, Info]:
        v, alpha = state
        slope = tree.full_dot(tree.sub(v, shared), oracle.grad(tree.lerp(shared, v, alpha)))
        alpha = jnp.clip(alpha - self.alpha_rate * slope, 0, 1).astype(alpha.dtype)
        start = _ModelPair(shared, v)
        joint = Subproblem(_JointObjective(oracle.samples, oracle, alpha, recording=oracle.recording), start)
        (w, v), info = local_work(self.solver, joint, start, key, effort)
        return APFLPartyState(v, alpha), w, info | {"model": tree.lerp(w, v, alpha)}

    @override
    def personal_model(self, state: APFLPartyState, message: Vector, oracle: Oracle) -> Vector:
        return tree.lerp(message, state.model, state.alpha)
