"""``explain``: which of a model's operations are replaced by faster ones, and how long parties wait for the slowest."""

from collections import Counter
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from resolvent.data.federated import FederatedData
from resolvent.errors import check_range
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from xla_cpu_rewrites import Replacement, rewrite
from xla_cpu_rewrites.versions import supports_rewrites


@dataclass(frozen=True)
class Explanation:
    """Which operations of a model's gradient are replaced; ``str`` makes a table of it.

    Attributes:
        replacements: operation with shapes -> how often it occurs in the program of the gradient.
        is_enabled: whether operations are replaced on this device, in this version of JAX and for this model.
        waiting: fraction of a round in which the mean party waits for the one with the most minibatches, where all
            parties work side by side at one speed, each for the same number of epochs: 1 - mean(n_k) / max(n_k) for
            numbers n_k of minibatches. In a simulation on one core parties work one after the other, without waiting.
    """

    replacements: Counter[Replacement]
    is_enabled: bool
    waiting: float = 0.0

    def __str__(self) -> str:
        return f"{self._operations()}\nWaiting for the largest party, side by side: {self.waiting:.0%} of a round."

    def _operations(self) -> str:
        if not self.is_enabled:
            return ("No operation is replaced: the device is not a CPU, this version of JAX was not tested, or it was "
                    "switched off.")
        if not self.replacements:
            return "No operation is replaced: the model has none that is slow in a compiled loop on a CPU."
        rows = [("times", "operation", "compiled as", "shapes"),
                *((str(count), item.operation, item.change, " ".join(item.operands))
                  for item, count in self.replacements.items())]
        return "\n".join(f"{times:>5}  {name:24} {change:28} {shapes}" for times, name, change, shapes in rows)


def explain(model: Model, data: FederatedData, *, batch_size: int = 20) -> Explanation:
    """Show which operations of the model's gradient are replaced, and how long parties wait for the slowest.

    On a CPU, rounds are compiled loops, inside of which XLA runs convolutions, pooling and their gradients by a slow
    path. The simulator replaces them, and carries their channels-last layout through the operations in between.
    Products may get their weights as the second factor. What a scan computes in each step may become one product for
    all steps, or be computed again in the backward pass instead of stored. Of a large table of embeddings, a step of
    gradient descent changes only the rows that the minibatch has read.
    ``XLA_CPU_REWRITES=0`` in the environment or ``replace_slow_operations=False`` of ``from_functions``,
    ``from_equinox`` and ``from_flax`` switches these replacements off.

    Args:
        model: the model.
        data: the samples; only their shapes and the numbers of the parties' training rows matter.
        batch_size: number of samples of a minibatch, at least 1.

    Returns:
        The replacements and the waiting; ``print`` shows them as a table.

    Raises:
        InputError: the model does not fit the data, or ``batch_size`` is less than 1.

    Example:
        >>> import resolvent as rv
        >>> print(rv.explain(rv.models.logistic(64, 10), rv.datasets.digits(parties=3)))
        No operation is replaced: the model has none that is slow in a compiled loop on a CPU.
        Waiting for the largest party, side by side: 0% of a round.
    """
    check_range("explain", "[1, inf)", batch_size=batch_size)
    problem = LearningProblem(model, data)
    minibatches = -(-data.sizes() // batch_size)
    waiting = float(1 - minibatches.mean() / minibatches.max())
    rows, mask = jnp.zeros(batch_size, jnp.int32), jnp.ones(batch_size, bool)

    def value(params: object) -> jax.Array:
        losses = problem.model.losses(params, problem.x, problem.labels, rows, mask)
        return jnp.sum(jnp.where(mask, losses, 0))

    gradient = jax.grad(value)
    if not supports_rewrites() or model.rewritten(gradient) is gradient:
        return Explanation(Counter(), False, waiting)
    return Explanation(rewrite.replacements(gradient, jax.eval_shape(model.init, jax.random.key(0))), True, waiting)
