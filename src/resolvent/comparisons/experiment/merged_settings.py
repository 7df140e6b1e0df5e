"""Settings of experiments as nested mappings: merging, sweeps, and the choices of a search."""

import copy
from collections.abc import Mapping
from typing import Any

Choices = Mapping[str, Mapping[str, Any]]  # label -> path -> value


def merge(settings: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes. A part with another name, and ``algorithms``, replace the old value completely."""
    result = copy.deepcopy(dict(settings))
    for key, value in changed.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key != "algorithms" and "name" not in value:
            result[key] = merge(old, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def fill(settings: Any, point: Mapping[str, Any]) -> Any:
    """Settings in which each ``$name`` is replaced by the value of the sweep's parameter of that name."""
    if isinstance(settings, Mapping):
        return {key: fill(value, point) for key, value in settings.items()}
    if isinstance(settings, list):
        return [fill(value, point) for value in settings]
    if isinstance(settings, str) and settings.startswith("$"):
        return point[settings[1:]]
    return settings


def with_choices(settings: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """Settings in which every algorithm has its chosen parameters."""
    algorithms = {label: _with_values(algorithm, choices.get(label, {}), settings)
                  for label, algorithm in settings["algorithms"].items()}
    return {**settings, "algorithms": algorithms}


def _with_values(algorithm: Any, values: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """An algorithm with values at paths. An algorithm without a solver gets a copy of the experiment's."""
    if not values:
        return algorithm
    result: dict[str, Any] = {"name": algorithm} if isinstance(algorithm, str) else copy.deepcopy(dict(algorithm))
    for path, value in values.items():
        level: dict[str, Any] = result
        *parents, last = path.split(".")
        for key in parents:
            if key not in level and key == "solver":
                level[key] = copy.deepcopy(settings["solver"])
            if isinstance(level.get(key), str):
                level[key] = {"name": level[key]}
            level = level.setdefault(key, {})
        level[last] = value
    return result


def texts_in(settings: Any) -> set[str]:
    """All texts in nested settings, keys included."""
    if isinstance(settings, Mapping):
        return {text for pair in settings.items() for part in pair for text in texts_in(part)}
    if isinstance(settings, list):
        return {text for part in settings for text in texts_in(part)}
    return {settings} if isinstance(settings, str) else set()
