"""Files that commands write next to the models of a finished run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from resolvent.comparisons.after.held_out_rows import HeldOutRows
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.runs.load import models_of
from resolvent.errors import InputError

EXPLANATION_FILE = "explanation.json"


def write_records(folder: Path, rows: HeldOutRows, name: str, records: Mapping[str | None, Mapping[str, Any]]) -> Path:
    """Write records about models into a file next to the models of their method, sealed and bound to these models.

    The records of other sites stay.

    Args:
        folder: a run folder, a saved result, or a folder of models.
        records: name of a site -> its record; None: that of the shared model.

    Returns:
        The path of the file of the federation's method.
    """
    of_methods: dict[str, dict[str | None, Mapping[str, Any]]] = {rows.method: {}}
    for site, record in records.items():
        method = rows.method if site is None else rows.sites[site].fitted.method
        of_methods.setdefault(method, {})[site] = record
    for method, of_method in of_methods.items():
        models = models_of(folder, method, before_refit=True)
        for site in of_method:
            fitted = (rows.shared if site is None else rows.sites[site]).fitted  # type: ignore[union-attr]
            personal, shared = (jax.tree.leaves(models.parameters(name, fitted.model)) if name is not None or
                                models.has_shared_model else [] for name in (site, None))
            if not any(_are_equal(saved, jax.tree.leaves(fitted.params)) for saved in (personal, shared)):
                raise InputError(f"{folder} has other models of {method} than those that were examined: name the "
                                 "folder of these models")
        models.write_later_file(name, of_method)
    return models_of(folder, rows.method, before_refit=True).path / name


def _are_equal(saved: Sequence[Any], examined: Sequence[Any]) -> bool:
    return len(saved) == len(examined) and all(map(np.array_equal, saved, examined))


def read_records(folder: Path, methods: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Method -> the records of a file next to its models, for the methods that have one."""
    paths = {method: folder / "models" / folder_name(method) / name for method in methods}
    return {method: models_of(folder, method, before_refit=True).read_later_file(name)
            for method, path in paths.items() if path.exists()}
