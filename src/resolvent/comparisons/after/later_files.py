"""Files that commands write next to the models of a finished run."""

from collections.abc import Mapping
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
    """Write records about the models of a method into a file next to them, sealed and bound to these models.

    The records of other sites stay.

    Args:
        folder: a run folder, a saved result, or a folder of models.
        records: name of a site -> its record; None: that of the shared model.

    Returns:
        The path of the file.
    """
    models = models_of(folder, rows.method, before_refit=True)
    site, of_site = next(iter(rows.sites.items()))
    saved = jax.tree.leaves(models.parameters(site, of_site.fitted.model))
    if not all(map(np.array_equal, saved, jax.tree.leaves(of_site.fitted.params))):
        raise InputError(f"{folder} has other models of {rows.method} than those that were examined: name the folder "
                         "of these models")
    return models.write_later_file(name, records)


def read_records(folder: Path, methods: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Method -> the records of a file next to its models, for the methods that have one."""
    paths = {method: folder / "models" / folder_name(method) / name for method in methods}
    return {method: models_of(folder, method, before_refit=True).read_later_file(name)
            for method, path in paths.items() if path.exists()}
