"""Describe the rows of all sites: the table that begins a paper."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.arguments import with_options
from resolvent.comparisons.description.description import Description
from resolvent.comparisons.description.settings import DescriptionSettings
from resolvent.comparisons.description.sums import SiteValues, agree_on_values, check_size, read_values
from resolvent.comparisons.plan_file import CellOptions, settings_of
from resolvent.comparisons.regression.rows import check_named, read_columns
from resolvent.errors import InputError
from resolvent.tables.cells import CellRules, ColumnError, read_cells, with_unique_names
from resolvent.tables.columns import read_feature
from resolvent.tables.owners import natural_order, read_owners
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_options import cell_rules
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class _Describing(CellOptions, DescriptionSettings):
    """What ``describe`` gets beside the table.

    Attributes:
        party: the column that names the site.
        exclude: columns to leave out if ``columns`` names none.
    """

    party: str
    exclude: Collection[str] = ()


@with_options(_Describing)
def describe(data: Any, options: _Describing) -> Description:
    """Describe the rows of all sites, per site and together, without small cells.

    Numbers have n, the missing values, mean, standard deviation and quantiles; other columns the counts and shares of
    their levels. The same numbers come from a federation, whose sites tell counts and sums only.

    Args:
        data: a table with a row for each subject, or a .csv, .csv.gz, .tsv or .parquet file.

    Raises:
        InputError: a column is absent or cannot be read, or a site has fewer than ``min_cell`` rows.

    Example:
        >>> print(rv.describe(frame, party="hospital", by="arm").to_text("markdown"))  # doctest: +SKIP
    """
    return describe_rows(data, settings_of(DescriptionSettings, options), party=options.party,
                         format=options.text_format, cells=cell_rules(options.missing, options.text),
                         exclude=options.exclude)


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
