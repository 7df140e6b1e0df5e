"""The file of a site's table: its columns by the names of the federation, and the rows that the site uses."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import nearest, shorten
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import LIMITS, Limits
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, is_column_name, refusing
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.row_sets import other_questions
from resolvent.federation.site.table_versions import TableRows, TableVersions
from resolvent.tables.cells import ALL_COLUMNS, CellRules, text_of_value
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_options import TableOptions
from resolvent.tables.text_formats import NumberFormatError, TextFormat

if TYPE_CHECKING:
    import pandas as pd


def site_cells(site: SiteFile, settings: TableOptions) -> CellRules:
    """What the cells of a site's table mean, by the names of the federation: what the site and the plan say."""
    return settings.cells | site.cells.renamed({local: common for common, local in (site.columns or {}).items()})


def read_frame(site: SiteFile, settings: TableOptions | None = None) -> "pd.DataFrame":
    """All rows of a site's table, with the names of its file.

    Args:
        settings: what the plan says about the table, by the names of the federation; None: nothing, and every column is
            used.

    Raises:
        Refusal: the table cannot be read, or has no column that ``columns`` of the site's file names.
    """
    columns, text = site.columns or {}, TextFormat(site.separator, site.decimal, site.encoding)  # type: ignore[arg-type]
    labels, cells = ((), CellRules()) if settings is None else (settings.labels, settings.cells)
    names_of = {local: name for name, local in columns.items()}
    with refusing(RefusalCode.TABLE):
        frame, _ = read_table_file(site.table, text, [columns.get(name, name) for name in labels],
                                   site.cells | cells.renamed(columns),
                                   lambda column: settings is None or settings.uses(names_of.get(column, column)))
    names = [str(c) for c in frame.columns]
    for common, local in columns.items():
        if local not in names:
            raise Refusal(RefusalCode.ABSENT, f"columns.{common}: the table has no column {shorten(repr(local))}: its "
                          f"columns are {shorten(', '.join(map(repr, names)))}{nearest(local, names)}", column=common)
    return frame


def read_site_rows(site: SiteFile, settings: TableOptions, *, folder: Path | None = None,
                   version: int | None = None) -> "tuple[pd.DataFrame, TableRows | None]":
    """The table of a site with the names of the federation, and the rows that it uses; None: all.

    Args:
        folder: the folder of the versions of the site's tables; None: the split is that of a simulation.
        version: the version of an earlier run; None: the present one.
    """
    # A version of the table does not depend on the plan, whose columns of text have the texts of the file, and which
    # may leave a column out whose decimal mark is not clear.
    named, whole = {*settings.cells.text, *settings.cells.codes} - {settings.party}, TableOptions("", settings.label)
    try:
        frame = read_frame(site, whole)
        texts = read_frame(site, settings) if named else frame
    except Refusal as error:
        if not isinstance(error.__cause__, NumberFormatError):
            raise
        frame, texts = read_frame(replace(site, decimal="."), whole), read_frame(site, settings)
    common_names = texts.rename(columns={local: common for common, local in (site.columns or {}).items()})
    check_present([*(settings.text or []), *settings.missing_columns], [*map(str, common_names.columns)])
    rows = None
    if folder is not None:
        choose_columns([str(c) for c in common_names.columns], settings, site.limits)  # before there is a version
        versions = TableVersions(folder, site.limits.min_cell)
        rows = (versions.rows(frame, site.table, site.validation, site.test) if version is None
                else versions.rows_of(frame, version))
        if version is None:
            _check_missing_cells(Journal(folder.parent / JOURNAL), rows.version, site, settings, [*common_names])
    return common_names, rows


def _check_missing_cells(journal: Journal, version: int, site: SiteFile, settings: TableOptions,
                         names: Sequence[str]) -> None:
    """Refuse cells that stand for a missing value which the site does not state, other than those of the first plan.

    A cell is an age, or another value that few rows have: with lists of his own for two plans a lead chooses the rows
    by which the complete ones differ, and learns from an answer, or from a refusal, about these rows. It is refused
    whatever the rows are.

    Raises:
        Refusal: a column has other ones; it is named.
    """
    stated, asked = site_cells(site, TableOptions("", settings.label)), settings.cells
    texts = dict[str, str]()
    for name in filter(settings.uses, names):
        of_site, of_plan = (rules.codes.get(name, rules.codes.get(ALL_COLUMNS)) for rules in (stated, asked))
        new = sorted({*map(text_of_value, of_plan or ())}.difference(map(text_of_value, of_site or ())))
        if of_site is not None and new:
            raise Refusal(RefusalCode.CELLS, f"the plan has missing cells of {shorten(repr(name))} that this site does "
                          "not state: leave them out, or state them in missing", column=name)
        if of_site is None:
            texts[f"{version}, missing cells of {name}"] = json.dumps(new if name in asked.codes else new or None)
    if others := other_questions(journal, texts):
        name = others[0].partition(" of ")[2]
        raise Refusal(RefusalCode.CELLS, f"an earlier plan has read {shorten(repr(name))} with other missing cells: "
                      "state those that are right in missing of site.yaml", column=name)


def check_present(needed: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a table without a column that the plan names."""
    for name in needed:
        if name not in names:
            raise Refusal(RefusalCode.ABSENT, f"the table has no column {shorten(repr(name))}, which the experiment "
                          f"needs: its columns are {shorten(', '.join(map(repr, names)))}; if it has another name, set "
                          f"columns: {{{shorten(name)}: NAME}} in the site's file{nearest(name, names)}", column=name)


def choose_columns(names: Sequence[str], settings: TableOptions, limits: Limits) -> list[str]:
    """The columns to predict from, in the order of the table or of ``features``."""
    weight = [] if settings.weight is None else [settings.weight]
    check_present([*settings.labels, *weight, *(settings.features or []), *(settings.levels or {})], names)
    # The other names leave the site only from here on: with its label, the first line is one of names.
    for name, count in Counter(names).items():
        if not is_column_name(name):
            raise Refusal(RefusalCode.TABLE, "the name of a column has a control character, or more than 200 "
                          f"characters: {shorten(repr(name))}")
        if count > 1:
            raise Refusal(RefusalCode.TWICE, f"two columns are named {shorten(repr(name))}: give each a different "
                          "name, or leave one out of columns", column=name)
    allowed = names if limits.features is None else limits.features
    of_weights = () if limits.features is None and limits.min_cell > 1 else allowed
    for name in [*weight, *(settings.features or [])]:
        if name not in (of_weights if name in weight else allowed):
            raise Refusal(RefusalCode.COLUMN, f"column {shorten(repr(name))} is not in limits.features "
                          f"({LIMITS['features'].why}): ask the lead to leave it out, or list it", column=name)
    if settings.features:
        return list(settings.features)
    left_out = {*settings.labels, settings.party, *weight, *(settings.exclude or [])}
    return [name for name in names if name in allowed and name not in left_out]
