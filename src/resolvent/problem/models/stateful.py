"""Models with a state: arrays that a training step changes and that are no parameters, such as BatchNorm's statistics.

The model that is evaluated, sent and stored is a pair of parameters and state. Local work moves the parameters alone:
it gets the model *bound* to a state, whose gradients, proximal maps, codecs and centres never see that state.
``stateful_equinox``, ``stateful_flax`` and ``stateful_nnx`` make the functions of such a model from a module.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.models.model import FunctionModel, Model


class ParamsAndState(NamedTuple):
    """A model with a state.

    Attributes:
        params: the parameters, which are trained.
        state: arrays by name, which training steps change.
    """

    params: Vector
    state: dict[str, Any]


def params_of(w: Any) -> Vector:
    """The parameters of a model, with or without a state."""
    return w.params if isinstance(w, ParamsAndState) else w


def with_params(w: Any, params: Vector) -> Any:
    """The model with other parameters, and with its own state if it has one."""
    return w._replace(params=params) if isinstance(w, ParamsAndState) else params


class StatefulModel(FunctionModel):
    """A model with a state, from two functions.

    ``init_function`` is key -> ``ParamsAndState``, and ``apply_function`` is (parameters, state, inputs, key, whether
    it is a training step) -> (outputs, state); with features, outputs are a pair.
    """

    @override
    def apply(self, params: ParamsAndState, x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        return self.with_state(params.state).apply(params.params, x)

    @override
    def apply_with_features(self, params: ParamsAndState, x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        return self.with_state(params.state).apply_with_features(params.params, x)

    @override
    def with_state(self, state: dict[str, Any], *, changes: bool = False) -> "BoundModel":
        return BoundModel(loss=self.loss, l2=self.l2, inner=self, state=state, changes=changes)


class BoundModel(Model):
    """A model whose state is fixed, or changes in training steps; its parameters are the parameters alone.

    Attributes:
        changes: whether training steps change the state; otherwise they use it as it is.
        in_step: whether outputs are those of a training step, such as with the statistics of the minibatch.
    """

    inner: StatefulModel
    state: dict[str, Any]
    changes: bool = eqx.field(static=True, default=False)
    in_step: bool = eqx.field(static=True, default=False)

    @property
    @override
    def has_state(self) -> bool:
        return self.changes

    @property
    @override
    def has_random_layers(self) -> bool:
        return self.inner.has_random_layers

    @override
    def rewritten(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.inner.rewritten(f)

    @override
    def in_training(self, key: Array) -> "BoundModel":
        return replace(self, inner=self.inner.in_training(key))

    @override
    def with_state(self, state: dict[str, Any], *, changes: bool = False) -> "BoundModel":
        return replace(self, state=state, changes=changes)

    def at_step_with(self, state: dict[str, Any]) -> "BoundModel":
        """The model in a training step that begins with this state."""
        return replace(self, state=state, in_step=True)

    @override
    def init(self, key: Array) -> Vector:
        return self.inner.init(key).params

    @override
    def apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
        result: Array = self.outputs_and_state(params, x)[0]
        return result

    @override
    def apply_with_features(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[PyTree[Any], Array]:
        if not self.inner.returns_features:
            raise InputError("the module returns outputs only: return the pair (outputs, features), and set "
                             "returns_features=True")
        outputs, features = self._apply(params, x)[0]
        return outputs, features

    def outputs_and_state(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[Any, dict[str, Any]]:
        """The outputs, and the state after them."""
        outputs, state = self._apply(params, x)
        return (outputs[0] if self.inner.returns_features else outputs), state

    def _apply(self, params: PyTree[Any], x: Float[Array, "B ..."]) -> tuple[Any, dict[str, Any]]:
        inner = self.inner
        results: tuple[Any, dict[str, Any]] = inner.apply_function(params, self.state, x, inner.key, self.in_step)
        return results


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
