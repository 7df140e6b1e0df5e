"""Minibatches of a party: how their samples are drawn, how many steps a budget allows, and the loop over them."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.math import tree
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops
from resolvent.xla.shuffle import Shuffle
from xla_cpu_rewrites import update_rows


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


State = TypeVar("State")
Stop = Literal["epoch", "step"]
_PREFETCHED_STEPS, _PREFETCHED_SAMPLES = 64, 1024  # at most, per computation of the order of the samples
_LAYERS = 2**31 - 6  # folded into the key of the minibatches, and then the number of the step: the key of random layers


class MinibatchBudget(NamedTuple):
    """The work of a local solver on minibatches.

    Attributes:
        batch_size: samples per step; the last batch of an epoch may be smaller.
        epochs: passes over the samples; default: one, if ``steps`` is not set.
        steps: number of steps, instead of epochs.
        stop: partial work ends after a full ``epoch``, or after any ``step``.
    """

    batch_size: int
    epochs: ArrayLike | None
    steps: ArrayLike | None
    stop: Stop = "epoch"

    def count_steps(self, samples: Int[Array, ""], effort: Float[Array, ""]) -> Int[Array, ""]:
        """Steps of a party with this number of samples: ceil(effort * budget), see ``stop``."""
        per_epoch = self._steps_per_epoch(samples)
        if self.steps is not None:
            return scale_budget(self.steps, effort)
        epochs = self._epochs
        if self.stop == "epoch":
            return scale_budget(epochs, effort) * per_epoch
        return scale_budget(epochs * per_epoch, effort)

    def work(self, samples: Int[Array, " C"]) -> Float[Array, " C"]:
        """Number of samples processed at full effort; the last batch of an epoch counts as a full batch."""
        total = (self._epochs * self._steps_per_epoch(samples) if self.steps is None
                 else jnp.full(samples.shape, self.steps))
        return jnp.asarray(self.batch_size * total, jnp.result_type(float))

    @property
    def _epochs(self) -> ArrayLike:
        return 1 if self.epochs is None else self.epochs

    def _steps_per_epoch(self, samples: Int[Array, "..."]) -> Int[Array, "..."]:
        return (samples + self.batch_size - 1) // self.batch_size


def over_minibatches(step: Callable[[State, Subproblem, Array, Array], State], state: State, subproblem: Subproblem,
                     key: Array, effort: Float[Array, ""], budget: MinibatchBudget,
                     batches: Batches) -> tuple[State, Int[Array, ""]]:
    """Run ``step(state, subproblem, positions, mask)`` over minibatches.

    Args:
        step: one step, on the samples at ``positions`` for which ``mask`` is true.
        subproblem: the objective; each step gets it with a key of its own for random layers, such as dropout.
        effort: the fraction of the work that is done, in [0, 1].
        batches: chooses the minibatch of each step.

    Returns:
        The last state, and the number of steps made.
    """
    batch_size, samples = budget.batch_size, subproblem.oracle.samples
    total = budget.count_steps(samples, effort)

    def one_step(state: State, subproblem: Subproblem, minibatch: tuple[Array, Array]) -> State:
        return update_rows(lambda state: step(state, subproblem, *minibatch))(state)

    def draw(steps: Int[Array, " S"]) -> tuple[Array, Array]:
        return batches.draw(key, jnp.minimum(steps, total - 1), samples, batch_size)

    # The positions of many steps are computed together and outside of the loop over steps. This makes random bits
    # cheap, and XLA cannot fuse the draw with the gather of samples, where it would repeat it for every feature.
    block = min(_PREFETCHED_STEPS, max(1, _PREFETCHED_SAMPLES // batch_size))
    if not subproblem.oracle.has_random_layers:
        last = loops.fori_loop_with_prefetch(draw, lambda minibatch, state: one_step(state, subproblem, minibatch),
                                             state, total=total, block=block)
        return last, total

    def draw_with_keys(steps: Int[Array, " S"]) -> tuple[tuple[Array, Array], Array]:
        return draw(steps), jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(key, _LAYERS)))(steps)

    def step_with_key(inputs: tuple[tuple[Array, Array], Array], state: State) -> State:
        minibatch, key = inputs
        return one_step(state, subproblem.at_step(key), minibatch)

    last = loops.fori_loop_with_prefetch(draw_with_keys, step_with_key, state, total=total, block=block)
    return last, total


def scale_budget(budget: ArrayLike, effort: Float[Array, ""]) -> Int[Array, ""]:
    """ceil(effort * budget), with a tolerance for the rounding of effort = x/budget.

    A positive effort is at least one step of a positive budget.
    """
    work = jnp.asarray(effort * budget)
    return jnp.maximum(jnp.ceil(work - 1e-4), work > 0).astype(jnp.int32)
