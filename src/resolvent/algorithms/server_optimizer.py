"""Server optimizers: the server's update taken as a gradient by any optax optimizer.

With w+ what the inner server would make of the replies, w - w+ is the pseudo-gradient. A rate of 1 without momentum is
the inner algorithm; a rate below 1 on FedAvg is Reptile's server step. Source: Reddi et al., *Adaptive Federated
Optimization*; Hsu et al. (FedAvgM); Nichol et al. (Reptile).
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import optax
from jaxtyping import Array, Float

from resolvent.algorithms.accelerated import HoldsIterate
from resolvent.algorithms.algorithm import Algorithm, Info, Message, PartyState, Phase, Replies, ServerState, Stragglers
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle

__all__ = ["ServerOptimizer"]


class OptimizerState(eqx.Module):
    """The inner server's state and the optimizer's."""

    inner: ServerState
    optimizer: Any


class ServerOptimizer(Algorithm):
    """An algorithm whose server takes an optimizer's step where it would have moved.

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate.
        make: an optax optimizer, such as ``optax.adam``.
        settings: its arguments; they are data, so another value does not compile again.

    Raises:
        TypeError: the inner algorithm's server holds no iterate.
    """

    inner: Algorithm
    make: Callable[..., Any] = eqx.field(static=True)
    settings: dict[str, float]
    replies_models: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if not isinstance(self.inner, HoldsIterate) or len(self.inner.phases) != 1:
            raise TypeError(f"ServerOptimizer needs an algorithm of one phase whose server holds the iterate, got "
                            f"{type(self.inner).__name__}: use fedavg(...), fedprox(...) or rfa(...)")

    @property
    def _held(self) -> HoldsIterate:
        assert isinstance(self.inner, HoldsIterate)
        return self.inner

    @property
    def partial_work(self) -> Stragglers:
        """As the inner algorithm."""
        return self.inner.partial_work

    def init(self, w0: Vector, weights: Float[Array, " N"]) -> OptimizerState:
        """The inner state and a fresh optimizer."""
        inner = self.inner.init(w0, weights)
        return OptimizerState(inner, self.make(**self.settings).init(self._held.iterate(inner)))

    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> PartyState:
        """As the inner algorithm."""
        return self.inner.init_party(w0, oracle, key)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The inner phase with the optimizer's step."""
        phase = self.inner.phases[0]

        def server(state: OptimizerState, replies: Replies, key: Array) -> tuple[OptimizerState, Info]:
            after, info = phase.server(state.inner, replies, key)
            point = self._held.iterate(state.inner)
            pseudo_gradient = tree.sub(point, self._held.iterate(after))
            update, memory = self.make(**self.settings).update(pseudo_gradient, state.optimizer, point)
            moved = optax.apply_updates(point, update)
            return OptimizerState(self._held.with_iterate(after, moved), memory), info

        return (Phase(lambda state, k: phase.message(state.inner, k), phase.party, server),)

    def deploy(self, state: PartyState, message: Message, oracle: Oracle) -> Vector:
        """As the inner algorithm."""
        return self.inner.deploy(state, message, oracle)

    def server_model(self, state: OptimizerState) -> Vector | None:
        """As the inner algorithm."""
        return self.inner.server_model(state.inner)
