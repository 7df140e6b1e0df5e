"""How much work a local solver does, and the loop over minibatches that does it."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from resolvent.problem.solvers.batches import Batches
from resolvent.problem.subproblem import Subproblem
from resolvent.xla import loops
from xla_cpu_rewrites import update_rows

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
