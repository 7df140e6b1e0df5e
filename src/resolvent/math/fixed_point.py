r"""Fixed-point numbers modulo 2^32 or 2^64: their sums are exact and do not depend on the order.

.. code-block:: text

    q_k = round(x_k 2^f) mod 2^bits        sum of the x_k = 2^-f (sum of the q_k), read as a signed integer

The sum of N numbers with |x_k| < range does not wrap if N range 2^f <= 2^(bits - 1). It differs from the sum of the
x_k by at most N 2^-(f+1). An integer is stored as words of 32 bits, the lowest first, because JAX has no integers of 64
bits unless its precision is double.

A number can have several such integers, its limbs: the first for its upper digits, the next for what is left. Their
sums are added up only when they are read, so that no carry passes between them.

Source: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017, Section 4.
"""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, UInt32

from resolvent.errors import InputError

Bits: TypeAlias = Literal[32, 64]

_WORD = 32
_HALF, _LOW = 16, 0xFFFF


def fraction_bits(terms: int, largest: float, bits: Bits, limbs: int = 1) -> int:
    """The largest f with which a sum does not wrap: that of the last limb.

    Args:
        largest: the range: every term is smaller than this in absolute value.
        limbs: integers for each number.

    Example:
        >>> fraction_bits(100, 1000.0, 64)
        46
    """
    f = limbs * _digits(terms, bits) - math.ceil(math.log2(largest))
    if f < 0:
        raise InputError(f"a sum of {terms} numbers up to {largest:g} does not fit in {bits} bits: use 64 bits, a "
                         "smaller range or fewer terms")
    return f


def fractions_of_limbs(f: int, terms: int, bits: Bits, limbs: int) -> tuple[int, ...]:
    """The f of each limb, from the upper digits to the lower ones; negative for a multiple of a power of two.

    Example:
        >>> fractions_of_limbs(70, 1024, 64, 2)
        (17, 70)
    """
    return tuple(f - i * _digits(terms, bits) for i in reversed(range(limbs)))


def _digits(terms: int, bits: Bits) -> int:
    """The bits of a term that the sum of all terms leaves, without its sign."""
    return bits - 1 - math.ceil(math.log2(terms))


def is_in_range(x: Float[Array, "..."], largest: float) -> Bool[Array, ""]:
    """Whether every number is finite and smaller than the range in absolute value."""
    return jnp.all(jnp.abs(x) < largest)


def encode(x: Float[Array, "..."], fractions: Sequence[int], bits: Bits) -> UInt32[Array, "... limbs words"]:
    """The limbs: round(x 2^f) modulo 2^bits, then the same of what is left with the next f.

    Half integers are rounded to even ones. The numbers must be in range. Several limbs need numbers of 64 bits.

    Example:
        >>> encode(jnp.array([-0.75]), [2], 32).tolist()
        [[[4294967293]]]
    """
    limbs = []
    for f in fractions:
        scaled = jnp.rint(x * 2.0**f)
        magnitude = jnp.abs(scaled)
        high = jnp.floor(magnitude * 2.0**-_WORD)  # all of it is exact: powers of two, and differences of few digits
        low = (magnitude - high * 2.0**_WORD).astype(jnp.uint32)
        words = jnp.stack([low, high.astype(jnp.uint32)][:bits // _WORD], axis=-1)
        limbs.append(jnp.where((scaled < 0)[..., None], _negated(words), words))
        x = x - scaled * 2.0**-f
    return jnp.stack(limbs, axis=-2)


def encode_integers(x: Int32[Array, "..."], bits: Bits) -> UInt32[Array, "... 1 words"]:
    """Integers modulo 2^bits, as one limb.

    Example:
        >>> encode_integers(jnp.array([-3]), 64).tolist()
        [[[4294967293, 4294967295]]]
    """
    high: Array = jnp.where(x < 0, jnp.uint32(2**_WORD - 1), jnp.uint32(0))
    return jnp.stack([x.astype(jnp.uint32), high][:bits // _WORD], axis=-1)[..., None, :]


def decode_integers(words: UInt32[Array, "... 1 words"]) -> Int32[Array, "..."]:
    """The integers of ``encode_integers`` or of a sum of theirs, modulo 2^32."""
    return jax.lax.bitcast_convert_type(words[..., 0, 0], jnp.int32)


def decode(words: UInt32[Array, "... limbs words"], fractions: Sequence[int], like: Array) -> Float[Array, "..."]:
    """The numbers whose limbs modulo 2^bits these are, in the dtype of ``like``: one or two roundings for each limb.

    Example:
        >>> decode(encode(jnp.array([-0.75]), [2], 64), [2], jnp.zeros(())).tolist()
        [-0.75]
    """
    is_negative = words[..., -1] >> (_WORD - 1) == 1
    magnitude = jnp.where(is_negative[..., None], _negated(words), words)
    value = magnitude[..., 0].astype(like.dtype)
    if words.shape[-1] > 1:
        value += magnitude[..., 1].astype(like.dtype) * 2.0**_WORD
    signed = jnp.where(is_negative, -value, value)
    lower_first = [signed[..., i] * 2.0**-f for i, f in enumerate(fractions)][::-1]
    result: Array = sum(lower_first[1:], lower_first[0])
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
