"""Codecs: lossy compression of vectors, with the exact number of bits and a bound on the error.

A codec C acts on the whole tree as one vector x of d entries. It is *unbiased* if E C(x) = x, and its *variance* is
bounded by omega if E |C(x) - x|^2 <= omega |x|^2. A biased codec with omega < 1 is a contraction.

.. code-block:: text

    codec               entries kept   bits of d entries, b bits each    unbiased   omega
    Identity            d              d b                               yes        0
    RandK               k              k b + 32 (the seed of the set)    yes        d/k - 1
    TopK                k              k b + k ceil(log2 d)              no         1 - k/d
    NaturalCompression  d              d (sign and exponent): 9 d, 12 d  yes        1/8
    QSGD                d              b + d ceil(log2(2 s + 1))         yes        min(d/s^2, sqrt(d)/s)

QSGD sends its norm in float32 at least: b is 32 there for vectors in half precision. ``packing`` turns an encoded
vector into ceil(bits / 8) bytes.

Source: Horvath et al., *Natural Compression for Distributed Deep Learning*; Alistarh et al., *QSGD*, Lemma 3.1. The
compressed methods of the FedMix poster use such codecs. To write a codec of your own, derive from ``Codec``.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree, UInt
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["QSGD", "Codec", "Identity", "IntegerRange", "NaturalCompression", "RandK", "TopK", "Wire", "wire_bits"]


IntegerRange: TypeAlias = tuple[int, int]


class Wire(eqx.Module):
    """An encoded vector.

    Attributes:
        codec: the codec that encoded it.
        content: the codec's arrays.
        is_finite: whether all numbers of the vector were finite. It takes no bits, because a vector that is not finite
            need not be sent.
        structure: the structure of the decoded tree.
        leaves: shape and dtype of each leaf of the decoded tree.
        bits: the length of the packed content; the arrays themselves may be wider.

    Example:
        >>> wire = rv.codecs.TopK(k=1).encode(jnp.array([3.0, -4.0]), jax.random.key(0))
        >>> wire.decoded().tolist(), wire.bits
        ([0.0, -4.0], 33)
    """

    codec: "Codec"
    content: PyTree[Any]
    is_finite: Bool[Array, ""]
    structure: Any = eqx.field(static=True)
    leaves: tuple[jax.ShapeDtypeStruct, ...] = eqx.field(static=True)
    bits: int = eqx.field(static=True)

    def decoded(self) -> Vector:
        """The decoded vector; NaN if the vector that was encoded was not finite."""
        return jax.tree.map(lambda leaf: jnp.where(self.is_finite, leaf, jnp.nan), self.codec.decode(self))

    def zeros(self) -> Vector:
        """The zero vector in the shape of the decoded one."""
        tree_of_zeros: Vector = jax.tree.unflatten(self.structure, [jnp.zeros(s.shape, s.dtype) for s in self.leaves])
        return tree_of_zeros


def wire_bits(message: PyTree[Any]) -> int:
    """The number of bits of a message: those of its wires, and all bits of every other leaf.

    Example:
        >>> rv.codecs.wire_bits({"model": jnp.zeros(10), "round": jnp.array(1)})
        352
    """
    parts = jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Wire))
    return sum(part.bits if isinstance(part, Wire) else 8 * part.size * part.dtype.itemsize for part in parts)


class Codec(CheckedArguments, eqx.Module):
    """A lossy encoding of vectors.

    Attributes:
        unbiased: whether the mean of the decoded vector over keys is the vector.
    """

    unbiased: eqx.AbstractClassVar[bool]

    @abstractmethod
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The arrays that encode ``x``."""

    @abstractmethod
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The vector that the arrays encode, in the size and dtype of ``like``."""

    @abstractmethod
    def count(self, size: int, dtype: Any) -> int:
        """The number of bits of an encoded vector."""

    def integer_ranges(self, size: int, dtype: Any) -> tuple[IntegerRange | None, ...] | None:
        """For each array of the content, the smallest and the largest of its integers; None where all bits are sent.

        None for the whole content, which is the default, sends all bits of all arrays.
        """
        return None

    @abstractmethod
    def omega(self, size: int) -> float:
        """The bound on the variance for vectors of this size."""

    def encode(self, x: Vector, key: Array) -> Wire:
        """Encode ``x``.

        Raises:
            TypeError: a leaf does not have floating numbers.
        """
        leaves, structure = jax.tree.flatten(x)
        wrong = [leaf.dtype for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]
        if wrong:
            raise TypeError(f"{type(self).__name__} needs leaves of floating numbers, got {wrong[0]}")
        flat = ravel_pytree(x)[0]
        shapes = tuple(_shape(leaf) for leaf in leaves)
        is_finite = jnp.all(jnp.isfinite(flat))
        return Wire(self, self.pack(flat, key), is_finite, structure, shapes, self.count(flat.size, flat.dtype))

    def decode(self, wire: Wire) -> Vector:
        """The vector that ``wire`` stands for, in the structure, shapes and dtypes of the encoded one.

        Raises:
            InputError: ``unpack`` returns an array of another shape.
        """
        flat, unravel = ravel_pytree(wire.zeros())
        unpacked = self.unpack(wire.content, flat)
        if jnp.shape(unpacked) != flat.shape:
            raise InputError(f"{type(self).__name__}.unpack returned an array of shape {list(jnp.shape(unpacked))}, "
                             f"but the vector has shape {list(flat.shape)}: return an array like the argument `like`")
        decoded: Vector = unravel(unpacked)
        return decoded

    def bits(self, x: Vector) -> int:
        """The exact number of bits of the encoded vector, which depends on shapes and dtypes only."""
        leaves = jax.tree.leaves(x)
        return self.count(sum(leaf.size for leaf in leaves), jnp.result_type(*leaves) if leaves else tree.dtype(x))

    def step(self, size: int) -> float:
        """The step size of a shift in the theory: 1/(1 + omega), and 1 for a contraction. Source: DIANA; EF21."""
        return 1 / (1 + self.omega(size)) if self.unbiased else 1.0


def _shape(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)  # type: ignore[no-untyped-call]


class Identity(Codec):
    """No compression: the baseline for the other codecs.

    Example:
        >>> rv.codecs.Identity().bits(jnp.zeros(10))
        320
    """

    unbiased: ClassVar[bool] = True

    @override
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        return x

    @override
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        return jnp.asarray(content)

    @override
    def count(self, size: int, dtype: Any) -> int:
        return size * _width(dtype)

    @override
    def omega(self, size: int) -> float:
        return 0.0


class Sparse(Codec):
    """A codec that sends k of d entries.

    Attributes:
        share: k/d, with k rounded up; ignored if ``k`` is set.
        k: number of entries that are sent; smaller vectors are sent whole.

    Raises:
        InputError: ``share`` lies outside (0, 1], or ``k`` is less than 1.
    """

    share: float = eqx.field(static=True, default=0.1)
    k: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_range(self, "(0, 1]", share=self.share)
        check_range(self, "[1, inf)", k=self.k)

    def entries(self, size: int) -> int:
        """The number of entries that are sent of a vector of this size."""
        return min(math.ceil(self.share * size - 1e-9) if self.k is None else self.k, size)


class RandK(Sparse):
    """k entries drawn uniformly without replacement, times d/k. The seed is sent, from which the indices follow.

    Example:
        >>> codec = rv.codecs.RandK(k=2)
        >>> codec.bits(jnp.zeros(10)), codec.omega(10)
        (96, 4.0)
    """

    unbiased: ClassVar[bool] = True

    @override
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The seed, and the entries at the indices that follow from it."""
        seed = jax.random.bits(key, (), jnp.uint32)
        return seed, x[self._draw_indices(seed, x.size)]

    @override
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The entries, scaled, at their indices; zero elsewhere."""
        seed, values = content
        scale = like.size / max(self.entries(like.size), 1)
        return like.at[self._draw_indices(seed, like.size)].set(scale * values)

    @override
    def count(self, size: int, dtype: Any) -> int:
        return self.entries(size) * _width(dtype) + 32

    @override
    def omega(self, size: int) -> float:
        """d/k - 1, which is the exact variance."""
        return size / max(self.entries(size), 1) - 1 if size else 0.0

    def _draw_indices(self, seed: Array, size: int) -> Array:
        return jax.random.permutation(jax.random.key(seed), size)[:self.entries(size)]


class TopK(Sparse):
    """The k entries of largest absolute value. It is biased: without a shift, a fixed point is not the optimum.

    Example:
        >>> codec = rv.codecs.TopK(k=2)
        >>> codec.bits(jnp.zeros(10)), codec.omega(10)
        (72, 0.8)
    """

    unbiased: ClassVar[bool] = False

    @override
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The indices of the k entries, and their values."""
        indices = jax.lax.top_k(jnp.abs(x), self.entries(x.size))[1]
        return indices, x[indices]

    @override
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The values at their indices; zero elsewhere."""
        indices, values = content
        return like.at[indices].set(values)

    @override
    def count(self, size: int, dtype: Any) -> int:
        """The values, and ceil(log2 d) bits for each index."""
        return self.entries(size) * (_width(dtype) + max(size - 1, 0).bit_length())

    @override
    def integer_ranges(self, size: int, dtype: Any) -> tuple[IntegerRange | None, ...]:
        return (0, max(size - 1, 0)), None

    @override
    def omega(self, size: int) -> float:
        """1 - k/d, attained if all entries have the same absolute value."""
        return 1 - self.entries(size) / size if size else 0.0


class NaturalCompression(Codec):
    """Every entry is rounded at random to one of the two nearest powers of two, so that sign and exponent suffice.

    Entries below the smallest normal number are rounded to zero or to that number; only their mean is exact. Entries of
    the largest binade are rounded down. Infinite and nan entries stay so. Source: Horvath et al., (1)-(3).

    Example:
        >>> rv.codecs.NaturalCompression().bits(jnp.zeros(10))
        90
    """

    unbiased: ClassVar[bool] = True

    @override
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """Sign and exponent; the probability of rounding up is mantissa / 2^(number of mantissa bits)."""
        info = _finfo(x.dtype)
        code = jax.lax.bitcast_convert_type(x, _unsigned(x.dtype))
        chance = (code & ((1 << info.nmant) - 1)).astype(x.dtype) / 2**info.nmant
        exponents = (1 << info.nexp) - 1
        exponent = (code >> info.nmant) & exponents
        up = (_uniform(key, x.shape, x.dtype) < chance) & (exponent < exponents - 1)
        return ((code >> info.nmant) + up).astype(jnp.uint16)

    @override
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        code = content.astype(_unsigned(like.dtype)) << _finfo(like.dtype).nmant
        return jax.lax.bitcast_convert_type(code, like.dtype)

    @override
    def count(self, size: int, dtype: Any) -> int:
        """Sign and exponent of each entry: 9 bits in float32, 12 in float64."""
        return size * (1 + int(_finfo(dtype).nexp))

    @override
    def integer_ranges(self, size: int, dtype: Any) -> tuple[IntegerRange]:
        return ((0, (1 << (1 + int(_finfo(dtype).nexp))) - 1),)

    @override
    def omega(self, size: int) -> float:
        """1/8, attained at 4/3 of a power of two."""
        return 1 / 8


class QSGD(Codec):
    """Every entry is rounded at random to a signed multiple of (Euclidean norm of the vector) / s.

    The code has a fixed length: the norm, and one of 2 s + 1 levels for each entry. (The paper's Elias code has a
    random length.) Source: Alistarh et al., (3.1) and Lemma 3.1.

    Attributes:
        levels: s, in [1, 2^15 - 1].

    Raises:
        InputError: ``levels`` lies outside this range.

    Example:
        >>> codec = rv.codecs.QSGD(levels=4)
        >>> codec.bits(jnp.zeros(10)), codec.omega(10)
        (72, 0.625)
    """

    levels: int = eqx.field(static=True, default=15)
    unbiased: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not 1 <= self.levels < 2**15:
            raise InputError(f"QSGD(levels={self.levels}) must lie in [1, {2**15 - 1}]")

    @override
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The norm and the signed levels."""
        norm = tree.norm(x)
        scaled = self.levels * (jnp.abs(x) / jnp.where(norm > 0, norm, 1))
        below = jnp.floor(scaled)
        level = below + (_uniform(key, x.shape, norm.dtype) < scaled - below)
        return norm, (jnp.sign(x) * level).astype(jnp.int16)

    @override
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        norm, level = content
        return jnp.asarray(norm * (level.astype(norm.dtype) / self.levels)).astype(like.dtype)

    @override
    def count(self, size: int, dtype: Any) -> int:
        """The norm, and ceil(log2(2 s + 1)) bits for each entry."""
        return max(_width(dtype), 32) + size * (2 * self.levels).bit_length()

    @override
    def integer_ranges(self, size: int, dtype: Any) -> tuple[IntegerRange | None, ...]:
        return None, (-self.levels, self.levels)

    @override
    def omega(self, size: int) -> float:
        return min(size / self.levels**2, math.sqrt(size) / self.levels)


def _width(dtype: Any) -> int:
    return 8 * int(jnp.dtype(dtype).itemsize)


def _finfo(dtype: Any) -> Any:
    return jnp.finfo(dtype)  # type: ignore[no-untyped-call]


def _unsigned(dtype: Any) -> Any:
    return jnp.dtype(f"uint{_width(dtype)}")


def _uniform(key: Array, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    """Uniform numbers in [0, 1), as fine as the dtype's mantissa, and nearly the same in every dtype."""
    def bits(key: Array, count: int) -> UInt[Array, "..."]:
        return jax.random.bits(key, shape, jnp.uint32) >> (32 - count)
    if _finfo(dtype).nmant <= 23:
        return bits(key, 24).astype(jnp.float32) * 2.0**-24
    low = bits(jax.random.fold_in(key, 1), 29).astype(dtype) * 2.0**-29
    return (bits(key, 24).astype(dtype) + low) * 2.0**-24
