"""Parameters that are one number for all parties, or one for each."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

__all__ = ["as_numbers", "check_length", "check_range", "of_party"]


def as_numbers(value: ArrayLike | list[float]) -> ArrayLike:
    """A list, as a file has it, becomes an array [N]."""
    return np.asarray(value, float) if isinstance(value, list | tuple) else value


def check_range(owner: str, name: str, value: ArrayLike, low: float, high: float = np.inf) -> None:
    """Refuse known numbers outside of [low, high]."""
    if isinstance(value, jax.core.Tracer):
        return
    numbers = np.asarray(value)
    wrong = numbers[~((numbers >= low) & (numbers <= high))]
    if wrong.size:
        allowed = f"lie in [{low}, {high}]" if np.isfinite(high) else f"be at least {low}"
        raise ValueError(f"{owner}({name}={wrong.flat[0]}) must {allowed}")


def check_length(name: str, value: ArrayLike, parties: int) -> None:
    """Refuse another number of values than of parties."""
    if jnp.ndim(value) and jnp.shape(value) != (parties,):
        raise ValueError(f"{name} needs one number, or one per party ({parties}), got shape {jnp.shape(value)}")


def of_party(value: ArrayLike, k: Int[Array, ""]) -> Float[Array, ""]:
    """Party k's number."""
    numbers = jnp.asarray(value, jnp.zeros(()).dtype)
    return numbers[k] if numbers.ndim else numbers
