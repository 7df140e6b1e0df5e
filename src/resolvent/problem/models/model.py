"""Models: a pair of pure functions, init(key) -> params and apply(params, x) -> outputs, with a loss.

Linear regression, logistic regression (binary and multinomial) and the multilayer perceptron are built in. Any other
model is made from a pair of functions, or from a module of Equinox, Flax (``wrapped_modules``) or PyTorch.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.arguments import CheckedArguments, checked
from resolvent.errors import InputError, check_range
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError, score_rows
from resolvent.problem.models.named_losses import AnyLoss, loss_named
from resolvent.problem.models.structured_losses import MultiLabelCrossEntropy
from resolvent.xla.rows import entry
from xla_cpu_rewrites import rewrite
from xla_cpu_rewrites.versions import on_cpu

__all__ = ["MLP", "AnyLoss", "FunctionModel", "LinearModel", "Model", "check_counts", "differentiate_batch",
           "from_functions", "head", "linear", "logistic", "mlp"]

_MAX_ROWS_IN_PLACE = 32  # samples of a linear model's gradient; for more, one matrix product is faster
_MAX_DEPTH = 1000  # hidden layers, each of which is compiled


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
        """The parameters before training, drawn from a key."""

    @abstractmethod
    def apply(self, params: PyTree[Any], x: PyTree[Array]) -> PyTree[Array]:
        """The outputs for a batch of inputs: pytrees of arrays [B, ...], of which a single array is the simplest."""

    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        """The outputs for a batch of inputs, and the features [B, d]: the inputs of the last layer.

        Raises:
            InputError: the model does not say what its features are.
        """
        raise InputError(f"{type(self).__name__} has no features: use mlp or a convolutional network, or make the "
                         "model by from_functions(..., returns_features=True) from a function that returns the pair "
                         "(outputs, features)")

    def losses(self, params: PyTree[Any], x: PyTree[Array], y: PyTree[Array], rows: Int[Array, " B"],
               mask: Bool[Array, " B"]) -> Float[Array, " B"]:
        """The loss of each sample of a batch.

        Args:
            params: the parameters.
            x: the inputs, leaves [total, ...].
            y: the labels, leaves [total, ...].
            rows: the rows of the batch.
            mask: which of them belong to the batch; the others only fill it up.
        """
        inputs = tree.rows(x, rows)
        outputs = self.apply(params, inputs)
        return self.loss.batch_loss(outputs, self.loss.targets(inputs, tree.rows(y, rows)), mask)

    def losses_and_scores(self, params: PyTree[Any], x: PyTree[Array], y: PyTree[Array], rows: Int[Array, " B"],
                          mask: Bool[Array, " B"]) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        """As ``losses``, and the score of each sample, which is NaN where an output is not finite."""
        inputs = tree.rows(x, rows)
        outputs = self.apply(params, inputs)
        targets = self.loss.targets(inputs, tree.rows(y, rows))
        return self.loss.batch_loss(outputs, targets, mask), score_rows(self.loss, outputs, targets, mask)

    def batch_gradient(self, params: PyTree[Any], x: PyTree[Array], y: PyTree[Array], rows: Int[Array, " B"],
                       mask: Bool[Array, " B"]) -> Vector:
        """The gradient of the mean loss (without l2) over those ``rows`` of x and y for which ``mask`` is true."""
        return differentiate_batch(self, params, x, y, rows, mask)

    def shrinkage(self, params: Vector) -> Vector:
        """The gradient A params of the penalty params'A params/2 in every party's objective, with A = l2 I."""
        return tree.scale(self.l2, params)

    @property
    def has_state(self) -> bool:
        """Whether training steps change arrays that are no parameters, see ``ModelState``."""
        return False

    def with_state(self, state: dict[str, Any], *, changes: bool = False) -> "Model":
        """The model whose parameters are the parameters alone, with this state.

        Args:
            state: arrays that are no parameters.
            changes: whether training steps change the state.

        Raises:
            InputError: the model has no state.
        """
        raise InputError(f"{type(self).__name__} has no state besides its parameters: leave ModelState out")

    @property
    def constant_names(self) -> tuple[str, ...]:
        """The names of arrays of the model that are neither parameters nor state, such as frozen weights."""
        return ()

    @property
    def has_random_layers(self) -> bool:
        """Whether minibatch gradients depend on random numbers, as with dropout."""
        return False

    def in_training(self, key: Array) -> "Model":
        """The model in one training step: its random layers, such as dropout, draw from this key.

        Evaluations, predictions and gradients over all samples use the model itself, whose random layers are off.
        """
        return self

    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the model's outputs, with the operations replaced that are slow in a CPU's compiled loops.

        Values, gradients and predictions are rewritten here, each as a whole, and nowhere else; ``rv.explain`` shows
        what is replaced. A model whose functions stay as they are returns ``f``.
        """
        return rewrite(f)


def differentiate_batch(model: Model, params: PyTree[Any], x: PyTree[Array], y: PyTree[Array], rows: Int[Array, " B"],
                        mask: Bool[Array, " B"]) -> Vector:
    """``Model.batch_gradient`` by automatic differentiation."""
    def mean(params: PyTree[Any]) -> Array:
        loss = model.losses(params, x, y, rows, mask)
        return jnp.sum(jnp.where(mask, loss, 0)) / jnp.maximum(jnp.sum(mask), 1)

    gradient: Vector = model.rewritten(jax.grad(mean))(params)
    return gradient


class LinearModel(Model):
    """Outputs W x + b with W [outputs, features]; inputs of any shape are flattened.

    Attributes:
        ridge: weight of |W|^2 / 2 in every party's objective, in addition to l2, which shrinks b as well.
    """

    features: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    ridge: float = 0.0

    @override
    def shrinkage(self, params: Vector) -> Vector:
        return {"weight": (self.l2 + self.ridge) * params["weight"], "bias": self.l2 * params["bias"]}

    @override
    def init(self, key: Array) -> Vector:
        """Zeros, because the problem is convex."""
        return {"weight": jnp.zeros((self.outputs, self.features)), "bias": jnp.zeros((self.outputs,))}

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B outputs"]:
        outputs: Array = x.reshape(len(x), -1) @ params["weight"].T + params["bias"]
        return outputs

    @override
    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        """The outputs, and the inputs, flattened."""
        return self.apply(params, x), x.reshape(len(x), -1)

    @override
    def batch_gradient(self, params: PyTree[Any], x: Float[Array, "total ..."], y: Array, rows: Int[Array, " B"],
                       mask: Bool[Array, " B"]) -> Vector:
        """As ``Model.batch_gradient``; for few samples on a CPU by reading each sample's row in place.

        The outputs are matrix-vector products, and the gradient is a sum of outer products that XLA fuses with the step
        that follows. No batch is gathered, and no product is too small for a library call.
        """
        if len(rows) > _MAX_ROWS_IN_PLACE or not on_cpu() or self.loss.needs_inputs or self.loss.needs_batch:
            return differentiate_batch(self, params, x, y, rows, mask)
        labels = jax.tree.map(lambda leaf: jnp.stack([entry(leaf, i) for i in rows]), y)
        weights = jnp.where(mask, 1, 0) / jnp.maximum(jnp.sum(mask), 1)
        flat = x.reshape(len(x), -1)
        inputs = [entry(flat, i) for i in rows]
        outputs = jnp.stack([params["weight"] @ row for row in inputs]) + params["bias"]
        g = jax.vjp(lambda z: self.loss.loss(z, labels), outputs)[1](weights.astype(outputs.dtype))[0]
        products = [g[b][:, None] * row for b, row in enumerate(inputs)]
        return {"weight": sum(products[1:], products[0]), "bias": sum((g[b] for b in range(1, len(inputs))), g[0])}


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
        outputs: Array = self.apply_with_features(params, x)[0]
        return outputs

    @override
    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        """The outputs, and the units of the last hidden layer."""
        h = features = x.reshape(len(x), -1)
        for i in range(len(self.sizes) - 1):
            layer, features = params[f"layer {i}"], jax.nn.relu(h) if i else h
            h = features @ layer["weight"].T + layer["bias"]
        return h, features


class FunctionModel(Model):
    """A model from two pure functions.

    Attributes:
        init_function: key -> parameters.
        apply_function: (parameters, inputs) -> outputs; with random layers (parameters, inputs, key) -> outputs.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU are replaced.
        random_layers: whether minibatch gradients depend on random numbers.
        returns_features: whether ``apply_function`` returns a pair, the outputs and the features.
        key: the key of the random layers in one training step; None in evaluations.
    """

    init_function: Callable[[Array], PyTree[Any]] = eqx.field(static=True)
    apply_function: Callable[..., Any] = eqx.field(static=True)
    replace_slow_operations: bool = eqx.field(static=True, default=True)
    random_layers: bool = eqx.field(static=True, default=False)
    returns_features: bool = eqx.field(static=True, default=False)
    key: Array | None = None

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.random_layers

    @override
    def in_training(self, key: Array) -> Self:
        return replace(self, key=key) if self.random_layers else self

    @override
    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return rewrite(f) if self.replace_slow_operations else f

    @override
    def init(self, key: Array) -> Vector:
        return self.init_function(key)

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        result: Array = self.apply_with_features(params, x)[0] if self.returns_features else self._apply(params, x)
        return result

    @override
    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        if not self.returns_features:
            raise InputError("the function of the model returns outputs only: return the pair (outputs, features), and "
                             "set returns_features=True")
        outputs, features = self._apply(params, x)
        return outputs, features

    def _apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Any:
        """The outputs; with features the pair of both."""
        result = self.apply_function(params, x, self.key) if self.random_layers else self.apply_function(params, x)
        if self.returns_features and not (isinstance(result, tuple) and len(result) == 2):
            raise InputError(f"a model with returns_features=True must return the pair (outputs, features), got "
                             f"{type(result).__name__}")
        return result


@checked
def linear(features: int, *, targets: int = 1, l2: float = 0.0) -> Model:
    """Linear regression with the squared error.

    Args:
        features: number of inputs.
        targets: number of real targets of a sample, which are predicted together.
        l2: weight of |params|^2 / 2.

    Example:
        >>> params = rv.models.linear(3).init(jax.random.key(0))
        >>> jax.tree.map(jnp.shape, params)
        {'bias': (1,), 'weight': (1, 3)}
    """
    check_counts("linear", features=features, targets=targets)
    return LinearModel(loss=SquaredError(), l2=l2, features=features, outputs=targets)


@checked
def logistic(features: int, classes: int, *, task: Literal["classification", "structured"] = "classification",
             l2: float = 0.0) -> Model:
    """Logistic regression: one logit for two classes, multinomial for more, and one logit for each of several labels.

    Args:
        features: number of inputs (images are flattened).
        classes: number of classes, at least 2; or the number of labels.
        task: classification; or structured, for several labels of 0 or 1 each.
        l2: weight of |params|^2 / 2; a positive value makes the problem strongly convex.

    Example:
        >>> params = rv.models.logistic(4, 3).init(jax.random.key(0))
        >>> jax.tree.map(jnp.shape, params)
        {'bias': (3,), 'weight': (3, 4)}
    """
    check_counts("logistic", features=features)
    outputs, loss = head(classes, task)
    return LinearModel(loss=loss, l2=l2, features=features, outputs=outputs)


@checked
def mlp(features: int, classes: int, *, width: int = 64, depth: int = 1,
        task: Literal["classification", "regression", "structured"] = "classification", targets: int = 1,
        l2: float = 0.0) -> Model:
    """A multilayer perceptron with ReLU.

    Args:
        features: number of inputs (images are flattened).
        classes: number of classes, or for structured of labels; ignored for regression.
        width: units in each hidden layer.
        depth: number of hidden layers.
        task: classification; regression; or structured, for several labels of 0 or 1 each.
        targets: for regression, the number of real targets of a sample.
        l2: weight of |params|^2 / 2.

    Example:
        >>> params = jax.eval_shape(rv.models.mlp(4, 3, width=8).init, jax.random.key(0))
        >>> jax.tree.map(jnp.shape, params)
        {'layer 0': {'bias': (8,), 'weight': (8, 4)}, 'layer 1': {'bias': (3,), 'weight': (3, 8)}}
    """
    check_counts("mlp", features=features, width=width, depth=depth, targets=targets)
    outputs, loss = (targets, SquaredError()) if task == "regression" else head(classes, task)
    return MLP(loss=loss, l2=l2, sizes=(features, *(width,) * depth, outputs))


@checked
def from_functions(init: Callable[[Array], PyTree[Any]], apply: Callable[..., Any], *,
                   loss: AnyLoss = "cross_entropy", l2: float = 0.0, replace_slow_operations: bool = True,
                   random_layers: bool = False, returns_features: bool = False) -> Model:
    """A model from a pair of pure functions.

    Args:
        init: key -> parameters, any pytree of floating arrays.
        apply: (parameters, inputs [B, ...]) -> outputs [B, ...].
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.
        random_layers: whether ``apply`` has random layers, such as dropout. It then has a third argument: the random
            key of a training step, or None in evaluations, predictions and gradients over all samples.
        returns_features: whether ``apply`` returns a pair, the outputs and the features [B, d] of the samples, which
            some methods compare, such as ``moon``.

    Example:
        >>> model = rv.models.from_functions(lambda key: jnp.zeros((10, 64)), lambda w, x: x @ w.T)
        >>> data = rv.datasets.digits(parties=3)
        >>> result = rv.simulate(rv.fedavg(rv.SGD(0.01)), model, data, rounds=1, progress=False)
    """
    if not random_layers:
        check_key("from_functions(apply)", apply, "apply(params, x)", ", or set random_layers=True, with which it is "
                  "called as apply(params, x, key)")
    return FunctionModel(loss=loss_named(loss), l2=l2, init_function=init, apply_function=apply,
                         replace_slow_operations=replace_slow_operations, random_layers=random_layers,
                         returns_features=returns_features)


def check_key(owner: str, function: Callable[..., Any], call: str, advice: str = "") -> None:
    """Refuse a function that needs a random key, which it gets in training steps at most."""
    try:
        key = inspect.signature(function).parameters.get("key")
    except (TypeError, ValueError):  # it has no signature
        return
    if key is not None and key.default is key.empty:
        raise InputError(f"{owner} requires key, and is called without one, {call}, in evaluations and predictions: "
                         f"write key=None in its definition{advice}")


def head(classes: int, task: str = "classification") -> tuple[int, Loss]:
    """Number of outputs and loss of a classifier: one logit for two classes, one per class for more classes.

    With the task ``structured`` there is one logit for each of several labels.
    """
    if task == "structured":
        return classes, MultiLabelCrossEntropy()
    if classes < 2:
        raise InputError(f"classes={classes} must be at least 2 for classification")
    return (1, BinaryCrossEntropy()) if classes == 2 else (classes, CrossEntropy())


def check_counts(name: str, depth: int = 1, **counts: int) -> None:
    """Refuse numbers of inputs, units or layers that no network has."""
    sizes: dict[str, Any] = {"depth": depth, **counts}
    check_range(name, "[1, inf)", **sizes)
    if depth > _MAX_DEPTH:
        raise InputError(f"{name}(depth={depth}) must be at most {_MAX_DEPTH}")
