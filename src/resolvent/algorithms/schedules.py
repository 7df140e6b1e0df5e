"""Step sizes that change from round to round, with the conditions of their convergence theorems."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

__all__ = ["Constant", "Exponential", "InverseLog", "InversePower", "Schedule", "as_schedule"]


class Schedule(eqx.Module):
    """A positive number for each round t = 0, 1, ...

    Attributes:
        first: the number of the first round.
    """

    first: ArrayLike

    @abstractmethod
    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """The number of round t."""

    @property
    @abstractmethod
    def sum_diverges(self) -> bool:
        """Whether the numbers sum to infinity."""

    @property
    @abstractmethod
    def squares_converge(self) -> bool:
        """Whether their squares have a finite sum."""

    @property
    def finds_the_optimum(self) -> bool:
        """The conditions under which FedProx's averaged iterates solve (1).

        Source: operator-splitting paper, Theorem 2: the steps sum to infinity, their squares do not.
        """
        return self.sum_diverges and self.squares_converge


class Constant(Schedule):
    """The same number every round: FedProx then solves the regularised problem (13), not (1).

    Attributes:
        first: the number.
    """

    @property
    def sum_diverges(self) -> bool:
        """Yes."""
        return True

    @property
    def squares_converge(self) -> bool:
        """No."""
        return False

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """First."""
        return jnp.asarray(self.first, jnp.zeros(()).dtype)


class InversePower(Schedule):
    """first / (1 + t)^power: 1/t for power 1, 1/sqrt(t) for power 1/2.

    Attributes:
        first: the number of the first round.
        power: how fast it falls; Theorem 2 holds for powers in (1/2, 1].
    """

    power: float = eqx.field(static=True, default=1.0)

    @property
    def sum_diverges(self) -> bool:
        """For powers up to 1."""
        return self.power <= 1

    @property
    def squares_converge(self) -> bool:
        """For powers over 1/2."""
        return self.power > 0.5

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """First / (1 + t)^power."""
        return jnp.asarray(self.first / (1 + _real(t)) ** self.power)


class InverseLog(Schedule):
    """first / log(e + t): so slow that its squares have no finite sum.

    Attributes:
        first: the number of the first round.
    """

    @property
    def sum_diverges(self) -> bool:
        """Yes."""
        return True

    @property
    def squares_converge(self) -> bool:
        """No."""
        return False

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """First / log(e + t)."""
        return jnp.asarray(self.first / jnp.log(jnp.e + _real(t)))


class Exponential(Schedule):
    """first * factor^floor(t / period): so fast that the steps have a finite sum and the iterates stop short.

    Attributes:
        first: the number of the first round.
        factor: in (0, 1).
        period: rounds between two falls.
    """

    factor: ArrayLike = 0.9
    period: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"Exponential(period={self.period}) must be at least 1")
        if isinstance(self.factor, int | float) and not 0 < self.factor < 1:
            raise ValueError(f"Exponential(factor={self.factor}) must lie in (0, 1); use Constant for 1")

    @property
    def sum_diverges(self) -> bool:
        """No."""
        return False

    @property
    def squares_converge(self) -> bool:
        """Yes."""
        return True

    def __call__(self, t: Int[Array, ""]) -> Float[Array, ""]:
        """First * factor^floor(t / period)."""
        return jnp.asarray(self.first * jnp.asarray(self.factor, jnp.zeros(()).dtype) ** (t // self.period))


def as_schedule(value: Schedule | ArrayLike) -> Schedule:
    """A number as a constant schedule; a schedule as it is."""
    return value if isinstance(value, Schedule) else Constant(value)


def _real(t: Int[Array, ""]) -> Float[Array, ""]:
    return jnp.asarray(t).astype(jnp.zeros(()).dtype)
