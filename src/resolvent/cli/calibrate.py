"""The command that calibrates the probabilities of trained models, and chooses thresholds."""

import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from resolvent.cli.options import OptionalNumber, OptionalText, Rows, Texts
from resolvent.simulator.record.progress import progress_bars

if TYPE_CHECKING:
    from resolvent.comparisons.after.held_out_rows import HeldOutRows
    from resolvent.data.federated import FederatedData
    from resolvent.data.tables.text_formats import TextFormat

__all__ = ["calibrate", "read_held_out"]


def calibrate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    rows: Rows = None,
    *,
    method: OptionalText = None,
    sites: Texts = (),
    kind: Literal["auto", "none", "temperature", "platt", "isotonic"] = "auto",
    positive: OptionalText = None,
    cost_false_negative: OptionalNumber = None,
    cost_false_positive: OptionalNumber = None,
    sensitivity: OptionalNumber = None,
    specificity: OptionalNumber = None,
    json: bool = False,
    separator: str = "auto",
    decimal: Literal["auto", ".", ","] = "auto",
    encoding: str = "auto",
) -> None:
    """Calibrate the probabilities of the sites' models, and choose the probability from which on a class is predicted.

    Try `resolvent calibrate runs/mine --positive ill --cost-false-negative 5 --cost-false-positive 1`.

    Calibration and threshold of each site are fitted to its validation rows and measured on its test rows. They are
    stored next to the models, `resolvent predict` and `resolvent evaluate` use them from then on (without them:
    `--raw`), and the report shows them. The kind of calibration is the one with the smallest cross-validated log loss
    of those for which there are enough rows: a temperature from 10 validation rows on, Platt's map from 50, the
    isotonic map from 500. The rows of the other sites count together as 50 rows of the site.

    At a site of a federation: `resolvent calibrate KIT/runs/NAME site.yaml`. Nothing leaves the site.

    Args:
        run: a run folder.
        rows: rows with labels. Default: the validation and test rows of the run, from the table that the experiment
            names. A site of a federation names its site.yaml. For other rows that the run has not used, a .csv,
            .csv.gz, .tsv or .parquet file: half of them, drawn, calibrate, and the other half measures.
        method: a method of the run; default: the one that the federation should run, or the only one.
        sites: the sites whose models are calibrated; default: all, and the shared model.
        kind: the kind of calibration; auto chooses for each site.
        positive: the class that the threshold is for.
        cost_false_negative: choose the threshold with the smallest cost, with this cost of a row of the class that is
            predicted as the other class.
        cost_false_positive: the cost of a row of the other class that is predicted as this class.
        sensitivity: choose the largest threshold with which this share of the rows of the class is predicted as it,
            such as 0.9.
        specificity: choose the smallest threshold with which this share of the other rows is not predicted as it.
        json: print JSON instead of tables.
        separator: the character between two values in a text file of new rows.
        decimal: the decimal mark of numbers in it.
        encoding: its encoding, such as utf-8 or cp1252.
    """
    from resolvent.cli import model_tables, terminal
    from resolvent.comparisons.after.calibrations import calibrate as calibrate_rows
    from resolvent.comparisons.after.held_out_rows import SHARED
    from resolvent.comparisons.runs.report import redraw_report
    from resolvent.data.tables.text_formats import TextFormat
    from resolvent.problem.threshold import goal_of

    goal = goal_of(cost_false_negative, cost_false_positive, sensitivity, specificity)
    held_out = read_held_out(run, method, rows, sites, TextFormat(separator, decimal, encoding))
    with progress_bars("models") as progress:
        made = calibrate_rows(held_out, sites=sites, kind=kind, positive=positive, goal=goal,
                              progress=lambda done, total: progress(held_out.method, done, total))
    path = made.save(run)
    redraw_report(run)
    records = {name: site.plain() for name, site in made.sites.items()}
    if json:
        sys.stdout.write(dumps({"method": made.method, "sites": {name: record for name, record in records.items()
                                                                 if name is not None},
                                "shared": records.get(None)}, indent=2) + "\n")
        return
    for table in model_tables.calibration_tables(records):
        terminal.print_table(table)
    sentences: dict[str, list[str]] = {}
    for name, record in records.items():
        for sentence in filter(None, (record["reason"], record["note"])):
            sentences.setdefault(sentence, []).append(name or SHARED)
    for sentence, names in sentences.items():
        terminal.print_note(f"{sentence}: {', '.join(names)}")
    terminal.print_path(f"Calibration of {made.method}, which resolvent predict uses from now on", path)


def read_held_out(run: Path, method: str | None, rows: str | None, sites: Sequence[str], text: "TextFormat", *,
                  has_validation: bool = True) -> "HeldOutRows":
    """The rows of a run that its training has not used, see ``rows_of_run``; ``rows`` may be a site's file."""
    from resolvent.comparisons.after.run_rows import rows_of_run

    source: str | FederatedData | None = rows
    if rows is not None and Path(rows).suffix.lower() in (".yaml", ".yml"):
        from resolvent.federation.site.samples import samples_of_run

        source = samples_of_run(run, Path(rows))
    return rows_of_run(run, method, source, sites[0] if len(sites) == 1 else None, text, has_validation=has_validation)
