"""Optax optimizers as pytrees: how an algorithm or a local solver holds one.

An ``optax.GradientTransformation`` is a pair of functions, with its learning rate inside them. To JAX another rate is
then another program, which is compiled again. ``TracedOptimizer`` keeps the numbers outside of the functions, as leaves
of a pytree, and calls optax's factory while the program is traced: a new rate runs the same program, and a sweep over
rates is one ``jax.vmap``. (``optax.inject_hyperparams`` has the same aim, but keeps the numbers in the optimizer's
state, whose first values are still inside a function.)

Both kinds are accepted wherever this package takes an optimizer:

>>> import optax, resolvent as rv
>>> solver = rv.OptaxSolver(optax.adamw(1e-3))  # compiled for this rate
>>> solver = rv.OptaxSolver(rv.solvers.traced_optimizer(optax.adamw, learning_rate=1e-3))  # compiled for all rates
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import ArrayLike
from typing_extensions import override

from resolvent.errors import InputError, alternatives, quote


class Optimizer(eqx.Module):
    """An optax optimizer as a pytree."""

    @abstractmethod
    def build(self) -> optax.GradientTransformation:
        """The optimizer, with optax's functions ``init`` and ``update``; to be called in the traced program."""


class FixedOptimizer(Optimizer):
    """A finished optimizer, compiled into the program. It is equal only to itself."""

    transformation: optax.GradientTransformation = eqx.field(static=True)

    @override
    def build(self) -> optax.GradientTransformation:
        return self.transformation


class TracedOptimizer(Optimizer):
    """A call of one of optax's factories whose numeric arguments are traced values.

    Attributes:
        factory: a function such as ``optax.adam``. Factories are compared by identity: use one function object, not a
            new lambda in every pass of a loop.
        hyperparams: the numeric arguments, which are leaves of the pytree.
        options: all other arguments, such as flags and functions; another value compiles again.
    """

    factory: Callable[..., optax.GradientTransformation] = eqx.field(static=True)
    hyperparams: dict[str, ArrayLike]
    options: tuple[tuple[str, Any], ...] = eqx.field(static=True, default=())

    @override
    def build(self) -> optax.GradientTransformation:
        return self.factory(**self.hyperparams, **dict(self.options))


def traced_optimizer(factory: Callable[..., optax.GradientTransformation], *args: Any, **kwargs: Any) -> Optimizer:
    """``factory(*args, **kwargs)`` with the numbers among the arguments as traced values.

    As in ``optax.inject_hyperparams``, integers count as numbers. An integer that sets a shape or a number of steps has
    to be bound beforehand: ``functools.partial(factory, ...)``.

    Args:
        factory: a function that returns an ``optax.GradientTransformation``, such as ``optax.adam``.
        *args: its arguments.
        **kwargs: its keyword arguments.

    Raises:
        InputError: the factory does not take these arguments.

    Example:
        >>> import optax, resolvent as rv
        >>> optimizer = rv.solvers.traced_optimizer(optax.adamw, 1e-3, weight_decay=0.01)
        >>> optimizer.hyperparams
        {'learning_rate': 0.001, 'weight_decay': 0.01}
    """
    signature = inspect.signature(factory)
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InputError(f"{_name(factory)} refuses its arguments: {error}; it takes "
                         f"{', '.join(signature.parameters)}") from error
    hyperparams = {name: value for name, value in arguments.items() if _is_numeric(value)}
    options = tuple((name, value) for name, value in arguments.items() if name not in hyperparams)
    return TracedOptimizer(factory, hyperparams, options)


class _ScaledOptimizer(Optimizer):
    """An optimizer whose updates are multiplied by a factor."""

    inner: Optimizer
    factor: ArrayLike

    @override
    def build(self) -> optax.GradientTransformation:
        inner = self.inner.build()

        def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            updates, after = inner.update(gradient, state, params)
            return jax.tree.map(lambda leaf: (leaf * self.factor).astype(leaf.dtype), updates), after

        return optax.GradientTransformation(inner.init, update)


def scaled_optimizer(optimizer: Optimizer, factor: ArrayLike) -> Optimizer:
    """The optimizer with its learning rate times a factor, or with its updates times it."""
    if isinstance(optimizer, TracedOptimizer) and "learning_rate" in optimizer.hyperparams:
        rate = optimizer.hyperparams["learning_rate"]
        return replace(optimizer, hyperparams=optimizer.hyperparams | {"learning_rate": rate * factor})
    return _ScaledOptimizer(optimizer, factor)


def as_optimizer(optimizer: "Optimizer | optax.GradientTransformation") -> Optimizer:
    """An optimizer of either kind as a pytree."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, optax.GradientTransformation):
        return FixedOptimizer(optimizer)
    hint = f": call it, {_name(optimizer)}(learning_rate)" if callable(optimizer) else ""
    raise InputError(f"an optimizer must be an optax.GradientTransformation or come from traced_optimizer, got "
                     f"{type(optimizer).__name__}{hint}")


def named_optimizer(name: str, learning_rate: ArrayLike, settings: dict[str, float | bool] | None = None) -> Optimizer:
    """One of optax's optimizers by its name, for experiment files; its numbers are traced values.

    Args:
        name: the name of an optimizer in optax that has a learning rate, such as ``adamw``.
    """
    factories = {key: value for key, value in vars(optax).items() if _is_optimizer_factory(key, value)}
    if name not in factories:
        raise InputError(f"there is no optimizer {quote(name)} in optax that has a learning rate"
                         f"{alternatives(name, sorted(factories), 'allowed:')}")
    return traced_optimizer(factories[name], **{"learning_rate": learning_rate} | (settings or {}))


def _is_optimizer_factory(name: str, value: Any) -> bool:
    """Whether it is a public optimizer that needs nothing but gradients; L-BFGS's line search needs the objective."""
    return (inspect.isfunction(value) and "learning_rate" in inspect.signature(value).parameters
            and not name.startswith(("_", "scale_by_")) and name != "lbfgs")


def _is_numeric(value: Any) -> bool:
    return isinstance(value, int | float | jax.Array | np.ndarray | np.generic) and not isinstance(value, bool)


def _name(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__)
