"""Models from PyTorch modules. PyTorch itself is imported when a model is made."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.adapters import AdaptedModel
from resolvent.problem.models.losses import Loss, WeightedLabels, WeightedLoss
from resolvent.problem.models.model import Model, differentiate_batch
from resolvent.problem.models.named_losses import LossName, loss_named
from resolvent.problem.models.stateful import BoundModel, ParamsAndState, StatefulModel

__all__ = ["from_torch", "torch_module"]

if TYPE_CHECKING:
    from resolvent.torch.torch_network import TorchNetwork


class TorchModel(Model):
    """A PyTorch module and its loss. Parameters are a dictionary with the names of the module's state dict.

    Attributes:
        description: text that identifies the module in checkpoints.
        key: the random key of the random layers in one training step; None outside of training steps.
    """

    network: "TorchNetwork" = eqx.field(static=True)
    description: str = eqx.field(static=True)
    key: Array | None = None

    @property
    @override
    def constant_names(self) -> tuple[str, ...]:
        return self.network.constants

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.network.is_random

    @override
    def in_training(self, key: Array) -> Model:
        return replace(self, key=key) if self.has_random_layers else self

    @override
    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return f

    @override
    def init(self, key: Array) -> Vector:
        return self.network.init(key)

    @override
    def apply(self, params: PyTree[Any], x: PyTree[Array]) -> Float[Array, "B ..."]:
        results: Any = self.network.outputs(params, x, self.key)
        outputs: Array = results[0] if self.network.returns_features else results
        return outputs

    @override
    def apply_with_features(self, params: PyTree[Any], x: PyTree[Array]) -> tuple[PyTree[Any], Array]:
        if not self.network.returns_features:
            raise InputError("the PyTorch module returns outputs only: return the pair (outputs, features) from "
                             "forward, and set from_torch(returns_features=True)")
        pair: tuple[Array, Array] = self.network.outputs(params, x, self.key)
        return pair

    @override
    def batch_gradient(self, params: PyTree[Any], x: PyTree[Array], y: Array, rows: Int[Array, " B"],
                       mask: Bool[Array, " B"]) -> Vector:
        from resolvent.torch.torch_network import torch_loss

        loss, labels, weights = self.loss, tree.rows(y, rows), jnp.where(mask, 1, 0) / jnp.maximum(jnp.sum(mask), 1)
        if isinstance(labels, WeightedLabels) and type(loss) is WeightedLoss:
            weights, labels, loss = weights * labels.weight, labels.labels, loss.inner
        if (function := torch_loss(loss)) is None:
            return differentiate_batch(self, params, x, y, rows, mask)
        return self.network.loss_gradient(function, params, tree.rows(x, rows), labels, weights, self.key)


class StatefulTorchModel(StatefulModel):
    """A PyTorch module with buffers that training changes, and its loss.

    Attributes:
        description: text that identifies the module in checkpoints.
    """

    network: "TorchNetwork" = eqx.field(static=True, kw_only=True)
    description: str = eqx.field(static=True, kw_only=True)

    @property
    @override
    def constant_names(self) -> tuple[str, ...]:
        return self.network.constants


@checked
def from_torch(module: Any, *, loss: Loss | LossName | Callable[[Any, Any], Any] = "cross_entropy",
               l2: float = 0.0, random_layers: bool | None = None, state: str | Sequence[str] = (),
               returns_features: bool = False) -> Model:
    """A model from a PyTorch module that maps a batch of inputs to outputs.

    A module is called with the inputs; with inputs that are a dict, by name, such as ``input_ids`` and
    ``attention_mask``. It returns a tensor, or an object whose attribute ``logits`` is one, as the modules of Hugging
    Face do.

    Every algorithm, solver and combinator works with it, because values and gradients come from PyTorch at run time,
    within the compiled rounds. PyTorch reads and writes the arrays of JAX without a copy. It runs on the CPU; parties
    in parallel lanes call it one after the other.

    Dropout draws from the key of each training step, so that results can be repeated. Outside of training steps the
    module is in evaluation mode. Parameters with ``requires_grad=False`` and buffers are constants, except the running
    statistics of batch and instance normalisation: they are the model's state, which is no parameter, and
    ``rv.combinators.ModelState`` says where it is.

    Args:
        module: a ``torch.nn.Module``, which is copied: its parameters are the first model for every seed. Or a function
            without arguments that makes a module, such as the class of the module: then the first model depends on the
            seed of the run.
        loss: a name, a ``Loss``, or a PyTorch function (outputs, labels) -> [B], such as
            ``functools.partial(torch.nn.functional.huber_loss, reduction="none")``.
        l2: weight of |params|^2 / 2.
        random_layers: whether the module draws random numbers in training mode; None: it does if it has dropout.
        state: patterns of the names of other buffers that training changes, such as ``*.codebook``.
        returns_features: whether the module returns a pair, the outputs and the features [B, d] of the samples, which
            some methods compare, such as ``moon``.

    Raises:
        InputError: PyTorch is not installed, ``module`` is not a module, it has batch normalisation without running
            statistics, or ``state`` matches no buffer.

    Example:
        >>> import torch  # doctest: +SKIP
        >>> model = rv.models.from_torch(lambda: torch.nn.Linear(64, 10))  # doctest: +SKIP
    """
    try:
        from resolvent.torch.torch_network import TorchLoss, TorchNetwork
    except ImportError as error:
        raise InputError("from_torch needs PyTorch: pip install 'resolvent[torch]', or see pytorch.org for the build "
                         "without CUDA, which is smaller") from error
    network = TorchNetwork(module, random_layers, (state,) if isinstance(state, str) else tuple(state),
                           returns_features)
    of_outputs = loss_named(loss) if isinstance(loss, str | Loss) else TorchLoss(loss)
    if not network.has_state:
        return TorchModel(of_outputs, l2, network, network.description)
    return StatefulTorchModel(of_outputs, l2, network.init_with_state, network.outputs_and_state, False,
                              network.is_random, returns_features, network=network,
                              description=network.description)


def torch_module(model: Model, params: Vector) -> Any:
    """A copy of the PyTorch module of a model, with these parameters, in evaluation mode.

    Of a model of ``lora`` it is the module with the weights to which the adapters lead.

    Args:
        model: a model of ``from_torch``, or one of ``lora`` around it.
        params: its parameters, such as ``result.server_model``.

    Raises:
        InputError: the model does not come from PyTorch.

    Example:
        >>> module = rv.models.torch_module(model, result.server_model)  # doctest: +SKIP
    """
    if isinstance(model, AdaptedModel):
        params, model = model.weights(params), model.inner
    if isinstance(model, BoundModel):
        params, model = ParamsAndState(params, model.state), model.inner
    if not isinstance(model, TorchModel | StatefulTorchModel):
        raise InputError(f"the model is a {type(model).__name__}, and only a model of rv.models.from_torch has a "
                         "PyTorch module")
    return model.network.module_with(jax.device_get(params))
