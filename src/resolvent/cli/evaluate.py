"""The command that evaluates a trained model on rows with known labels."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import tyro

from resolvent.cli.options import OptionalText, Texts

__all__ = ["evaluate"]


def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")],
    *,
    method: OptionalText = None,
    site: OptionalText = None,
    metrics: Texts = (),
    class_weight: OptionalText = None,
    before_refit: bool = False,
    raw: bool = False,
    json: bool = False,
    separator: str = "auto",
    decimal: Literal["auto", ".", ","] = "auto",
    encoding: str = "auto",
) -> None:
    """Evaluate a trained model on new rows whose labels are known; prints each score with its interval.

    Try `resolvent evaluate runs/mine later.csv --method FedAvg+ --site Essen --metrics roc_auc brier_score`.

    The rows get the same encoding as the training rows, and need the column of the label. An interval (level 95 %) is
    from a bootstrap over the rows. It is about this model and further rows like these.

    Args:
        run: a run folder, or a folder that Result.save wrote.
        rows: a .csv, .csv.gz, .tsv or .parquet file with the columns of the training table and the label.
        method: a method of the run; may be left out if there is only one, and after `resolvent refit`.
        site: the party whose personal model is evaluated; default: the shared model.
        metrics: further metrics, see `resolvent list metrics`; also '{name: f1, average: macro}', and module:function
            for one of your own.
        class_weight: weights of the classes in the loss: balanced, or such as '{ill: 5, well: 1}'. Scores and metrics
            count every row once.
        before_refit: evaluate the model that was trained on the training rows, also after `resolvent refit`.
        raw: leave out the calibration and the threshold that `resolvent calibrate` has stored with the model.
        json: print JSON instead of a table.
        separator: the character between two values in a text file.
        decimal: the decimal mark of numbers in a text file.
        encoding: encoding of a text file, such as utf-8 or cp1252.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.evaluations import evaluate_file
    from resolvent.data.tables.text_formats import TextFormat

    evaluated = evaluate_file(run, method, site, rows, TextFormat(separator, decimal, encoding), metrics=metrics,
                              class_weight=class_weight, before_refit=before_refit, raw=raw)
    for message in evaluated.remarks.messages():
        terminal.print_note(f"warning: {message}")
    for sentence in evaluated.adjustments:
        terminal.print_note(sentence)
    if json:
        sys.stdout.write(dumps(evaluated.evaluation.record(), indent=2) + "\n")
    else:
        terminal.print_table(terminal.evaluation_table(evaluated.evaluation))
        if evaluated.provenance:
            terminal.print_line(f"The model: {evaluated.provenance}")
