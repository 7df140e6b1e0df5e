"""The commands describe and survival: the table that begins a paper, and survival curves, over sites."""

import sys
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from resolvent.cli.options import Changes, OptionalPath, OptionalText, flat
from resolvent.cli.output import print_json

if TYPE_CHECKING:
    from pathlib import Path

    from resolvent.comparisons.plan_result import PlanResult

_Format = Literal["text", "json", "markdown", "latex", "html"]
_MOST_LINES = 40  # of the table: about a screen


def describe(
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS|FILE.yaml")],
    *,
    by: OptionalText = None,
    party: OptionalText = None,
    set: Changes = (),
    out: OptionalPath = None,
    overwrite: bool = False,
    format: _Format = "text",
) -> None:
    """Describe the rows of all sites: means, quantiles, counts, shares.

    resolvent describe visits.csv --party hospital --by arm
    resolvent describe mine.yaml --format latex

    Counts below 5 are not told, nor what would give them away. A file has `data: {table: visits.csv, party: hospital}`
    and `describe: {columns: [age, ward], by: arm}`; `resolvent lead start` runs it between real sites.

    Args:
        rows: a .csv, .csv.gz, .tsv or .parquet file with a row for each subject; or the YAML file of a description or
            an experiment, whose `data` names the table and the column of the site.
        by: a column whose levels are the groups, such as the arm of a trial.
        party: the column that names the site.
        set: other settings: 'describe.columns=[age, ward]', describe.min_cell=1 (rows that are public),
            'describe.quantiles=[0.1, 0.9]'; data.separator, data.decimal and data.encoding of a text file;
            data.missing=[?,-999] for cells without a value, data.text=[icd] for columns that are categories,
            data.exclude=[id] for columns to leave out.
        out: a folder for the page and the tables.
        overwrite: replace files in the folder.
        format: text, json, markdown, latex or html.
    """
    from resolvent.cli.plan_files import plan_file
    from resolvent.comparisons.description.describe import describe_rows
    from resolvent.comparisons.description.settings import DescriptionFile

    changes = [*flat(set), *([] if by is None else [f"describe.by={dumps(by)}"])]
    file = plan_file(DescriptionFile, rows, party, changes)
    data = file.data
    described = describe_rows(file.table, file.settings, party=data.party, format=data.format, cells=data.cells,
                              exclude=data.exclude)
    _show(described, format, out, overwrite=overwrite)


def survival(
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS|FILE.yaml")],
    *,
    formula: OptionalText = None,
    party: OptionalText = None,
    set: Changes = (),
    out: OptionalPath = None,
    overwrite: bool = False,
    format: _Format = "text",
) -> None:
    """Estimate survival: Kaplan-Meier curves and log-rank tests.

    resolvent survival visits.csv --party hospital --formula "Surv(days, died) ~ arm"
    resolvent survival mine.yaml --out survival

    Times are exact, unless survival.every and survival.until make a grid. A file has `data: {table: visits.csv, party:
    hospital}` and `survival: {time: days, event: died, by: arm, every: 30, until: 720}`; `resolvent lead start` runs it
    between real sites, which tell counts of at least 5 rows on this grid.

    Args:
        rows: a .csv, .csv.gz, .tsv or .parquet file with a row for each subject; or the YAML file of a survival
            analysis or an experiment, whose `data` names the table and the column of the site.
        formula: "Surv(days, died) ~ arm": the column of the time of the event, or of the end of observation; the column
            that says whether the event occurred (0 and 1, no and yes, or false and true); and the column whose levels
            are the groups, or 1 for one group. "Surv(start, stop, died) ~ arm": observation begins at start (left
            truncation).
        party: the column that names the site; without it, all rows are of one site.
        set: other settings: survival.every=30 and survival.until=720 for a grid, 'survival.at=[365, 730]' for the times
            of the text, survival.level=0.9; data.separator, data.missing and data.text as for `resolvent describe`.
        out: a folder for the page with the curves, and the tables.
        overwrite: replace files in the folder.
        format: text, json, markdown, latex or html.
    """
    from resolvent.cli.plan_files import plan_file
    from resolvent.comparisons.survival.settings import SurvivalFile
    from resolvent.comparisons.survival.survive import survival_of_rows

    columns = {} if formula is None else _columns_of(formula)
    changes = [*flat(set), *(f"survival.{name}={dumps(column)}" for name, column in columns.items() if column)]
    file = plan_file(SurvivalFile, rows, party, changes)
    data = file.data
    _show(survival_of_rows(file.table, file.settings, party=data.party, format=data.format, cells=data.cells), format,
          out, overwrite=overwrite)


def _columns_of(formula: str) -> dict[str, str | None]:
    """The settings of a survival analysis that a formula states.

    >>> _columns_of("Surv(days, died) ~ arm")
    {'time': 'days', 'event': 'died', 'entry': None, 'by': 'arm'}
    """
    from resolvent.comparisons.regression.formula import parse_formula
    from resolvent.errors import InputError, quote

    parsed = parse_formula(formula)
    left, right = parsed.response, parsed.text.partition("~")[2].strip()
    if left.event is None or right not in ("1", *parsed.variables, *(f"`{name}`" for name in parsed.variables)):
        raise InputError(f"--formula {quote(formula)}: write such as \"Surv(days, died) ~ arm\", with one column of "
                         "groups, or \"Surv(days, died) ~ 1\" for one group")
    return {"time": left.label, "event": left.event, "entry": left.entry, "by": next(iter(parsed.variables), None)}


def _show(found: "PlanResult", format: _Format, out: "Path | None", *, overwrite: bool) -> None:
    """Print the numbers in a form, and write the page."""
    from resolvent.cli import terminal

    if format == "json":
        numbers = found.table.to_json(orient="records", double_precision=15)
        print_json({"sites": dict(found.agreement.sites), "numbers": loads(numbers)})
    elif format == "text":
        print_numbers(found)
    else:
        sys.stdout.write(found.to_text(format) + "\n")
    if out is not None:
        terminal.print_path("Report", found.save(out, overwrite=overwrite))


def print_numbers(found: "PlanResult") -> None:
    """Print the facts, and of the table of all sites what fits on a screen; tables are not wrapped."""
    from resolvent.cli import terminal

    for sentence in found.facts():
        terminal.print_line(sentence)
    first, *others = found.tables()
    lines = first.splitlines()
    sys.stdout.write("\n".join(lines[:_MOST_LINES]) + "\n")
    hidden = ["the table of each site"] if others else []
    if len(lines) > _MOST_LINES:
        hidden.insert(0, f"{len(lines) - _MOST_LINES} more lines")
    if hidden:
        terminal.print_line(f"On the page and in {found.kind}.csv (--out FOLDER): {' and '.join(hidden)}.")
