"""Random permutations evaluated point by point, of a length that is known only at run time.

Minibatches without replacement need a permutation of each party's n_k samples. Inside a compiled loop n_k is
a traced number, so an array of n_k entries cannot exist, and sorting random keys padded to the largest party
would cost more than the training. The swap-or-not network (Hoang, Morris, Rogaway, CRYPTO 2012) is a
permutation of {0, ..., n-1} for every n, computed per index in a fixed number of integer operations.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from resolvent.xla.compact import repeated

__all__ = ["Shuffle"]

_FEW = 8  # permutations that are drawn at once
_ROUNDS = 24  # each round moves half of the indices; after 24 no bias is left that a test of size 1e5 can see


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
        length = jnp.asarray(n, jnp.int32)
        return cls(length, (bits[0] % length.astype(jnp.uint32)).astype(jnp.int32), bits[1])

    @classmethod
    def draw_many(cls, key: Array, first: Int[Array, ""], last: Int[Array, ""], n: Int[Array, ""], *,
                  capacity: int) -> "Shuffle":
        """Numbers first, ..., last of a sequence of permutations: ``draw(fold_in(key, number), n)`` each.

        Leaves [capacity, ...]; what lies behind the last is not a permutation. At most ``capacity`` are drawn.
        """
        def one(number: Array) -> tuple[Array, Array]:
            shuffle = cls.draw(jax.random.fold_in(key, number), n)
            return shuffle.pivots, shuffle.salts

        few = min(_FEW, capacity)
        blocks = -(-capacity // few)

        def block(i: Array, drawn: tuple[Array, Array]) -> tuple[Array, Array]:
            found = jax.vmap(one)(first + i * few + jnp.arange(few))
            pivots, salts = (jax.lax.dynamic_update_slice_in_dim(all_, new, i * few, 0)
                             for all_, new in zip(drawn, found, strict=True))
            return pivots, salts

        # Random bits are dear: no more are drawn than are needed.
        nothing = jnp.zeros((blocks * few, _ROUNDS), jnp.int32), jnp.zeros((blocks * few, _ROUNDS), jnp.uint32)
        needed = jnp.minimum((last - first) // few + 1, blocks)
        pivots, salts = jax.lax.fori_loop(0, needed, block, nothing)
        return cls(jnp.full(capacity, n, jnp.int32), pivots[:capacity], salts[:capacity])

    def __call__(self, i: Int[Array, "*many B"]) -> Int[Array, "*many B"]:
        """Entries ``i`` of the permutation, each in [0, n); of many permutations, leaves [many, ...], each its own."""
        n = self.n[..., None]

        def swapped(r: Array, x: Array) -> Array:
            pivot, salt = (jax.lax.dynamic_index_in_dim(a, r, axis=-1) for a in (self.pivots, self.salts))
            partner = pivot - x
            partner = jnp.where(partner < 0, partner + n, partner)
            # Both partners see the same coin, so that they swap or stay together: a permutation.
            swap = _mix(jnp.maximum(x, partner).astype(jnp.uint32) ^ salt) & 1
            return jnp.where(swap == 1, partner, x)

        x = jnp.asarray(i, jnp.int32)
        if jax.default_backend() == "cpu":  # a loop of simple passes is faster than one pass that does everything
            return repeated(jnp.array(_ROUNDS), swapped, x)
        done: Array = jax.lax.fori_loop(0, _ROUNDS, swapped, x, unroll=_ROUNDS)  # starting a pass is dear
        return done


def _mix(h: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
    """The finaliser of MurmurHash3: every input bit reaches every output bit."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
