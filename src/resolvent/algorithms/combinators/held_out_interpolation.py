r"""Join, mix or stay alone: each party deploys what its own held-out data say is best, and never does worse than alone.

Beside the inner algorithm a party trains a model of its own that nobody sees, v_k, exactly as ``local`` does. With J_k
what the inner algorithm would deploy, it deploys

.. code-block:: text

    M_k(s*),   M_k(s) = (1 - s) v_k + s J_k,   s* = argmin over s in {0, 1/(points-1), ..., 1} of L_k(M_k(s))

where L_k is its held-out loss (or minus the score), and s* the smallest where several are best. s = 0 is among the
choices, so that L_k(M_k(s*)) <= L_k(v_k): by construction no party is worse off than alone on its held-out data,
whatever the others do. s* = 0 is to stay alone, 1 to join, anything else a mixture. Nothing more travels: only the
party knows its choice.

Source: the guarantee is the participation constraint of incentive theory; choosing the mixture on held-out data is
Mansour, Mohri, Ro, Suresh, *Three Approaches for Personalization* (model interpolation), here with whole histories.
"""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.algorithms.admission import Private
from resolvent.algorithms.algorithm import Info, Message, PartyState, Phase, Reply, local_work
from resolvent.algorithms.combinators.combinator import Combinator, InnerParty
from resolvent.algorithms.combinators.held_out import Measure, best_held_out
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["HeldOutInterpolation"]


class Beside(eqx.Module):
    """A party's state for the inner algorithm, and its own model.

    Attributes:
        inner: what the inner algorithm keeps.
        alone: v_k, which goes on even where the inner reply is refused.
    """

    inner: Any
    alone: Private


class HeldOutInterpolation(Combinator):
    """An algorithm whose parties join, mix or stay alone, each by its held-out data, and never do worse than alone.

    A party without held-out samples stays alone. Its own model is trained in the rounds in which it takes part, with
    the minibatches that ``local`` would draw; where stragglers' work is dropped, so is theirs on this model.

    Attributes:
        inner: any algorithm; its models must be of the shape of the first model.
        solver: of the model trained alone.
        points: how many mixtures are tried, both ends among them; 2 is to join or to stay alone.
        by: what is compared: held-out ``loss`` or ``score``.
    """

    solver: LocalSolver
    points: int = eqx.field(static=True, default=11)
    by: Measure = eqx.field(static=True, default="loss")
    needs_held_out: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if self.points < 2:
            raise ValueError(f"HeldOutInterpolation(points={self.points}) must be at least 2: to join and to stay alone")
        if self.by not in ("loss", "score"):
            raise ValueError(f"HeldOutInterpolation(by={self.by!r}) is not known: use 'loss' or 'score'")

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Beside:
        """The inner state, and the first model."""
        return Beside(self.inner.init_party(w0, oracle, key), Private(w0))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phases; in the first, the party trains its own model as well."""
        return tuple(Phase(partial(self.message, phase.message),
                           partial(self.first if number == 0 else self.party, phase.party),
                           partial(self.server, phase.server)) for number, phase in enumerate(self.inner.phases))

    def first(self, inner: InnerParty, state: Beside, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Beside, Reply, Info]:
        """The inner step, and ``local``'s."""
        own = state.alone.value
        alone, _ = local_work(self.solver, Subproblem(oracle, own), own, key, effort)
        return self.party(inner, Beside(state.inner, Private(alone)), message, oracle, key, effort)

    def party(self, inner: InnerParty, state: PartyState, message: Message, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Beside, Reply, Info]:
        """The inner step."""
        after, reply, info = inner(state.inner, message, oracle, key, effort)
        return Beside(after, state.alone), reply, info

    def personal_model(self, state: Beside, message: Message, oracle: Oracle) -> Vector:
        """M_k(s*)."""
        joint = self.inner.personal_model(state.inner, message, oracle)
        return _mixed(state.alone.value, joint, self._best(state.alone.value, joint, oracle))

    def joining(self, state: Beside, message: Message, oracle: Oracle) -> Float[Array, ""]:
        """s*, the weight of the inner algorithm's model: 0 is to stay alone, 1 to join."""
        return self._best(state.alone.value, self.inner.personal_model(state.inner, message, oracle), oracle)

    def _best(self, alone: Vector, joint: Vector, oracle: Oracle) -> Float[Array, ""]:
        shares = jnp.linspace(0, 1, self.points, dtype=tree.dtype(alone))
        best: Array = shares[best_held_out(oracle, partial(_mixed, alone, joint), shares, self.by)]
        return best


def _mixed(alone: Vector, joint: Vector, share: Float[Array, ""]) -> Vector:
    """The mixture, and at either end the model itself: 0 times a model that diverged is not 0."""
    def of_leaf(own: Array, other: Array, mixture: Array) -> Array:
        return jnp.where(share == 0, own, jnp.where(share == 1, other, mixture)).astype(own.dtype)
    return jax.tree.map(of_leaf, alone, joint, tree.lerp(alone, joint, share))
