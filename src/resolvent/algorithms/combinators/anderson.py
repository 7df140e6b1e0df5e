"""Anderson acceleration of any algorithm whose server holds the iterate of a fixed-point map."""

from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    CombinatorState,
    InnerServer,
    contains,
    innermost,
)
from resolvent.algorithms.combinators.iterates import ServerIterate, one_phase_iterate, server_mean
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.anderson import Control, History, Rule
from resolvent.math.tree import Vector

__all__ = ["Anderson", "AndersonState", "check_anderson"]


class AndersonState(NamedTuple):
    """The accelerator's part of the server state.

    Attributes:
        history: the last points and their images.
        control: the weights of the next combination.
        shares: [N] weights of the inner product over parties, if the iterate has a part for each; else None.
    """

    history: History
    control: Control
    shares: Float[Array, " N"] | None


class Anderson(Combinator):
    """Anderson acceleration, type II, of the inner algorithm, on the server.

    Communication is that of the inner algorithm: the server stores the last iterates and their images, and sends the
    message that the inner algorithm makes of their combination. Source: operator-splitting paper, section 4, (27) and
    B.8; errata 14.

    The inner product is the paper's (6): parts of the iterate that belong to parties are weighted by lambda_k, so that
    for convex parties the plain residual never grows. For further guarantees see ``resolvent.math.anderson.Control``.

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate (splitting, model aggregation).
        history_size: number of combined points, tau + 1; with 1 there is no acceleration.
        on: what is combined: the iterate (``u``: every u_k, or the shared model), or P_H(z) of a splitting scheme
            (``mean``, the paper's choice for nonconvex models), from which its next u_k follow.
        safeguard: a combination is undone if its residual exceeds the last one's by this factor.
        forward: how far a combination must go along the plain step, in plain steps; 1 keeps nonconvex runs from turning
            back, 0 lets maps that reflect (FedSplit) be accelerated.
        cutoff: relative cutoff of the least squares; default: the rounding unit times the history size.

    Raises:
        InputError: the inner algorithm's server holds no iterate, or is accelerated already.

    Example:
        >>> algorithm = rv.combinators.Anderson(rv.fedprox(rv.SGD(0.1), mu=1.0), history_size=3)
    """

    history_size: int = eqx.field(static=True, default=3)
    on: Literal["u", "mean"] = eqx.field(static=True, default="u")
    safeguard: float = 1.0
    forward: float = 1.0
    cutoff: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        one_phase_iterate(self.inner, "Anderson", "splitting(...), fedpi(...) or fedprox(...); if the parties hold the "
                          "iterate, DecentralisedAnderson")
        if contains(self.inner, Anderson):
            raise InputError("Anderson got an algorithm that is accelerated already: use a larger history_size")
        check_anderson(self, self.history_size, self.safeguard)
        if self.on not in ("u", "mean"):
            raise InputError(f"Anderson(on={self.on!r}) is not known: use 'u' or 'mean'")
        if self.on == "mean" and server_mean(self.inner) is None:
            core = type(innermost(self.inner)).__name__
            raise InputError(f"Anderson(on='mean') needs a splitting scheme, got {core}: its iterate is the shared "
                             "model itself, use on='u'")

    @property
    def _iterate(self) -> ServerIterate:
        if self.on == "mean":
            mean = server_mean(self.inner)
            assert mean is not None
            return mean
        return one_phase_iterate(self.inner, "Anderson", "splitting(...)")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> AndersonState:
        point = self._iterate.read(inner)
        return AndersonState(History.of(point, self.history_size), Control.first(self.history_size, tree.dtype(point)),
                             jnp.asarray(shares) if self._iterate.by_party else None)

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        after, info = inner(state.inner, replies, key)
        history, control, shares = state.extra
        row = control.row
        history = history.put(row, self._iterate.read(state.inner), self._iterate.read(after))
        rule = Rule(self.safeguard, self.forward, self.cutoff)
        control, undo = control.update(*history.inner_products(row, shares), rule)
        # Only the point is undone: states such as Compressed's shifts have moved at the parties as well.
        after = self._iterate.replace(after, history.combine(control.weights))
        info = {**info, "anderson_residual": control.residual, "anderson_undone": undo}
        return CombinatorState(after, AndersonState(history, control, shares)), info


def check_anderson(combinator: Combinator, history_size: int, safeguard: ArrayLike) -> None:
    """Refuse settings of an accelerator that are out of range."""
    check_range(combinator, "[1, inf)", history_size=history_size)
    check_range(combinator, "(0, inf)", advice="otherwise every combination is undone", safeguard=safeguard)
