"""What the server does with the iterate: an optimizer's step, and an average over the rounds."""

from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Part, Replies, ServerState
from resolvent.algorithms.combinators.combinator import (
    Combinator,
    InnerServer,
    Wrapped,
    advice_for_own,
    innermost,
    one_phase_iterate,
)
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.problem.schedules import Schedule, as_schedule
from resolvent.problem.solvers.optimizers import Optimizer, as_optimizer


class ServerOptimizer(Combinator):
    """The server makes an optimizer's step along the pseudo-gradient. The server stores the optimizer's state.

    If w+ is the inner server's next model, w - w+ is the pseudo-gradient. A rate of 1 without momentum is the inner
    algorithm; a rate below 1 on FedAvg is Reptile's server step. Source: Reddi et al., *Adaptive Federated
    Optimization*; Hsu et al. (FedAvgM); Nichol et al. (Reptile).

    Attributes:
        inner: an algorithm of one phase whose server holds the iterate; or Fed+, whose iterate is the centre.
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
    def _iterate(self) -> Part:
        iterate = self.inner.iterate
        if iterate is None or iterate.is_whole or iterate.server is None:
            iterate = one_phase_iterate(self.inner, "ServerOptimizer",
                                        "fedavg(...), fedprox(...), rfa(...) or fedplus(...)")
        assert iterate.server is not None
        return iterate.server

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> Any:
        return self.optimizer.build().init(self._iterate.read(inner))

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        after, info = inner(state.inner, replies, key)
        point = self._iterate.read(state.inner)
        pseudo_gradient = tree.sub(point, self._iterate.read(after))
        update, optimizer_state = self.optimizer.build().update(pseudo_gradient, state.extra, point)
        moved = optax.apply_updates(point, update)
        return Wrapped(self._iterate.replace(after, moved), optimizer_state), info


class ErgodicState(NamedTuple):
    """The average of the shared models."""

    average: Vector  # weighted average of the models so far
    total: Float[Array, ""]  # sum of their weights
    t: Int[Array, ""]  # number of the next round


class ErgodicAveraging(Combinator):
    """The personal model is the average of all shared models so far; the rounds are unchanged.

    .. code-block:: text

        w_bar = (sum over s <= t of eta_s w_s) / (sum over s <= t of eta_s)
        w_bar <- w_bar + eta_t / (sum over s <= t of eta_s) (w_t - w_bar)       after round t

    Source: operator-splitting paper, Theorem 2: with steps eta_t whose sum is infinite and whose squares have a finite
    sum, FedProx's averages solve (1) for any convex parties; ``Schedule.finds_the_optimum`` says whether a schedule has
    both properties.

    w_0 has weight(0) and the model after round t has weight(t + 1): each has the step of the round that starts from it.
    With weights 1/t the first models lose influence only as 1/log t. For strongly convex parties the plain iterates
    converge as well (Theorem 3) and are much closer to the optimum.

    Attributes:
        inner: an algorithm with one shared model: its server holds the iterate, or it is decentralised splitting.
        weight: weight of round t's model: the schedule of the inner algorithm's step, or 1 for the plain average.
        include_first: whether w_0 is averaged too; Theorem 2 sums from w_1.

    Raises:
        InputError: the inner algorithm does not have one shared model, or ``weight`` is not positive.

    Example:
        >>> algorithm = rv.combinators.ErgodicAveraging(rv.fedprox(rv.SGD(0.1), mu=1.0))
    """

    weight: Annotated[Schedule | float, "(0, inf)"] = 1.0
    include_first: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        iterate = self.inner.iterate
        if iterate is None or (iterate.server is not None and not iterate.is_whole):
            raise InputError(f"ErgodicAveraging needs an algorithm with one shared model that a round maps to the "
                             f"next, got {type(innermost(self.inner)).__name__}: use fedavg(...), fedprox(...) or "
                             f"splitting(...){advice_for_own(self.inner)}")

    @override
    def init_extra(self, inner: ServerState, w0: Vector, shares: Float[Array, " N"]) -> ErgodicState:
        first = as_schedule(self.weight)(jnp.array(0))
        # With a total of zero the first update replaces w_0 by w_1.
        return ErgodicState(jax.tree.map(jnp.array, w0), first if self.include_first else jnp.zeros_like(first),
                            jnp.array(0))

    @override
    def message_extra(self, state: Wrapped, k: Int[Array, ""], phase: int) -> Vector:
        """The average, in the first phase; it is sent because a party may have missed rounds."""
        average: Vector = state.extra.average if phase == 0 else ()
        return average

    @override
    def server(self, inner: InnerServer, state: Wrapped, replies: Replies, key: Array,
               phase: int) -> tuple[Wrapped, Info]:
        after, info = inner(state.inner, replies, key)
        if phase < len(self.inner.phases) - 1:
            return Wrapped(after, state.extra), info
        average, total, t = state.extra
        weight = as_schedule(self.weight)(t + 1)
        total = total + weight
        average = tree.lerp(average, self.inner.server_model(after), weight / total)
        return Wrapped(after, ErgodicState(average, total, t + 1)), info

    @override
    def personal_model(self, state: Wrapped, message: Wrapped, oracle: Oracle) -> Vector:
        average: Vector = message.extra
        return average

    @override
    def server_model(self, state: Wrapped) -> Vector:
        average: Vector = state.extra.average
        return average
