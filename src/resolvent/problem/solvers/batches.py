"""Rules that choose the minibatches of a local solver from a party's samples."""

from abc import abstractmethod
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.math import tree
from resolvent.xla.shuffle import Shuffle


class Minibatch(NamedTuple):
    """The samples of a step, or with leaves [S, ...] of several steps."""

    positions: Int[Array, " B"]
    mask: Bool[Array, " B"]


class Batches(CheckedArguments, eqx.Module):
    """Chooses the minibatch of each step of a local solver. To write a rule of your own, derive from this class."""

    @abstractmethod
    def draw(self, key: Array, steps: Int[Array, " S"], samples: Int[Array, ""], batch_size: int) -> Minibatch:
        """The minibatches of some steps, leaves [S, batch_size].

        Args:
            key: the key of the party's local work, the same for all of its steps.
            steps: numbers of successive steps.
            samples: number of the party's samples, at least 1.
            batch_size: number of positions in a minibatch.
        """


class Shuffled(Batches):
    """Every epoch is a new random order of all samples, divided into minibatches: draws without replacement.

    Example:
        >>> batch = Shuffled().draw(jax.random.key(0), jnp.arange(3), jnp.array(5), batch_size=2)
        >>> batch.mask.sum(axis=1).tolist()
        [2, 2, 1]
    """

    @override
    def draw(self, key: Array, steps: Int[Array, " S"], samples: Int[Array, ""], batch_size: int) -> Minibatch:
        per_epoch = (samples + batch_size - 1) // batch_size
        epoch, i = jnp.divmod(steps, jnp.maximum(per_epoch, 1))
        index = i[:, None] * batch_size + jnp.arange(batch_size)
        mask = index < samples
        shuffles = Shuffle.draw_many(key, epoch[0], epoch[-1], samples, capacity=len(steps))
        shuffle: Shuffle = tree.rows(shuffles, epoch - epoch[0])
        return Minibatch(shuffle(jnp.where(mask, index, 0)), mask)


class Consecutive(Batches):
    """Successive samples of a time series; the first of them is drawn, later ones with a higher probability.

    With n samples and batches of B, the first sample is s in 0, ..., n - B with a probability in proportion to
    (1 - bias)^(n - B - s). A party with fewer than B samples uses all of them in every step.

    Attributes:
        bias: how much later samples are preferred, in [0, 1); 0 is the uniform distribution.

    Raises:
        InputError: the bias is out of range.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=50, steps=50, batches=rv.solvers.Consecutive(5e-5))

    References:
        Jiang, Xu, Liang: A Deep Reinforcement Learning Framework for the Financial Portfolio Management Problem, 2017,
        (26): online stochastic batch learning.
    """

    bias: Annotated[ArrayLike, "[0, 1)"] = 0.0

    @override
    def draw(self, key: Array, steps: Int[Array, " S"], samples: Int[Array, ""], batch_size: int) -> Minibatch:
        last = jnp.maximum(samples - batch_size, 0)
        uniform = jax.vmap(lambda step: jax.random.uniform(jax.random.fold_in(key, step)))(steps)
        positions = draw_first_position(uniform, last, self.bias)[:, None] + jnp.arange(batch_size)
        return Minibatch(positions, positions < samples)


def draw_first_position(uniform: Float[Array, "*S"], last: Int[Array, ""], bias: ArrayLike) -> Int[Array, "*S"]:
    """The s in 0, ..., last with probability (1-b)^(last-s) / sum, by the inverse of the distribution function.

    s = last - j with j = floor(ln(1 - u (1 - (1-b)^(last+1))) / ln(1-b)).

    Args:
        uniform: u, uniform in [0, 1).
        bias: b, in [0, 1).
    """
    # For b = 0 the formula is 0/0; at the square of the rounding unit it is uniform up to rounding.
    smallest = jnp.finfo(uniform.dtype).eps ** 2  # type: ignore[no-untyped-call]
    rate = jnp.log1p(-jnp.maximum(jnp.asarray(bias, uniform.dtype), smallest))
    total = -jnp.expm1((last + 1) * rate)
    before_last = jnp.floor(jnp.log1p(-uniform * total) / rate)
    return last - jnp.clip(before_last, 0, last).astype(jnp.int32)
