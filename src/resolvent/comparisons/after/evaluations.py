"""The scores of a trained model on the rows of a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resolvent.comparisons.after.predictions import UsedModel
from resolvent.comparisons.after.run_rows import check_has_labels
from resolvent.comparisons.experiment.binding import bind
from resolvent.comparisons.experiment.yaml_files import read_value
from resolvent.comparisons.runs.load import load_fitted
from resolvent.errors import InputError
from resolvent.problem.metrics.metric import Metric
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.new_rows import read_rows
from resolvent.tables.text_formats import TextFormat


def evaluate_file(run: Path, method: str | None, site: str | None, rows: str, text: TextFormat, *,
                  metrics: Sequence[str] = (), class_weight: str | None = None,
                  before_refit: bool = False, raw: bool = False) -> UsedModel:
    """Evaluate a trained model on the rows of a table, which has their labels.

    Args:
        run: a run folder, or one that ``Result.save`` wrote.
        method: name of a method; None: the only one.
        site: the party whose personal model is evaluated; None: the shared model.
        metrics: further metrics, see ``read_metrics``.
        class_weight: weights of the classes in the loss: ``balanced``, or a mapping from classes to weights as YAML.
        before_refit: evaluate the model of the run, not the one that was trained again.
        raw: leave out the calibration and the threshold that are stored with the model.
    """
    named = read_metrics(metrics)
    weights = None if class_weight is None else read_value(class_weight, "--set class_weight")
    fitted = load_fitted(run, method, site, before_refit=before_refit)
    fitted = fitted.raw if raw else fitted
    frame = read_rows(rows, fitted.encoding, text)
    if not isinstance(fitted.encoding, TableEncoding) or isinstance(frame, np.ndarray):
        raise InputError("only tables have a column of labels: for other rows, use rv.load and evaluate(rows, labels)")
    check_has_labels(frame, fitted.encoding, rows, "give rows with known labels, or use resolvent model predict")
    encoded = fitted.encode(frame)
    evaluation = fitted.score(fitted.outputs_of(encoded), fitted.encoding.encode_labels(frame), named, weights)
    return UsedModel(fitted, encoded.remarks, evaluation)


def read_metrics(written: Sequence[str]) -> dict[str, Metric]:
    """Metrics as an experiment file names them: label -> metric.

    Args:
        written: each the name of a metric, ``module:function``, or a mapping as YAML, such as
            ``{name: f1, average: macro}``.

    Raises:
        InputError: there is no such metric, or a setting of it is wrong.
    """
    if not written:
        return {}
    items = [read_value(text, "--metrics") if text.lstrip().startswith("{") else text for text in written]
    return {label: part.build() for label, part in bind(_metrics, {"metrics": items}).labelled("metrics").items()}


def _metrics(metrics: dict[str, Metric]) -> dict[str, Metric]:
    """The signature by which ``bind`` reads metrics."""
    return metrics
