"""Describe the rows of all sites: the table that begins a paper."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.comparisons.description.description import Description
from resolvent.comparisons.description.settings import DescriptionSettings
from resolvent.comparisons.description.sums import SiteValues, agree_on_values, check_size, read_values
from resolvent.comparisons.regression.rows import check_named, read_columns
from resolvent.errors import InputError
from resolvent.tables.cells import CellRules, Codes, ColumnError, read_cells, with_unique_names
from resolvent.tables.columns import read_feature
from resolvent.tables.owners import natural_order, read_owners
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_options import cell_rules
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd


def describe(data: "pd.DataFrame | str | Path", *, party: str, columns: Sequence[str] = (), by: str | None = None,
             quantiles: Sequence[float] = (0.25, 0.5, 0.75), min_cell: int = 5,
             missing: Codes | Mapping[str, Codes] | None = None, text: Collection[str] = (),
             exclude: Collection[str] = (), text_format: TextFormat = TextFormat()) -> Description:  # noqa: B008
    """Describe the rows of all sites, per site and together, without small cells.

    Numbers have n, the missing values, mean, standard deviation and quantiles; other columns the counts and shares of
    their levels. The same numbers come from a federation, whose sites tell counts and sums only.

    Args:
        data: a table with a row for each subject, or a .csv, .csv.gz, .tsv or .parquet file.
        party: the column that names the site.
        columns: the columns; default: all that are neither dates nor free text.
        by: a column whose levels are the groups, such as the arm of a trial.
        quantiles: in [0, 1]. Each is told as an interval between two edges of a histogram, whose bins are at most 1/16
            of the standard deviation wide, and wider where a bin would have fewer than ``min_cell`` rows.
        min_cell: no count of fewer rows is told, or can be computed from what is told; 1: all are told.
        missing: cells that stand for a missing value; as of ``rv.regress``.
        text: columns that are categories whatever their values look like.
        exclude: columns to leave out if ``columns`` names none.
        text_format: how a text file is written.

    Raises:
        InputError: a column is absent or cannot be read, or a site has fewer than ``min_cell`` rows.

    Example:
        >>> print(rv.describe(frame, party="hospital", by="arm").to_text("markdown"))  # doctest: +SKIP
    """
    settings = DescriptionSettings(columns=tuple(columns), by=by, quantiles=tuple(quantiles), min_cell=min_cell)
    return describe_rows(data, settings, party=party, format=text_format, cells=cell_rules(missing, (party, *text)),
                         exclude=exclude)


def describe_rows(data: "pd.DataFrame | str | Path", settings: DescriptionSettings, *, party: str,
                  format: TextFormat = TextFormat(), cells: CellRules = CellRules(),  # noqa: B008
                  exclude: Collection[str] = ()) -> Description:
    """Describe a table as settings say; see ``describe``."""
    named = [party, *([] if settings.by is None else [settings.by]), *settings.columns]
    cells = cells | CellRules(text=frozenset([party]))
    if isinstance(data, str | Path):
        frame = (read_columns(data, named, format, cells) if settings.columns
                 else read_table_file(str(data), format, named, cells, lambda name: True)[0])
    else:
        frame = data
    frame = with_unique_names(frame)
    if not len(frame):
        raise InputError("the table has no rows: give one row per subject")
    for name in named:
        check_named(frame, name, "party" if name == party else "describe")
    for name in exclude:
        check_named(frame, name, "exclude")
    left_out = dict[str, str]()
    if not settings.columns:
        chosen, left_out = _readable(frame, [name for name in frame.columns if name not in (*named, *exclude)], cells)
        settings = replace(settings, columns=tuple(chosen))
    owners = read_owners(read_cells(frame, [party], cells), party)
    values = read_values(frame, settings, cells)
    sites = dict[str, SiteValues]()
    for site in sorted({*owners}, key=natural_order):
        rows = owners == site
        check_size(site, int(rows.sum()), settings.min_cell)
        of_site = {name: of_rows[rows] for name, of_rows in values.items()}
        sites[site] = SiteValues(of_site, settings, settings.min_cell, int(rows.sum()))
    agreement = agree_on_values({site: of_site.report() for site, of_site in sites.items()}, settings)
    described = Description.of_sums(settings, agreement, {site: v.sums(agreement) for site, v in sites.items()})
    return replace(described, left_out=left_out)


def _readable(frame: "pd.DataFrame", names: Sequence[str], cells: CellRules) -> tuple[list[str], dict[str, str]]:
    """The columns that can be described, and the others with the reason."""
    chosen, left_out = list[str](), dict[str, str]()
    for name in names:
        if name.startswith("Unnamed: "):
            left_out[name] = "no name"
            continue
        try:
            read_feature(name, read_cells(frame[[name]], [name], cells)[name])
            chosen.append(name)
        except ColumnError as error:
            left_out[name] = {"dates": "dates", "levels": "free text"}.get(error.kind, "values of several kinds")
    if not chosen:
        raise InputError("no column can be described: name some with columns")
    return chosen, left_out
