"""``resolvent model``: trained models on rows: predict, evaluate, calibrate, explain and refit."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from resolvent.cli.options import (
    TEXT_SETTINGS,
    Changes,
    Format,
    OptionalPath,
    OptionalText,
    Rows,
    Run,
    Texts,
    chosen,
    one_of,
)
from resolvent.cli.output import print_json
from resolvent.simulator.record.progress import progress_bars

if TYPE_CHECKING:
    from resolvent.comparisons.after.held_out_rows import HeldOutRows
    from resolvent.data.federated import FederatedData
    from resolvent.predict.threshold import Goal
    from resolvent.tables.text_formats import TextFormat


def predict(
    run: Run,
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")],
    *,
    method: OptionalText = None,
    site: OptionalText = None,
    out: Path = Path("predictions.csv"),
    overwrite: bool = False,
    set: Changes = (),
) -> None:
    """Predict new rows with a trained model or a regression; writes a file with a row for each.

    resolvent model predict runs/mine new.csv --site Essen
    resolvent model predict runs/mine new.csv --method FedAvg+ --out mine.csv

    The rows get the encoding of the training rows. Rows that do not fit it are refused, and then no file is written.
    If they have the label, their score is printed. After `resolvent model refit` the model of all rows predicts.

    With the folder of a regression (`resolvent regress ... --out`), each prediction has a standard error by the delta
    method and an interval. Rows with a missing value have none, and are counted.

    Args:
        run: a run folder, a folder that Result.save wrote, or the folder of a regression.
        rows: a .csv, .csv.gz, .tsv or .parquet file with the columns of the training table; for arrays, an .npy file.
        method: a method of the run; default: the one that the site is advised to use. Naming one also uses a model that
            the site was advised against.
        site: the party whose personal model predicts; default: the shared model.
        out: the file of the predictions, .csv or .parquet.
        overwrite: replace the file if it exists.
        set: how a text file is written, such as 'separator=;' decimal=, encoding=cp1252; formulas=keep writes
            texts that begin with = + - @ without a ' before them; refit=false: the model of the training rows, also
            after `resolvent model refit`; calibration=false: without the calibration and the threshold of `resolvent
            model calibrate`; for a regression also scale=link, which predicts linear predictors and not means.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.after.predictions import predict_file
    from resolvent.errors import InputError
    from resolvent.tables.text_formats import TextFormat

    if _is_regression(run):
        if method is not None or site is not None:
            raise InputError(f"{run} is a regression, which has no methods or sites: leave --method and --site out")
        _predict_regression(run, rows, out, set, overwrite=overwrite)
        return
    text = chosen(set, {**TEXT_SETTINGS, **_MODEL_SETTINGS, "formulas": one_of("quote", "keep")})
    quote_formulas, which = text.pop("formulas", "") != "keep", _which_model(text)
    predictions = predict_file(run, method, site, rows, out, TextFormat(**text), overwrite=overwrite, **which,
                               quote_formulas=quote_formulas)
    for message in predictions.remarks.messages():
        terminal.print_note(f"warning: {message}")
    for sentence in predictions.fitted.adjustments:
        terminal.print_line(sentence)
    if predictions.scores is not None:
        terminal.print_line(predictions.scores)
    if predictions.fitted.provenance:
        terminal.print_line(f"The model: {predictions.fitted.provenance}")
    terminal.print_path(f"Predictions for {predictions.remarks.rows} rows", out)
    of_site = "" if site is None else f" --site {shlex.quote(site)}"
    of_method = "" if method is None else f" --method {shlex.quote(method)}"
    _print_next_evaluation(run, rows if predictions.scores is not None else _LABELLED, of_method + of_site)


_LABELLED = "ROWS_WITH_LABELS.csv"


def _print_next_evaluation(run: Path, rows: str, options: str = "") -> None:
    """Print the next command after a prediction: the model is measured on rows whose labels are known."""
    from resolvent.cli import terminal

    terminal.print_path("Next", f"resolvent model evaluate {shlex.quote(str(run))} {shlex.quote(rows)}{options}")


_MODEL_SETTINGS = dict.fromkeys(("refit", "calibration"), one_of("true", "false"))


def _which_model(settings: dict[str, Any]) -> dict[str, bool]:
    """Which of the stored models is used, taken from the settings."""
    return {"before_refit": settings.pop("refit", "") == "false", "raw": settings.pop("calibration", "") == "false"}


def _is_regression(folder: Path) -> bool:
    from resolvent.comparisons.regression.predictions import FILE

    try:
        return (folder / FILE).is_file()
    except OSError:  # such as a name that is too long: what reads a run says why
        return False


def _predict_regression(folder: Path, rows: str, out: Path, changes: tuple[tuple[str, ...], ...], *,
                        overwrite: bool) -> None:
    from resolvent.cli import terminal
    from resolvent.comparisons.regression.predictions import predict_file
    from resolvent.errors import count_of
    from resolvent.tables.text_formats import TextFormat

    text = chosen(changes, {**TEXT_SETTINGS, "scale": str, "formulas": one_of("quote", "keep")})
    scale, quote_formulas = text.pop("scale", "response"), text.pop("formulas", "") != "keep"
    count, incomplete = predict_file(folder, rows, out, TextFormat(**text), scale, overwrite=overwrite,
                                     quote_formulas=quote_formulas)
    if incomplete:
        terminal.print_note(f"warning: {count_of(incomplete, 'row')} with missing values: no prediction")
    terminal.print_path(f"Predictions for {count - incomplete} rows", out)
    _print_next_evaluation(folder, _LABELLED)


def _evaluate_regression(folder: Path, rows: str, changes: tuple[tuple[str, ...], ...], format: str) -> None:
    from resolvent.cli import terminal
    from resolvent.comparisons.regression.validation import in_words, validate_file
    from resolvent.tables.text_formats import TextFormat

    text = chosen(changes, {**TEXT_SETTINGS, "party": str, "min_cell": int})
    party, smallest = text.pop("party", None), text.pop("min_cell", 5)
    table = validate_file(folder, rows, TextFormat(**text), party=party, smallest=smallest)
    if format == "json":
        print_json(loads(table.to_json(orient="index", double_precision=15)))
    else:
        terminal.print_line("Of a model that fits, the intercept is 0 and the slope 1; standard errors in parentheses.")
        sys.stdout.write(in_words(table) + "\n")


def evaluate(
    run: Run,
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")],
    *,
    method: OptionalText = None,
    site: OptionalText = None,
    metrics: Texts = (),
    set: Changes = (),
    format: Format = "text",
) -> None:
    """Evaluate a trained model or a regression on new rows whose labels are known.

    resolvent model evaluate runs/mine later.csv --site Essen --metrics roc_auc brier_score
    resolvent model evaluate regression later.csv --set party=hospital

    The rows need the column of the label. An interval (level 95 %) is Wilson's for an accuracy, with DeLong's variance
    for roc_auc, and otherwise by resampled rows. Of a regression, each site's calibration and concordance are printed.

    Args:
        run: a run folder, a folder that Result.save wrote, or the folder of a regression.
        rows: a .csv, .csv.gz, .tsv or .parquet file with the columns of the training table and the label.
        method: a method of the run; default: the one that the site is advised to use.
        site: the party whose personal model is evaluated; default: the shared model.
        metrics: further metrics, see `resolvent list metrics`; also '{name: f1, average: macro}', and module:function
            for one of your own.
        set: how a text file is written, such as 'separator=;' decimal=, encoding=cp1252; refit=false: the model of the
            training rows, also after `resolvent model refit`; calibration=false: without the calibration and the
            threshold of `resolvent model calibrate`; class_weight=balanced, or such as 'class_weight={ill: 5, well:
            1}': weights of the classes in the loss (scores and metrics count every row once); for a regression also
            party=hospital, the column of the site, and min_cell=5, the fewest rows or events that are told.
        format: text or json.
    """
    from resolvent.cli import outcomes, terminal
    from resolvent.comparisons.after.evaluations import evaluate_file
    from resolvent.errors import InputError
    from resolvent.tables.text_formats import TextFormat

    if _is_regression(run):
        if method is not None or site is not None or metrics:
            raise InputError(f"{run} is a regression, which has calibration and concordance at each site: leave "
                             "--method, --site and --metrics out")
        _evaluate_regression(run, rows, set, format)
        return

    text = chosen(set, {**TEXT_SETTINGS, **_MODEL_SETTINGS, "class_weight": str})
    class_weight, which = text.pop("class_weight", None), _which_model(text)
    evaluated = evaluate_file(run, method, site, rows, TextFormat(**text), metrics=metrics,
                              class_weight=class_weight, **which)
    for message in evaluated.remarks.messages():
        terminal.print_note(f"warning: {message}")
    for sentence in evaluated.fitted.adjustments:
        terminal.print_note(sentence)
    assert evaluated.evaluation is not None  # rows without labels are refused
    if format == "json":
        print_json(evaluated.evaluation.record())
    else:
        terminal.print_table(outcomes.evaluation_table(evaluated.evaluation))
        if evaluated.fitted.provenance:
            terminal.print_line(f"The model: {evaluated.fitted.provenance}")


def calibrate(
    run: Run,
    rows: Rows = None,
    *,
    method: OptionalText = None,
    sites: Texts = (),
    goal: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CLASS GOAL", help_behavior_hint="")] = (),
    set: Changes = (),
    format: Format = "text",
) -> None:
    """Calibrate the probabilities of the sites' models, and choose the threshold for predicting a class.

    resolvent model calibrate runs/mine
    resolvent model calibrate runs/mine --goal ill cost=5:1

    They are fitted to the validation rows of each site, measured on its test rows, and stored next to the models: from
    then on `resolvent model predict` uses them. At a site of a federation: `resolvent model calibrate KIT/runs/NAME
    site.yaml`; nothing leaves the site.

    Args:
        run: a run folder.
        rows: rows with labels. Default: the validation and test rows of the run, from the table that the experiment
            names. A site of a federation names its site.yaml. For other rows that the run has not used, a .csv,
            .csv.gz, .tsv or .parquet file: half of them, drawn, calibrate, and the other half measures.
        method: a method of the run; default: for each site the model that it is advised to use.
        sites: the sites whose models are calibrated; default: all, and the shared model.
        goal: the class that the threshold is for, and how it is chosen: cost=5:1 if a row of the class that is missed
            costs 5 times a false alarm; sensitivity=0.9 for the largest threshold that finds 90 % of the class;
            specificity=0.9 for the smallest that leaves 90 % of the other rows alone.
        set: how a text file is written, such as 'separator=;' decimal=, encoding=cp1252; kind=temperature, platt,
            isotonic or none: the kind of calibration, instead of the one with the smallest cross-validated log loss
            among a temperature (from 10 rows on), Platt's map (50) and the isotonic map (500).
        format: text or json.
    """
    from resolvent.cli import outcomes, terminal
    from resolvent.comparisons.after.calibrations import calibrate as calibrate_rows
    from resolvent.comparisons.after.held_out_rows import SHARED
    from resolvent.comparisons.runs.report import redraw_report
    from resolvent.tables.text_formats import TextFormat

    positive, chosen_goal = _goal(goal)
    text = chosen(set, {**TEXT_SETTINGS, "kind": one_of("auto", "none", "temperature", "platt", "isotonic")})
    kind = text.pop("kind", "auto")
    held_out = _read_held_out(run, method, rows, sites, TextFormat(**text))
    with progress_bars("models") as progress:
        made = calibrate_rows(held_out, sites=sites, kind=kind, positive=positive, goal=chosen_goal,
                              progress=lambda done, total: progress(held_out.method, done, total))
    path = made.save(run)
    redraw_report(run)
    records = {name: site.plain() for name, site in made.sites.items()}
    if format == "json":
        _print_records(made.method, records)
        return
    for table in outcomes.calibration_tables(records):
        terminal.print_table(table)
    sentences: dict[str, list[str]] = {}
    for name, record in records.items():
        for sentence in filter(None, (record["reason"], record["note"])):
            sentences.setdefault(sentence, []).append(name or SHARED)
    for sentence, names in sentences.items():
        terminal.print_note(f"{sentence}: {', '.join(names)}")
    terminal.print_path("Calibrations, which resolvent model predict uses from now on", path)


def explain(
    run: Run,
    rows: Rows = None,
    *,
    method: OptionalText = None,
    sites: Texts = (),
    out: OptionalPath = None,
    set: Changes = (),
    format: Format = "text",
) -> None:
    """Show which columns the sites' models rest on, and where sites differ.

    resolvent model explain runs/mine
    resolvent model explain runs/mine --out coefficients.csv

    For each column: by how much the mean loss on the test rows grows if the column is exchanged between the rows, with
    an interval; for linear and logistic models also the coefficients in the units of the table. At a site of a
    federation: `resolvent model explain KIT/runs/NAME site.yaml`; nothing leaves the site.

    Args:
        run: a run folder.
        rows: rows with labels. Default: the test rows of the run, from the table that the experiment names. A site of
            a federation names its site.yaml. For other rows that the run has not used, a .csv, .csv.gz, .tsv or
            .parquet file.
        method: a method of the run; default: for each site the model that it is advised to use.
        sites: the sites whose models are explained; default: all, and the shared model.
        out: also write the coefficients, or for other models the importance, to this .csv file.
        set: how a text file is written, such as 'separator=;' decimal=, encoding=cp1252.
        format: text or json.
    """
    from resolvent.cli import outcomes, terminal
    from resolvent.comparisons.after.explanations import explain_models
    from resolvent.comparisons.runs.report import redraw_report
    from resolvent.data.files.atomic_files import write_atomically
    from resolvent.tables.text_formats import TextFormat

    text = TextFormat(**chosen(set, TEXT_SETTINGS))
    held_out = _read_held_out(run, method, rows, sites, text, has_validation=False)
    with progress_bars("columns") as progress:
        made = explain_models(held_out, sites=sites,
                              progress=lambda done, total: progress(held_out.method, done, total))
    path = made.save(run)
    redraw_report(run)
    records = {name: site.plain() for name, site in made.sites.items()}
    if out is not None:
        table = made.table if made.coefficients is None else made.coefficients
        write_atomically(out, lambda partial: table.to_csv(partial, index=made.coefficients is not None))
    if format == "json":
        _print_records(made.method, records)
        return
    terminal.print_table(outcomes.explanation_table(records), is_wide=True)
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


def _goal(words: tuple[str, ...]) -> "tuple[str | None, Goal | None]":
    """The class that a threshold is for, and its goal: ``cost=5:1``, ``sensitivity=0.9`` or ``specificity=0.9``."""
    from resolvent.errors import InputError, quote
    from resolvent.predict.threshold import Goal

    if not words:
        return None, None
    *positive, text = words
    name, _, value = text.partition("=")
    try:
        numbers = [float(part) for part in value.split(":")]
    except ValueError:
        numbers = []
    if name == "cost" and len(numbers) == 2:
        goal = Goal(cost_false_negative=numbers[0], cost_false_positive=numbers[1])
    elif name in ("sensitivity", "specificity") and len(numbers) == 1:
        goal = Goal(**{name: numbers[0]})
    else:
        raise InputError(f"--goal {quote(' '.join(words))}: write a class and cost=5:1, sensitivity=0.9 or "
                         "specificity=0.9")
    return (" ".join(positive) or None), goal
