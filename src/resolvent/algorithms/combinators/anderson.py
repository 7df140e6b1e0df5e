"""Anderson acceleration of any algorithm whose server holds the iterate of a fixed-point map.

Nothing more travels than before: the server keeps the last iterates and their images and sends the combination that the
algorithm's own message is made of. Source: operator-splitting paper, section 4, (27) and B.8; errata 14.
"""

from typing import Any, ClassVar, Literal, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Algorithm, Info, Replies, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    HoldsIterate,
    HoldsMean,
    InnerServer,
    Memory,
    contains,
    holder_of,
    innermost,
)
from resolvent.math import tree
from resolvent.math.anderson import Control, History, Rule
from resolvent.math.tree import Vector

__all__ = ["Anderson", "check_anderson"]


class AndersonState(Memory):
    """The inner server's state and the memory of the accelerator.

    Attributes:
        history: the last points, with their images.
        control: what the next point is made of.
        weights: [N] of the inner product over parties, where the iterate has a part for each; else none.
    """

    history: History
    control: Control
    weights: Float[Array, " N"] | None


class Anderson(Combinator):
    """Anderson acceleration, type II, of the inner algorithm, on the server: no more travels than without it.

    The inner product is the paper's (6): parts of the iterate that belong to parties weigh lambda_k, so that for convex
    parties the plain residual never grows. What is guaranteed beyond that, see ``resolvent.math.anderson.Control``.

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate (splitting, averaging).
        memory: how many points are combined, tau + 1; 1 is no acceleration.
        on: what is combined: the iterate (every u_k, or the shared model), or P_H(z) of a splitting scheme, from which
            its next u_k follow (the paper's choice for nonconvex models).
        safeguard: a combination whose residual exceeds the last one's this many times is undone.
        forward: how far a combination must go along the plain step, in plain steps; 1 keeps nonconvex runs from turning
            back, 0 lets maps that reflect (FedSplit) be accelerated.
        cutoff: relative cut-off of the least squares; default: the rounding unit times the memory.
    """

    memory: int = eqx.field(static=True, default=3)
    on: Literal["u", "mean"] = eqx.field(static=True, default="u")
    safeguard: float = 1.0
    forward: float = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)
    remembers: ClassVar[bool] = True

    def __check_init__(self) -> None:
        _ = holder_of(self.inner, "Anderson", "splitting(...), fedpi(...) or fedprox(...); where the parties hold it, "
                      "DecentralisedAnderson")
        if contains(self.inner, Anderson):
            raise TypeError("Anderson got an algorithm that is accelerated already: use a larger memory")
        check_anderson(self)
        if self.on not in ("u", "mean"):
            raise ValueError(f"Anderson(on={self.on!r}) is not known: use 'u' or 'mean'")
        core = innermost(self.inner)
        if self.on == "mean" and not isinstance(core, HoldsMean):
            raise TypeError(f"Anderson(on='mean') needs a splitting scheme, got {type(core).__name__}: its iterate is "
                            "the shared model itself, use on='u'")

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> AndersonState:
        """A history of nothing but the first point."""
        inner = self.inner.init(w0, weights)
        point = self._point(inner)
        by_party = self.on == "u" and getattr(innermost(self.inner), "iterate_by_party", False)
        return AndersonState(inner, History.of(point, self.memory), Control.first(self.memory, tree.dtype(point)),
                             jnp.asarray(weights) if by_party else None)

    def server(self, inner: InnerServer, state: AndersonState, replies: Replies,
               key: Array) -> tuple[AndersonState, Info]:
        """Look at where the inner server led, and go on from a combination."""
        after, info = inner(state.inner, replies, key)
        row = state.control.row
        history = state.history.put(row, self._point(state.inner), self._point(after))
        rule = Rule(self.safeguard, self.forward, self.cutoff)
        control, undo = state.control.judged(*history.products(row, state.weights), rule)
        # Only the point is undone: memories such as those of Compressed have moved at the parties as well.
        ahead = self._moved(after, history.combined(control.weights))
        info = {**info, "anderson_residual": control.residual, "anderson_undone": undo}
        return AndersonState(ahead, history, control, state.weights), info

    def _point(self, inner: ServerState) -> Vector:
        return (cast(HoldsMean, self.inner).mean(inner) if self.on == "mean"
                else cast(HoldsIterate, self.inner).iterate(inner))

    def _moved(self, inner: ServerState, point: Vector) -> ServerState:
        return (cast(HoldsMean, self.inner).with_mean(inner, point) if self.on == "mean"
                else cast(HoldsIterate, self.inner).with_iterate(inner, point))


def check_anderson(algorithm: Algorithm) -> None:
    """Refuse settings that mean nothing.

    Raises:
        ValueError: naming the setting.
    """
    name, memory = type(algorithm).__name__, cast(Any, algorithm).memory
    if memory < 1:
        raise ValueError(f"{name}(memory={memory}) must be at least 1")
    safeguard = cast(Any, algorithm).safeguard
    if isinstance(safeguard, int | float) and not safeguard > 0:
        raise ValueError(f"{name}(safeguard={safeguard}) must be positive: no combination would ever be kept")
