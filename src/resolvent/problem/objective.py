"""Local objectives with a context: loss(params, batch, context), where the context holds what a method declares.

A method such as MOON does not train on the loss of the model alone: it compares features of the trained model with
those of the shared model and of the party's previous one. Such an objective is a function of the parameters, of a
minibatch and of a context. It takes the place of f_k in an oracle (``Oracle.with_objective``), so that proximal terms,
linear terms, maps, clipping and private gradients apply to it as to f_k.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import WeightedLabels
from resolvent.problem.models.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Batch", "BoundObjective", "Context", "FunctionObjective", "LocalObjective", "as_objective"]


class Batch(NamedTuple):
    """Some of a party's samples.

    Attributes:
        x: inputs, leaves [B, ...].
        y: labels, leaves [B, ...], as the loss of the model reads them; ``Context.classes`` has the class numbers.
        mask: [B] which rows belong to the minibatch; the others repeat a row of it.
        positions: [B] the numbers of the rows among the party's samples.
    """

    x: PyTree[Any]
    y: PyTree[Any]
    mask: Bool[Array, " B"]
    positions: Int[Array, " B"]

    def mean(self, values: Float[Array, "B ..."]) -> Float[Array, "..."]:
        """The mean over the samples of the minibatch."""
        mask = self.mask.reshape(-1, *(1,) * (values.ndim - 1))
        total: Array = jnp.sum(jnp.where(mask, values, 0), axis=0) / jnp.maximum(jnp.sum(self.mask), 1)
        return total


class Context(eqx.Module):
    """What a local objective reads besides the parameters and the minibatch: the model, and the method's values.

    The values are attributes: of a method that declares ``shared``, ``context.shared`` is the shared model.

    Attributes:
        model: the model; ``context.model.loss`` is its loss.
        values: what the method declares, by name.

    Raises:
        AttributeError: the method does not declare this value; the message lists those that it declares.
    """

    model: Model
    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "__dict__").get("values", {})
        if name not in values:
            raise AttributeError(f"the context of this local objective has no value {name!r}; it has: "
                                 f"{', '.join(['model', *values])}")
        return values[name]

    def outputs(self, params: Vector, batch: Batch) -> PyTree[Any]:
        """The outputs of the model with these parameters for the minibatch."""
        return self.model.apply(params, batch.x)

    def outputs_and_features(self, params: Vector, batch: Batch) -> tuple[PyTree[Any], Array]:
        """The outputs and the features [B, d], see ``Model.apply_with_features``."""
        return self.model.apply_with_features(params, batch.x)

    def losses(self, outputs: PyTree[Any], batch: Batch) -> Float[Array, " B"]:
        """The loss of each sample, times its weight if samples have weights."""
        loss = self.model.loss
        return loss.batch_loss(outputs, loss.targets(batch.x, batch.y), batch.mask)

    def classes(self, batch: Batch) -> Array:
        """[B] the class numbers of the minibatch, without the weights of samples."""
        classes: Array = batch.y.labels if isinstance(batch.y, WeightedLabels) else batch.y
        return classes


class LocalObjective(CheckedArguments, eqx.Module):
    """An objective of a minibatch, whose numbers are fields.

    ``__call__(params, batch, context)`` returns [B], the objective of each sample, of which the mean over the minibatch
    is minimised; or one number for the whole minibatch, in which ``batch.mask`` says which rows count. Over all of a
    party's samples, the latter is the mean over consecutive blocks, weighted by their sizes.

    Attributes:
        uses_previous: whether the context needs ``previous``, the party's model after its last work.
        reads: what the objective reads of all samples before a minibatch, in words, such as ``"the class counts"``;
            None: nothing. Noise on gradients does not protect it, and the check of privacy says so.

    Example:
        The loss with smoothed labels:

        >>> class Smoothed(rv.problems.LocalObjective):
        ...     share: float = 0.1
        ...     def __call__(self, params, batch, context):
        ...         outputs = context.outputs(params, batch)
        ...         uniform = -jax.nn.log_softmax(outputs).mean(axis=-1)
        ...         return (1 - self.share) * context.losses(outputs, batch) + self.share * uniform
        >>> algorithm = rv.combinators.WithObjective(rv.fedavg(rv.SGD(0.1)), Smoothed())
    """

    uses_previous: ClassVar[bool] = False
    reads: ClassVar[str | None] = None

    @abstractmethod
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, "*B"]:
        """The objective of each sample of the minibatch, or one number for all of it."""

    def prepare(self, oracle: Any, values: "Mapping[str, Any]") -> dict[str, Any]:
        """Further values of the context, computed once in a round from the party's ``SampleOracle``; by default none.

        Args:
            oracle: the party's samples and model, see ``SampleOracle.total``.
            values: what the method declares.
        """
        return {}


class FunctionObjective(LocalObjective):
    """A local objective from a plain function (params, batch, context).

    Attributes:
        function: the function.
    """

    function: Callable[[Vector, Batch, Context], Array] = eqx.field(static=True)

    @override
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, "*B"]:
        return self.function(params, batch, context)


class BoundObjective(eqx.Module):
    """A local objective with the values of its context.

    Attributes:
        objective: the objective.
        values: the values of the context, by name.
    """

    objective: LocalObjective
    values: dict[str, Any]

    def sum(self, model: Model, params: Vector, batch: Batch) -> Float[Array, ""]:
        """The objective of the minibatch times its number of samples.

        Raises:
            InputError: the objective returns neither a number nor one for each sample.
        """
        values = self.objective(params, batch, Context(model, self.values))
        rows = len(batch.mask)
        if jnp.shape(values) == ():
            return values * jnp.sum(batch.mask)
        if jnp.shape(values) != (rows,):
            raise InputError(f"the local objective {self.name} returned an array of shape {list(jnp.shape(values))} "
                             f"for {rows} samples: return [{rows}], the objective of each sample, or one number")
        return jnp.sum(jnp.where(batch.mask, values, 0))

    def mean(self, model: Model, params: Vector, batch: Batch) -> Float[Array, ""]:
        """The mean objective of the minibatch."""
        return self.sum(model, params, batch) / jnp.maximum(jnp.sum(batch.mask), 1)

    @property
    def name(self) -> str:
        """The name of the objective, for messages."""
        objective = self.objective
        return objective.function.__name__ if isinstance(objective, FunctionObjective) else type(objective).__name__


def as_objective(objective: LocalObjective | Callable[[Vector, Batch, Context], Array]) -> LocalObjective:
    """A local objective from a plain function, or unchanged.

    Raises:
        InputError: it is neither.
    """
    if isinstance(objective, LocalObjective):
        return objective
    if not callable(objective):
        raise InputError(f"a local objective must be a function (params, batch, context) or an "
                         f"rv.problems.LocalObjective, got {type(objective).__name__}")
    return FunctionObjective(objective)
