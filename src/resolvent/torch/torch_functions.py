"""PyTorch functions inside compiled JAX programs: values, gradients and their derivatives.

A program calls Python through ``jax.experimental.buffer_callback``, which passes the memory of XLA's buffers: PyTorch
reads the arguments from and writes the results to these buffers, without a copy. (``jax.pure_callback`` copies its
arguments with a second JAX program, which waits forever if all threads of the CPU are in callbacks.)

This module imports PyTorch, so it is imported only when a model needs it.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import torch
from jax.custom_derivatives import SymbolicZero
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, PyTree

Tensors: TypeAlias = dict[str, torch.Tensor]
Arrays: TypeAlias = dict[str, Array]

# One callback at a time: a module, whose parameters are replaced during a call, and PyTorch's random state are shared.
_LOCK = threading.RLock()


def one_at_a_time() -> Any:
    """A context in which no other thread calls PyTorch for this package."""
    return _LOCK


class TorchFunction:
    """A function (parameters, *inputs) -> tensor of PyTorch. Derivatives are with respect to the parameters.

    It is equal only to itself, so that a program is compiled once for each object.

    Attributes:
        function: the function. It must be pure, and differentiable twice for methods that use second derivatives.
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function
        self._shapes: dict[Any, jax.ShapeDtypeStruct] = {}

    def shape(self, params: Arrays, inputs: PyTree[Array]) -> jax.ShapeDtypeStruct:
        """The shape and the dtype of the result, from a call with zeros."""
        signature = (tuple((name, p.shape, p.dtype) for name, p in params.items()),
                     tuple((x.shape, x.dtype) for x in jax.tree.leaves(inputs)), jax.tree.structure(inputs))
        if signature not in self._shapes:
            with one_at_a_time(), torch.no_grad():
                result = self.function(zeros_like(params), *zeros_like(inputs))
            self._shapes[signature] = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
                tuple(result.shape), _numpy_dtype(result.dtype))
        return self._shapes[signature]

    def write_value(self, ctx: Any, out: Any, params: Any, inputs: Any) -> None:
        """Callback of XLA: write the function's value into the buffer of the result."""
        with one_at_a_time(), torch.no_grad():
            write(out, self.function(_views(params), *tensors(inputs)))

    def write_pullback(self, ctx: Any, out: Any, params: Any, inputs: Any, cotangent: Any) -> None:
        """Callback: J'c, the gradient of <function, c>."""
        with one_at_a_time(), torch.enable_grad():
            leaves = _views(params, requires_grad=True)
            value = self.function(leaves, *tensors(inputs))
            _write_all(out, _grad(value, leaves, torch.from_dlpack(cotangent)))

    def write_second(self, ctx: Any, out: Any, params: Any, inputs: Any, cotangent: Any, direction: Any) -> None:
        """Callback: the Hessian of <function, c> times a direction."""
        with one_at_a_time(), torch.enable_grad():
            leaves = _views(params, requires_grad=True)
            value = self.function(leaves, *tensors(inputs))
            gradient = _grad(value, leaves, torch.from_dlpack(cotangent), create_graph=True)
            _write_all(out, _grad(_dot(gradient, _views(direction)), leaves, None))

    def write_pushforward(self, ctx: Any, out: Any, params: Any, inputs: Any, direction: Any) -> None:
        """Callback: J times a direction, as the derivative of <J'u, direction> in u."""
        with one_at_a_time(), torch.enable_grad():
            leaves = _views(params, requires_grad=True)
            value = self.function(leaves, *tensors(inputs))
            u = torch.zeros_like(value, requires_grad=True)
            gradient = _grad(value, leaves, u, create_graph=True)
            _write_all({"": out}, _grad(_dot(gradient, _views(direction)), {"": u}, None))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def evaluate(function: TorchFunction, params: Arrays, inputs: tuple[PyTree[Array], ...]) -> Array:
    """The value of a function; it has derivatives of first and second order with respect to the parameters."""
    return _evaluate(function, params, inputs)


def _evaluate_forward(function: TorchFunction, params: Arrays, inputs: tuple[PyTree[Array], ...]) -> tuple[Array, Any]:
    return _evaluate(function, params, inputs), (params, inputs)


def _evaluate_backward(function: TorchFunction, residuals: Any, cotangent: Array) -> tuple[Arrays, None]:
    return pullback(function, *residuals, cotangent), None


evaluate.defvjp(_evaluate_forward, _evaluate_backward)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _evaluate(function: TorchFunction, params: Arrays, inputs: tuple[PyTree[Array], ...]) -> Array:
    result: Array = call(function.write_value, function.shape(params, inputs), params, inputs)
    return result


@_evaluate.defjvp
def _differentiate_value(function: TorchFunction, primals: Any, tangents: Any) -> tuple[Array, Array]:
    params, inputs = primals
    shape = function.shape(params, inputs)
    return (_evaluate(function, params, inputs), call(function.write_pushforward, shape, params, inputs, tangents[0]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def pullback(function: TorchFunction, params: Arrays, inputs: tuple[PyTree[Array], ...], cotangent: Array) -> Arrays:
    """The gradient of <function, cotangent> with respect to the parameters, which has a derivative itself."""
    gradient: Arrays = call(function.write_pullback, _shapes(params), params, inputs, cotangent)
    return gradient


def _differentiate_pullback(function: TorchFunction, primals: Any, tangents: Any) -> tuple[Arrays, Arrays]:
    params, inputs, cotangent = primals
    directions, _, change = tangents
    directions = {name: jnp.zeros(d.shape, d.dtype) if isinstance(d, SymbolicZero) else d
                  for name, d in directions.items()}
    derivative: Arrays = call(function.write_second, _shapes(params), params, inputs, cotangent, directions)
    if not isinstance(change, SymbolicZero):
        derivative = jax.tree.map(jnp.add, derivative, pullback(function, params, inputs, change))
    return pullback(function, params, inputs, cotangent), derivative


pullback.defjvp(_differentiate_pullback, symbolic_zeros=True)


def call(callback: Callable[..., None], shapes: Any, *args: Any) -> Any:
    """Call PyTorch from a compiled program; under ``vmap``, each element makes a call, one after the other."""
    return buffer_callback(callback, shapes, vmap_method="sequential")(*args)


def _shapes(params: Arrays) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(p.shape, p.dtype) for name, p in params.items()}  # type: ignore[no-untyped-call]


def tensors(buffers: Any) -> Any:
    """A tree of buffers as tensors that share their memory."""
    return jax.tree.map(torch.from_dlpack, buffers)


def _views(buffers: Any, *, requires_grad: bool = False) -> Tensors:
    """The buffers as tensors that share their memory."""
    return {name: torch.from_dlpack(b).requires_grad_(requires_grad) for name, b in buffers.items()}


def _grad(value: torch.Tensor, leaves: Tensors, cotangent: torch.Tensor | None, *,
          create_graph: bool = False) -> Tensors:
    """The gradient of <value, cotangent>; zero for leaves that it does not depend on."""
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    gradient = torch.autograd.grad(value, [*leaves.values()], cotangent, create_graph=create_graph, allow_unused=True)
    return {name: torch.zeros_like(leaf) if g is None else g
            for (name, leaf), g in zip(leaves.items(), gradient, strict=True)}


def _dot(x: Tensors, y: Tensors) -> torch.Tensor:
    return torch.stack([(x[name] * y[name]).sum() for name in x]).sum()


def _write_all(out: Any, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        write(out[name], tensor)


def write(out: Any, tensor: torch.Tensor) -> None:
    """Write a tensor into a buffer of the same shape."""
    torch.from_dlpack(out).copy_(tensor.detach())


def zeros_like(arrays: PyTree[Array]) -> Any:
    """Tensors of zeros with the shapes and the dtypes of arrays, which may be traced."""
    return jax.tree.map(_zeros, arrays)


def _zeros(like: Any) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=_torch_dtype(like.dtype))


def _torch_dtype(dtype: Any) -> torch.dtype:
    result: torch.dtype = getattr(torch, jnp.dtype(dtype).name)
    return result


def _numpy_dtype(dtype: torch.dtype) -> Any:
    return jnp.dtype(str(dtype).removeprefix("torch."))
