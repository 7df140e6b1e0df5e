"""The base class of codecs, and encoded vectors."""

from abc import abstractmethod
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector

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
