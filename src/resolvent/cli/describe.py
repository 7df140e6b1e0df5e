"""The command describe: the table that begins a paper, over sites."""

import sys
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from resolvent.cli.options import Changes, OptionalPath, OptionalText, flat
from resolvent.cli.output import print_json

if TYPE_CHECKING:
    from resolvent.comparisons.description.description import Description


def describe(
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS|FILE.yaml")],
    *,
    by: OptionalText = None,
    party: OptionalText = None,
    set: Changes = (),
    out: OptionalPath = None,
    overwrite: bool = False,
    format: Literal["text", "json", "markdown", "latex", "html"] = "text",
) -> None:
    """Describe the rows of all sites: n, missing values, means, quantiles, counts and shares, without small cells.

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
            data.missing=[?,-999] for cells without a value, data.text=[icd] for columns that are categories.
        out: a folder for the page and the tables.
        overwrite: replace files in the folder.
        format: text, json, markdown, latex or html.
    """
    from resolvent.cli import terminal
    from resolvent.cli.plan_files import plan_file
    from resolvent.comparisons.description.describe import describe_rows
    from resolvent.comparisons.description.settings import DescriptionFile

    changes = [*flat(set), *([] if by is None else [f"describe.by={dumps(by)}"])]
    file = plan_file(DescriptionFile, rows, party, changes)
    data = file.data
    described = describe_rows(file.table, file.settings, party=data.party, format=data.format, cells=data.cells)
    if format == "json":
        numbers = described.table.to_json(orient="records", double_precision=15)
        print_json({"sites": dict(described.agreement.sites), "numbers": loads(numbers)})
    elif format == "text":
        print_description(described)
    else:
        sys.stdout.write(described.to_text(format) + "\n")
    if out is not None:
        terminal.print_path("Report", described.save(out, overwrite=overwrite))


def print_description(described: "Description") -> None:
    """Print the facts, and the tables, which are not wrapped."""
    from resolvent.cli import terminal

    for sentence in described.facts():
        terminal.print_line(sentence)
    sys.stdout.write(described.to_text() + "\n")
