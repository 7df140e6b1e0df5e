"""Predictions for the rows of a file, as a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.runs.load import load_fitted, models_of
from resolvent.data.encoded_rows import EncodedRows, Remarks
from resolvent.data.files.atomic_files import write_atomically
from resolvent.data.files.digests import file_digests, write_sealed
from resolvent.errors import InputError, shorten
from resolvent.predict.fitted import Fitted
from resolvent.tables.columns import is_empty
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.new_rows import read_rows
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.predict.evaluation import Evaluation

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")  # with which a cell of a spreadsheet is a formula


class UsedModel(NamedTuple):
    """A trained model that was used on the rows of a file.

    Attributes:
        remarks: the number of rows, and how they differ from the training rows.
        evaluation: its scores on the rows; None if they have no labels.
    """

    fitted: Fitted
    remarks: Remarks
    evaluation: "Evaluation | None"

    @property
    def scores(self) -> str | None:
        """The score on the rows, as text; None if they have no labels."""
        if self.evaluation is None:
            return None
        score = self.fitted.model.loss.score_name
        value, low, high = (format_value(number, score) for number in self.evaluation.intervals[score])
        return (f"{title_of(score)} on {self.evaluation['rows']} rows with labels: {value} (95 % interval {low} to "
                f"{high})")


def predict_file(run: Path, method: str | None, site: str | None, rows: str, out: Path, text: TextFormat, *,
                 overwrite: bool = False, before_refit: bool = False, raw: bool = False,
                 quote_formulas: bool = True) -> UsedModel:
    """Predict the rows of a file, and write the predictions completely or not at all.

    A second file, whose name has ``.json`` in addition, says which run and which rows they are of, with digests.

    Args:
        run: a run folder, or one that ``Result.save`` wrote.
        method: name of a method; None: the only one.
        site: the party whose personal model predicts; None: the shared model.
        out: the file to write, ``.csv`` or ``.parquet``.
        overwrite: replace ``out`` if it exists.
        before_refit: predict with the model of the run, not with the one that was trained again.
        raw: leave out the calibration and the threshold that are stored with the model.
        quote_formulas: see ``write_predictions``.
    """
    check_output(out, overwrite=overwrite)
    fitted = load_fitted(run, method, site, before_refit=before_refit)
    fitted = fitted.raw if raw else fitted
    frame = read_rows(rows, fitted.encoding, text)
    encoded = fitted.encode(frame)
    outputs = fitted.outputs_of(encoded)
    used = UsedModel(fitted, encoded.remarks, _evaluation(fitted, frame, outputs))
    write_predictions(out, _table(fitted, encoded, outputs), {
        "run": str(run), "method": fitted.method, "site": fitted.site, "provenance": fitted.provenance,
        "adjustments": list(fitted.adjustments),
        "digest_of_run": models_of(run, fitted.method, before_refit=before_refit).digest, "rows": rows},
        quote_formulas=quote_formulas)
    return used


def check_output(out: Path, *, overwrite: bool) -> None:
    """Refuse a file for predictions that has another ending, or that exists."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{shorten(out)} must end in .csv or .parquet: give --out such a name")
    if out.is_dir() or (out.exists() and not overwrite):
        raise InputError(f"{out} exists: give --out another name{'' if out.is_dir() else ', or --overwrite'}")


def write_predictions(out: Path, table: "pd.DataFrame", facts: Mapping[str, Any], *,
                      quote_formulas: bool = True) -> None:
    """Write predictions completely or not at all, and beside them what they are of.

    Args:
        quote_formulas: put a ' before a text, and before the name of a column, that a spreadsheet program would compute
            or send as a formula. Numbers stay as they are, and so do all values of a Parquet file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if quote_formulas and out.suffix.lower() == ".csv":
        table = table.rename(columns=_quoted).apply(  # a mapped number would be written with the digits of float64
            lambda column: column if column.dtype.kind in "biuf" else column.map(_quoted))
    if out.suffix.lower() == ".csv":
        write_atomically(out, lambda path: table.to_csv(path, index=False))
    else:
        write_atomically(out, lambda path: table.to_parquet(path, index=False))
    write_sealed(out.with_name(f"{out.name}.json"), {**facts, "files": file_digests(out.parent, [out.name])})


def _quoted(value: Any) -> Any:
    """A text that begins like a formula, with a ' before it; numbers, also as texts, and other values as they are."""
    is_formula = isinstance(value, str) and value.startswith(_FORMULA_SIGNS) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def _table(fitted: Fitted, encoded: EncodedRows, outputs: NDArray[Any]) -> "pd.DataFrame":
    """A table with the columns row, prediction and, for classification, ``probability CLASS`` for each class.

    Several labels have a column ``prediction LABEL`` each and, if they have two values, ``probability LABEL`` of the
    second one.
    """
    import pandas as pd

    prediction = fitted.decode(outputs)
    columns: dict[str, Any] = {"row": encoded.names}
    if np.ndim(prediction) > 2:
        raise InputError(f"a prediction has the shape {list(np.shape(prediction)[1:])}, and a table has one number per "
                         "cell: use Fitted.predict")
    encoding = fitted.encoding
    several = [label.name for label in encoding.labels] if isinstance(encoding, TableEncoding) else []
    columns |= ({"prediction": prediction} if np.ndim(prediction) == 1 else
                {f"prediction {several[i] if several else i}": column
                 for i, column in enumerate(np.transpose(prediction))})
    if encoding.task == "classification" or (several and encoding.task == "structured"):
        probabilities = fitted.probabilities(outputs)
        columns |= {f"probability {name}": probabilities[:, i] for i, name in enumerate(fitted.classes or several)}
    return pd.DataFrame(columns)


def _evaluation(fitted: Fitted, rows: Any, outputs: NDArray[Any]) -> "Evaluation | None":
    """The scores on the rows, if they have a label in every row."""
    encoding = fitted.encoding
    if not isinstance(encoding, TableEncoding):
        return None
    names = [label.name for label in encoding.labels]
    if not {*names} <= {*map(str, rows.columns)} or any(is_empty(rows[name]).any() for name in names):
        return None
    return fitted.score(outputs, encoding.encode_labels(rows))
