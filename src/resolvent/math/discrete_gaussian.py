r"""Exact samples of the discrete Gaussian distribution, from random words of the operating system.

.. code-block:: text

    P(y) proportional to exp(-y^2 / (2 sigma^2)) for every integer y

Integers have no rounding: unlike floating-point noise, every sum of an integer and a sample could also be a sum of
any other integer and another sample. Rejection sampling decides only events of probability exp(-gamma) with a rational
gamma: the uniform number of the decision is compared with a floating-point value of exp(-gamma) and its error bound,
and where the first 53 bits do not decide, with more bits and exact arithmetic. The distribution is therefore exact.

Source: Canonne, Kamath, Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, Algorithms 1 to 3.
"""

import math
import secrets
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = Callable[[int], NDArray[np.uint64]]
"""Number of words -> independent uniform words of 64 bits."""

_BLOCK = 1 << 16  # candidates at once: their arrays stay in the processor's cache
_ACCEPTED = 0.4  # of the candidates, at least, on average
_PREFIX = 53  # bits of a uniform number that the first comparison uses
# Relative error of exp(-gamma) in float64, at most: gamma has one of 2^-48 (1 + gamma), and exp of a few 2^-53.
_ERROR = 2.0**-44


def system_words(count: int) -> NDArray[np.uint64]:
    """Words from the operating system's source of cryptographic randomness."""
    return np.frombuffer(secrets.token_bytes(8 * count), np.uint64)


def discrete_gaussian(sigma: float, size: int, words: Words = system_words) -> NDArray[np.int64]:
    """[size] independent samples.

    Args:
        sigma: the parameter, at least 0 and at most 2^40; 0 gives zeros. From 1 on, it is the standard deviation to
            1e-7.

    Example:
        >>> discrete_gaussian(2.0**20, 3).dtype
        dtype('int64')
    """
    samples = np.zeros(size, np.int64)
    filled = size if sigma == 0 else 0
    while filled < size:
        candidates = min(_BLOCK, math.ceil((size - filled) / _ACCEPTED) + 16)
        accepted = _candidates(sigma, candidates, words)[:size - filled]
        samples[filled:filled + len(accepted)] = accepted
        filled += len(accepted)
    return samples


def sum_divergence(sigma: float, terms: int) -> float:
    """tau: how much a sum of discrete Gaussians differs from one with the same variance parameter.

    Every probability of the sum is within a factor exp(tau) of that of the single one, and at least exp(-tau) of it.
    Source: Kairouz, Liu, Steinke, *The Distributed Discrete Gaussian Mechanism*, ICML 2021, Theorem 1.

    Args:
        sigma: the parameter of each term, at least 1/2.

    Example:
        >>> sum_divergence(4.0, 100) < 1e-60
        True
    """
    return 10 * math.fsum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, terms))


def _candidates(sigma: float, count: int, words: Words) -> NDArray[np.int64]:
    """Samples from ``count`` candidates, of which some are rejected: Algorithm 3."""
    variance, t = Fraction(sigma) ** 2, math.floor(sigma) + 1
    y = _discrete_laplace(t, count, words)
    centre = sigma * (sigma / t)
    gamma = ((np.abs(y) - centre) / sigma) ** 2 / 2

    def exact(i: int) -> Fraction:
        return (abs(int(y[i])) - variance / t) ** 2 / (2 * variance)

    return y[_bernoulli_exp(gamma, exact, words)]


def _discrete_laplace(t: int, count: int, words: Words) -> NDArray[np.int64]:
    """Integers with probabilities proportional to exp(-|y|/t), fewer than ``count``: Algorithm 2."""
    u = _below(t, count, words)
    u = u[_bernoulli_exp(u / t, lambda i: Fraction(int(u[i]), t), words)]
    v, active = np.zeros(len(u), np.int64), np.arange(len(u))
    while len(active):
        active = active[_bernoulli_exp(np.ones(len(active)), lambda i: Fraction(1), words)]
        v[active] += 1
    magnitude = u + t * v
    is_negative = words(len(u)) >> np.uint64(63) == 1
    signed: NDArray[np.int64] = np.where(is_negative, -magnitude, magnitude)
    without_negative_zero: NDArray[np.int64] = signed[~(is_negative & (magnitude == 0))]
    return without_negative_zero


def _below(limit: int, count: int, words: Words) -> NDArray[np.int64]:
    """Uniform integers in [0, limit): words of as few bits as possible, without those that are too large."""
    if limit == 1:
        return np.zeros(count, np.int64)
    numbers = (words(count) >> np.uint64(64 - (limit - 1).bit_length())).astype(np.int64)
    return numbers[numbers < limit]


def _bernoulli_exp(gamma: NDArray[np.float64], exact: Callable[[int], Fraction], words: Words) -> NDArray[np.bool_]:
    """Events of the probabilities exp(-gamma), decided exactly; ``exact`` maps a position to its exponent."""
    prefix = words(len(gamma)) >> np.uint64(64 - _PREFIX)
    uniform, p = prefix * 2.0**-_PREFIX, np.exp(-gamma)
    happens: NDArray[np.bool_] = uniform < p
    for i in np.flatnonzero(np.abs(uniform - p) <= 2.0**(1 - _PREFIX) + _ERROR * (1 + gamma) * p):
        happens[i] = _is_below_exp(int(prefix[i]), exact(int(i)), words)
    return happens


def _is_below_exp(prefix: int, gamma: Fraction, words: Words) -> bool:
    """Whether a uniform number, whose first bits are ``prefix``, is less than exp(-gamma)."""
    value, bits = prefix, _PREFIX
    while True:
        value, bits = value << 64 | int(words(1)[0]), bits + 64
        context = Context(prec=bits)  # decimal digits: three times those that the bits need
        ratio = context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator))
        p = Fraction(context.exp(ratio)) * 2**bits
        error = p * (1 + gamma) / 10 ** (bits - 2)
        if value + 1 <= p - error or value >= p + error:
            return bool(value < p)
