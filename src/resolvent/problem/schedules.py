"""Schedules: step sizes, or factors of a learning rate, that change with the round."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import check_range

__all__ = ["Constant", "Cosine", "Exponential", "InverseLog", "InversePower", "Schedule", "WarmUp"]


class Schedule(CheckedArguments, eqx.Module):
    """A step size for each round t = 0, 1, ...

    As the ``schedule`` of a local solver it is the factor of the learning rate.

    Attributes:
        first: the step size of round 0; positive. 1 is usual for a factor.
    """

    first: ArrayLike = 1.0

    @abstractmethod
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """The step size of round t."""

    @property
    @abstractmethod
    def sum_diverges(self) -> bool:
        """Whether the step sizes sum to infinity."""

    @property
    @abstractmethod
    def squares_converge(self) -> bool:
        """Whether the squares of the step sizes have a finite sum."""

    @property
    def finds_the_optimum(self) -> bool:
        """Whether FedProx's averaged iterates converge to a minimiser of the average loss.

        The steps must sum to infinity and their squares must not. Source: operator-splitting paper, Theorem 2.
        """
        return self.sum_diverges and self.squares_converge


class Constant(Schedule):
    """The same step size in every round.

    FedProx with a constant step size solves the regularised problem (13) of the operator-splitting paper, not the
    average loss (1).

    Attributes:
        first: the step size.

    Example:
        >>> rv.schedules.Constant(0.5)(20).item()
        0.5
    """

    sum_diverges: ClassVar[bool] = True
    squares_converge: ClassVar[bool] = False

    @override
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(self.first, jnp.result_type(float))


class InversePower(Schedule):
    """first / (1 + t)^power: 1/t for power 1, 1/sqrt(t) for power 1/2.

    Attributes:
        first: the step size of round 0.
        power: how fast the step size decreases; Theorem 2 holds for powers in (1/2, 1].

    Example:
        >>> rv.schedules.InversePower(1.0, power=0.5)(3).item()
        0.5
    """

    power: float = eqx.field(static=True, default=1.0)

    @property
    @override
    def sum_diverges(self) -> bool:
        return self.power <= 1

    @property
    @override
    def squares_converge(self) -> bool:
        return self.power > 0.5

    @override
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(self.first / (1 + _as_float(t)) ** self.power)


class InverseLog(Schedule):
    """first / log(e + t): it decreases so slowly that its squares have no finite sum.

    Attributes:
        first: the step size of round 0.

    Example:
        >>> round(rv.schedules.InverseLog()(100).item(), 3)
        0.216
    """

    sum_diverges: ClassVar[bool] = True
    squares_converge: ClassVar[bool] = False

    @override
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(self.first / jnp.log(jnp.e + _as_float(t)))


class Exponential(Schedule):
    """first * factor^floor(t / period): the steps have a finite sum, so the iterates stop before the optimum.

    Attributes:
        first: the step size of round 0.
        factor: the ratio of two successive step sizes, in (0, 1).
        period: the number of rounds with the same step size; at least 1.

    Raises:
        InputError: ``period`` is less than 1, or ``factor`` is outside (0, 1).

    Example:
        >>> rv.schedules.Exponential(1.0, factor=0.5, period=10)(20).item()
        0.25
    """

    factor: ArrayLike = 0.9
    period: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=1)
    sum_diverges: ClassVar[bool] = False
    squares_converge: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_range(self, "(0, 1)", advice="use Constant for 1", factor=self.factor)

    @override
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(self.first * jnp.asarray(self.factor, jnp.result_type(float)) ** (t // self.period))


class Cosine(Schedule):
    """first * (last + (1 - last) (1 + cos(pi t / rounds)) / 2), and first * last from round ``rounds`` on.

    Attributes:
        first: the step size of round 0.
        rounds: the number of rounds over which it decreases; at least 1.
        last: the last step size, as a share of the first; in [0, 1].

    Raises:
        InputError: ``rounds`` is less than 1, or ``last`` is outside [0, 1].

    Example:
        >>> solver = rv.SGD(0.1, schedule=rv.schedules.Cosine(rounds=50))

    References:
        Loshchilov, Hutter: SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017, (5), without restarts.
    """

    rounds: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=100)
    last: Annotated[float, "[0, 1]"] = 0.0

    @property
    @override
    def sum_diverges(self) -> bool:
        return self.last > 0

    @property
    @override
    def squares_converge(self) -> bool:
        return not self.sum_diverges

    @override
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        cosine = jnp.cos(jnp.pi * jnp.minimum(_as_float(t) / self.rounds, 1))
        return jnp.asarray(self.first * (self.last + (1 - self.last) * (1 + cosine) / 2))


class WarmUp(Schedule):
    """first * (t + 1) / rounds for t < rounds; then first * then(t + 1 - rounds).

    Attributes:
        first: the step size at the end of the warm-up.
        rounds: the number of rounds over which it increases; at least 1.
        then: the factor of the step size after the warm-up, from its round 0 on; default: 1.

    Raises:
        InputError: ``rounds`` is less than 1.

    Example:
        >>> schedule = rv.schedules.WarmUp(rounds=5, then=rv.schedules.Cosine(rounds=45))
    """

    rounds: Annotated[int, "[1, inf)"] = eqx.field(static=True, default=10)
    then: Schedule | None = None

    @property
    @override
    def sum_diverges(self) -> bool:
        return self.then is None or self.then.sum_diverges

    @property
    @override
    def squares_converge(self) -> bool:
        return self.then is not None and self.then.squares_converge

    @override
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        share = jnp.minimum((_as_float(t) + 1) / self.rounds, 1)
        after = 1.0 if self.then is None else self.then(jnp.maximum(t + 1 - self.rounds, 0))
        return jnp.asarray(self.first * share * after)


def as_schedule(value: Schedule | ArrayLike) -> Schedule:
    """Convert a number to a constant schedule; return a schedule unchanged."""
    return value if isinstance(value, Schedule) else Constant(value)


def _as_float(t: Int[Array, ""]) -> Float[Array, ""]:
    return jnp.asarray(t).astype(jnp.result_type(float))
