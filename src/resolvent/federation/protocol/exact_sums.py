r"""Sums of real numbers without rounding, from sums of 64-bit integers.

.. code-block:: text

    round(x 2^256) = +- sum over i of d_i 2^(32 i),  0 <= d_i < 2^32,  i = 0, ..., 15

A number becomes sixteen integers +- d_i modulo 2^64. Sums of fewer than 2^31 numbers do not wrap around, and
the sum of the numbers follows from the sums of the d_i. It does not depend on the order. Every 64-bit float of
a size between 2^-203 and 2^255 is exact; smaller ones are rounded to a multiple of 2^-256.

Source: Kulisch, *Computer Arithmetic and Validity*, on exact accumulators.
"""

from collections.abc import Iterable
from fractions import Fraction

from resolvent.errors import InputError

_FRACTION, _DIGIT, EXACT_WORDS = 256, 32, 16


def on_exact_grid(x: Fraction | float) -> Fraction:
    """The multiple of 2^-256 that is closest to a number."""
    return Fraction(round(Fraction(x) * 2**_FRACTION), 2**_FRACTION)


def exact_words(x: Fraction | float) -> list[int]:
    """The integers of a number; their sums are those of ``from_exact_words``.

    Example:
        >>> sums = [a + b for a, b in zip(exact_words(0.1), exact_words(-0.1))]
        >>> from_exact_words(sums)
        Fraction(0, 1)
    """
    try:
        integer = round(Fraction(x) * 2**_FRACTION)
    except (OverflowError, ValueError) as error:
        raise InputError("a number is not finite") from error
    magnitude, sign = abs(integer), 1 if integer >= 0 else -1
    if magnitude >> (_DIGIT * EXACT_WORDS - 1):
        raise InputError("a number is 2^255 or larger: change its unit")
    return [sign * (magnitude >> (_DIGIT * i) & (2**_DIGIT - 1)) for i in range(EXACT_WORDS)]


def from_exact_words(words: Iterable[int]) -> Fraction:
    """The sum of numbers, from the sums of their integers, which may be negative."""
    return Fraction(sum(word << (_DIGIT * i) for i, word in enumerate(words)), 2**_FRACTION)
