"""The contract of codecs: shapes, bits, and the bound on the error."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.math.codecs import Codec
from resolvent.math.packing import pack_wire, unpack_wire
from resolvent.simulator.storage.tree_files import digest
from resolvent.testing.example import require

_DRAWS = 2000
_SIZE = 12


def check_codec(codec: Codec) -> None:
    """Check that a codec keeps its promises, in float32 and float64.

    What is decoded has the structure, the shapes and the dtypes of what was encoded, and is the same for the same key,
    compiled or not, and after it was packed into bytes of the stated number of bits. Over 2,000 keys, the mean squared
    error is at most ``omega`` times the squared norm, whatever the scale of the vector is; and the mean is the vector
    if the codec is unbiased.

    Raises:
        AssertionError: a promise does not hold. The message says what was expected and what to do.

    Example:
        >>> check_codec(rv.codecs.RandK(k=3))
    """
    name = type(codec).__name__
    for precision in (jnp.float32, jnp.float64):
        with jax.enable_x64(precision is jnp.float64):
            _check_shapes(codec, name, precision)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), _DRAWS)
        decode = jax.jit(jax.vmap(lambda x, key: codec.encode(x, key).decoded(), in_axes=(None, 0)))
        for kind, x in _vectors().items():
            _check_error(codec, f"{name} on {kind}", x, np.asarray(decode(jnp.asarray(x), keys)))


def _check_shapes(codec: Codec, name: str, dtype: Any) -> None:
    x = {"a": jnp.linspace(-3, 2, 6, dtype=dtype).reshape(2, 3), "b": [jnp.ones(3, dtype), jnp.zeros((), dtype)]}
    key, encode = jax.random.key(0), jax.jit(codec.encode)
    wire = encode(x, key)
    decoded = wire.decoded()
    require(jax.tree.map(_type, decoded) == jax.tree.map(_type, x),
            f"{name} decodes another structure, shape or dtype than it encoded: return an array like `like`")
    again = codec.encode(x, key).decoded()  # not compiled: rounding may differ
    require(all(np.allclose(a, b, rtol=1e-5) for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(decoded),
                                                             strict=True)),
            f"{name} encodes differently with one key: draw every random number from the key, and store nothing")
    require(isinstance(wire.bits, int) and wire.bits == codec.bits(x) >= 0,
            f"{name} has {wire.bits} bits of an encoded vector and {codec.bits(x)} of its shape: count must return an "
            "integer that depends on the size and the dtype only")
    packed = pack_wire(wire)
    require(8 * len(packed) - 7 <= wire.bits <= 8 * len(packed),
            f"{name} says that a vector has {wire.bits} bits, but its content is packed into {len(packed)} bytes: "
            "correct count, or name the ranges of its integers with integer_ranges")
    require(digest(unpack_wire(packed, True, wire).decoded()) == digest(decoded),
            f"{name} decodes something else after its content was packed into bytes: the integers of the content "
            "must lie in integer_ranges")
    broken = jax.tree.map(lambda leaf: leaf.at[...].set(jnp.nan), x)
    require(all(bool(jnp.isnan(leaf).all()) for leaf in jax.tree.leaves(encode(broken, key).decoded())),
            f"{name} hides that a vector is not finite: do not override encode or decode")


def _check_error(codec: Codec, title: str, x: np.ndarray, decoded: np.ndarray) -> None:
    omega, size = float(codec.omega(x.size)), float(np.abs(x).max())
    require(bool(np.isfinite(decoded).all()), f"{title}: what is decoded is not finite: scale a norm before squaring")
    unit = size if size > 0 else 1.0  # so that squares neither over- nor underflow
    errors = (decoded - x) / unit
    squared, allowed = float(np.mean(np.sum(errors**2, axis=1))), omega * float(np.sum((x / unit) ** 2))
    require(omega >= 0 and (codec.unbiased or omega < 1),
            f"{title}: omega is {omega}: it must be at least 0, and less than 1 for a codec that is biased")
    # Of 2,000 draws the mean squared error differs by some per cent from its expectation.
    require(squared <= 1.2 * allowed + 1e-9, f"{title}: the mean squared error is {squared:.3g}, more than omega |x|^2 "
                                             f"= {allowed:.3g}: correct the codec, or return a larger omega")
    if codec.unbiased:
        bias = float(np.sum(errors.mean(axis=0) ** 2))
        require(bias <= 16 * allowed / _DRAWS + 1e-12,
                f"{title}: the mean over {_DRAWS} keys differs from the vector by {bias**0.5:.3g} of its largest "
                "entry, but unbiased is True: scale what is decoded, or set unbiased to False")


def _vectors() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0).normal(size=_SIZE)
    return {"normal numbers": drawn, "numbers of size 1e-150": drawn * 1e-150, "numbers of size 1e150": drawn * 1e150,
            "one number of twelve": np.eye(_SIZE)[3], "zero": np.zeros(_SIZE)}


def _type(leaf: Any) -> Any:
    return jnp.shape(leaf), jnp.asarray(leaf).dtype
