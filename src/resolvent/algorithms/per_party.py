"""Parameters that are one number for all parties, or one for each."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

__all__ = ["as_numbers", "check_length", "of_party"]


def as_numbers(value: ArrayLike | list[float]) -> ArrayLike:
    """A list, as a file has it, becomes an array [N]."""
    return np.asarray(value, float) if isinstance(value, list | tuple) else value


def check_length(name: str, value: ArrayLike, parties: int) -> None:
    """Refuse another number of values than of parties."""
    if jnp.ndim(value) and jnp.shape(value) != (parties,):
        raise ValueError(f"{name} needs one number, or one per party ({parties}), got shape {jnp.shape(value)}")


def of_party(value: ArrayLike, k: Int[Array, ""]) -> Float[Array, ""]:
    """Party k's number."""
    numbers = jnp.asarray(value, jnp.zeros(()).dtype)
    return numbers[k] if numbers.ndim else numbers
