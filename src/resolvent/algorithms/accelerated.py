"""Anderson acceleration of any algorithm whose server holds the iterate of a fixed-point map.

Nothing more travels than before: the server keeps the last iterates and their images and sends the combination that the
algorithm's own message is made of. Source: operator-splitting paper, section 4 and (27); errata 14.
"""

from typing import ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies, ServerState, Stragglers
from resolvent.math import tree
from resolvent.math.anderson import History, mixing_weights
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["Anderson"]


@runtime_checkable
class HoldsIterate(Protocol):
    """An algorithm whose server state contains a point that a round maps to the next."""

    def iterate(self, state: ServerState) -> Vector:
        """The point."""

    def with_iterate(self, state: ServerState, point: Vector) -> ServerState:
        """The same state at another point."""


class AndersonState(eqx.Module):
    """The inner server's state and the memory of the accelerator.

    Attributes:
        inner: the accelerated algorithm's state, at the point of the next round.
        history: the points that were kept, with their images.
        residual: |u - T u| of the last point that was kept; infinite where the next is kept whatever it brings.
        image: T u of that point, to go back to.
    """

    inner: ServerState
    history: History
    residual: Float[Array, ""]
    image: Vector


class Anderson(Algorithm):
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

    inner: Algorithm
    memory: int = eqx.field(static=True, default=3)
    safeguard: ArrayLike = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if not isinstance(self.inner, HoldsIterate) or len(self.inner.phases) != 1:
            raise TypeError(f"Anderson needs an algorithm of one phase whose server holds the iterate, got "
                            f"{type(self.inner).__name__}: use splitting(...), fedpi(...) or fedprox(...)")
        if self.memory < 1:
            raise ValueError(f"Anderson(memory={self.memory}) must be at least 1")

    @property
    def partial_work(self) -> Stragglers:
        """As the inner algorithm."""
        return self.inner.partial_work

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> AndersonState:
        """An empty history."""
        inner = self.inner.init(w0, weights)
        point = self._held.iterate(inner)
        dtype = jnp.result_type(*jax.tree.leaves(point))
        return AndersonState(inner, History.empty(point, self.memory), jnp.array(jnp.inf, dtype),
                             jax.tree.map(jnp.array, point))

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """As the inner algorithm."""
        return self.inner.init_party(w0, oracle, key)

    @property
    def _held(self) -> HoldsIterate:
        assert isinstance(self.inner, HoldsIterate)
        return self.inner

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phase, with a server that looks at where it led."""
        phase = self.inner.phases[0]

        def server(state: AndersonState, replies: Replies, key: Array) -> tuple[AndersonState, Info]:
            after, info = phase.server(state.inner, replies, key)
            state, grew = self._accelerate(state, after)
            return state, {**info, "anderson_residual": state.residual, "anderson_restart": grew}

        return (Phase(lambda state, k: phase.message(state.inner, k), phase.party, server),)

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

    def deploy(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.deploy(state, message, oracle)

    def server_model(self, state: AndersonState) -> Vector | None:
        """As the inner algorithm."""
        return self.inner.server_model(state.inner)
