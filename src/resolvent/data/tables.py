"""Bring your own data: a CSV or Parquet file, or a frame; one column names the party, one holds the label.

Imputation and scaling are fitted with scikit-learn on the training rows of all parties pooled: nothing that
a validation or test row holds moves a median, a mean or a deviation. Pooling is convenient in a simulation; a
real federation would have to agree on these numbers, for no party sees another's rows. Which columns there
are (categories, marks of missing values) is decided by all rows, so it does not change with the seed.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData, Task
from resolvent.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MAX_CATEGORIES", "from_frame", "table"]

AnyTask = Literal["auto", "classification", "regression"]
Missing = Literal["refuse", "impute", "indicate"]
Scale = Literal["standard", "none"]
MAX_CATEGORIES = 100
_SEPARATOR = {".csv": ",", ".csv.gz": ",", ".tsv": "\t"}
_LARGEST = float(np.finfo(np.float32).max)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?")
_DECIMAL = ("floating", "mixed-integer-float", "decimal")
_TIME = ("datetime", "datetime64", "date", "time", "timedelta", "timedelta64", "period")


def table(
    table: str, party: str, label: str, *, features: list[str] | None = None,
    exclude: list[str] | None = None, task: AnyTask = "auto", missing: Missing = "refuse",
    scale: Scale = "standard", validation: float = 0.2, test: float = 0.2, seed: int = 0,
) -> FederatedData:
    """Data from a file with a row per sample, a column that names the party and one that holds the label.

    `from_frame` says what becomes of the columns. In errors about a text file the row is the line on which it
    begins, the header being line 1; for Parquet it is the index label of the frame that pandas reads.

    Args:
        table: path of a ``.csv``, ``.csv.gz`` or ``.tsv`` (in UTF-8) or a ``.parquet`` file.
        party: the column that names the party; a text file's is read as text, so ``007`` is not ``7``.
        label: the column to predict.
        features: the columns to predict from, in this order; default: all but ``party`` and ``label``.
        exclude: columns to leave out.
        task: ``classification``, ``regression``, or ``auto``: regression where the label is a decimal number,
            classification where it is an integer, true/false, text or a category.
        missing: where a feature is empty, NaN, None or blank text, ``refuse`` it; ``impute`` the median of a
            number, the most frequent value of a category; or impute and ``indicate`` it in a 0/1 column. A
            missing party or label is always refused.
        scale: ``standard`` gives numbers mean 0 and deviation 1 over the training rows; ``none`` does not.
        validation: share of each party's rows kept for validation.
        test: share of each party's rows kept for testing.
        seed: of the split.

    Raises:
        InputError: a file that is not there, cannot be read or is cut off; what `from_frame` refuses.
    """
    import pandas as pd
    import pyarrow as pa

    path = Path(table).expanduser()
    kind = next((s for s in (*_SEPARATOR, ".parquet") if path.name.lower().endswith(s)), None)
    if kind is None:
        raise InputError(f"{table!r} cannot be read: name a .csv, .csv.gz, .tsv or .parquet file")
    if not path.is_file():
        near = nearest(path.name, [p.name for p in path.parent.glob("*") if p.is_file()])
        raise InputError(f"there is no file {str(path.absolute())!r}: name one that is there{near}")
    try:
        frame = pd.read_parquet(path) if kind == ".parquet" else _read_text(path, _SEPARATOR[kind], party)
    except InputError:
        raise
    except (OSError, EOFError, ValueError, csv.Error, zlib.error, pa.ArrowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"{table!r} cannot be read as {kind}: {reason}. It may be cut off, or not what its "
                         "name says: write or download it again, text in UTF-8") from error
    return from_frame(frame, party, label, features=features, exclude=exclude, task=task, missing=missing,
                      scale=scale, validation=validation, test=test, seed=seed, name=path.name[: -len(kind)])


def from_frame(
    frame: "pd.DataFrame", party: str, label: str, *, features: list[str] | None = None,
    exclude: list[str] | None = None, task: AnyTask = "auto", missing: Missing = "refuse",
    scale: Scale = "standard", validation: float = 0.2, test: float = 0.2, seed: int = 0, name: str = "table",
) -> FederatedData:
    """Data from a frame with a row per sample, a column that names the party and one that holds the label.

    Columns of numbers or true/false are imputed and scaled; columns of text or pandas' category type become
    one 0/1 column ``column=value`` per value, in sorted order. The inputs, 32-bit floats, are the numbers,
    then the categories, then the marks ``column missing``; notes say what was imputed, encoded and scaled.
    Medians, most frequent values, means and deviations come from the pooled training rows only; a real
    federation would need to agree on them. Parties are in the natural order of their names (``site 2`` before
    ``site 10``), whatever the order of the rows.

    Args:
        frame: the table; it is not changed. The other arguments are those of `table`.
        name: what the data is, for reports.

    Raises:
        InputError: a column or value that cannot be used; names the party, row (its index label) and column.
    """
    import pandas as pd
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    options = {"task": (task, AnyTask), "missing": (missing, Missing), "scale": (scale, Scale)}
    for option, (value, allowed) in options.items():
        if value not in get_args(allowed):
            raise InputError(f"{option}={value!r} is not known: use one of {', '.join(get_args(allowed))}")
    frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
    chosen = _choose(list(frame.columns), party, label, features, exclude)
    if not len(frame):
        raise InputError(f"the table {name!r} has no rows: give one row per sample")
    lost = frame.index[_empty(frame[party])]
    if len(lost):
        raise InputError(f"row {lost[0]}, column {party!r}: the party is missing, so nobody holds this "
                         "sample: fill it in, or leave the row out")
    owner = frame[party].astype(str).to_numpy(dtype=object)

    def refuse(wrong: NDArray[np.bool_], names: Sequence[str], why: str) -> None:
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise InputError(f"party {owner[i]!r}, row {frame.index[i]}, column {names[j]!r}: {why}")

    refuse(_empty(frame[label])[:, None], [label],
           "the label is missing: a sample cannot be used without it; fill it in, or leave the row out")
    columns = {c: _feature(c, frame[c]) for c in chosen}
    targets, task = _targets(label, frame[label], task)
    for c, values in {**columns, label: targets}.items():
        if values.dtype.kind == "f":
            refuse((np.abs(values) > _LARGEST)[:, None], [c],
                   "the value is infinite, or too large for a 32-bit float: correct it, or leave the row out")
    gaps = np.column_stack([pd.isna(columns[c]) for c in chosen])
    gappy = [chosen[j] for j in np.flatnonzero(gaps.any(axis=0))]
    if missing == "refuse":
        refuse(gaps, chosen, f"the value is missing (missing values: {gaps.sum()}, columns with any: "
               f"{len(gappy)}): set missing: impute, or indicate to mark them as well, or exclude the column")
    parties = sorted(set(owner), key=_natural)
    number = pd.Categorical(owner, categories=parties).codes
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    data = FederatedData.from_arrays(members, [targets[m] for m in members], parties=parties, task=task,
                                     validation=validation, test=test, seed=seed, name=name)
    train = np.concatenate([data.party(k)[0] for k in range(len(data))])
    for c in gappy:
        if pd.isna(columns[c][train]).all():
            raise InputError(f"column {c!r} has no value in any training row, so there is nothing to impute: "
                             "exclude it, or keep fewer rows for validation and test")
    numbers, texts = ([c for c in chosen if (columns[c].dtype == object) is text] for text in (False, True))
    known = [sorted({v for v in columns[c] if isinstance(v, str)}) for c in texts]
    scaler = StandardScaler() if scale == "standard" else "passthrough"
    encoder = OneHotEncoder(categories=known, sparse_output=False)
    blocks: list[NDArray[Any]] = []
    for read, fill, last in ((numbers, "median", scaler), (texts, "most_frequent", encoder)):
        if read:
            block = np.column_stack([columns[c] for c in read])
            fitted = make_pipeline(SimpleImputer(strategy=fill), last).fit(block[train])
            blocks.append(fitted.transform(block))
    names = numbers + [f"{c}={v}" for c, values in zip(texts, known, strict=True) for v in values]
    if missing == "indicate":
        blocks.append(gaps[:, gaps.any(axis=0)])
        names += [f"{c} missing" for c in gappy]
    with np.errstate(over="ignore"):
        x = np.hstack(blocks).astype(np.float32)
    refuse(~np.isfinite(x), names, "once scaled, the value is too large for a 32-bit float, because the "
           "training rows hardly differ in this column: correct it, or set scale: none")
    notes = {
        f"missing values imputed from the pooled training rows: {gaps.sum()} (columns: {len(gappy)})": gappy,
        f"columns one-hot encoded: {len(texts)} (as 0/1 columns: {sum(map(len, known))})": texts,
        "numbers scaled to mean 0 and deviation 1 over the pooled training rows": numbers and scale != "none",
    }
    data = replace(data, x=x[data.x], features=tuple(names))
    return data.noting(*(note for note, holds in notes.items() if holds))


def _choose(
    columns: list[str], party: str, label: str, features: list[str] | None, exclude: list[str] | None
) -> list[str]:
    """The columns to predict from."""
    for c in columns:
        if columns.count(c) > 1:
            raise InputError(f"two columns are named {c!r}: give each a name of its own")
    options = {"party": [party], "label": [label], "features": features or [], "exclude": exclude or []}
    for option, wanted in options.items():
        for c in wanted:
            if c not in columns:
                raise InputError(f"{option} names the column {c!r}, which the table does not have: its "
                                 f"columns are {', '.join(map(repr, columns))}{nearest(str(c), columns)}")
    roles = [party, label, *options["features"], *set(options["exclude"]).difference((party, label))]
    for c in roles:
        if roles.count(c) > 1:
            found = [option for option in options if c in options[option]]
            raise InputError(f"the column {c!r} is named twice, as {' and '.join(found)}: name it once")
    others = [c for c in columns if c not in (party, label, *options["exclude"])]
    if not (others if features is None else features):
        raise InputError("no column is left to predict from: name some in features, or exclude fewer")
    for c in others if features is None else ():
        if c.startswith("Unnamed: "):
            raise InputError(f"column {columns.index(c) + 1} has no name (often it is the row's number): "
                             f"exclude {c!r}, or give it a name")
    return others if features is None else features


def _empty(column: "pd.Series[Any]") -> NDArray[np.bool_]:
    """Where a column has no value: NaN, None, or text of blanks only."""
    blank = [isinstance(v, str) and not v.strip() for v in column]
    return np.array(blank, bool) | column.isna().to_numpy(bool)


def _feature(name: str, column: "pd.Series[Any]") -> NDArray[Any]:
    """A feature as floats, or as objects that are text; NaN where it is missing."""
    import pandas as pd
    from pandas.api import types

    empty = _empty(column)
    category = isinstance(column.dtype, pd.CategoricalDtype)
    kind = types.infer_dtype(column.cat.categories if category else column[~empty], skipna=True)
    if not category and kind in ("boolean", "integer", "empty", *_DECIMAL):
        values = np.full(len(column), np.nan)
        values[~empty] = column[~empty].to_numpy(dtype=float)
        return values
    texts = column.to_numpy(dtype=object, copy=True)
    texts[empty] = np.nan
    texts[~empty] = [str(v) for v in texts[~empty]]
    distinct = sorted(set(texts[~empty]))
    if kind in _TIME or (distinct and not category and all(map(_DATE.fullmatch, distinct))):
        raise InputError(f"column {name!r} holds dates or times, which are neither numbers nor categories: "
                         "exclude it, or put a number in its place (such as the days since a date)")
    if kind != "string" and not category:
        raise InputError(f"column {name!r} holds {kind} values ({column.dtype}), and a feature must be all "
                         "numbers, all true/false or all text: convert it, or exclude it")
    if len(distinct) > MAX_CATEGORIES:
        odd = [v for v in distinct if pd.isna(pd.to_numeric(v, errors="coerce"))]
        hint = f", most of them numbers but {odd[0]!r} not" if 0 < 2 * len(odd) < len(distinct) else ""
        raise InputError(f"column {name!r} has {len(distinct)} different values{hint}, each to become a "
                         f"column (at most {MAX_CATEGORIES}): exclude it, or group or correct its values")
    return texts


def _targets(name: str, column: "pd.Series[Any]", task: AnyTask) -> tuple[NDArray[Any], Task]:
    """The labels as an array, and the task."""
    import pandas as pd
    from pandas.api import types

    category = isinstance(column.dtype, pd.CategoricalDtype)
    kind = types.infer_dtype(column.cat.categories if category else column, skipna=True)
    if kind not in ("boolean", "integer", "string", *_DECIMAL):
        raise InputError(f"the label {name!r} holds {kind} values ({column.dtype}): it must be all numbers, "
                         "all true/false or all text; convert it, or name another label")
    if task == "regression" or (task == "auto" and kind in _DECIMAL and not category):
        if kind in ("boolean", "string"):
            raise InputError(f"the label {name!r} holds {kind} values: set task: classification, or name "
                             "another label for regression, which needs numbers")
        return column.to_numpy(dtype=float), "regression"
    values = np.array(column.tolist(), str if kind == "string" else None)
    classes = np.unique(values)
    if len(classes) == 1:
        raise InputError(f"the label {name!r} has only one class, {str(classes[0])!r}, so there is nothing "
                         "to learn: name another label, or add rows of another class")
    if task == "auto" and len(classes) > max(MAX_CATEGORIES, len(values) / 5):
        other = "" if kind == "string" else "task: regression if it is a quantity, or "
        raise InputError(f"the label {name!r} has {len(classes)} different values in {len(values)} rows, too "
                         f"many to be classes unasked: set {other}task: classification if each is a class")
    return values, "classification"


def _read_text(path: Path, separator: str, party: str) -> "pd.DataFrame":
    """A text file as a frame whose index holds the line on which each row begins."""
    import pandas as pd

    data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    frame = pd.read_csv(io.BytesIO(data), sep=separator, dtype={party: str}, low_memory=False)
    header = next(_records(data, separator))[1]
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(f"{path.name!r} has rows with more values than the header's {len(header)} names: "
                         "name every column, or remove the last separator of each row")
    lines: Sequence[int] = range(2, len(frame) + 2)
    if data.count(b"\n") + (not data.endswith(b"\n")) != len(frame) + 1 or frame.iloc[:, -1].isna().any():
        records = list(_records(data, separator))[1:]
        lines = [line for line, _ in records]
        for line, fields in records:
            if len(fields) < len(header):
                raise InputError(f"{path.name!r}, row {line} is cut off, with {len(fields)} values for "
                                 f"{len(header)} columns: complete it, or leave it out")
    named = [h or c for h, c in zip(header, frame.columns, strict=True)]  # pandas renames one of two equals
    return frame.set_axis(named, axis=1).set_axis(pd.Index(lines), axis=0)


def _records(data: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a text file, blank lines left out, each with the line on which it begins."""
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), delimiter=separator)
    begin = 1
    for fields in reader:
        if len(fields) > 1 or "".join(fields).strip():
            yield begin, fields
        begin = reader.line_num + 1


def _natural(name: str) -> tuple[list[str | int], str]:
    """The order in which a person would put names: ``site 2`` before ``site 10``."""
    return [int(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)], name
