"""Models with a state: arrays that a training step changes and that are no parameters, such as BatchNorm's statistics.

The model that is evaluated, sent and stored is a pair of parameters and state. Local work moves the parameters alone:
it gets the model *bound* to a state, whose gradients, proximal maps, codecs and centres never see that state.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float, PyTree
from typing_extensions import override

from resolvent.errors import InputError
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
