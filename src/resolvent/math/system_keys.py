"""Random keys of the operating system, whose Gaussian noise protects, unlike that of keys from a seed.

The kind of a key is part of its type, so that a compiled program is specialised to it. Whatever is folded or split from
a system key is one. ``gaussian_noise`` takes the noise of a system key from the operating system itself. All other
draws, such as samples and minibatches, are pseudo-random: two independent Threefry generators, each with 64 of the 128
bits of the key, whose results are combined by exclusive or.
"""

import secrets
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array

SYSTEM_KEY_BYTES = 16
_GENERATOR = "threefry2x32"
_WORDS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


def system_key(data: bytes | Array | None = None) -> Array:
    """A key from the operating system's randomness.

    Args:
        data: the ``SYSTEM_KEY_BYTES`` bytes of a key that was drawn before, or its key data; default: a new key.

    Example:
        >>> is_system_key(jax.random.fold_in(system_key(), 3))
        True
    """
    data = secrets.token_bytes(SYSTEM_KEY_BYTES) if data is None else data
    words = jnp.asarray(np.frombuffer(data, np.uint32)) if isinstance(data, bytes) else data
    key: Array = jax.random.wrap_key_data(words, impl=_SYSTEM)
    return key


def is_system_key(key: Array) -> bool:
    """Whether a key, which may be traced, is a system key or derived from one."""
    return bool(jax.random.key_impl(key) == _SYSTEM)


def _seed(seed: Array) -> Array:
    raise TypeError("a system key has no seed: use system_key()")


def _fold_in(key: Array, data: Any) -> Array:
    return jnp.concatenate(_of_halves(key, lambda half: jax.random.key_data(jax.random.fold_in(half, data))), axis=-1)


def _split(key: Array, shape: Any) -> Array:
    return jnp.concatenate(_of_halves(key, lambda half: jax.random.key_data(jax.random.split(half, shape))), axis=-1)


def _random_bits(key: Array, width: int, shape: Any) -> Array:
    first, second = _of_halves(key, lambda half: jax.random.bits(half, shape, _WORDS[width]))
    return first ^ second


def _of_halves(key: Array, compute: Callable[[Array], Array]) -> list[Array]:
    return [compute(jax.random.wrap_key_data(half, impl=_GENERATOR)) for half in (key[:2], key[2:])]


_SYSTEM = define_prng_impl(key_shape=(SYSTEM_KEY_BYTES // 4,), seed=_seed, split=_split, random_bits=_random_bits,
                           fold_in=_fold_in, name="system", tag="sys")
