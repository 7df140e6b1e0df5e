"""Encoded vectors as bytes, without unused bits: integers of a known range take ceil(log2(number of values)) bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.math.codecs import IntegerRange, Wire

# Multiples of 8 values fill whole bytes at every width. The bits of a block take 32 times as many bytes in memory.
_BLOCK = 1 << 16


def packed_bytes(count: int, width: int) -> int:
    """Number of bytes of ``count`` integers of ``width`` bits each."""
    return -(-count * width // 8)


def pack_integers(values: NDArray[np.integer], lowest: int, highest: int) -> NDArray[np.uint8]:
    """Pack integers of the range [lowest, highest], which has at most 2^32 values, the highest bit first.

    Example:
        >>> pack_integers(np.array([-1, 0, 1, 1]), -1, 1).tolist()
        [26]
        >>> unpack_integers(np.array([26], np.uint8), 4, -1, 1).tolist()
        [-1, 0, 1, 1]
    """
    width = (highest - lowest).bit_length()
    packed = [_pack_block((values[i:i + _BLOCK].astype(np.int64) - lowest).astype(">u4"), width)
              for i in range(0, len(values), _BLOCK)]
    return np.concatenate([np.zeros(0, np.uint8), *packed])


def unpack_integers(packed: NDArray[np.uint8], count: int, lowest: int, highest: int) -> NDArray[np.int64]:
    """The integers that ``pack_integers`` packed."""
    width = (highest - lowest).bit_length()
    if len(packed) != packed_bytes(count, width):
        raise ValueError(f"{count} integers of {width} bits take {packed_bytes(count, width)} bytes, got {len(packed)}")
    block = packed_bytes(_BLOCK, width)
    parts = [_unpack_block(packed[i // _BLOCK * block:][:block], min(_BLOCK, count - i), width)
             for i in range(0, count, _BLOCK)]
    values = np.concatenate([np.zeros(0, np.int64), *parts]) + lowest
    if len(values) and values.max() > highest:
        raise ValueError(f"an integer is {values.max()}, above {highest}")
    return values


def _pack_block(codes: NDArray[np.uint32], width: int) -> NDArray[np.uint8]:
    bits = np.unpackbits(codes.view(np.uint8)).reshape(-1, 32)
    return np.packbits(bits[:, 32 - width:])


def _unpack_block(packed: NDArray[np.uint8], count: int, width: int) -> NDArray[np.int64]:
    bits = np.zeros((count, 32), np.uint8)
    bits[:, 32 - width:] = np.unpackbits(packed, count=count * width).reshape(count, width)
    return np.packbits(bits).view(">u4").astype(np.int64)


def packed_size(wire: Wire) -> int:
    """Number of bytes of ``pack_wire``, from the shapes: ceil(bits / 8) for the codecs of the library."""
    return sum(leaf.size * leaf.dtype.itemsize if limits is None else packed_bytes(leaf.size, _bits_of(limits))
               for leaf, limits in _content_ranges(wire))


def pack_wire(wire: Wire) -> NDArray[np.uint8]:
    """The content of an encoded vector as bytes; zeros if the vector was not finite.

    Arrays whose integers have a known range (``Codec.integer_ranges``) come last, without unused bits.
    """
    if not bool(wire.is_finite):
        return np.zeros(packed_size(wire), np.uint8)
    arrays, integers = [], []
    for leaf, limits in _content_ranges(wire):
        flat = np.ascontiguousarray(leaf).reshape(-1)
        if limits is None:
            arrays.append(flat.view(np.uint8))
        else:
            integers.append(pack_integers(flat, *limits))
    return np.concatenate([np.zeros(0, np.uint8), *arrays, *integers])


def unpack_wire(packed: NDArray[np.uint8], is_finite: bool, like: Wire) -> Wire:
    """The encoded vector that ``pack_wire`` packed, in the shapes and dtypes of another wire."""
    if len(packed) != packed_size(like):
        raise ValueError(f"the encoded vector takes {packed_size(like)} bytes, got {len(packed)}")
    leaves, end = {}, 0
    ranges = _content_ranges(like)
    for i, (leaf, limits) in sorted(enumerate(ranges), key=lambda item: item[1][1] is not None):
        start = end
        if limits is None:
            end += leaf.size * leaf.dtype.itemsize
            values = packed[start:end].copy().view(leaf.dtype)
        else:
            end += packed_bytes(leaf.size, _bits_of(limits))
            values = (unpack_integers(packed[start:end], leaf.size, *limits) if is_finite
                      else np.zeros(leaf.size)).astype(leaf.dtype)
        leaves[i] = jnp.asarray(values.reshape(leaf.shape))
    content = jax.tree.unflatten(jax.tree.structure(like.content), [leaves[i] for i in range(len(ranges))])
    return Wire(like.codec, content, np.asarray(is_finite), like.structure, like.leaves, like.bits)  # type: ignore[arg-type]


def _content_ranges(wire: Wire) -> list[tuple[Any, IntegerRange | None]]:
    """Each array of the content, with the range of its integers if it is known."""
    arrays = jax.tree.leaves(wire.content)
    size = sum(leaf.size for leaf in wire.leaves)
    dtype = jnp.result_type(*(leaf.dtype for leaf in wire.leaves)) if wire.leaves else jnp.dtype(jnp.float32)
    ranges = wire.codec.integer_ranges(size, dtype)
    return list(zip(arrays, ranges or [None] * len(arrays), strict=True))


def _bits_of(limits: IntegerRange) -> int:
    return (limits[1] - limits[0]).bit_length()
