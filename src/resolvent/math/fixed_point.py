r"""Fixed-point numbers modulo 2^32 or 2^64: their sums are exact and do not depend on the order.

.. code-block:: text

    q_k = round(x_k 2^f) mod 2^bits        sum of the x_k = 2^-f (sum of the q_k), read as a signed integer

The sum of N numbers with |x_k| < range does not wrap if N range 2^f <= 2^(bits - 1). It differs from the sum of the
x_k by at most N 2^-(f+1). An integer is stored as words of 32 bits, the lowest first, because JAX has no integers of 64
bits unless its precision is double.

Source: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017, Section 4.
"""

import math
from typing import Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from resolvent.errors import InputError

__all__ = ["Bits", "decode", "encode", "fraction_bits", "is_in_range", "total"]

Bits: TypeAlias = Literal[32, 64]

_WORD = 32
_HALF, _LOW = 16, 0xFFFF


def fraction_bits(terms: int, largest: float, bits: Bits) -> int:
    """The largest f with which a sum does not wrap.

    Args:
        terms: N, the largest number of terms of a sum.
        largest: the range: every term is smaller than this in absolute value.
        bits: bits of the modulus.

    Raises:
        InputError: there is no f that is at least 0.

    Example:
        >>> fraction_bits(100, 1000.0, 64)
        46
    """
    f = bits - 1 - math.ceil(math.log2(terms)) - math.ceil(math.log2(largest))
    if f < 0:
        raise InputError(f"a sum of {terms} numbers up to {largest:g} does not fit in {bits} bits: use 64 bits, a "
                         "smaller range or fewer terms")
    return f


def is_in_range(x: Float[Array, "..."], largest: float) -> Bool[Array, ""]:
    """Whether every number is finite and smaller than the range in absolute value."""
    return jnp.all(jnp.abs(x) < largest)


def encode(x: Float[Array, "..."], f: int, bits: Bits) -> UInt32[Array, "... words"]:
    """round(x 2^f) modulo 2^bits; half integers are rounded to even ones. The numbers must be in range.

    Example:
        >>> encode(jnp.array([-0.75]), 2, 32).tolist()
        [[4294967293]]
    """
    scaled = jnp.rint(x * 2.0**f)
    magnitude = jnp.abs(scaled)
    high = jnp.floor(magnitude * 2.0**-_WORD)  # all of it is exact: powers of two, and differences of few digits
    low = (magnitude - high * 2.0**_WORD).astype(jnp.uint32)
    words = jnp.stack([low, high.astype(jnp.uint32)][:bits // _WORD], axis=-1)
    return jnp.where((scaled < 0)[..., None], _negated(words), words)


def decode(words: UInt32[Array, "... words"], f: int, like: Array) -> Float[Array, "..."]:
    """The numbers whose integers modulo 2^bits these are, in the dtype of ``like``: one or two roundings.

    Example:
        >>> decode(encode(jnp.array([-0.75]), 2, 64), 2, jnp.zeros(())).tolist()
        [-0.75]
    """
    is_negative = words[..., -1] >> (_WORD - 1) == 1
    magnitude = jnp.where(is_negative[..., None], _negated(words), words)
    value = magnitude[..., 0].astype(like.dtype)
    if words.shape[-1] > 1:
        value += magnitude[..., 1].astype(like.dtype) * 2.0**_WORD
    result: Array = jnp.where(is_negative, -value, value) * 2.0**-f
    return result


def total(words: UInt32[Array, "C ... words"]) -> UInt32[Array, "... words"]:
    """The sum of at most 2^16 rows, modulo 2^bits."""
    if words.shape[-1] == 1:
        return jnp.sum(words, axis=0, dtype=jnp.uint32)
    low, high = words[..., 0], words[..., 1]
    # Sums of halves of words do not wrap, and their upper halves are what is carried.
    lower = jnp.sum(low & _LOW, axis=0, dtype=jnp.uint32)
    upper = jnp.sum(low >> _HALF, axis=0, dtype=jnp.uint32) + (lower >> _HALF)
    return jnp.stack([(lower & _LOW) | (upper << _HALF),
                      jnp.sum(high, axis=0, dtype=jnp.uint32) + (upper >> _HALF)], axis=-1)


def _negated(words: UInt32[Array, "... words"]) -> UInt32[Array, "... words"]:
    """The negative integers: all bits inverted, plus one."""
    low: Array = ~words[..., 0] + jnp.uint32(1)
    if words.shape[-1] == 1:
        return jnp.expand_dims(low, -1)
    return jnp.stack([low, ~words[..., 1] + (low == 0).astype(jnp.uint32)], axis=-1)
