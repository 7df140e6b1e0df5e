"""Parameters that are one number for all parties, or an array [N] with one number per party."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.errors import InputError


def as_numbers(value: ArrayLike | list[float]) -> ArrayLike:
    """Convert a list or a tuple to an array [N]; return anything else unchanged."""
    return np.asarray(value, float) if isinstance(value, list | tuple) else value


def check_length(name: str, value: ArrayLike, parties: int) -> None:
    """Refuse an array that does not have one number per party."""
    if jnp.ndim(value) and jnp.shape(value) != (parties,):
        raise InputError(f"{name} needs one number, or one per party ({parties}), got shape {jnp.shape(value)}")


def of_party(value: ArrayLike, k: Int[Array, ""], *, keep_dtype: bool = False) -> Float[Array, ""]:
    """Party k's number.

    Args:
        value: one number, or [N].
        keep_dtype: leave the dtype of arrays as it is; otherwise the number has JAX's default floating-point dtype.
    """
    dtype = None if keep_dtype and hasattr(value, "dtype") else jnp.result_type(float)
    numbers = jnp.asarray(value, dtype)
    return numbers[k] if numbers.ndim else numbers
