"""Estimate the survival of groups over sites."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.arguments import with_options
from resolvent.comparisons.description.sums import check_size
from resolvent.comparisons.plan_file import CellOptions, settings_of
from resolvent.comparisons.regression.rows import check_named, complete_rows, read_columns
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.comparisons.survival.settings import SurvivalSettings
from resolvent.comparisons.survival.sums import SiteTimes, SurvivalSums, agree_on_times, times_of_rows
from resolvent.comparisons.survival.survival import Survival
from resolvent.errors import InputError
from resolvent.tables.cells import CellRules, read_cells
from resolvent.tables.owners import natural_order, read_owners
from resolvent.tables.table_options import cell_rules
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

_ALL_ROWS = "all rows"


@dataclass(frozen=True, kw_only=True)
class _Surviving(CellOptions, SurvivalSettings):
    """What ``survival`` gets beside the table.

    Attributes:
        party: the column that names the site; None: there is one.
    """

    party: str | None = None


@with_options(_Surviving)
def survival(data: Any, options: _Surviving) -> Survival:
    """Kaplan-Meier curves with intervals, medians, numbers at risk, and log-rank tests, over the rows of all sites.

    Times are exact, unless ``every`` and ``until`` make a grid; with it the numbers are those of a federation, whose
    sites tell only counts of events and of rows at risk at the edges of the grid.

    Args:
        data: a table with a row for each subject, or a .csv, .csv.gz, .tsv or .parquet file. Rows with a missing value
            are left out and counted.

    Raises:
        InputError: a column is absent or cannot be read, a time is negative, an entry is not before its time, or an
            event is neither 0 nor 1.

    Example:
        >>> print(rv.survival(frame, time="days", event="died", by="arm", party="hospital"))  # doctest: +SKIP
    """
    return survival_of_rows(data, settings_of(SurvivalSettings, options), party=options.party or "",
                            format=options.text_format, cells=cell_rules(options.missing, options.text))


def survival_of_rows(data: "pd.DataFrame | str | Path", settings: SurvivalSettings, *, party: str,
                     format: TextFormat = TextFormat(), cells: CellRules = CellRules()) -> Survival:  # noqa: B008
    """The survival of a table as settings say; see ``survival``. An empty ``party``: all rows are of one site."""
    sites_column = [party] if party else []
    cells = cells | CellRules(text=frozenset(sites_column))
    frame, source = (data, "") if not isinstance(data, str | Path) else (
        read_columns(data, [*sites_column, *settings.columns], format, cells), f"{data}: ")
    for name in [*sites_column, *settings.columns]:
        check_named(frame, name, "party" if [name] == sites_column else "survival")
    try:
        complete = complete_rows(frame, settings.formula, RegressionSettings(formula=settings.formula.text),
                                 sites_column, cells)
        times = times_of_rows(complete, settings)
    except InputError as error:
        raise InputError(f"{source}{error}") from error
    edges = None if settings.every is None else settings.edges
    owners, of_all = (np.array([_ALL_ROWS] * len(rows), object) if not party else np.asarray(read_owners(rows, party))
                      for rows in (complete, read_cells(frame, sites_column, cells)))
    sites = dict[str, SiteTimes]()
    for site in sorted({*owners}, key=natural_order):
        rows = owners == site
        if edges is not None:
            check_size(site, int(rows.sum()), settings.min_cell)
        sites[site] = SiteTimes(times.of(rows), edges, settings.min_cell, int((of_all == site).sum() - rows.sum()))
    agreement = agree_on_times({site: of_site.report() for site, of_site in sites.items()})
    if edges is None:
        finite = [column[np.isfinite(column)] for column in (times.time, times.entry)]
        edges = np.unique(np.concatenate(finite))
    return Survival(settings, agreement, edges, SurvivalSums.total([
        of_site.sums(agreement.groups, edges) for of_site in sites.values()]))
