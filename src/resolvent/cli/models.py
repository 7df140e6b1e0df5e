"""The commands that use trained models on rows: predict, evaluate, calibrate and explain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from resolvent.cli.options import OptionalNumber, OptionalPath, OptionalText, Rows, Run, TextOptions, Texts
from resolvent.cli.output import print_json
from resolvent.simulator.record.progress import progress_bars

if TYPE_CHECKING:
    from resolvent.comparisons.after.held_out_rows import HeldOutRows
    from resolvent.data.federated import FederatedData
    from resolvent.tables.text_formats import TextFormat


def predict(
    run: Run,
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")],
    *,
    method: OptionalText = None,
    site: OptionalText = None,
    before_refit: bool = False,
    out: Path = Path("predictions.csv"),
    overwrite: bool = False,
    raw: bool = False,
    text: TextOptions = TextOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Predict new rows with a trained model; writes a file with a row for each.

    Try `resolvent predict runs/mine new.csv --method FedAvg+ --site Essen`.

    The rows get the same encoding as the training rows: nothing is estimated from them. Rows that do not fit it are
    refused, and then no file is written. Values far outside the training rows' range, imputed values and columns that
    the model does not use are counted on standard error. If the rows have the label column, their score is printed.
    After `resolvent refit` the model that was trained on all rows predicts. One line says which rows the model has
    seen.

    Args:
        run: a run folder, or a folder that Result.save wrote.
        rows: a .csv, .csv.gz, .tsv or .parquet file with the columns of the training table; for arrays, an .npy file.
        method: a method of the run; may be left out if there is only one, and after `resolvent refit`: then it is the
            method that the site uses.
        site: the party whose personal model predicts; default: the shared model.
        before_refit: predict with the model that was trained on the training rows, also after `resolvent refit`.
        out: the file of the predictions, .csv or .parquet.
        overwrite: replace the file if it exists.
        raw: leave out the calibration and the threshold that `resolvent calibrate` has stored with the model.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.predictions import predict_file

    predictions = predict_file(run, method, site, rows, out, text.format,
                               overwrite=overwrite, before_refit=before_refit, raw=raw)
    for message in predictions.remarks.messages():
        terminal.print_note(f"warning: {message}")
    for sentence in predictions.adjustments:
        terminal.print_line(sentence)
    if predictions.scores is not None:
        terminal.print_line(predictions.scores)
    if predictions.provenance:
        terminal.print_line(f"The model: {predictions.provenance}")
    terminal.print_path(f"Predictions for {predictions.remarks.rows} rows", out)


def evaluate(
    run: Run,
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")],
    *,
    method: OptionalText = None,
    site: OptionalText = None,
    metrics: Texts = (),
    class_weight: OptionalText = None,
    before_refit: bool = False,
    raw: bool = False,
    json: bool = False,
    text: TextOptions = TextOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Evaluate a trained model on new rows whose labels are known; prints each score with its interval.

    Try `resolvent evaluate runs/mine later.csv --method FedAvg+ --site Essen --metrics roc_auc brier_score`.

    The rows get the same encoding as the training rows, and need the column of the label. An interval (level 95 %) is
    Wilson's for an accuracy, with DeLong's variance for roc_auc, and otherwise by resampled rows. It is about this
    model and further rows like these.

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
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.evaluations import evaluate_file

    evaluated = evaluate_file(run, method, site, rows, text.format, metrics=metrics,
                              class_weight=class_weight, before_refit=before_refit, raw=raw)
    for message in evaluated.remarks.messages():
        terminal.print_note(f"warning: {message}")
    for sentence in evaluated.adjustments:
        terminal.print_note(sentence)
    if json:
        print_json(evaluated.evaluation.record())
    else:
        terminal.print_table(terminal.evaluation_table(evaluated.evaluation))
        if evaluated.provenance:
            terminal.print_line(f"The model: {evaluated.provenance}")


def calibrate(
    run: Run,
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
    text: TextOptions = TextOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Calibrate the probabilities of the sites' models, and choose the probability from which on a class is predicted.

    Try `resolvent calibrate runs/mine --positive ill --cost-false-negative 5 --cost-false-positive 1`.

    Calibration and threshold of each site are fitted to its validation rows and measured on its test rows; after a run
    with folds both on all rows, each with the model of the fold that tested it. They are
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
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.calibrations import calibrate as calibrate_rows
    from resolvent.comparisons.after.held_out_rows import SHARED
    from resolvent.comparisons.runs.report import redraw_report
    from resolvent.predict.threshold import goal_of

    goal = goal_of(cost_false_negative, cost_false_positive, sensitivity, specificity)
    held_out = _read_held_out(run, method, rows, sites, text.format)
    with progress_bars("models") as progress:
        made = calibrate_rows(held_out, sites=sites, kind=kind, positive=positive, goal=goal,
                              progress=lambda done, total: progress(held_out.method, done, total))
    path = made.save(run)
    redraw_report(run)
    records = {name: site.plain() for name, site in made.sites.items()}
    if json:
        _print_records(made.method, records)
        return
    for table in terminal.calibration_tables(records):
        terminal.print_table(table)
    sentences: dict[str, list[str]] = {}
    for name, record in records.items():
        for sentence in filter(None, (record["reason"], record["note"])):
            sentences.setdefault(sentence, []).append(name or SHARED)
    for sentence, names in sentences.items():
        terminal.print_note(f"{sentence}: {', '.join(names)}")
    terminal.print_path(f"Calibration of {made.method}, which resolvent predict uses from now on", path)


def explain(
    run: Run,
    rows: Rows = None,
    *,
    method: OptionalText = None,
    sites: Texts = (),
    out: OptionalPath = None,
    json: bool = False,
    text: TextOptions = TextOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Show which columns the sites' models rest on, and where sites differ.

    Try `resolvent explain runs/mine`.

    For each column of the table: by how much the mean loss on the test rows grows if the column is exchanged between
    the rows (permutation importance), with an interval that is paired over the rows. For linear and logistic models
    also the coefficients in the units of the table. After a run with folds the importance is over all rows, each with
    the model of the fold that tested it, and the coefficients are those of the first fold. Both are stored next to the
    models, and the report shows them.

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
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.explanations import explain_models
    from resolvent.comparisons.runs.report import redraw_report
    from resolvent.data.files.atomic_files import write_atomically

    held_out = _read_held_out(run, method, rows, sites, text.format, has_validation=False)
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
        _print_records(made.method, records)
        return
    terminal.print_table(terminal.explanation_table(records), is_wide=True)
    if made.coefficients is not None:
        terminal.print_line(f"The coefficients are in the report{'' if out is None else f' and in {out}'}")
    terminal.print_path(f"Explanation of {made.method}", path)


def _read_held_out(run: Path, method: str | None, rows: str | None, sites: Sequence[str], text: "TextFormat", *,
                  has_validation: bool = True) -> "HeldOutRows":
    """The rows of a run that its training has not used, see ``rows_of_run``; ``rows`` may be a site's file."""
    from resolvent.comparisons.after.run_rows import rows_of_run

    source: str | FederatedData | None = rows
    if rows is not None and Path(rows).suffix.lower() in (".yaml", ".yml"):
        from resolvent.federation.site.samples import samples_of_run

        source = samples_of_run(run, Path(rows))
    return rows_of_run(run, method, source, sites[0] if len(sites) == 1 else None, text, has_validation=has_validation)


def _print_records(method: str, records: Mapping[str | None, Any]) -> None:
    """Print the records of a method's models as JSON; the name None is that of the shared model."""
    print_json({"method": method, "sites": {name: record for name, record in records.items() if name is not None},
                "shared": records.get(None)})
