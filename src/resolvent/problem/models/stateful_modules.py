"""The two functions of a ``StatefulModel`` from stateful modules of Equinox and of Flax (linen and nnx)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.problem.models.stateful import ParamsAndState

Functions = dict[str, Any]  # the fields ``init_function`` and ``apply_function`` of a ``StatefulModel``


def stateful_equinox(with_state: Callable[[Array], Any]) -> Functions:
    """The functions of an Equinox module with stateful layers. Their states are named by their paths in the module."""
    module, initial = with_state(jax.random.key(0))
    title, axes = type(module).__name__, {layer.axis_name for layer in tree.parts(module, eqx.nn.BatchNorm)}
    if len(axes) > 1 or not all(isinstance(name, str) for name in axes):
        raise InputError(f"the layers of BatchNorm of {title} have the axis names {sorted(map(str, axes))}: give all "
                         "of them one name, which is that of the samples of a minibatch")
    indices, static = _state_indices(module), eqx.partition(module, eqx.is_inexact_array)[1]

    def init(key: Array) -> ParamsAndState:
        module, state = with_state(key)
        return ParamsAndState(eqx.filter(module, eqx.is_inexact_array),
                              {name: state.get(index) for name, index in _state_indices(module).items()})

    def apply(params: PyTree[Any], values: dict[str, Any], x: Array, key: Array | None,
              is_step: bool) -> tuple[Any, dict[str, Any]]:
        # Not state.set, which refuses values of another precision than the first ones.
        module: Any = eqx.combine(params, static)
        state = eqx.tree_at(lambda state: [state.get(index) for index in indices.values()], initial,
                            [values[name] for name in indices])
        if not is_step:  # with a key, a training step of a model with a frozen state: its random layers are on
            module = eqx.nn.inference_mode(module) if key is None else tree.map_parts(
                eqx.nn.inference_mode, module, (eqx.nn.BatchNorm, eqx.nn.SpectralNorm))  # type: ignore[arg-type]

        def of_sample(sample: Array, state: Any, key: Array | None) -> Any:
            return module(sample, state) if key is None else module(sample, state, key=key)

        keys, axis = (None, None) if key is None else (jax.random.split(key, len(x)), 0)
        of_batch: Any = jax.vmap(of_sample, in_axes=(0, None, axis), out_axes=(0, None),
                                 axis_name=next(iter(axes), "samples"))
        try:
            outputs, state = of_batch(x, state, keys)
        except TypeError as error:
            raise InputError(f"the Equinox module {title} has stateful layers, and cannot be called as module(sample, "
                             f"state) -> (output, state): {error}") from error
        return outputs, {name: state.get(index) for name, index in indices.items()}

    return {"init_function": init, "apply_function": apply}


def _state_indices(module: Any) -> dict[str, Any]:
    """The places of states in a module, by path."""
    is_index = partial(_is_instance, eqx.nn.StateIndex)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(module, is_leaf=is_index) if is_index(leaf)}


def _is_instance(kind: type, value: Any) -> bool:
    return isinstance(value, kind)


def stateful_flax(module: Any, batch: Array, training: Mapping[str, Any]) -> Functions:
    """The functions of a linen module with variables besides its parameters."""
    def init(key: Array) -> ParamsAndState:
        variables = dict(module.init(key, batch))
        return ParamsAndState(variables.pop("params"), variables)

    def apply(params: PyTree[Any], state: dict[str, Any], x: Array, key: Array | None,
              is_step: bool) -> tuple[Any, dict[str, Any]]:
        variables = {"params": params, **state}
        if not is_step:
            return module.apply(variables, x), state
        random = {} if key is None else {"rngs": {"dropout": key}}
        outputs, changed = module.apply(variables, x, mutable=list(state), **random, **training)
        return outputs, dict(changed)

    return {"init_function": init, "apply_function": apply}


def stateful_nnx(nnx: Any, make: Callable[[Any], Any], definition: Any, parts: tuple[Any, Any, Any]) -> Functions:
    """The functions of an nnx module with variables besides its parameters.

    Args:
        nnx: the module ``flax.nnx``.
        make: ``nnx.Rngs`` -> module.
    """
    variables, random, others = parts

    def init(key: Array) -> ParamsAndState:
        _, params, _, state = nnx.split(make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)
        return ParamsAndState(nnx.to_pure_dict(params), nnx.to_pure_dict(state))

    def apply(params: PyTree[Any], state: dict[str, Any], x: Array, key: Array | None,
              is_step: bool) -> tuple[Any, dict[str, Any]]:
        streams = random_state(nnx, random, jax.random.key(0) if key is None else key)
        module = nnx.merge(definition, new_variables(nnx, variables, params), streams,
                           new_variables(nnx, others, state))
        if is_step:
            module.train()
        else:
            module.eval()
        outputs = module(x)
        return outputs, nnx.to_pure_dict(nnx.split(module, nnx.Param, nnx.RngState, ...)[3])

    return {"init_function": init, "apply_function": apply}


def new_variables(nnx: Any, variables: Any, values: PyTree[Any]) -> Any:
    """New variables of an nnx module, with these values."""
    new = jax.tree.map(lambda leaf: leaf, variables)  # the next line changes it
    nnx.replace_by_pure_dict(new, values)
    return new


def random_state(nnx: Any, state: Any, key: Array) -> Any:
    """The random streams of an nnx module at their beginning, each with a key of its own."""
    streams = [(path, variable.replace(jax.random.fold_in(key, i) if isinstance(variable, nnx.RngKey)
                                       else jnp.zeros_like(variable.get_value())))
               for i, (path, variable) in enumerate(nnx.to_flat_state(state))]
    return nnx.from_flat_state(streams)
