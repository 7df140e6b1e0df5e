"""Settings of experiments as nested mappings: merging, and the values of sweeps."""

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


def texts_in(settings: Any) -> set[str]:
    """All texts in nested settings, keys included."""
    if isinstance(settings, Mapping):
        return {text for pair in settings.items() for part in pair for text in texts_in(part)}
    if isinstance(settings, list):
        return {text for part in settings for text in texts_in(part)}
    return {settings} if isinstance(settings, str) else set()
