"""Random permutations that are evaluated entry by entry, for a length that is known at run time only.

Minibatches without replacement need a permutation of each party's n_k samples. Inside a compiled loop n_k is a traced
number, so an array of n_k entries is not possible, and to sort random keys padded to the largest party would take
longer than the training. The swap-or-not network (Hoang, Morris, Rogaway: An Enciphering Scheme Based on a Card
Shuffle, CRYPTO 2012) is a permutation of {0, ..., n-1} for every n, and computes one entry in a fixed number of integer
operations.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from resolvent.xla.rows import entry
from xla_cpu_rewrites.small_call import repeat
from xla_cpu_rewrites.versions import on_cpu

_DRAWN_TOGETHER = 8  # permutations per step of draw_many
_ROTATIONS = np.array([[13, 15, 26, 6], [17, 29, 16, 24]], np.uint32)  # of Threefry, in even and odd groups
_ROUNDS = 24  # each round moves half of the indices; after 24, a test with 1e5 draws detects no bias


class Shuffle(eqx.Module):
    """A random permutation of {0, ..., n-1}: ``Shuffle.draw(key, n)(i)`` is the i-th entry.

    Attributes:
        n: the length, at least 1; may be traced.
        pivots: the reflection x -> pivot - x (mod n) of each round.
        salts: the seed of each round's coin flips.
    """

    n: Int[Array, ""]
    pivots: Int[Array, " rounds"]
    salts: UInt32[Array, " rounds"]

    @classmethod
    def draw(cls, key: Array, n: Int[Array, ""]) -> "Shuffle":
        """Draw a permutation of length ``n``."""
        bits = jax.random.bits(key, (2, _ROUNDS), jnp.uint32)
        return cls(jnp.asarray(n, jnp.int32), _pivots(bits[0], n), bits[1])

    @classmethod
    def draw_many(cls, key: Array, first: Int[Array, ""], last: Int[Array, ""], n: Int[Array, ""], *,
                  capacity: int) -> "Shuffle":
        """Permutations first, ..., last of a sequence: number i is ``draw(fold_in(key, i), n)``.

        Returns:
            Leaves [capacity, ...]; rows after the last permutation are not valid.
        """
        size = min(_DRAWN_TOGETHER, capacity)
        blocks = -(-capacity // size)

        def draw_block(i: Array, arrays: tuple[Array, Array]) -> tuple[Array, Array]:
            numbers = first + i * size + jnp.arange(size)
            words = folded_words(key, numbers.astype(jnp.uint32), 2 * _ROUNDS)
            new = _pivots(words[:, :_ROUNDS], n), words[:, _ROUNDS:]
            pivots, salts = (jax.lax.dynamic_update_slice_in_dim(array, rows, i * size, 0)
                             for array, rows in zip(arrays, new, strict=True))
            return pivots, salts

        # Random bits are expensive, so only the blocks that are needed are drawn.
        zeros = jnp.zeros((blocks * size, _ROUNDS), jnp.int32), jnp.zeros((blocks * size, _ROUNDS), jnp.uint32)
        needed = jnp.minimum((last - first) // size + 1, blocks)
        pivots, salts = jax.lax.fori_loop(0, needed, draw_block, zeros)
        return cls(jnp.full(capacity, n, jnp.int32), pivots[:capacity], salts[:capacity])

    def __call__(self, i: Int[Array, "*many B"]) -> Int[Array, "*many B"]:
        """Entries ``i`` of the permutation, each in [0, n); with leaves [many, ...], row by row."""
        n = self.n[..., None]

        def swap_or_not(r: Array, x: Array) -> Array:
            pivot, salt = (jax.lax.dynamic_index_in_dim(a, r, axis=-1) for a in (self.pivots, self.salts))
            partner = pivot - x
            partner = jnp.where(partner < 0, partner + n, partner)
            # Both partners use the same coin, so that both swap or neither does: a permutation.
            swap = mix_bits(jnp.maximum(x, partner).astype(jnp.uint32) ^ salt) & 1
            return jnp.where(swap == 1, partner, x)

        x = jnp.asarray(i, jnp.int32)
        if on_cpu():  # a loop of 24 simple passes is faster than one unrolled pass
            return repeat(jnp.array(_ROUNDS), swap_or_not, x)
        result: Array = jax.lax.fori_loop(0, _ROUNDS, swap_or_not, x, unroll=_ROUNDS)  # one launch instead of 24
        return result


def folded_words(key: Array, numbers: UInt32[Array, " S"], size: int) -> UInt32[Array, "S size"]:
    """``jax.random.bits(jax.random.fold_in(key, number), (size,), jnp.uint32)`` for each number.

    On a CPU JAX compiles a draw to a loop of five steps, in which the runtime starts each fused operation: for a few
    hundred words this takes longer than the words. The same words are computed in one small function here.
    """
    is_threefry = str(jax.random.key_impl(key)) == "threefry2x32" and jax.config.values["jax_threefry_partitionable"]
    if not (on_cpu() and is_threefry):
        return jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (size,), jnp.uint32))(numbers)
    words = jax.random.key_data(key)
    first, second = _threefry(words[0], words[1], jnp.zeros_like(numbers), numbers)
    counts = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), (len(numbers), size))
    high, low = _threefry(first[:, None], second[:, None], jnp.zeros_like(counts), counts)
    return high ^ low


def _threefry(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds. Source: Salmon, Moraes, Dror, Shaw: Parallel Random Numbers, SC 2011."""
    schedule = jnp.stack(jnp.broadcast_arrays(key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA)))

    def group(i: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        x0, x1 = x
        for r in range(4):
            x0 = x0 + x1
            rotation = entry(jnp.asarray(_ROTATIONS), i % 2, r)
            x1 = x0 ^ ((x1 << rotation) | (x1 >> (32 - rotation)))
        return (x0 + entry(schedule, (i + 1) % 3),
                x1 + entry(schedule, (i + 2) % 3) + (i + 1).astype(jnp.uint32))

    first = x0 + key0, x1 + key1
    last: tuple[Array, Array] = repeat(jnp.array(5), group, first)
    return last


def _pivots(words: UInt32[Array, "*S rounds"], n: Int[Array, ""]) -> Int[Array, "*S rounds"]:
    return (words % jnp.asarray(n, jnp.uint32)).astype(jnp.int32)


def mix_bits(h: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
    """The finaliser of MurmurHash3: every bit of the input influences every bit of the output."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
