"""Models: a pair of pure functions, init(key) -> params and apply(params, x) -> outputs, with a loss.

Linear regression, logistic regression (binary and multinomial) and the multilayer perceptron are built in. Any other
model is made from a pair of functions, an Equinox module or a Flax module.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments, checked
from resolvent.errors import InputError, quote, shorten
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, LossName, SquaredError, loss_named
from resolvent.xla.kernels import affine_gradient, is_affine_gradient_faster
from resolvent.xla.rewrites import rewrite

__all__ = ["MLP", "FunctionModel", "LinearModel", "Model", "from_equinox", "from_flax", "from_functions",
           "head", "linear", "logistic", "mlp"]

MAX_DEPTH = 1000  # hidden layers, each of which is compiled

AnyLoss = Loss | LossName | Callable[[Array, Array], Array]


class Model(CheckedArguments, eqx.Module):
    """A predictor and its loss.

    Attributes:
        loss: the loss per sample.
        l2: weight of |params|^2 / 2 in every party's objective.
    """

    loss: Loss
    l2: float

    @abstractmethod
    def init(self, key: Array) -> Vector:
        """The first parameters."""

    @abstractmethod
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        """The outputs for a batch of inputs."""

    def batch_gradient(self, params: PyTree[Any], x: Float[Array, "total ..."], y: Array, rows: Int[Array, " B"],
                       mask: Bool[Array, " B"]) -> Vector:
        """The gradient of the mean loss (without l2) over those ``rows`` of x and y for which ``mask`` is true."""
        return _differentiate_batch(self, params, x, y, rows, mask)

    @property
    def replaces_slow_operations(self) -> bool:
        """Whether operations that are slow in compiled loops on a CPU are replaced by equal ones (``rv.explain``)."""
        return True

    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the model's outputs, with its slow operations replaced."""
        return rewrite(f) if self.replaces_slow_operations else f


def _differentiate_batch(model: Model, params: PyTree[Any], x: Float[Array, "total ..."], y: Array,
                         rows: Int[Array, " B"], mask: Bool[Array, " B"]) -> Vector:
    """``Model.batch_gradient`` by automatic differentiation."""
    def mean(params: PyTree[Any]) -> Array:
        loss = model.loss.loss(model.apply(params, x[rows]), y[rows])
        return jnp.sum(jnp.where(mask, loss, 0)) / jnp.maximum(jnp.sum(mask), 1)

    gradient: Vector = model.rewritten(jax.grad(mean))(params)
    return gradient


class LinearModel(Model):
    """Outputs W x + b with W [outputs, features]; inputs of any shape are flattened."""

    features: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    @override
    def init(self, key: Array) -> Vector:
        """Zeros, because the problem is convex."""
        return {"weight": jnp.zeros((self.outputs, self.features)), "bias": jnp.zeros((self.outputs,))}

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B outputs"]:
        outputs: Array = x.reshape(len(x), -1) @ params["weight"].T + params["bias"]
        return outputs

    @override
    def batch_gradient(self, params: PyTree[Any], x: Float[Array, "total ..."], y: Array, rows: Int[Array, " B"],
                       mask: Bool[Array, " B"]) -> Vector:
        if not is_affine_gradient_faster(len(rows)):
            return _differentiate_batch(self, params, x, y, rows, mask)
        labels = jnp.stack([y[i] for i in rows])
        weights = jnp.where(mask, 1, 0) / jnp.maximum(jnp.sum(mask), 1)

        def output_gradient(outputs: Array) -> Array:
            vjp = jax.vjp(lambda z: self.loss.loss(z, labels), outputs)[1]
            gradient: Array = vjp(weights.astype(outputs.dtype))[0]
            return gradient

        weight, bias = affine_gradient(params["weight"], params["bias"], x.reshape(len(x), -1), rows, output_gradient)
        return {"weight": weight, "bias": bias}


class MLP(Model):
    """A multilayer perceptron with ReLU; parameters {"layer 0": {"weight", "bias"}, ...}.

    Attributes:
        sizes: number of inputs, of units of each hidden layer, and of outputs.
    """

    sizes: tuple[int, ...] = eqx.field(static=True)

    @override
    def init(self, key: Array) -> Vector:
        """He's normal initialisation; the biases are zero."""
        he = jax.nn.initializers.he_normal(in_axis=1, out_axis=0)
        keys = jax.random.split(key, len(self.sizes) - 1)
        return {f"layer {i}": {"weight": he(k, (n_out, n_in)), "bias": jnp.zeros((n_out,))}
                for i, (k, n_in, n_out) in enumerate(zip(keys, self.sizes[:-1], self.sizes[1:], strict=True))}

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B outputs"]:
        h = x.reshape(len(x), -1)
        for i in range(len(self.sizes) - 1):
            layer = params[f"layer {i}"]
            h = (jax.nn.relu(h) if i else h) @ layer["weight"].T + layer["bias"]
        return h


class FunctionModel(Model):
    """A model from two pure functions."""

    init_function: Callable[[Array], PyTree[Any]] = eqx.field(static=True)
    apply_function: Callable[[PyTree[Any], Array], Array] = eqx.field(static=True)
    replace_slow_operations: bool = eqx.field(static=True, default=True)

    @property
    @override
    def replaces_slow_operations(self) -> bool:
        return self.replace_slow_operations

    @override
    def init(self, key: Array) -> Vector:
        return self.init_function(key)

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        return self.apply_function(params, x)


@checked
def linear(features: int, *, l2: float = 0.0) -> Model:
    """Linear regression with the squared error.

    Args:
        features: number of inputs.
        l2: weight of |params|^2 / 2.
    """
    return LinearModel(loss=SquaredError(), l2=l2, features=_check_positive("features", features), outputs=1)


@checked
def logistic(features: int, classes: int, *, l2: float = 0.0) -> Model:
    """Logistic regression: one logit for two classes, multinomial for more.

    Args:
        features: number of inputs (images are flattened).
        classes: number of classes, at least 2.
        l2: weight of |params|^2 / 2; a positive value makes the problem strongly convex.
    """
    outputs, loss = head(classes)
    return LinearModel(loss=loss, l2=l2, features=_check_positive("features", features), outputs=outputs)


@checked
def mlp(features: int, classes: int, *, width: int = 64, depth: int = 1,
        task: Literal["classification", "regression"] = "classification", l2: float = 0.0) -> Model:
    """A multilayer perceptron with ReLU.

    Args:
        features: number of inputs (images are flattened).
        classes: number of classes; ignored for regression.
        width: units in each hidden layer.
        depth: number of hidden layers.
        task: classification, or regression with one output.
        l2: weight of |params|^2 / 2.
    """
    outputs, loss = (1, SquaredError()) if task == "regression" else head(classes)
    hidden = (_check_positive("width", width),) * _check_positive("depth", depth, MAX_DEPTH)
    return MLP(loss=loss, l2=l2, sizes=(_check_positive("features", features), *hidden, outputs))


@checked
def from_functions(init: Callable[[Array], PyTree[Any]], apply: Callable[[PyTree[Any], Array], Array], *,
                   loss: AnyLoss = "cross_entropy", l2: float = 0.0, replace_slow_operations: bool = True) -> Model:
    """A model from a pair of pure functions.

    Args:
        init: key -> parameters, any pytree of floating arrays.
        apply: (parameters, inputs [B, ...]) -> outputs [B, ...].
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.
    """
    return FunctionModel(loss=loss_named(loss), l2=l2, init_function=init, apply_function=apply,
                         replace_slow_operations=replace_slow_operations)


@checked
def from_equinox(make: Callable[[Array], eqx.Module], *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
                 replace_slow_operations: bool = True) -> Model:
    """A model from an Equinox module that maps one sample to its output.

    Args:
        make: key -> module, such as ``lambda key: eqx.nn.MLP(64, 10, 32, 1, key=key)``. The floating arrays of the
            module are the parameters; the rest of it must not depend on the key.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.
    """
    try:
        first = make(jax.random.key(0))
    except Exception as error:
        raise InputError(f"from_equinox(make={quote(make)}) cannot be called with a random key: "
                         f"{shorten(error)}") from error
    static = eqx.partition(first, eqx.is_inexact_array)[1]

    def init(key: Array) -> PyTree[Any]:
        return eqx.filter(make(key), eqx.is_inexact_array)

    def apply(params: PyTree[Any], x: Array) -> Array:
        module: Any = eqx.combine(params, static)
        outputs: Array = jax.vmap(module)(x)
        return outputs

    return FunctionModel(loss=loss_named(loss), l2=l2, init_function=init, apply_function=apply,
                         replace_slow_operations=replace_slow_operations)


@checked
def from_flax(module: Any, example: Any, *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
              replace_slow_operations: bool = True) -> Model:
    """A model from a Flax (linen) module that maps a batch of inputs to outputs.

    Args:
        module: a ``flax.linen.Module`` whose only variables are its parameters.
        example: a batch of inputs [1, ...] of the right shape.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.

    Raises:
        InputError: the module has other variables, such as batch statistics; only parameters are supported.
    """
    if not hasattr(module, "init") or not hasattr(module, "apply"):
        raise InputError(f"from_flax(module={quote(module)}) must be a flax.linen.Module, such as nn.Dense(10)")
    try:
        batch = jnp.asarray(example)
    except Exception as error:
        raise InputError(f"from_flax(example={quote(example)}) must be an array, such as jnp.zeros((1, 64))") from error
    shapes = jax.eval_shape(module.init, jax.random.key(0), batch)
    others = sorted(set(shapes) - {"params"})
    if others:
        raise InputError(f"the Flax module has variables {others} in addition to its parameters, which is not "
                         "supported: use layers without running statistics, such as GroupNorm or LayerNorm")
    return FunctionModel(
        loss=loss_named(loss), l2=l2, init_function=lambda key: module.init(key, batch)["params"],
        apply_function=lambda params, x: module.apply({"params": params}, x),
        replace_slow_operations=replace_slow_operations)


def head(classes: int) -> tuple[int, Loss]:
    """Number of outputs and loss of a classifier: one logit for two classes, one per class for more classes."""
    if classes < 2:
        raise InputError(f"classes={classes} must be at least 2 for classification")
    return (1, BinaryCrossEntropy()) if classes == 2 else (classes, CrossEntropy())


def _check_positive(name: str, value: int, largest: int | None = None) -> int:
    if value < 1:
        raise InputError(f"{name}={value} must be at least 1")
    if largest is not None and value > largest:
        raise InputError(f"{name}={value} must be at most {largest}")
    return value
