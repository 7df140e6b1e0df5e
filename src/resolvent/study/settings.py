"""Settings of experiments as nested mappings, and what reproductions make of them."""

import copy
from collections.abc import Mapping
from typing import Any

__all__ = ["Choice", "filled", "merged", "texts", "tuned"]

Choice = Mapping[str, Mapping[str, Any]]  # label -> path -> value


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and what differs from them; another component, or other algorithms, replace the old."""
    result = copy.deepcopy(dict(one))
    for key, value in other.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping) and key != "algorithms" and "name" not in value
        result[key] = merged(old, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def filled(settings: Any, point: Mapping[str, Any]) -> Any:
    """Settings with the parameters of a sweep in the places of their ``$names``."""
    if isinstance(settings, Mapping):
        return {key: filled(value, point) for key, value in settings.items()}
    if isinstance(settings, list):
        return [filled(value, point) for value in settings]
    if isinstance(settings, str) and settings.startswith("$"):
        return point[settings[1:]]
    return settings


def tuned(settings: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    """Settings with the chosen parameters of every algorithm."""
    algorithms = {label: _with(algorithm, choice.get(label, {}), settings)
                  for label, algorithm in settings["algorithms"].items()}
    return {**settings, "algorithms": algorithms}


def _with(algorithm: Any, values: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """An algorithm with values at key paths; a solver that it has not is the experiment's."""
    if not values:
        return algorithm
    result: dict[str, Any] = {"name": algorithm} if isinstance(algorithm, str) else copy.deepcopy(dict(algorithm))
    for path, value in values.items():
        here: dict[str, Any] = result
        *parents, last = path.split(".")
        for key in parents:
            if key not in here and key == "solver":
                here[key] = copy.deepcopy(settings["solver"])
            if isinstance(here.get(key), str):
                here[key] = {"name": here[key]}
            here = here.setdefault(key, {})
        here[last] = value
    return result


def texts(settings: Any) -> set[str]:
    """All texts in nested settings."""
    if isinstance(settings, Mapping):
        return {text for pair in settings.items() for part in pair for text in texts(part)}
    if isinstance(settings, list):
        return {text for part in settings for text in texts(part)}
    return {settings} if isinstance(settings, str) else set()
