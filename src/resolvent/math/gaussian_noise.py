r"""Noisy sums of vectors of bounded length: what every differentially private method of the library releases.

.. code-block:: text

    S = sum of clip(x_i) + multiplier * length * N(0, I),    |clip(x)| <= length

With a key that is derived from a seed, the sum and the noise are floating-point numbers. Such *simulated noise*
measures utility and gives no protection: its seed is known, and a normal number of JAX in float32 has 8,388,608
different values, so that the sum shows which vectors are in it.

With a system key the noise protects. All vectors are on a grid with the step length/unit, as integers:

.. code-block:: text

    n = sum of r_i + Z,    r_i = truncate(unit * x_i / max(|x_i|, length)),    S = (length/unit) n

Z is discrete Gaussian with the parameter multiplier * unit, from random words of the operating system that are drawn
when the program runs (``discrete_gaussian``). A vector is rounded towards zero, which cannot lengthen it, and its
length is bounded from above including all rounding errors. So one vector changes the integer sum by at most ``unit``,
whatever its numbers are: rounding adds nothing to the sensitivity, and an accountant is given ``multiplier``. Sums of
integers have no rounding. Whatever is computed from n is post-processing. A sum that is too large for 32 bits wraps
around, which is a function of n as well.

A sum with ``integers`` is computed on the grid in any case: single terms with their share of the noise are integers as
well, for secure sums. Without a system key their noise is a rounded normal number. The sum
of m discrete Gaussians with the parameter s differs from one with the parameter sqrt(m) s by a factor between
exp(-tau) and exp(tau) in every probability, with tau = ``sum_divergence(s, m)``, which is below 10^-60 from s = 4 on.

The accountant's Gaussian is the continuous one. The discrete Gaussian has the same Renyi divergences at all integer
orders, also when records are sampled, and the same privacy profile to 1e-5 (relative) with ``unit`` above 1000.

Source: Canonne, Kamath, Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, Theorem 14; Mironov,
*On Significance of the Least Significant Bits for Differential Privacy*, CCS 2012; Kairouz, Liu, Steinke, *The
Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation*, ICML 2021, Theorem 1.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, ArrayLike, Float, Int
from numpy.typing import NDArray

from resolvent.math import tree
from resolvent.math.discrete_gaussian import discrete_gaussian
from resolvent.math.system_keys import is_system_key
from resolvent.math.tree import Vector

_MAX_NUMBER = 2.0**22  # of one vector with noise: float32 holds it, and half of it, exactly
_MAX_TOTAL = 2.0**30  # of the sum with noise
_TAIL = 16  # standard deviations of noise that have room
_BLOCK = 64  # numbers that are summed one after the other


class NoisySum(eqx.Module):
    """The steps of a noisy sum: ``clip`` each vector, sum them, and ``release`` the sum.

    Attributes:
        length: largest length of a vector, positive.
        multiplier: standard deviation of the noise relative to ``length``.
        terms: number of vectors that a sum has at most. The sum of more vectors may wrap around if the noise protects.
        protects: whether the noise protects; otherwise it is simulated.
        integers: whether vectors and sums are integers also if the noise is simulated.

    Example:
        >>> key = jax.random.key(0)
        >>> noisy = NoisySum.for_key(key, length=1.0, multiplier=0.5, terms=10)
        >>> total = noisy.clip(jnp.array([3.0, 4.0])) + noisy.clip(jnp.array([0.3, 0.4]))
        >>> noisy.release(total, key).shape
        (2,)
    """

    length: ArrayLike
    multiplier: ArrayLike
    terms: ArrayLike
    protects: bool = eqx.field(static=True)
    integers: bool = eqx.field(static=True, default=False)

    @classmethod
    def for_key(cls, key: Array, *, length: ArrayLike, multiplier: ArrayLike, terms: ArrayLike,
                integers: bool = False) -> "NoisySum":
        """The sum whose noise has the kind of a key: it protects if this is a system key."""
        protects = is_system_key(key)
        return cls(length, multiplier, terms, protects, integers or protects)

    def zero(self, like: Vector) -> Vector:
        """The sum of no vectors: integers if the noise protects, otherwise numbers of at least 32 bits."""
        wide = tree.widen(like)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.int32 if self.integers else leaf.dtype), wide)

    def clip(self, x: Vector) -> Vector:
        """A vector, shortened to ``length`` at most; a vector that is not finite counts as zero.

        Such a vector would make the sum not finite, which would reveal it.
        """
        wide = tree.widen(x)
        norm = tree.norm(wide)
        if not self.integers:
            factor = jnp.where(jnp.isfinite(norm), jnp.minimum(1, self.length / jnp.where(norm > 0, norm, 1)), 0)
            return jax.tree.map(lambda leaf: (factor * jnp.where(jnp.isfinite(leaf), leaf, 0)).astype(leaf.dtype), wide)
        at_most = _length_bound(wide)
        longest = jnp.maximum(at_most, self.length)
        # One rounding each of the quotient, the product with a number and the comparison.
        factor = jnp.where(jnp.isfinite(norm) & jnp.isfinite(at_most), self._unit / longest, 0) * (
            1 - 8 * _precision(wide))
        return jax.tree.map(lambda leaf: jnp.trunc(factor * jnp.where(jnp.isfinite(leaf), leaf, 0)).astype(jnp.int32),
                            wide)

    def release(self, total: Vector, key: Array, *, share: ArrayLike = 1) -> Vector:
        """The sum with noise, as floating-point numbers.

        Args:
            total: a sum of vectors of ``clip`` or of ``noisy``.
            key: the key of this release alone.
            share: share of the variance of the noise that is added.
        """
        released = self.noisy(total, key, share=share)
        # A sum beyond 32 bits wraps around.
        return jax.tree.map(lambda leaf: leaf * self._step, released) if self.integers else released

    def noisy(self, total: Vector, key: Array, *, share: ArrayLike = 1) -> Vector:
        """The sum with noise, see ``release``; with ``integers`` as integers, which can be summed."""
        leaves, structure = jax.tree.flatten(total)
        deviation = jnp.asarray(self.multiplier) * jnp.sqrt(jnp.asarray(share))
        if self.integers:
            scale: Array = deviation * self._unit
        else:
            scale = deviation * self.length
        if self.protects:
            if not is_system_key(key):
                raise TypeError("noise that protects needs a system key")
            noise = _system_noise(scale * (1 + 8 * _precision(scale)), [leaf.shape for leaf in leaves])
        else:
            wide = jnp.result_type(scale.dtype, jnp.float32)
            noise = [scale * jax.random.normal(jax.random.fold_in(key, i), leaf.shape,
                                               wide if self.integers else leaf.dtype) for i, leaf in enumerate(leaves)]
        if self.integers:
            noise = [jnp.rint(z).astype(jnp.int32) for z in noise]
        return jax.tree.unflatten(structure, [leaf + z for leaf, z in zip(leaves, noise, strict=True)])

    @property
    def _unit(self) -> Float[Array, ""]:
        """The number of grid steps in ``length``."""
        tail = _TAIL * jnp.asarray(self.multiplier, jnp.result_type(float))
        return jnp.minimum(_MAX_NUMBER / (1 + tail), _MAX_TOTAL / (self.terms + tail))

    @property
    def _step(self) -> Float[Array, ""]:
        return jnp.asarray(self.length) / self._unit


def _system_noise(sigma: Float[Array, ""], shapes: list[tuple[int, ...]]) -> list[Int[Array, "..."]]:
    """Discrete Gaussian noise that the operating system draws each time that the program gets there.

    An I/O callback has an effect, so the compiler neither moves it out of a loop nor merges two of them.
    """
    sizes = [math.prod(shape) for shape in shapes]
    shape = jax.ShapeDtypeStruct((sum(sizes),), jnp.int32)  # type: ignore[no-untyped-call]
    noise = io_callback(_draw(sum(sizes)), shape, sigma)
    return [part.reshape(shape) for part, shape in zip(jnp.split(noise, np.cumsum(sizes)[:-1].tolist()), shapes,
                                                       strict=True)]


@lru_cache(maxsize=256)  # one function for a size: a program is compiled again for another function
def _draw(size: int) -> Callable[[Any], NDArray[np.int32]]:
    return lambda sigma: discrete_gaussian(float(sigma), size).astype(np.int32)


def _length_bound(x: Vector) -> Float[Array, ""]:
    """A number that is at least the exact length of a vector, and close to it.

    The relative error of a sum of nonnegative numbers is at most the number of additions in a row times the precision,
    so the numbers are summed in blocks, and the results of the blocks as well.
    """
    leaves = [leaf.ravel() for leaf in jax.tree.leaves(x) if leaf.size]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    totals, additions = [], len(leaves)
    for leaf in leaves:
        squares, levels = jnp.square(leaf / scale), 0
        while squares.size > 1:
            squares = jnp.pad(squares, (0, -squares.size % _BLOCK)).reshape(-1, _BLOCK).sum(axis=1)
            # Without the barrier XLA could merge the sums of all levels.
            squares = jax.lax.optimization_barrier(squares)  # type: ignore[no-untyped-call]
            levels += 1
        totals.append(squares[0])
        additions = max(additions, len(leaves) + levels * _BLOCK)
    return scale * jnp.sqrt(jnp.sum(jnp.stack(totals))) * (1 + (additions + 16) * _precision(x))


def _precision(x: Vector) -> float:
    """The largest relative spacing of the numbers in a vector."""
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(x))  # type: ignore[no-untyped-call]
