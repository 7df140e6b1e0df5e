"""Anderson acceleration of any algorithm whose server holds the iterate of a fixed-point map.

Nothing more travels than before: the server keeps the last iterates and their images and sends the combination that the
algorithm's own message is made of. Source: operator-splitting paper, section 4 and (27); errata 14.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from resolvent.algorithms.algorithm import Info, Replies, ServerState
from resolvent.algorithms.combinator import Combinator, HoldsIterate, InnerServer, Memory, contains, holder_of
from resolvent.math import tree
from resolvent.math.anderson import History, mixing_weights
from resolvent.math.tree import Vector

__all__ = ["Anderson"]


class AndersonState(Memory):
    """The inner server's state and the memory of the accelerator.

    Attributes:
        history: the points that were kept, with their images.
        residual: |u - T u| of the last point that was kept; infinite where the next is kept whatever it brings.
        image: T u of that point, to go back to.
    """

    history: History
    residual: Float[Array, ""]
    image: Vector


class Anderson(Combinator):
    """Anderson acceleration, type II, with memory, relative cut-off, safeguard and restart.

    A point whose residual norm exceeds ``safeguard`` times that of the last kept point is thrown away: the history is
    restarted and the next round goes on from the plain image of the last kept point.

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate (splitting, averaging).
        memory: how many points are combined, tau + 1; 1 is no acceleration.
        safeguard: by how much a residual may grow.
        cutoff: relative cut-off of the least squares; default: the rounding unit times the memory.

    Raises:
        TypeError: the inner algorithm's server holds no iterate.
    """

    memory: int = eqx.field(static=True, default=3)
    safeguard: ArrayLike = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)
    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        _ = self._held
        if contains(self.inner, Anderson):
            raise TypeError("Anderson got an algorithm that is accelerated already: use a larger memory")
        if self.memory < 1:
            raise ValueError(f"Anderson(memory={self.memory}) must be at least 1")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> AndersonState:
        """An empty history."""
        inner = self.inner.init(w0, weights)
        point = self._held.iterate(inner)
        dtype = jnp.result_type(*jax.tree.leaves(point))
        return AndersonState(inner, History.empty(point, self.memory), jnp.array(jnp.inf, dtype),
                             jax.tree.map(jnp.array, point))

    @property
    def _held(self) -> HoldsIterate:
        return holder_of(self.inner, "Anderson", "splitting(...), fedpi(...) or fedprox(...)")

    def server(self, inner: InnerServer, state: AndersonState, replies: Replies,
               key: Array) -> tuple[AndersonState, Info]:
        """Look at where the inner server led."""
        after, info = inner(state.inner, replies, key)
        state, grew = self._accelerate(state, after)
        return state, {**info, "anderson_residual": state.residual, "anderson_restart": grew}

    def _accelerate(self, state: AndersonState, after: ServerState) -> tuple[AndersonState, Bool[Array, ""]]:
        point, image = self._held.iterate(state.inner), self._held.iterate(after)
        residual = tree.norm(tree.sub(point, image)).astype(state.residual.dtype)
        grew = ~(residual <= self.safeguard * state.residual)  # also where it is not a number
        history = state.history.push(point, image)
        ahead = history.combined(mixing_weights(history.gram(), history.filled, cutoff=self.cutoff))
        kept = AndersonState(self._held.with_iterate(after, ahead), history, residual, image)
        back = AndersonState(self._held.with_iterate(state.inner, state.image), state.history.restarted(grew),
                             jnp.full_like(residual, jnp.inf), state.image)
        chosen: AndersonState = jax.tree.map(lambda a, b: jnp.where(grew, a, b), back, kept)
        return chosen, grew
