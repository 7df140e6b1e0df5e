"""Models from modules of Equinox and of Flax (linen and nnx)."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from resolvent.arguments import checked
from resolvent.errors import InputError, quote, shorten
from resolvent.math import tree
from resolvent.problem.models.model import AnyLoss, FunctionModel, Model, check_key
from resolvent.problem.models.named_losses import loss_named
from resolvent.problem.models.stateful import (
    StatefulModel,
    new_variables,
    random_state,
    stateful_equinox,
    stateful_flax,
    stateful_nnx,
)


@checked
def from_equinox(make: Callable[[Array], Any], *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
                 replace_slow_operations: bool = True, returns_features: bool = False) -> Model:
    """A model from an Equinox module that maps one sample to its output.

    A module with ``eqx.nn.Dropout`` whose rate is not zero is called with ``key=`` in training steps, and in inference
    mode elsewhere.

    A module with stateful layers, such as ``eqx.nn.BatchNorm``, is called as ``module(sample, state)``, and returns the
    output and the state. The state is no parameter: ``rv.combinators.ModelState`` says where it is.

    Args:
        make: key -> module, such as ``lambda key: eqx.nn.MLP(64, 10, 32, 1, key=key)``. The floating arrays of the
            module are the parameters; the rest of it must not depend on the key. ``eqx.nn.make_with_state(...)`` of
            such a function works, too.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.
        returns_features: whether the module returns a pair, the outputs and the features, which some methods compare,
            such as ``moon``.

    Raises:
        InputError: ``make`` cannot be called with a random key or does not return a module, the module has dropout but
            takes no ``key``, it has stateful layers but takes no ``state``, or its layers of BatchNorm have different
            axis names.

    Example:
        >>> import equinox as eqx
        >>> model = rv.models.from_equinox(lambda key: eqx.nn.Linear(64, 10, key=key))
    """
    try:
        first = _module_of(make)
    except Exception as error:
        raise InputError(f"from_equinox(make={quote(make)}) cannot be called with a random key: {shorten(error)}"
                         f"{_advice(make, eqx.Module, 'key')}") from error
    if is_pair := isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], eqx.nn.State):
        first = first[0]
    if not callable(first):
        raise InputError(f"from_equinox(make) returned a {type(first).__name__}: return a module that maps one sample "
                         "to its output")
    random_layers = _has_dropout(first)
    if random_layers and not _accepts(first, "key"):
        raise InputError(f"the module {type(first).__name__} has dropout, but its __call__ has no argument key: add "
                         "key and pass it on to eqx.nn.Dropout, or set the rate of the dropout to 0")
    check_key(f"the __call__ of {type(first).__name__}", first.__call__, "module(sample)")
    settings: dict[str, Any] = {"loss": loss_named(loss), "l2": l2, "replace_slow_operations": replace_slow_operations,
                                "random_layers": random_layers, "returns_features": returns_features}
    if tree.parts(first, eqx.nn.StateIndex):
        return StatefulModel(**settings, **stateful_equinox(make if is_pair else eqx.nn.make_with_state(make)))
    static = eqx.filter(first, _is_parameter, inverse=True)

    def init(key: Array) -> PyTree[Any]:
        return eqx.filter(make(key), eqx.is_inexact_array)

    def apply(params: PyTree[Any], x: Array, key: Array | None = None) -> Any:
        module: Any = eqx.combine(params, static)
        try:
            if key is None:
                return jax.vmap(eqx.nn.inference_mode(module) if random_layers else module)(x)
            return jax.vmap(lambda sample, k: module(sample, key=k))(x, jax.random.split(key, tree.count_rows(x)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}; {type(module).__name__} was called with one sample, {_shapes(x)}, which has "
                             "no axis of a batch") from error

    return FunctionModel(init_function=init, apply_function=apply, **settings)


@checked
def from_flax(module: Any, example: Any, *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
              training: Mapping[str, Any] | None = None, replace_slow_operations: bool = True,
              returns_features: bool = False) -> Model:
    """A model from a Flax (linen) module that maps a batch of inputs to outputs.

    Variables besides the parameters, such as ``batch_stats``, are the model's state, which is no parameter:
    ``rv.combinators.ModelState`` says where it is. A state that is frozen is used with the defaults of the module's
    call, without dropout.

    Args:
        module: a ``flax.linen.Module``.
        example: a batch of inputs [1, ...] of the right shape.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        training: arguments of the module's call in a training step, which switch its dropout on, such as
            ``{"deterministic": False}``, or let batch normalisation use the minibatch, such as ``{"train": True}``.
            Elsewhere the defaults of the module's call are used. The step's key is the random stream ``dropout``.
            None: there are no random layers.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.
        returns_features: whether the module returns a pair, the outputs and the features, which some methods compare,
            such as ``moon``.

    Raises:
        InputError: ``module`` is no module, ``example`` is no array, or the module has a state and ``training`` is
            None.

    Example:
        >>> import flax.linen as nn  # doctest: +SKIP
        >>> model = rv.models.from_flax(nn.Dense(10), example=np.zeros((1, 64)))  # doctest: +SKIP
    """
    if not hasattr(module, "init") or not hasattr(module, "apply"):
        raise InputError(f"from_flax(module={quote(module)}) must be a flax.linen.Module, such as nn.Dense(10)")
    try:
        batch = jnp.asarray(example)
    except Exception as error:
        raise InputError(f"from_flax(example={quote(example)}) must be an array, such as jnp.zeros((1, 64))") from error
    others = sorted(set(jax.eval_shape(module.init, jax.random.key(0), batch)) - {"params"})
    arguments = dict(training or {})
    settings: dict[str, Any] = {"loss": loss_named(loss), "l2": l2, "replace_slow_operations": replace_slow_operations,
                                "random_layers": training is not None, "returns_features": returns_features}
    if others:
        if training is None:
            raise InputError(f"the Flax module has variables {others} in addition to its parameters: say by which "
                             "arguments of its call a training step changes them, such as training={'train': True}")
        return StatefulModel(**settings, **stateful_flax(module, batch, arguments))

    def apply(params: PyTree[Any], x: Array, key: Array | None = None) -> Any:
        return (module.apply({"params": params}, x) if key is None else
                module.apply({"params": params}, x, rngs={"dropout": key}, **arguments))

    return FunctionModel(init_function=lambda key: module.init(key, batch)["params"], apply_function=apply, **settings)


@checked
def from_nnx(make: Callable[[Any], Any], *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
             replace_slow_operations: bool = True, returns_features: bool = False) -> Model:
    """A model from a Flax nnx module that maps a batch of inputs to outputs.

    Its random layers, such as ``nnx.Dropout``, are on in training steps and off elsewhere (``module.train()`` and
    ``module.eval()``); all of their random streams begin anew with the key of each step. Variables besides the
    parameters, such as ``nnx.BatchStat``, are the model's state, which is no parameter: ``rv.combinators.ModelState``
    says where it is.

    Args:
        make: ``nnx.Rngs`` -> module, such as ``lambda rngs: nnx.Linear(64, 10, rngs=rngs)``. Its ``nnx.Param``
            variables are the parameters, as nested dictionaries; the rest of it must not depend on the random numbers.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.
        returns_features: whether the module returns a pair, the outputs and the features, which some methods compare,
            such as ``moon``.

    Raises:
        InputError: Flax is not installed, or ``make`` cannot be called.

    Example:
        >>> from flax import nnx
        >>> model = rv.models.from_nnx(lambda rngs: nnx.Linear(64, 10, rngs=rngs))
    """
    try:
        from flax import nnx
    except ImportError as error:
        raise InputError("from_nnx needs Flax: pip install 'resolvent[flax]'") from error
    try:
        try:
            with jax.checking_leaks():  # as for Equinox modules, see _module_of
                module = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
        except Exception:
            module = make(nnx.Rngs(0))
        definition, variables, random, others = nnx.split(module, nnx.Param, nnx.RngState, ...)
    except Exception as error:
        raise InputError(f"from_nnx(make={quote(make)}) cannot be called with nnx.Rngs(0): {shorten(error)}"
                         f"{_advice(make, nnx.Module, 'rngs')}") from error
    settings: dict[str, Any] = {"loss": loss_named(loss), "l2": l2, "replace_slow_operations": replace_slow_operations,
                                "random_layers": bool(jax.tree.leaves(random)), "returns_features": returns_features}
    if jax.tree.leaves(others):
        return StatefulModel(**settings, **stateful_nnx(nnx, make, definition, (variables, random, others)))

    def init(key: Array) -> PyTree[Any]:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree[Any], x: Array, key: Array | None = None) -> Any:
        streams = random_state(nnx, random, jax.random.key(0) if key is None else key)
        module = nnx.merge(definition, new_variables(nnx, variables, params), streams)
        if key is None:
            module.eval()
        else:
            module.train()
        return module(x)

    return FunctionModel(init_function=init, apply_function=apply, **settings)


def _advice(make: Any, kind: type, name: str) -> str:
    """The end of an error if a module was given instead of the function that makes it."""
    return (f". It is a module: give a function that makes it, lambda {name}: ...; one that returns this module begins "
            "with its weights" if isinstance(make, kind) else "")


def _shapes(x: PyTree[Any]) -> str:
    """The shapes of a sample of a batch."""
    return " and ".join(str(list(leaf.shape[1:])) for leaf in jax.tree.leaves(x))


def _has_dropout(module: Any) -> bool:
    """Whether an Equinox module has dropout that is switched on; ``eqx.nn.MultiheadAttention`` has one of rate 0."""
    is_dropout = partial(_is_instance, eqx.nn.Dropout)
    return any(is_dropout(leaf) and leaf.p != 0 and not leaf.inference
               for leaf in jax.tree.leaves(module, is_leaf=is_dropout))


def _accepts(module: Any, name: str) -> bool:
    parameters = inspect.signature(module.__call__).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _is_instance(kind: type, value: Any) -> bool:
    return isinstance(value, kind)


def _module_of(make: Callable[[Array], Any]) -> Any:
    """The module with the shapes of its parameters; with arrays if some are no parameters, or ``make`` needs them.

    Shapes need no program. Random weights would need one for each shape: 5 s of CPU time for a ResNet-20.
    """
    key = jax.random.key(0)
    try:
        with jax.checking_leaks():  # a function in the module may hold an array that ``make`` computes
            module = eqx.filter_eval_shape(make, key)
    except Exception:
        return make(key)  # it fails again with its own error, or it needs the values
    arrays = [leaf for leaf in jax.tree.leaves(module) if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array)]
    return module if all(map(_is_parameter, arrays)) else make(key)


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
