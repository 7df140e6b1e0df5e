"""A PyTorch module as functions of its parameters. This module imports PyTorch."""

import copy
import hashlib
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Float, PyTree
from torch.func import functional_call
from typing_extensions import override

from resolvent.errors import InputError, quote, shorten
from resolvent.math.tree import is_selected, matches
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from resolvent.problem.models.stateful import ParamsAndState, params_of
from resolvent.torch.torch_functions import (
    Arrays,
    Tensors,
    TorchFunction,
    call,
    evaluate,
    one_at_a_time,
    pullback,
    tensors,
    write,
    zeros_like,
)
from xla_cpu_rewrites.versions import on_cpu

SampleLossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_NORMS = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)


class TorchNetwork:
    """The functions of a module that a model calls. It is equal only to itself.

    Args:
        source: a module, or a function without arguments that makes it.
        random_layers: whether the module draws random numbers in training mode; None: it does if it has dropout.
        state: patterns of the names of buffers that training changes, in addition to running statistics.
        returns_features: whether the module returns a pair, the outputs and the features [B, d].

    Attributes:
        description: the structure of the module and the digest of its numbers, which identify it in checkpoints.
        is_random: whether the module draws random numbers in training mode.
        constants: names of the frozen parameters and of the buffers that training does not change.
    """

    def __init__(self, source: Any, random_layers: bool | None = None, state: tuple[str, ...] = (),
                 returns_features: bool = False) -> None:
        self._source, self._random_layers, self._patterns = source, random_layers, state
        self.returns_features = returns_features
        module = copy.deepcopy(source) if isinstance(source, torch.nn.Module) else _make(source, 0)
        _check_module(module)
        self._modules = {mode: _in_mode(copy.deepcopy(module), mode) for mode in ("training", "fixed", "evaluation")}
        self._functions = {mode: TorchFunction(partial(self._outputs, mode)) for mode in self._modules}
        self._joined = {mode: TorchFunction(partial(self._outputs_and_features, mode)) for mode in self._modules}
        self._gradients: dict[SampleLossFunction, dict[str, TorchFunction]] = {}
        self._trained = _trained_parameters(module)
        self._state = _state_buffers(module, state)
        self._constants = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())
                           if name not in self._trained and name not in self._state}
        self._checked: set[Any] = set()
        self.constants = tuple(self._constants)
        self.is_random = any(map(_has_dropout, module.modules())) if random_layers is None else random_layers
        self.description = f"{module!r} {_digest(module)} {sorted(self._state)}"

    @property
    def has_state(self) -> bool:
        """Whether training changes buffers of the module, such as the running statistics of batch normalisation."""
        return bool(self._state)

    def init(self, key: Array) -> Arrays:
        """The first parameters, in JAX's default precision; parameters in half precision stay in half precision.

        They are those of the source module; or those of a new module, which the source function makes with a seed from
        the key.
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

    def init_with_state(self, key: Array) -> ParamsAndState:
        """The first parameters, and the first buffers that training changes."""
        state = {name: jnp.asarray(value.numpy()).astype(_numpy_kind(value)) for name, value in self._state.items()}
        return ParamsAndState(self.init(key), state)

    def outputs(self, params: Arrays, x: PyTree[Array], key: Array | None) -> Any:
        """The outputs of a module without a state, in training mode if there is a key; with features, the pair."""
        return self.outputs_and_state(params, {}, x, key, False)[0]

    def outputs_and_state(self, params: Arrays, state: Arrays, x: PyTree[Array], key: Array | None,
                          is_step: bool) -> tuple[Any, Arrays]:
        """The outputs, with features the pair, and the state after them.

        In a training step the module is in training mode. With a key elsewhere, only layers with running statistics
        are in evaluation mode: the state is frozen, and the random layers are on.
        """
        self._check_call(params, state, x)
        inputs = (x, state, *_seeds(key))
        outputs = self._evaluated(_mode(is_step, key), params, inputs)
        if not is_step:
            return outputs, state
        shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype)  # type: ignore[no-untyped-call]
                  for name, value in state.items()}
        after: Arrays = call(self._write_state, shapes, *jax.lax.stop_gradient((params, inputs)))
        return outputs, after

    def _evaluated(self, mode: str, params: Arrays, inputs: tuple[PyTree[Array], ...]) -> Any:
        """The outputs; with features, the pair from one call of the module, whose results are side by side."""
        if not self.returns_features:
            return evaluate(self._functions[mode], params, inputs)
        shape = self._functions[mode].shape(params, inputs).shape
        joined, width = evaluate(self._joined[mode], params, inputs), math.prod(shape[1:])
        return joined[:, :width].reshape(shape), joined[:, width:]

    def loss_gradient(self, loss: SampleLossFunction, params: Arrays, x: PyTree[Array], y: Array,
                      weights: Float[Array, " B"], key: Array | None) -> Arrays:
        """The gradient of the weighted sum of losses of a module without a state.

        The module is in training mode unless random layers lack a key.
        """
        mode = "training" if key is not None or not self.is_random else "evaluation"
        if loss not in self._gradients:
            self._gradients[loss] = {mode: TorchFunction(partial(self._weighted_loss, loss, mode))
                                     for mode in self._modules}
        dtype = jnp.result_type(*params.values())
        return pullback(self._gradients[loss][mode], params, (x, y, weights.astype(dtype), *_seeds(key)),
                        jnp.ones((), dtype))

    def module_with(self, params: Any) -> torch.nn.Module:
        """A copy of the module with these parameters, and state if there is one, in evaluation mode."""
        module = copy.deepcopy(self._modules["evaluation"])
        of_module = dict(module.named_parameters()) | dict(module.named_buffers())
        state = params.state if isinstance(params, ParamsAndState) else {}
        with torch.no_grad():
            for name, values in params_of(params).items():
                of_module[name].data = torch.from_numpy(np.array(values))
            for name, values in state.items():
                of_module[name].copy_(torch.from_numpy(np.array(values)))
        return module

    def __getstate__(self) -> tuple[Any, ...]:
        return self._source, self._random_layers, self._patterns, self.returns_features

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # the functions of a pickled object are made again

    def _call(self, mode: str, params: Tensors, x: Any, state: Tensors,
              seed: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor | None, Tensors]:
        """The outputs, the features, and the buffers after them: copies, because training changes them in place."""
        dtype = next(iter(params.values())).dtype
        constants = {name: value.to(dtype) if value.is_floating_point() else value
                     for name, value in self._constants.items()}
        buffers = {name: value.to(dtype if value.is_floating_point() else self._state[name].dtype, copy=True)
                   for name, value in state.items()}
        arguments, named = ((), x) if isinstance(x, dict) else ((x,), {})
        with torch.random.fork_rng(devices=[], enabled=bool(seed)):
            if seed:
                torch.default_generator.manual_seed(int(seed[0]))
            outputs = functional_call(self._modules[mode], params | constants | buffers, arguments, named)
        features = None
        if self.returns_features:
            outputs, features = _pair(outputs)
        outputs = getattr(outputs, "logits", outputs)
        if not isinstance(outputs, torch.Tensor):
            raise InputError(f"the PyTorch module returns a {type(outputs).__name__}, and a model returns one tensor "
                             "[samples, ...], or an object with one as its attribute logits: wrap the module, and "
                             "return the outputs that the loss needs")
        return outputs, features, buffers

    def _outputs(self, mode: str, params: Tensors, x: Any, state: Tensors, *seed: torch.Tensor) -> torch.Tensor:
        return self._call(mode, params, x, state, seed)[0]

    def _outputs_and_features(self, mode: str, params: Tensors, x: Any, state: Tensors,
                              *seed: torch.Tensor) -> torch.Tensor:
        outputs, features, _ = self._call(mode, params, x, state, seed)
        assert features is not None
        return torch.cat([outputs.reshape(len(outputs), -1), features], dim=1)

    def _weighted_loss(self, loss: SampleLossFunction, mode: str, params: Tensors, x: Any, y: torch.Tensor,
                       weights: torch.Tensor, *seed: torch.Tensor) -> torch.Tensor:
        return (loss(self._outputs(mode, params, x, {}, *seed), y) * weights).sum()

    def _write_state(self, ctx: Any, out: Any, params: Any, inputs: Any) -> None:
        """Callback: the state after a training step."""
        x, state, *seed = tensors(inputs)
        with one_at_a_time(), torch.no_grad():
            after = self._call("training", tensors(params), x, state, tuple(seed))[2]
            for name, buffer in out.items():
                write(buffer, after[name])

    def _write_first(self, ctx: Any, out: Any, seed: Any) -> None:
        """Callback: the first parameters."""
        with one_at_a_time(), torch.no_grad():
            first = self._trained
            if not isinstance(self._source, torch.nn.Module):
                first = _trained_parameters(_make(self._source, int(torch.from_dlpack(seed))))
            for name, buffer in out.items():
                torch.from_dlpack(buffer).copy_(first[name])

    def _check_call(self, params: Arrays, state: Arrays, x: PyTree[Array]) -> None:
        """Call the module with zeros in training mode, once for each shape."""
        leaves, structure = jax.tree.flatten(x)
        signature = (structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if signature in self._checked:
            return
        before = {name: value.clone() for name, value in self._constants.items()}
        with one_at_a_time(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            random_state = torch.get_rng_state()
            arguments = zeros_like(x)
            functional_call(self._modules["training"], self._constants | zeros_like(params) | zeros_like(state),
                            *(((), arguments) if isinstance(x, dict) else ((arguments,), {})))
            draws = not torch.equal(random_state, torch.get_rng_state())
        if changed := [name for name, value in self._constants.items() if not torch.equal(value, before[name])]:
            raise InputError(f"the PyTorch module changes its buffers {shorten(', '.join(changed))} in training: name "
                             "them by from_torch(state=[...]), so that rv.combinators.ModelState says where they are")
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


def _pair(outputs: Any) -> tuple[Any, torch.Tensor]:
    """The outputs and the features [B, d] that a module returns."""
    if (not isinstance(outputs, tuple) or len(outputs) != 2 or not isinstance(outputs[1], torch.Tensor)
            or outputs[1].ndim != 2):
        raise InputError(f"with returns_features=True the PyTorch module must return the pair (outputs, features), the "
                         f"features [samples, d], and returns a {type(outputs).__name__}")
    return outputs


def _make(source: Any, seed: int) -> torch.nn.Module:
    """Make a module with a seed; PyTorch's random state is restored."""
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
    """Refuse modules that cannot be a model."""
    if statistics := [name or type(part).__name__ for name, part in module.named_modules()
                      if isinstance(part, _NORMS[0]) and not part.track_running_stats]:
        raise InputError(f"the PyTorch module has batch normalisation without running statistics in "
                         f"{shorten(', '.join(statistics))}, so that the prediction of a sample depends on the others: "
                         "set track_running_stats=True, or use GroupNorm or LayerNorm")
    if not _trained_parameters(module):
        raise InputError(f"the PyTorch module {type(module).__name__} has no parameters with requires_grad=True: there "
                         "is nothing to train")
    if elsewhere := [name for name, value in module.state_dict().items() if value.device.type != "cpu"]:
        raise InputError(f"{shorten(', '.join(elsewhere))} of the PyTorch module are not on the CPU: call "
                         "module.to('cpu') first")


def _in_mode(module: torch.nn.Module, mode: str) -> torch.nn.Module:
    """The module in training mode; ``fixed`` without its layers with running statistics; or in evaluation mode."""
    module.train(mode != "evaluation")
    if mode == "fixed":
        for part in module.modules():
            if isinstance(part, _NORMS):
                part.eval()
    return module


def _mode(is_step: bool, key: Array | None) -> str:
    if is_step:
        return "training"
    return "evaluation" if key is None else "fixed"


def _state_buffers(module: torch.nn.Module, patterns: tuple[str, ...]) -> Tensors:
    """The buffers that training changes: running statistics, and those with a name that matches a pattern."""
    buffers = dict(module.named_buffers())
    for pattern in patterns:
        if not any(matches(pattern, name) for name in buffers):
            raise InputError(f"from_torch(state={quote(pattern)}) matches no buffer; there are {shorten([*buffers])}")
    norms = [name for name, part in module.named_modules() if isinstance(part, _NORMS)]
    return {name: value.detach() for name, value in buffers.items()
            if name.rpartition(".")[0] in norms or is_selected(patterns, name)}


def _numpy_kind(value: torch.Tensor) -> Any:
    """The dtype of a buffer in a model's state: the default precision."""
    return jnp.result_type(float if value.is_floating_point() else int)


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
