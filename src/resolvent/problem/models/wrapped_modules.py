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
from resolvent.problem.models.model import AnyLoss, FunctionModel, Model
from resolvent.problem.models.named_losses import loss_named

__all__ = ["from_equinox", "from_flax", "from_nnx"]

_NO_STATISTICS = "use layers without running statistics, such as GroupNorm or LayerNorm"


@checked
def from_equinox(make: Callable[[Array], eqx.Module], *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
                 replace_slow_operations: bool = True) -> Model:
    """A model from an Equinox module that maps one sample to its output.

    A module with ``eqx.nn.Dropout`` whose rate is not zero is called with ``key=`` in training steps, and in inference
    mode elsewhere.

    Args:
        make: key -> module, such as ``lambda key: eqx.nn.MLP(64, 10, 32, 1, key=key)``. The floating arrays of the
            module are the parameters; the rest of it must not depend on the key.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.

    Raises:
        InputError: ``make`` cannot be called with a random key or does not return a module, the module has dropout but
            takes no ``key``, or it has layers with a state, such as batch statistics.

    Example:
        >>> import equinox as eqx
        >>> model = rv.models.from_equinox(lambda key: eqx.nn.Linear(64, 10, key=key))
    """
    try:
        first = make(jax.random.key(0))
    except Exception as error:
        raise InputError(f"from_equinox(make={quote(make)}) cannot be called with a random key: "
                         f"{shorten(error)}") from error
    _check_equinox(first)
    static = eqx.partition(first, eqx.is_inexact_array)[1]
    random_layers = _has_dropout(first)
    if random_layers and not _accepts_key(first):
        raise InputError(f"the module {type(first).__name__} has dropout, but its __call__ has no argument key: add "
                         "key and pass it on to eqx.nn.Dropout, or set the rate of the dropout to 0")

    def init(key: Array) -> PyTree[Any]:
        return eqx.filter(make(key), eqx.is_inexact_array)

    def apply(params: PyTree[Any], x: Array, key: Array | None = None) -> Array:
        module: Any = eqx.combine(params, static)
        if key is None:
            outputs: Array = jax.vmap(eqx.nn.inference_mode(module) if random_layers else module)(x)
        else:
            outputs = jax.vmap(lambda sample, k: module(sample, key=k))(x, jax.random.split(key, len(x)))
        return outputs

    return FunctionModel(loss=loss_named(loss), l2=l2, init_function=init, apply_function=apply,
                         replace_slow_operations=replace_slow_operations, random_layers=random_layers)


@checked
def from_flax(module: Any, example: Any, *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
              training: Mapping[str, Any] | None = None, replace_slow_operations: bool = True) -> Model:
    """A model from a Flax (linen) module that maps a batch of inputs to outputs.

    Args:
        module: a ``flax.linen.Module`` whose only variables are its parameters.
        example: a batch of inputs [1, ...] of the right shape.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        training: arguments of the module's call in a training step, which switch its dropout on, such as
            ``{"deterministic": False}``. Elsewhere the defaults of the module's call are used. The step's key is the
            random stream ``dropout``. None: there are no random layers.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.

    Raises:
        InputError: the module has other variables, such as batch statistics; only parameters are supported.

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
    shapes = jax.eval_shape(module.init, jax.random.key(0), batch)
    others = sorted(set(shapes) - {"params"})
    if others:
        raise InputError(f"the Flax module has variables {others} in addition to its parameters, which is not "
                         f"supported: {_NO_STATISTICS}")
    arguments = dict(training or {})

    def apply(params: PyTree[Any], x: Array, key: Array | None = None) -> Array:
        outputs: Array = (module.apply({"params": params}, x) if key is None else
                          module.apply({"params": params}, x, rngs={"dropout": key}, **arguments))
        return outputs

    return FunctionModel(
        loss=loss_named(loss), l2=l2, init_function=lambda key: module.init(key, batch)["params"],
        apply_function=apply, replace_slow_operations=replace_slow_operations, random_layers=training is not None)


@checked
def from_nnx(make: Callable[[Any], Any], *, loss: AnyLoss = "cross_entropy", l2: float = 0.0,
             replace_slow_operations: bool = True) -> Model:
    """A model from a Flax nnx module that maps a batch of inputs to outputs.

    Its random layers, such as ``nnx.Dropout``, are on in training steps and off elsewhere (``module.train()`` and
    ``module.eval()``); all of their random streams begin anew with the key of each step.

    Args:
        make: ``nnx.Rngs`` -> module, such as ``lambda rngs: nnx.Linear(64, 10, rngs=rngs)``. Its ``nnx.Param``
            variables are the parameters, as nested dictionaries; the rest of it must not depend on the random numbers.
        loss: a name, a ``Loss``, or a function (outputs, labels) -> [B].
        l2: weight of |params|^2 / 2.
        replace_slow_operations: whether operations that are slow in compiled loops on a CPU, such as convolutions, are
            replaced by equal ones; ``rv.explain`` shows which.

    Raises:
        InputError: Flax is not installed; ``make`` cannot be called; or the module has other variables, such as batch
            statistics.

    Example:
        >>> from flax import nnx
        >>> model = rv.models.from_nnx(lambda rngs: nnx.Linear(64, 10, rngs=rngs))
    """
    try:
        from flax import nnx
    except ImportError as error:
        raise InputError("from_nnx needs Flax: pip install 'resolvent[flax]'") from error
    try:
        first = make(nnx.Rngs(0))
        definition, variables, random, others = nnx.split(first, nnx.Param, nnx.RngState, ...)
    except Exception as error:
        raise InputError(f"from_nnx(make={quote(make)}) cannot be called with nnx.Rngs(0): {shorten(error)}") from error
    if kinds := sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(others)}):
        raise InputError(f"the nnx module has variables {kinds} in addition to its parameters, which is not supported: "
                         f"{_NO_STATISTICS}")

    def init(key: Array) -> PyTree[Any]:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree[Any], x: Array, key: Array | None = None) -> Array:
        state = jax.tree.map(lambda leaf: leaf, variables)  # a new state, because the next line changes it
        nnx.replace_by_pure_dict(state, params)
        module = nnx.merge(definition, state, random if key is None else _random_state(nnx, random, key))
        if key is None:
            module.eval()
        else:
            module.train()
        outputs: Array = module(x)
        return outputs

    return FunctionModel(loss=loss_named(loss), l2=l2, init_function=init, apply_function=apply,
                         replace_slow_operations=replace_slow_operations, random_layers=bool(jax.tree.leaves(random)))


def _random_state(nnx: Any, state: Any, key: Array) -> Any:
    """The random streams of an nnx module at their beginning, each with a key of its own."""
    streams = [(path, variable.replace(jax.random.fold_in(key, i) if isinstance(variable, nnx.RngKey)
                                       else jnp.zeros_like(variable.get_value())))
               for i, (path, variable) in enumerate(nnx.to_flat_state(state))]
    return nnx.from_flat_state(streams)


def _check_equinox(module: Any) -> None:
    """Refuse what ``make`` returned unless it is a module of parameters only.

    Raises:
        InputError: it is no module, or has layers with a state.
    """
    indices = [(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(
        module, is_leaf=partial(_is_instance, eqx.nn.StateIndex)) if _is_instance(eqx.nn.StateIndex, leaf)]
    if indices:
        layer = jax.tree_util.keystr(indices[0][0][:-1])
        raise InputError(f"the Equinox module has layers with a state in addition to its parameters, such as "
                         f"{layer or type(module).__name__}, which is not supported: for eqx.nn.BatchNorm(n, ...) "
                         "write eqx.nn.GroupNorm(1, n) or eqx.nn.LayerNorm(n), for eqx.nn.SpectralNorm "
                         "eqx.nn.WeightNorm, and call them without a state")
    if not callable(module):
        raise InputError(f"from_equinox(make) returned a {type(module).__name__}: return a module that maps one sample "
                         "to its output")


def _has_dropout(module: Any) -> bool:
    """Whether an Equinox module has dropout that is switched on; ``eqx.nn.MultiheadAttention`` has one of rate 0."""
    is_dropout = partial(_is_instance, eqx.nn.Dropout)
    return any(is_dropout(leaf) and leaf.p != 0 and not leaf.inference
               for leaf in jax.tree.leaves(module, is_leaf=is_dropout))


def _accepts_key(module: Any) -> bool:
    names = inspect.signature(module.__call__).parameters.values()
    return any(p.name == "key" or p.kind is p.VAR_KEYWORD for p in names)


def _is_instance(kind: type, value: Any) -> bool:
    return isinstance(value, kind)
