"""The local objectives of methods for parties with different labels: MOON, FedNTD, FedDecorr and FedLC."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.objective import Batch, Context, LocalObjective
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.xla.shapes import shapes_of

_SMALL = 1e-8


class ModelContrast(LocalObjective):
    """The loss plus mu times -log of e^(s/t) / (e^(s/t) + e^(p/t)): MOON's model-contrastive loss.

    s and p are the cosines between the features of the trained model and those of the shared and of the previous model.

    Attributes:
        mu: weight of the contrastive loss.
        temperature: t, positive.
    """

    mu: Annotated[ArrayLike, "[0, inf)"] = 1.0
    temperature: Annotated[ArrayLike, "(0, inf)"] = 0.5
    uses_previous: ClassVar[bool] = True

    @override
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, " B"]:
        outputs, features = context.outputs_and_features(params, batch)
        to_shared, to_previous = (cosine(features, context.outputs_and_features(w, batch)[1]) / self.temperature
                                  for w in (context.shared, context.previous))
        # -log(e^s / (e^s + e^p)) = log(1 + e^(p - s))
        return context.losses(outputs, batch) + self.mu * jax.nn.softplus(to_previous - to_shared)


class NotTrueDistillation(LocalObjective):
    """The loss plus beta t^2 KL(q_shared | q): FedNTD's distillation of the classes that are not the sample's own.

    q and q_shared are the softmax of the outputs over t, without the output of the sample's class.

    Attributes:
        beta: weight of the distillation.
        temperature: t, positive.
    """

    beta: Annotated[ArrayLike, "[0, inf)"] = 1.0
    temperature: Annotated[ArrayLike, "(0, inf)"] = 1.0

    @override
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, " B"]:
        outputs, shared = (context.outputs(w, batch) for w in (params, context.shared))
        check_class_outputs("FedNTD", outputs, at_least=3)
        is_other = jnp.arange(outputs.shape[-1]) != context.classes(batch)[:, None]
        of_params, of_shared = (jax.nn.log_softmax(jnp.where(is_other, o / self.temperature, -jnp.inf), where=is_other)
                                for o in (outputs, shared))
        # Where the class is the sample's own, both logarithms are -inf: they are replaced before their difference.
        difference = jnp.where(is_other, of_shared, 0) - jnp.where(is_other, of_params, 0)
        divergence = jnp.sum(jnp.where(is_other, jnp.exp(of_shared), 0) * difference, axis=-1)
        return context.losses(outputs, batch) + self.beta * self.temperature**2 * divergence


class FeatureDecorrelation(LocalObjective):
    """The mean loss plus beta/d^2 |K|^2, K [d, d] the correlations of the features in the minibatch: FedDecorr.

    A feature that is constant in the minibatch counts as uncorrelated, so that the term vanishes for one sample.

    Attributes:
        beta: weight of the squared Frobenius norm of the correlations.
    """

    beta: Annotated[ArrayLike, "[0, inf)"] = 0.1

    @override
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, ""]:
        outputs, features = context.outputs_and_features(params, batch)
        centred = jnp.where(batch.mask[:, None], features - batch.mean(features), 0)
        scaled = centred * jax.lax.rsqrt(batch.mean(centred**2) + _SMALL)
        correlations = scaled.T @ scaled / jnp.maximum(jnp.sum(batch.mask), 1)
        return batch.mean(context.losses(outputs, batch)) + self.beta * jnp.mean(correlations**2)


class CalibratedLogits(LocalObjective):
    """The loss at the outputs minus tau n_c^(-1/4), n_c the number of the party's samples of class c: FedLC.

    A class without samples counts as one with 1e-8, which takes it out of the softmax.

    Attributes:
        tau: weight of the margin.
    """

    tau: Annotated[ArrayLike, "[0, inf)"] = 1.0
    reads: ClassVar[str | None] = "the class counts"

    @override
    def prepare(self, oracle: SampleOracle, values: Mapping[str, Any]) -> dict[str, Any]:
        """``margins`` [classes], computed from all samples of the party."""
        outputs = shapes_of(oracle.model.apply, values["shared"], oracle.x[:1])
        check_class_outputs("FedLC", outputs, at_least=2)

        def counts(batch: Batch, model: Any) -> Array:
            classes = Context(model, {}).classes(batch)
            return jnp.sum((classes[:, None] == jnp.arange(outputs.shape[-1])) & batch.mask[:, None], axis=0,
                           dtype=jnp.int32)

        total = oracle.total(counts, jnp.zeros(outputs.shape[-1], jnp.int32))
        return {"margins": jnp.maximum(total.astype(outputs.dtype), _SMALL) ** -0.25}

    @override
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, " B"]:
        return context.losses(context.outputs(params, batch) - self.tau * context.margins, batch)


def cosine(a: Float[Array, "B d"], b: Float[Array, "B d"]) -> Float[Array, " B"]:
    """The cosine between rows; 0 where one of them is zero."""
    squared = jnp.sum(a**2, axis=-1) * jnp.sum(b**2, axis=-1)
    return jnp.where(squared > 0, jnp.sum(a * b, axis=-1) / jnp.sqrt(jnp.where(squared > 0, squared, 1)), 0)


def check_class_outputs(method: str, outputs: Any, *, at_least: int) -> None:
    """Refuse outputs that are not one logit for each class."""
    shape: tuple[int, ...] = getattr(outputs, "shape", ())
    if len(shape) != 2 or shape[1] < at_least:
        raise InputError(f"{method} needs outputs [samples, classes] with at least {at_least} classes, got "
                         f"{['samples', *shape[1:]]}: use a model with one logit for each class")
