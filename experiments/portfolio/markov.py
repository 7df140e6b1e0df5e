"""Variable-order Markov models of sequences over a small alphabet: prediction by partial matching, variant C.

Source: Begleiter, El-Yaniv, Yona: On Prediction Using Variable Order Markov Models, JAIR, 2004, section 3.1.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.errors import InputError

_MAX_CONTEXTS = 10**6


class PPMC(eqx.Module):
    """Prediction by partial matching, variant C: the probability of the next symbol after the last D symbols.

    Let N(s, x) count how often x follows the context s, and let X_s be the symbols that follow s, without those that
    follow a longer context of the same prediction (exclusion). Then

        P(x | s) = N(s, x) / (|X_s| + sum_{y in X_s} N(s, y))                  for x in X_s,
        P(x | s) = P(escape | s) P(x | s without its first symbol)             for other x,

    where P(escape | s) = |X_s| / (|X_s| + sum_{y in X_s} N(s, y)). It is 1 for a context without successors, and 0 if
    no other symbol remains, so that the probabilities sum to 1. After the empty context the remaining symbols are
    equally likely.

    Attributes:
        counts: N for the contexts of each length d = 0, ..., D, [A^d, A]. A context's number has its last symbol as the
            lowest digit to the base A.
    """

    counts: tuple[Float[Array, "contexts A"], ...]

    @property
    def order(self) -> int:
        """D, the length of the longest context."""
        return len(self.counts) - 1

    @property
    def alphabet(self) -> int:
        """A, the number of symbols."""
        return int(self.counts[0].shape[1])

    def probabilities(self, context: Int[ArrayLike, ""]) -> Float[Array, " A"]:
        """The probability of each symbol after a context of D symbols, which is a number to the base A."""
        total = jnp.zeros(self.alphabet)
        weight = jnp.ones(())  # the probability of an escape from all longer contexts
        is_excluded = jnp.zeros(self.alphabet, bool)
        for d in reversed(range(self.order + 1)):
            counts = jnp.where(is_excluded, 0, self.counts[d][jnp.asarray(context) % self.alphabet**d])
            follows, number = counts > 0, jnp.sum(counts)
            distinct = jnp.sum(follows)
            is_excluded |= follows
            escape = jnp.where(jnp.all(is_excluded), 0, distinct / jnp.maximum(distinct + number, 1))
            escape = jnp.where(distinct == 0, 1, escape)
            total += weight * (1 - escape) * counts / jnp.maximum(number, 1)
            weight *= escape
        remaining = ~is_excluded
        return total + weight * remaining / jnp.maximum(jnp.sum(remaining), 1)

    def following(self, context: Int[Array, ""], symbol: Int[Array, ""]) -> Int[Array, ""]:
        """The context after another symbol, in the dtype of the context."""
        result: Array = (context * self.alphabet + symbol.astype(context.dtype)) % self.alphabet**self.order
        return result

    def sample(self, key: Array, length: int, context: Int[ArrayLike, ""]) -> Int[Array, " length"]:
        """Draw the symbols that follow a context."""
        def draw(context: Array, key: Array) -> tuple[Array, Array]:
            symbol = jax.random.categorical(key, jnp.log(self.probabilities(context)))
            return self.following(context, symbol), symbol

        start = jnp.asarray(context, jnp.int32)
        symbols: Array = jax.lax.scan(draw, start, jax.random.split(key, length))[1]
        return symbols


def fit_ppmc(symbols: Int[ArrayLike, " n"], *, alphabet: int, order: int, first: Int[ArrayLike, ""] = 0) -> PPMC:
    """Count the successors of all contexts of at most ``order`` symbols.

    Args:
        symbols: the sequence, of the symbols 0, ..., A-1.
        order: D, the length of the longest context.
        first: number of symbols at the beginning to leave out; it may be traced.

    Example:
        >>> model = fit_ppmc(jnp.array([0, 1, 0, 1, 0]), alphabet=2, order=1)
        >>> [f"{p:.3f}" for p in model.probabilities(0)]  # 1 follows 0 twice; 0 is reached by an escape
        ['0.333', '0.667']
    """
    if alphabet < 1 or order < 0 or alphabet**order > _MAX_CONTEXTS:
        raise InputError(f"fit_ppmc(alphabet={alphabet}, order={order}) would have more than {_MAX_CONTEXTS:,} "
                         "contexts: use a smaller order or alphabet")
    sequence = jnp.asarray(symbols)
    positions = jnp.arange(len(sequence))
    counts, context = [], jnp.zeros_like(sequence)
    for d in range(order + 1):
        is_counted = positions >= first + d
        counts.append(jnp.zeros((alphabet**d, alphabet)).at[context, sequence].add(is_counted))
        context += jnp.roll(sequence, d + 1) * alphabet**d
    return PPMC(tuple(counts))
