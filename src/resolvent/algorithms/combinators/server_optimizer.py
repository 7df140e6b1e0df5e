"""Server optimizers: the server's update taken as a gradient by any optax optimizer."""

from typing import Any

import equinox as eqx
import optax
from jaxtyping import Array, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies, ServerState
from resolvent.algorithms.combinators.combinator import Combinator, CombinatorState, InnerServer
from resolvent.algorithms.combinators.iterates import ServerIterate, one_phase_iterate
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.solvers.optimizers import Optimizer, as_optimizer

__all__ = ["ServerOptimizer"]


class ServerOptimizer(Combinator):
    """The server makes an optimizer's step along the pseudo-gradient. The server stores the optimizer's state.

    If w+ is the inner server's next model, w - w+ is the pseudo-gradient. A rate of 1 without momentum is the inner
    algorithm; a rate below 1 on FedAvg is Reptile's server step. Source: Reddi et al., *Adaptive Federated
    Optimization*; Hsu et al. (FedAvgM); Nichol et al. (Reptile).

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate.
        optimizer: an ``optax.GradientTransformation``, or ``rv.solvers.traced_optimizer(...)``, with which another
            learning rate does not compile again.

    Raises:
        InputError: the inner algorithm's server holds no iterate, or ``optimizer`` is not an optimizer.

    Example:
        >>> import optax
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> algorithm = rv.combinators.ServerOptimizer(rv.fedavg(solver), optax.adam(0.01))
    """

    optimizer: Optimizer = eqx.field(converter=as_optimizer)

    def __check_init__(self) -> None:
        _ = self._iterate

    @property
    def _iterate(self) -> ServerIterate:
        return one_phase_iterate(self.inner, "ServerOptimizer", "fedavg(...), fedprox(...) or rfa(...)")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Any:
        return self.optimizer.build().init(self._iterate.read(inner))

    @override
    def server(self, inner: InnerServer, state: CombinatorState, replies: Replies, key: Array,
               phase: int) -> tuple[CombinatorState, Info]:
        after, info = inner(state.inner, replies, key)
        point = self._iterate.read(state.inner)
        pseudo_gradient = tree.sub(point, self._iterate.read(after))
        update, optimizer_state = self.optimizer.build().update(pseudo_gradient, state.extra, point)
        moved = optax.apply_updates(point, update)
        return CombinatorState(self._iterate.replace(after, moved), optimizer_state), info
