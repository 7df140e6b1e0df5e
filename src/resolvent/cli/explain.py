"""The command that says what trained models rest on."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import tyro

from resolvent.cli.options import OptionalPath, OptionalText, Rows, Texts
from resolvent.simulator.record.progress import progress_bars

__all__ = ["explain"]


def explain(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    rows: Rows = None,
    *,
    method: OptionalText = None,
    sites: Texts = (),
    out: OptionalPath = None,
    json: bool = False,
    separator: str = "auto",
    decimal: Literal["auto", ".", ","] = "auto",
    encoding: str = "auto",
) -> None:
    """Show which columns the sites' models rest on, and where sites differ.

    Try `resolvent explain runs/mine`.

    For each column of the table: by how much the mean loss on the test rows grows if the column is exchanged between
    the rows (permutation importance), with an interval that is paired over the rows. For linear and logistic models
    also the coefficients in the units of the table. Both are stored next to the models, and the report shows them.

    At a site of a federation: `resolvent explain KIT/runs/NAME site.yaml`. Nothing leaves the site.

    Args:
        run: a run folder.
        rows: rows with labels. Default: the test rows of the run, from the table that the experiment names. A site of
            a federation names its site.yaml. For other rows that the run has not used, a .csv, .csv.gz, .tsv or
            .parquet file.
        method: a method of the run; default: the one that the federation should run, or the only one.
        sites: the sites whose models are explained; default: all, and the shared model.
        out: also write the coefficients, or for other models the importance, to this .csv file.
        json: print JSON instead of a table.
        separator: the character between two values in a text file of new rows.
        decimal: the decimal mark of numbers in it.
        encoding: its encoding, such as utf-8 or cp1252.
    """
    from resolvent.cli import model_tables, terminal
    from resolvent.cli.calibrate import read_held_out
    from resolvent.comparisons.after.explanations import explain_models
    from resolvent.comparisons.runs.report import redraw_report
    from resolvent.data.files.atomic_files import write_atomically
    from resolvent.data.tables.text_formats import TextFormat

    held_out = read_held_out(run, method, rows, sites, TextFormat(separator, decimal, encoding), has_validation=False)
    with progress_bars("columns") as progress:
        made = explain_models(held_out, sites=sites,
                              progress=lambda done, total: progress(held_out.method, done, total))
    path = made.save(run)
    redraw_report(run)
    records = {name: site.plain() for name, site in made.sites.items()}
    if out is not None:
        table = made.table if made.coefficients is None else made.coefficients
        write_atomically(out, lambda partial: table.to_csv(partial, index=made.coefficients is not None))
    if json:
        sys.stdout.write(dumps({"method": made.method, "sites": {name: record for name, record in records.items()
                                                                 if name is not None},
                                "shared": records.get(None)}, indent=2) + "\n")
        return
    terminal.print_table(model_tables.explanation_table(records), is_wide=True)
    if made.coefficients is not None:
        terminal.print_line(f"The coefficients are in the report{'' if out is None else f' and in {out}'}")
    terminal.print_path(f"Explanation of {made.method}", path)
