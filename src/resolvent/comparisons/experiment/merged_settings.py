"""Settings of experiments as nested mappings: merging, sweeps, and the choices of a search."""

import copy
from collections.abc import Mapping
from typing import Any

Choices = Mapping[str, Mapping[str, Any]]  # label -> path -> value


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
