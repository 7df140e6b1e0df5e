"""What the models of a run rest on: coefficients in the table's units, importance, and where sites differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.comparisons.after.calibrations import plain_interval
from resolvent.comparisons.after.held_out_rows import SHARED, HeldOutRows, SiteRows
from resolvent.comparisons.after.later_files import EXPLANATION_FILE, write_records
from resolvent.predict.importance import (
    blocks_of_columns,
    coefficients,
    differing_sites,
    importance_values,
)
from resolvent.predict.intervals import Interval, mean_interval
from resolvent.problem.models.losses import Loss

if TYPE_CHECKING:
    import pandas as pd

_MIN_ROWS = 2  # with fewer test rows no column can be exchanged

ProgressOfColumns = Callable[[int, int], None]  # columns done, columns in total


class SiteExplanation(NamedTuple):
    """What one model rests on.

    Attributes:
        test_rows: number of test rows.
        importance: column -> by how much the mean loss grows if the column is exchanged between the test rows, with its
            interval of level 0.95; without test rows nan.
        differs: column -> 1 if the importance is above the mean of the other sites, -1 if it is below, 0 if neither is
            certain.
        coefficients: the coefficients in the units of the table; None if the model is not linear.
    """

    test_rows: int
    importance: dict[str, Interval]
    differs: dict[str, int]
    coefficients: "pd.DataFrame | None"

    def plain(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        table = self.coefficients
        return {"test_rows": self.test_rows, "differs": self.differs,
                "importance": {name: plain_interval(interval) for name, interval in self.importance.items()},
                "coefficients": None if table is None else {
                    "inputs": [*map(str, table.index)],
                    "outputs": {str(name): table[name].tolist() for name in table.columns}}}


@dataclass(frozen=True, eq=False)
class Explanations:
    """What the models of one method rest on.

    Attributes:
        method: name of the method.
        sites: name of a site -> its personal model; None -> the shared model.
        rows: the models and their rows.
    """

    method: str
    sites: dict[str | None, SiteExplanation]
    rows: HeldOutRows

    @property
    def table(self) -> "pd.DataFrame":
        """A row per column of the table and site, of which ``shared model`` is one.

        ``importance`` with the ends ``low`` and ``high`` of its interval, and ``differs``: 1 or -1 where it is above or
        below the mean of the other sites beyond the intervals.
        """
        import pandas as pd

        return pd.DataFrame([{"column": column, "site": name or SHARED, "importance": value, "low": low, "high": high,
                              "differs": site.differs.get(column, 0)}
                             for name, site in self.sites.items() for column, (value, low, high)
                             in site.importance.items()])

    @property
    def coefficients(self) -> "pd.DataFrame | None":
        """A row per input of a linear model, and ``intercept``; a column per site and output. None for other models."""
        import pandas as pd

        tables = {name or SHARED: site.coefficients for name, site in self.sites.items()
                  if site.coefficients is not None}
        if not tables:
            return None
        joined = pd.concat(tables, axis=1)
        return joined.droplevel(1, axis=1) if len(next(iter(tables.values())).columns) == 1 else joined

    def save(self, folder: Path | str) -> Path:
        """Write the explanations next to the saved models; `resolvent show --redraw` shows them.

        Args:
            folder: the run folder of these models.

        Raises:
            InputError: the folder has other models.
        """
        return write_records(Path(folder), self.rows, EXPLANATION_FILE,
                             {name: site.plain() for name, site in self.sites.items()})


def explain_models(rows: HeldOutRows, *, sites: Sequence[str] = (),
                   progress: ProgressOfColumns | None = None) -> Explanations:
    """The coefficients and the permutation importance of the models of a method.

    Args:
        rows: the models with their rows, of which only the test rows are read.
        sites: names of the sites; default: all sites and the shared model.

    Raises:
        InputError: there is no such site, or the inputs are neither columns of a table nor few numbers.
    """
    models = rows.chosen(sites)
    blocks = blocks_of_columns(next(iter(models.values())).fitted.encoding)
    total, done = sum(len(site.tested) for site in models.values()) * len(blocks), [0]

    def advance() -> None:
        done[0] += 1
        if progress is not None:
            progress(done[0], total)

    intervals = {name: _importance(site, blocks, number, advance) for number, (name, site) in enumerate(models.items())}
    names = [name for name in models if name is not None]
    differs: dict[str | None, dict[str, int]] = {name: {} for name in models}
    for column in blocks:
        signs = differing_sites([intervals[name][column] for name in names], max(len(names) * len(blocks), 1))
        for name, sign in zip(names, signs, strict=True):
            differs[name][column] = sign
    return Explanations(rows.method, {
        name: SiteExplanation(sum(len(part.test.y) for part in site.tested), intervals[name], differs[name],
                              coefficients(site.fitted))
        for name, site in models.items()}, rows)


def _importance(site: SiteRows, blocks: dict[str, NDArray[np.intp]], number: int,
                advance: Callable[[], None]) -> dict[str, Interval]:
    """The importance of each column over all test rows; with folds, values are exchanged within the rows of a fold."""
    values = [importance_values(partial(_losses_of_rows, part), part.test.x, blocks, seed=number, progress=advance)
              for part in site.tested if len(part.test.y) >= _MIN_ROWS]
    if not values:
        return dict.fromkeys(blocks, Interval(np.nan, np.nan, np.nan))
    return {column: mean_interval(np.concatenate([of_part[column] for of_part in values])) for column in blocks}


def _losses_of_rows(part: SiteRows, x: NDArray[Any]) -> NDArray[np.float64]:
    """The losses of copies of the test rows, of which columns were exchanged."""
    y = np.tile(part.test.y, len(x) // len(part.test.y))
    return np.asarray(_losses(part.fitted.model.loss, part.fitted.outputs_of_inputs(x), jnp.asarray(y)), np.float64)


@jax.jit
def _losses(loss: Loss, outputs: Array, y: Array) -> Array:
    return loss.loss(outputs, y)
