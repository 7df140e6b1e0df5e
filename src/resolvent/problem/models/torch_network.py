"""A PyTorch module as functions of its parameters. This module imports PyTorch."""

import copy
import hashlib
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Float
from torch.func import functional_call
from typing_extensions import override

from resolvent.errors import InputError, quote, shorten
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from resolvent.problem.models.torch_functions import (
    Arrays,
    Tensors,
    TorchFunction,
    call,
    evaluate,
    one_at_a_time,
    pullback,
    zeros_like,
)
from resolvent.xla.versions import on_cpu

__all__ = ["SampleLossFunction", "TorchLoss", "TorchNetwork", "torch_loss"]

SampleLossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_ADVICE = ("use layers without batch statistics, such as GroupNorm or LayerNorm; for fixed statistics of a pretrained "
           "module use torchvision.ops.FrozenBatchNorm2d")


class TorchNetwork:
    """The functions of a module that a model calls. It is equal only to itself.

    Args:
        source: a module, or a function without arguments that makes it.
        random_layers: whether the module draws random numbers in training mode; None: it does if it has dropout.

    Attributes:
        description: the structure of the module and the digest of its numbers, which identify it in checkpoints.
        is_random: whether the module draws random numbers in training mode.

    Raises:
        InputError: the source is neither a module nor such a function, or the module has batch statistics or no trained
            parameters.
    """

    def __init__(self, source: Any, random_layers: bool | None = None) -> None:
        self._source, self._random_layers = source, random_layers
        module = copy.deepcopy(source) if isinstance(source, torch.nn.Module) else _make(source, 0)
        _check_module(module)
        self._modules = {is_training: copy.deepcopy(module).train(is_training) for is_training in (True, False)}
        self._functions = {is_training: TorchFunction(partial(self._outputs, is_training))
                           for is_training in self._modules}
        self._gradients: dict[SampleLossFunction, dict[bool, TorchFunction]] = {}
        self._trained = _trained_parameters(module)
        self._constants = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())
                           if name not in self._trained}
        self._checked: set[Any] = set()
        self.is_random = any(map(_has_dropout, module.modules())) if random_layers is None else random_layers
        self.description = f"{module!r} {_digest(module)}"

    def init(self, key: Array) -> Arrays:
        """The first parameters, in JAX's default precision; parameters in half precision stay in half precision.

        They are those of the source module; or those of a new module, which the source function makes with a seed from
        the key.

        Raises:
            InputError: JAX does not run on the CPU.
        """
        if not on_cpu():
            raise InputError("models of rv.models.from_torch run on the CPU, where PyTorch and JAX share memory: set "
                             "the environment variable JAX_PLATFORMS=cpu")
        wide = jnp.result_type(float)
        shapes = {name: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            p.shape, wide if p.dtype in (torch.float32, torch.float64) else jnp.dtype(str(p.dtype).split(".")[1]))
            for name, p in self._trained.items()}
        first: Arrays = call(self._write_first, shapes, _seed(key))
        return first

    def outputs(self, params: Arrays, x: Array, key: Array | None) -> Array:
        """The outputs of the module, in training mode if there is a key."""
        self._check_call(params, x)
        return evaluate(self._functions[key is not None], params, (x, *_seeds(key)))

    def loss_gradient(self, loss: SampleLossFunction, params: Arrays, x: Array, y: Array, weights: Float[Array, " B"],
                      key: Array | None) -> Arrays:
        """The gradient of the weighted sum of losses, in training mode unless random layers lack a key."""
        is_training = key is not None or not self.is_random
        if loss not in self._gradients:
            self._gradients[loss] = {mode: TorchFunction(partial(self._weighted_loss, loss, mode))
                                     for mode in (True, False)}
        dtype = jnp.result_type(*params.values())
        return pullback(self._gradients[loss][is_training], params, (x, y, weights.astype(dtype), *_seeds(key)),
                        jnp.ones((), dtype))

    def module_with(self, params: Any) -> torch.nn.Module:
        """A copy of the module with these parameters, in evaluation mode."""
        module = copy.deepcopy(self._modules[False])
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, values in params.items():
                parameters[name].data = torch.from_numpy(np.array(values))
        return module

    def __getstate__(self) -> tuple[Any, bool | None]:
        return self._source, self._random_layers

    def __setstate__(self, state: tuple[Any, bool | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # the functions of a pickled object are made again

    def _outputs(self, is_training: bool, params: Tensors, x: torch.Tensor, *seed: torch.Tensor) -> torch.Tensor:
        dtype = next(iter(params.values())).dtype
        constants = {name: value.to(dtype) if value.is_floating_point() else value
                     for name, value in self._constants.items()}
        with torch.random.fork_rng(devices=[], enabled=bool(seed)):
            if seed:
                torch.default_generator.manual_seed(int(seed[0]))
            outputs: torch.Tensor = functional_call(self._modules[is_training], params | constants, (x,))
        return outputs

    def _weighted_loss(self, loss: SampleLossFunction, is_training: bool, params: Tensors, x: torch.Tensor,
                       y: torch.Tensor, weights: torch.Tensor, *seed: torch.Tensor) -> torch.Tensor:
        return (loss(self._outputs(is_training, params, x, *seed), y) * weights).sum()

    def _write_first(self, ctx: Any, out: Any, seed: Any) -> None:
        """Callback: the first parameters."""
        with one_at_a_time(), torch.no_grad():
            first = self._trained
            if not isinstance(self._source, torch.nn.Module):
                first = _trained_parameters(_make(self._source, int(torch.from_dlpack(seed))))
            for name, buffer in out.items():
                torch.from_dlpack(buffer).copy_(first[name])

    def _check_call(self, params: Arrays, x: Array) -> None:
        """Call the module with zeros in training mode, once for each shape.

        Raises:
            InputError: it changes a buffer, draws random numbers unexpectedly, or does not return one tensor.
        """
        if (signature := (x.shape, x.dtype)) in self._checked:
            return
        before = {name: value.clone() for name, value in self._constants.items()}
        with one_at_a_time(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            state = torch.get_rng_state()
            outputs = functional_call(self._modules[True], self._constants | zeros_like(params),
                                      (zeros_like({"x": x})["x"],))
            draws = not torch.equal(state, torch.get_rng_state())
        if not isinstance(outputs, torch.Tensor):
            raise InputError(f"the PyTorch module returns a {type(outputs).__name__}, and a model returns one tensor "
                             "[samples, ...]: wrap the module, and return the outputs that the loss needs")
        if changed := [name for name, value in self._constants.items() if not torch.equal(value, before[name])]:
            raise InputError(f"the PyTorch module changes its buffers {shorten(', '.join(changed))} in training, which "
                             f"is not supported: {_ADVICE}")
        if draws and not self.is_random:
            raise InputError("the PyTorch module draws random numbers in training, and has no dropout layer that would "
                             "say so: set from_torch(random_layers=True)")
        self._checked.add(signature)


class TorchLoss(Loss):
    """A loss per sample from a PyTorch function; the score is the loss.

    Attributes:
        function: (outputs, labels) -> [B], of tensors.
    """

    function: SampleLossFunction = eqx.field(static=True)
    score_name: ClassVar[str] = "own_loss"
    higher_is_better: ClassVar[bool] = False

    @override
    def loss(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return evaluate(_sample_loss(self.function), {"outputs": outputs}, (y,))

    @override
    def score(self, outputs: Float[Array, "B ..."], y: Array) -> Float[Array, " B"]:
        return self.loss(outputs, y)


def torch_loss(loss: Loss) -> SampleLossFunction | None:
    """A loss as a PyTorch function, so that one call computes the gradient of a minibatch; None if there is none.

    The exact type decides, because a subclass may compute another loss.
    """
    if type(loss) is TorchLoss:
        return loss.function
    losses: dict[type[Loss], SampleLossFunction] = {
        CrossEntropy: _cross_entropy, BinaryCrossEntropy: _binary_cross_entropy, SquaredError: _squared_error}
    return losses.get(type(loss))


def _cross_entropy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, y.long(), reduction="none")


def _binary_cross_entropy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logit = outputs.reshape(len(outputs))
    return torch.nn.functional.binary_cross_entropy_with_logits(logit, y.to(logit.dtype), reduction="none")


def _squared_error(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    value = outputs.reshape(len(outputs))
    return (value - y.to(value.dtype)).square() / 2


@lru_cache(maxsize=64)
def _sample_loss(function: SampleLossFunction) -> TorchFunction:
    return TorchFunction(lambda params, y: function(params["outputs"], y))


def _make(source: Any, seed: int) -> torch.nn.Module:
    """Make a module with a seed; PyTorch's random state is restored.

    Raises:
        InputError: ``source`` is not a function that makes a module.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = source()
    except Exception as error:
        raise InputError(f"from_torch(module={quote(source)}) must be a torch.nn.Module, or a function without "
                         f"arguments that makes one: {shorten(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch(module={quote(source)}) must return a torch.nn.Module, got "
                         f"{type(module).__name__}")
    return module


def _check_module(module: torch.nn.Module) -> None:
    """Refuse modules that cannot be a model of parameters alone.

    Raises:
        InputError: the module has batch statistics, no trained parameters, or parameters that are not on the CPU.
    """
    norms = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)
    statistics = [name or type(part).__name__ for name, part in module.named_modules() if isinstance(part, norms)
                  and (part.track_running_stats or isinstance(part, norms[0]))]
    if statistics:
        raise InputError(f"the PyTorch module has batch statistics in {shorten(', '.join(statistics))}, which are no "
                         f"parameters, and of which a mean over parties is not defined: {_ADVICE}")
    if not _trained_parameters(module):
        raise InputError(f"the PyTorch module {type(module).__name__} has no parameters with requires_grad=True: there "
                         "is nothing to train")
    if elsewhere := [name for name, value in module.state_dict().items() if value.device.type != "cpu"]:
        raise InputError(f"{shorten(', '.join(elsewhere))} of the PyTorch module are not on the CPU: call "
                         "module.to('cpu') first")


def _trained_parameters(module: torch.nn.Module) -> Tensors:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def _has_dropout(module: torch.nn.Module) -> bool:
    """Whether a layer has dropout that is switched on: a layer of its own, or an option of recurrent and attention
    layers.
    """
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return bool(module.p > 0)
    dropout = getattr(module, "dropout", 0.0)
    return isinstance(dropout, float) and dropout > 0


def _digest(module: torch.nn.Module) -> str:
    total = hashlib.sha256()
    for name, value in module.state_dict().items():
        total.update(name.encode() + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _seeds(key: Array | None) -> tuple[Array, ...]:
    return () if key is None else (_seed(key),)


def _seed(key: Array) -> Array:
    """A seed for PyTorch, as an integer that it can read."""
    return jax.lax.bitcast_convert_type(jax.random.bits(key, (), jnp.uint32), jnp.int32)
