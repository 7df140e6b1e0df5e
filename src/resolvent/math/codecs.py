r"""Codecs: vectors made short, with the exact number of bits and a bound on the error.

A codec C acts on the whole tree as one vector x of d entries. It is *unbiased* where E C(x) = x, and its *variance* is
bounded by omega where E |C(x) - x|^2 <= omega |x|^2. A biased codec with omega < 1 is a contraction.

.. code-block:: text

    codec               entries kept   bits of d entries, b bits each    unbiased   omega
    Identity            d              d b                               yes        0
    RandK               k              k b + 32 (the seed of the set)    yes        d/k - 1
    TopK                k              k b + k ceil(log2 d)              no         1 - k/d
    NaturalCompression  d              d (sign and exponent): 9 d, 12 d  yes        1/8
    QSGD                d              b + d ceil(log2(2 s + 1))         yes        min(d/s^2, sqrt(d)/s)

Source: Horvath et al., *Natural Compression for Distributed Deep Learning*; Alistarh et al., *QSGD*, Lemma 3.1; the
FedMix poster's compressed methods use such codecs.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, UInt

from resolvent.math import tree
from resolvent.math.tree import Vector

__all__ = ["QSGD", "Codec", "Identity", "NaturalCompression", "RandK", "TopK", "Wire", "wire_bits"]


class Wire(eqx.Module):
    """What travels in place of a vector.

    Attributes:
        codec: what made it, and reads it again.
        content: arrays, as the codec made them.
        structure: of the tree that they stand for.
        leaves: shape and dtype of each of its leaves.
        bits: the length of the packed content; the arrays here may be wider.
    """

    codec: "Codec"
    content: PyTree[Any]
    structure: Any = eqx.field(static=True)
    leaves: tuple[jax.ShapeDtypeStruct, ...] = eqx.field(static=True)
    bits: int = eqx.field(static=True)

    def decoded(self) -> Vector:
        """The vector that the wire stands for."""
        return self.codec.decode(self)

    def zeros(self) -> Vector:
        """A zero vector of the shape that the content stands for."""
        tree_of_zeros: Vector = jax.tree.unflatten(self.structure, [jnp.zeros(s.shape, s.dtype) for s in self.leaves])
        return tree_of_zeros


def wire_bits(sent: PyTree[Any]) -> int:
    """The bits of what is sent: a wire knows its own, every other leaf travels as it is."""
    parts = jax.tree.leaves(sent, is_leaf=lambda part: isinstance(part, Wire))
    return sum(part.bits if isinstance(part, Wire) else 8 * part.size * part.dtype.itemsize for part in parts)


class Codec(eqx.Module):
    """A map that shortens a vector and another that reads it again.

    Attributes:
        unbiased: whether the mean over keys of what is read again is the vector.
    """

    unbiased: eqx.AbstractClassVar[bool]

    @abstractmethod
    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The arrays that stand for ``x``."""

    @abstractmethod
    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The vector that the arrays stand for, in the size and dtype of ``like``."""

    @abstractmethod
    def count(self, size: int, dtype: Any) -> int:
        """The bits of a packed vector."""

    @abstractmethod
    def omega(self, size: int) -> float:
        """The variance bound for a vector of that size."""

    def encode(self, x: Vector, key: Array) -> Wire:
        """What travels in place of ``x``.

        Raises:
            TypeError: a leaf holds no floating numbers.
        """
        leaves, structure = jax.tree.flatten(x)
        wrong = [leaf.dtype for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]
        if wrong:
            raise TypeError(f"{type(self).__name__} needs leaves of floating numbers, got {wrong[0]}")
        flat = ravel_pytree(x)[0]
        shapes = tuple(_shape(leaf) for leaf in leaves)
        return Wire(self, self.pack(flat, key), structure, shapes, self.count(flat.size, flat.dtype))

    def decode(self, wire: Wire) -> Vector:
        """The vector that the wire stands for."""
        flat, unravel = ravel_pytree(wire.zeros())
        decoded: Vector = unravel(self.unpack(wire.content, flat))
        return decoded

    def bits(self, x: Vector) -> int:
        """The exact number of bits of an encoded vector; it depends on shapes and dtypes alone."""
        size = sum(leaf.size for leaf in jax.tree.leaves(x))
        return self.count(size, tree.dtype(x))

    def step(self, size: int) -> float:
        """The theory's step of a memory: 1/(1 + omega), and 1 for a contraction. Source: DIANA; EF21."""
        return 1 / (1 + self.omega(size)) if self.unbiased else 1.0


class Identity(Codec):
    """Everything, as it is: the yardstick of the other codecs."""

    unbiased: ClassVar[bool] = True

    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The vector itself."""
        return x

    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The vector itself."""
        return jnp.asarray(content)

    def count(self, size: int, dtype: Any) -> int:
        """Every entry in full."""
        return size * _width(dtype)

    def omega(self, size: int) -> float:
        """No error."""
        return 0.0


class Sparse(Codec):
    """A codec that keeps k of d entries.

    Attributes:
        share: k/d, rounded up to a whole entry; ``k`` goes before it.
        k: how many entries; a vector that has fewer is kept whole.
    """

    share: float = eqx.field(static=True, default=0.1)
    k: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"{type(self).__name__}(share={self.share}) must lie in (0, 1]")
        if self.k is not None and self.k < 1:
            raise ValueError(f"{type(self).__name__}(k={self.k}) must be at least 1")

    def kept(self, size: int) -> int:
        """How many entries of a vector of that size are kept."""
        return min(math.ceil(self.share * size - 1e-9) if self.k is None else self.k, size)


class RandK(Sparse):
    """k entries drawn uniformly without replacement, times d/k. The seed travels, so that the set need not."""

    unbiased: ClassVar[bool] = True

    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The seed, and the entries of its set."""
        seed = jax.random.bits(key, (), jnp.uint32)
        return seed, x[self._chosen(seed, x.size)]

    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The entries in their places, stretched; zero elsewhere."""
        seed, values = content
        stretch = like.size / max(self.kept(like.size), 1)
        return like.at[self._chosen(seed, like.size)].set(stretch * values)

    def count(self, size: int, dtype: Any) -> int:
        """The values and the seed."""
        return self.kept(size) * _width(dtype) + 32

    def omega(self, size: int) -> float:
        """d/k - 1, which is attained."""
        return size / max(self.kept(size), 1) - 1 if size else 0.0

    def _chosen(self, seed: Array, size: int) -> Array:
        return jax.random.permutation(jax.random.key(seed), size)[:self.kept(size)]


class TopK(Sparse):
    """The k entries of largest absolute value. It is biased: without memory, a fixed point is not the optimum."""

    unbiased: ClassVar[bool] = False

    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """Places and values."""
        places = jax.lax.top_k(jnp.abs(x), self.kept(x.size))[1]
        return places, x[places]

    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """The values in their places; zero elsewhere."""
        places, values = content
        return like.at[places].set(values)

    def count(self, size: int, dtype: Any) -> int:
        """The values, and ceil(log2 d) bits for each place."""
        return self.kept(size) * (_width(dtype) + max(size - 1, 0).bit_length())

    def omega(self, size: int) -> float:
        """1 - k/d, attained where all entries are alike."""
        return 1 - self.kept(size) / size if size else 0.0


class NaturalCompression(Codec):
    """Every entry rounded at random to one of the two powers of two around it: sign and exponent are left.

    Below the smallest normal number the neighbours are zero and that number, where only the mean is exact; an entry of
    the largest binade is rounded down. What is not finite stays so. Source: Horvath et al., (1)-(3).
    """

    unbiased: ClassVar[bool] = True

    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """Sign and exponent; up with the chance mantissa / 2^(its bits)."""
        info = _finfo(x.dtype)
        code = jax.lax.bitcast_convert_type(x, _unsigned(x.dtype))
        chance = (code & ((1 << info.nmant) - 1)).astype(x.dtype) / 2**info.nmant
        exponents = (1 << info.nexp) - 1
        exponent = (code >> info.nmant) & exponents
        up = (_uniform(key, x.shape, x.dtype) < chance) & (exponent < exponents - 1)
        return ((code >> info.nmant) + up).astype(jnp.uint16)

    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """Powers of two."""
        code = content.astype(_unsigned(like.dtype)) << _finfo(like.dtype).nmant
        return jax.lax.bitcast_convert_type(code, like.dtype)

    def count(self, size: int, dtype: Any) -> int:
        """Sign and exponent of each entry: 9 bits in float32, 12 in float64."""
        return size * (1 + int(_finfo(dtype).nexp))

    def omega(self, size: int) -> float:
        """1/8, attained at 4/3 of a power of two."""
        return 1 / 8


class QSGD(Codec):
    """Every entry rounded at random to one of s levels of the vector's Euclidean norm, with its sign.

    The coding is of fixed length: the norm, and one of 2 s + 1 signed levels for each entry (QSGD's own is Elias',
    whose length is random). Source: Alistarh et al., (3.1) and Lemma 3.1.

    Attributes:
        levels: s.
    """

    levels: int = eqx.field(static=True, default=15)
    unbiased: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if not 1 <= self.levels < 2**15:
            raise ValueError(f"QSGD(levels={self.levels}) must lie in [1, {2**15 - 1}]")

    def pack(self, x: Float[Array, " d"], key: Array) -> PyTree[Array]:
        """The norm and the signed levels."""
        norm = tree.norm(x).astype(x.dtype)
        scaled = self.levels * (jnp.abs(x) / jnp.where(norm > 0, norm, 1))
        below = jnp.floor(scaled)
        level = below + (_uniform(key, x.shape, x.dtype) < scaled - below)
        return norm, (jnp.sign(x) * level).astype(jnp.int16)

    def unpack(self, content: PyTree[Array], like: Float[Array, " d"]) -> Float[Array, " d"]:
        """Levels of the norm."""
        norm, level = content
        return jnp.asarray(norm * (level.astype(like.dtype) / self.levels))

    def count(self, size: int, dtype: Any) -> int:
        """The norm, and ceil(log2(2 s + 1)) bits for each entry."""
        return _width(dtype) + size * (2 * self.levels).bit_length()

    def omega(self, size: int) -> float:
        """The smaller of d/s^2 and sqrt(d)/s."""
        return min(size / self.levels**2, math.sqrt(size) / self.levels)


def _width(dtype: Any) -> int:
    return 8 * int(jnp.dtype(dtype).itemsize)


def _shape(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)  # type: ignore[no-untyped-call]


def _finfo(dtype: Any) -> Any:
    return jnp.finfo(dtype)  # type: ignore[no-untyped-call]


def _unsigned(dtype: Any) -> Any:
    return jnp.dtype(f"uint{_width(dtype)}")


def _uniform(key: Array, shape: tuple[int, ...], dtype: Any) -> Float[Array, "..."]:
    """Uniform on a grid of [0, 1) as fine as the dtype's mantissa, and nearly the same numbers in every dtype."""
    def bits(of: Array, kept: int) -> UInt[Array, "..."]:
        return jax.random.bits(of, shape, jnp.uint32) >> (32 - kept)
    if _finfo(dtype).nmant <= 23:
        return bits(key, 24).astype(jnp.float32) * 2.0**-24
    low = bits(jax.random.fold_in(key, 1), 29).astype(dtype) * 2.0**-29
    return (bits(key, 24).astype(dtype) + low) * 2.0**-24
