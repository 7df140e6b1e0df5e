"""Local solvers from optax's optimizers, on minibatches of the whole subproblem.

They see the proximal term through its gradient, weight * (w - center). The optimizer's state is new in every round,
because a party keeps nothing between rounds but its algorithm's state.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.errors import check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.solvers.minibatches import MinibatchBudget, check_budget, over_minibatches
from resolvent.problem.solvers.optimizers import Optimizer, as_optimizer, named_optimizer, traced_optimizer
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["OptaxSolver", "adam", "momentum", "optax_solver"]


class _State(NamedTuple):
    params: Vector
    optimizer: Any


class OptaxSolver(LocalSolver):
    """Any optax optimizer on minibatch gradients of the whole subproblem.

    Attributes:
        optimizer: an ``optax.GradientTransformation``, or a ``traced_optimizer``, with which another learning rate does
            not compile again. Optimizers that need more than gradients, such as a line search, are not supported.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with ``steps``.
        steps: gradient steps, for work that does not grow with the party; a straggler makes ceil(effort * steps).

    Raises:
        InputError: ``optimizer`` is not an optimizer.
        InputError: ``batch_size``, ``epochs`` or ``steps`` is not positive, or both ``epochs`` and ``steps`` are set.

    Example:
        >>> import optax, resolvent as rv
        >>> solver = rv.OptaxSolver(optax.adamw(1e-3), batch_size=20, epochs=1)
    """

    optimizer: Optimizer = eqx.field(converter=as_optimizer)
    batch_size: int = eqx.field(static=True, default=20, kw_only=True)
    epochs: ArrayLike | None = eqx.field(default=None, kw_only=True)
    steps: ArrayLike | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        check_budget(self)

    @override
    def limit_batches(self, samples: int) -> "OptaxSolver":
        return self if self.batch_size <= samples else replace(self, batch_size=samples)

    @override
    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        return self._budget.work(samples)

    @override
    def __call__(self, subproblem: Subproblem, start: Vector, key: Array,
                 effort: Float[Array, ""]) -> tuple[Vector, Int[Array, ""]]:
        optimizer = self.optimizer.build()

        def step(state: _State, positions: Int[Array, " B"], mask: Bool[Array, " B"]) -> _State:
            gradient = subproblem.pull(subproblem.batch_smooth(state.params, positions, mask), state.params)
            update, after = optimizer.update(tree.widen(gradient), state.optimizer, tree.widen(state.params))
            # The state keeps its dtypes, as the loop requires, even where a setting has a wider one.
            return _State(tree.axpy(1, update, state.params), tree.map2(lambda _, new: new, state.optimizer, after))

        # Moments in float32: in float16 the squares of small gradients and Adam's eps are zero.
        first = _State(start, optimizer.init(tree.widen(start)))
        last, total = over_minibatches(step, first, subproblem.oracle.samples, key, effort, self._budget)
        return last.params, total

    @property
    def _budget(self) -> MinibatchBudget:
        return MinibatchBudget(self.batch_size, self.epochs, self.steps)


@checked
def momentum(learning_rate: float, *, decay: float = 0.9, batch_size: int = 20, epochs: float | None = None,
             steps: float | None = None) -> LocalSolver:
    """SGD with momentum: m <- decay m + g, w <- w - eta m, with g the gradient of the whole subproblem.

    Args:
        learning_rate: eta, the step size.
        decay: factor by which the momentum decays in a step; 0 is plain SGD with the explicit proximal step.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with steps.
        steps: gradient steps, for work that does not grow with the party.

    Raises:
        InputError: a rate or a budget is not positive, or a decay lies outside [0, 1).

    Example:
        >>> solver = rv.solvers.momentum(0.01, decay=0.9, batch_size=20, epochs=1)
    """
    check_range("momentum", "(0, inf)", learning_rate=learning_rate)
    check_range("momentum", "[0, 1)", decay=decay)
    return OptaxSolver(traced_optimizer(optax.sgd, learning_rate=learning_rate, momentum=decay), batch_size=batch_size,
                       epochs=epochs, steps=steps)


@checked
def adam(learning_rate: float = 0.001, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, batch_size: int = 20,
         epochs: float | None = None, steps: float | None = None) -> LocalSolver:
    """Adam on minibatches of the whole subproblem, with moments that start at zero in every round.

    Args:
        learning_rate: the step size.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with steps.
        steps: gradient steps, for work that does not grow with the party.

    Raises:
        InputError: a rate or a budget is not positive, or a decay lies outside [0, 1).

    Example:
        >>> solver = rv.solvers.adam(0.001, batch_size=20, epochs=1)

    References:
        Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015.
    """
    check_range("adam", "(0, inf)", learning_rate=learning_rate)
    check_range("adam", "[0, 1)", b1=b1, b2=b2)
    optimizer = traced_optimizer(optax.adam, learning_rate=learning_rate, b1=b1, b2=b2, eps=eps)
    return OptaxSolver(optimizer, batch_size=batch_size, epochs=epochs, steps=steps)


@checked
def optax_solver(optimizer: str, learning_rate: float, *, settings: dict[str, float | bool] | None = None,
                 batch_size: int = 20, epochs: float | None = None, steps: float | None = None) -> LocalSolver:
    """Any optax optimizer by its name, on minibatches of the whole subproblem.

    It is ``OptaxSolver`` for experiment files and sweeps: the learning rate and the other numbers are traced values.

    Args:
        optimizer: name of an optimizer in optax that has a learning rate, such as adamw or lion.
        learning_rate: its learning rate.
        settings: its other arguments by name, such as weight_decay.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the party's samples; a straggler makes ceil(effort * epochs). Exclusive with steps.
        steps: gradient steps, for work that does not grow with the party.

    Raises:
        InputError: optax has no such optimizer, or it does not take these settings.
        InputError: the rate or a budget is not positive.

    Example:
        >>> solver = rv.solvers.optax_solver("adamw", 0.001, settings={"weight_decay": 0.01}, batch_size=20, epochs=1)
    """
    check_range("optax_solver", "(0, inf)", learning_rate=learning_rate)
    return OptaxSolver(named_optimizer(optimizer, learning_rate, settings), batch_size=batch_size, epochs=epochs,
                       steps=steps)
