"""Models of the library as plain values, so that a saved model can be used without the program that built it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, shorten
from resolvent.math import tree
from resolvent.problem.models.adapters import AdaptedModel
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from resolvent.problem.models.model import MLP, LinearModel, Model
from resolvent.problem.models.networks import CNN, LSTM
from resolvent.problem.models.structured_losses import MultiLabelCrossEntropy

_MODELS: dict[str, type[Model]] = {kind.__name__: kind for kind in (LinearModel, MLP, CNN, LSTM)}
_LOSSES = {kind.__name__: kind for kind in (BinaryCrossEntropy, CrossEntropy, MultiLabelCrossEntropy, SquaredError)}


def describe(model: Model) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """The settings of a model of the library, and its fixed arrays; None for a model of the user's own.

    The parameters, which are trained, are not among them.
    """
    if isinstance(model, AdaptedModel):
        return _describe_adapted(model)
    if type(model).__name__ not in _MODELS or type(model.loss).__name__ not in _LOSSES:
        return None
    if type(model) is not _MODELS[type(model).__name__]:
        return None
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.name != "loss"}
    arrays = {name: np.asarray(value) for name, value in values.items() if hasattr(value, "ndim") and value.ndim}
    settings = {name: _plain(value) for name, value in values.items() if name not in arrays}
    return {"kind": type(model).__name__, "loss": type(model.loss).__name__, **settings}, arrays


def _describe_adapted(model: AdaptedModel) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """The inner model, its base weights by path, and the settings of the adapters."""
    described = describe(model.inner)
    if described is None:
        return None
    settings = {"kind": "AdaptedModel", "inner": described[0], "scale": float(np.asarray(model.scale)),
                "rank": model.rank, "l2": float(np.asarray(model.l2)), "adapted": [*model.adapted],
                "trained": [*model.trained]}
    arrays: dict[str, dict[str, Any]] = {"inner": described[1], "base": dict(tree.named_leaves(model.base)),
                                         "fixed": model.fixed}
    return settings, {f"{part}/{name}": np.asarray(leaf) for part, leaves in arrays.items()
                      for name, leaf in leaves.items()}


def _adapted_model(settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
    parts: dict[str, dict[str, Any]] = {"inner": {}, "base": {}, "fixed": {}}
    for name, array in arrays.items():
        part, _, path = name.partition("/")
        parts[part][path] = jnp.asarray(array)
    inner = model_from_description(settings["inner"], parts["inner"])
    shapes = jax.eval_shape(inner.init, jax.random.key(0))
    base = jax.tree.unflatten(jax.tree.structure(shapes), [parts["base"][name] for name, _ in
                                                           tree.named_leaves(shapes)])
    return AdaptedModel(loss=inner.loss, l2=settings["l2"], inner=inner, base=base, fixed=parts["fixed"],
                        scale=settings["scale"], rank=settings["rank"], adapted=tuple(settings["adapted"]),
                        trained=tuple(settings["trained"]))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value if value is None or isinstance(value, bool | int | float | str) else float(value)


def model_from_description(settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
    """The model that ``describe`` described."""
    names = {name: value for name, value in settings.items() if name not in ("kind", "loss")}
    try:
        if settings["kind"] == "AdaptedModel":
            return _adapted_model(settings, arrays)
        kind, loss = _MODELS[settings["kind"]], _LOSSES[settings["loss"]]
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in names.items()}
        build: Callable[..., Model] = kind
        return build(loss=loss(), **values, **{name: jnp.asarray(array) for name, array in arrays.items()})
    except (KeyError, TypeError) as error:
        raise InputError(f"the saved model {shorten(repr(settings.get('kind')))} is not known to this version of "
                         "resolvent: install the version that wrote it, or pass the model") from error
