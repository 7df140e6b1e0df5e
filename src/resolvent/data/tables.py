"""Data from a table: a CSV or Parquet file, or a frame. One column names the party, one holds the label.

`columns` reads the columns, `encoding` turns them into inputs, and `text_tables` reads text files with the line of each
row, for errors.
"""

import csv
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import Columns, RowNames, check_magnitudes, is_empty, read_feature, read_label
from resolvent.data.encoding import LabelEncoding, Missing, Scale, TableEncoding, check_missing, missing_values
from resolvent.data.federated import FederatedData
from resolvent.data.text_tables import read_text_table
from resolvent.errors import InputError, nearest, shorten

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["from_frame", "table"]

AnyTask = Literal["auto", "classification", "regression"]
_SEPARATOR = {".csv": ",", ".csv.gz": ",", ".tsv": "\t"}


def table(
    table: str, party: str, label: str, *, features: list[str] | None = None,
    exclude: list[str] | None = None, task: AnyTask = "auto", missing: Missing = "refuse",
    scale: Scale = "standard", validation: float = 0.2, test: float = 0.2, seed: int = 0,
) -> FederatedData:
    """Data from a file with a row per sample, a column that names the party and one that holds the label.

    `from_frame` says how the columns become inputs. In errors about a text file, the row is the line on which it
    begins, and the header is line 1; for Parquet it is the index label of the frame that pandas reads.

    Args:
        table: path of a ``.csv``, ``.csv.gz`` or ``.tsv`` (in UTF-8) or a ``.parquet`` file.
        party: the column that names the party. In a text file it is read as text, so that ``007`` is not ``7``.
        label: the column to predict.
        features: the columns to predict from, in this order; default: all but ``party`` and ``label``.
        exclude: columns to leave out.
        task: ``classification``, ``regression``, or ``auto``: regression if the label is a decimal number,
            classification if it is an integer, true/false, text or a category.
        missing: what to do if a feature is empty, NaN, None or blank text: ``refuse`` it; ``impute`` the median of
            the numbers or the most frequent category; or impute it and ``indicate`` it in a 0/1 column. A missing party
            or label is always refused.
        scale: ``standard`` gives numbers mean 0 and deviation 1 over the training rows; ``none`` does not.
        validation: share of each party's rows for validation.
        test: share of each party's rows for testing.
        seed: of the split.

    Raises:
        InputError: the file does not exist, cannot be read or is cut off; or what `from_frame` raises.
    """
    import pandas as pd
    import pyarrow as pa

    path = Path(table).expanduser()
    ending = next((s for s in (*_SEPARATOR, ".parquet") if path.name.lower().endswith(s)), None)
    if ending is None:
        raise InputError(f"{table!r} cannot be read: name a .csv, .csv.gz, .tsv or .parquet file")
    if not path.is_file():
        similar = nearest(path.name, [p.name for p in path.parent.glob("*") if p.is_file()])
        raise InputError(f"there is no file {str(path.absolute())!r}: name an existing one{similar}")
    try:
        frame = (pd.read_parquet(path) if ending == ".parquet"
                 else read_text_table(path, _SEPARATOR[ending], party))
    except InputError:
        raise
    except (OSError, EOFError, ValueError, csv.Error, zlib.error, pa.ArrowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"{table!r} cannot be read as {ending}: {shorten(reason)}. It may be cut off, or in another "
                         "format than its name says: write or download it again, text in UTF-8") from error
    return from_frame(frame, party, label, features=features, exclude=exclude, task=task, missing=missing,
                      scale=scale, validation=validation, test=test, seed=seed, name=path.name[: -len(ending)])


def from_frame(
    frame: "pd.DataFrame", party: str, label: str, *, features: list[str] | None = None,
    exclude: list[str] | None = None, task: AnyTask = "auto", missing: Missing = "refuse",
    scale: Scale = "standard", validation: float = 0.2, test: float = 0.2, seed: int = 0, name: str = "table",
) -> FederatedData:
    """Data from a frame with a row per sample, a column that names the party and one that holds the label.

    Columns of numbers or true/false are imputed and scaled; columns of text or pandas' category type become
    one 0/1 column ``column=value`` per value, in sorted order. The inputs, 32-bit floats, are the numbers, then the
    categories, then the marks ``column missing``. Notes say what was imputed, encoded and scaled, and the data's
    ``encoding`` can be applied to new rows. Medians, most frequent values, means and deviations are those of the
    pooled training rows; a real federation would need to agree on them. Parties are in the natural order of their
    names (``site 2`` before ``site 10``), whatever the order of the rows.

    Args:
        frame: the table; it is not changed. The other arguments are those of `table`.
        name: the name of the data set, for reports.

    Raises:
        InputError: a column or value cannot be used. The message names the party, the row (its index label) and the
            column.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"site": list("aabb"), "age": [30, 41, 52, 60], "ill": ["no", "yes", "no", "yes"]})
        >>> data = from_frame(frame, "site", "ill", validation=0, test=0)
        >>> data.parties, data.classes, data.features
        (('a', 'b'), ('no', 'yes'), ('age',))
    """
    for option, (value, allowed) in {"task": (task, AnyTask), "missing": (missing, Missing),
                                     "scale": (scale, Scale)}.items():
        if value not in get_args(allowed):
            raise InputError(f"{option}={shorten(repr(value))} is not known: use one of {', '.join(get_args(allowed))}")
    frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
    chosen = _choose_columns(list(frame.columns), party, label, features, exclude)
    if not len(frame):
        raise InputError(f"the table {name!r} has no rows: give one row per sample")
    owners = _read_parties(frame, party)
    rows = RowNames(frame.index, owners)
    rows.refuse(is_empty(frame[label])[:, None], [label],
                "the label is missing: a sample cannot be used without it; fill it in, or leave the row out")
    columns = {c: read_feature(c, frame[c]) for c in chosen}
    target = read_label(label, frame[label], task)
    check_magnitudes([*columns.items(), (label, target.values)], rows)
    if missing == "refuse":
        check_missing(columns, rows)
    # Row numbers are split first: the encoding is fitted to the training rows.
    parties, members = _group_rows(owners)
    data = FederatedData.from_arrays(members, [target.values[m] for m in members], parties=parties, task=target.task,
                                     validation=validation, test=test, seed=seed, name=name)
    train = np.concatenate([data.party(k)[0] for k in range(len(data))])
    encoding = TableEncoding.fit(columns, train, party=party, missing=missing, scale=scale,
                                 label=LabelEncoding(label, target.kind, data.task, data.classes))
    data = replace(data, x=encoding.encode(columns, rows)[data.x], features=encoding.features, encoding=encoding)
    return data.with_notes(*_notes(columns, encoding, scale))


def _choose_columns(
    columns: list[str], party: str, label: str, features: list[str] | None, exclude: list[str] | None
) -> list[str]:
    """The columns to predict from."""
    for c in columns:
        if columns.count(c) > 1:
            raise InputError(f"two columns are named {shorten(repr(c))}: give each a different name")
    options = {"party": [party], "label": [label], "features": features or [], "exclude": exclude or []}
    for option, names in options.items():
        for c in names:
            if c not in columns:
                raise InputError(f"{option} names the column {shorten(repr(c))}, which the table does not have: its "
                                 f"columns are {shorten(', '.join(map(repr, columns)))}{nearest(str(c), columns)}")
    used = [party, label, *options["features"], *set(options["exclude"]).difference((party, label))]
    for c in used:
        if used.count(c) > 1:
            uses = [option for option in options if c in options[option]]
            raise InputError(f"the column {shorten(repr(c))} is named twice, as {' and '.join(uses)}: name it once")
    if features:
        return features
    chosen = [] if features is not None else [c for c in columns if c not in (party, label, *options["exclude"])]
    if not chosen:
        raise InputError("no column is left to predict from: name some in features, or exclude fewer")
    for c in chosen:
        if c.startswith("Unnamed: "):
            raise InputError(f"column {columns.index(c) + 1} has no name (often it is the row's number): "
                             f"exclude {shorten(repr(c))}, or give it a name")
    return chosen


def _read_parties(frame: "pd.DataFrame", party: str) -> NDArray[np.object_]:
    """[n] the name of each row's party."""
    RowNames(frame.index).refuse(is_empty(frame[party])[:, None], [party], "the party is missing, and every sample "
                                 "needs one: fill it in, or leave the row out")
    return frame[party].astype(str).to_numpy(dtype=object)


def _group_rows(owners: NDArray[np.object_]) -> tuple[list[str], Sequence[NDArray[np.intp]]]:
    """The parties' names in natural order, and the rows of each party, from the name of each row's party."""
    import pandas as pd

    parties = sorted(set(owners), key=_natural_order)
    numbers = pd.Categorical(owners, categories=parties).codes
    return parties, np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])


def _natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key by which numbers in names are compared as numbers: ``site 2`` before ``site 10``."""
    return [int(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)], name


def _notes(columns: Columns, encoding: TableEncoding, scale: Scale) -> list[str]:
    gaps = missing_values(columns)
    notes = []
    if gaps:
        notes.append(f"missing values imputed from the pooled training rows: {sum(g.sum() for g in gaps.values())} "
                     f"(columns: {len(gaps)})")
    if encoding.categories:
        notes.append(f"columns one-hot encoded: {len(encoding.categories)} "
                     f"(as 0/1 columns: {sum(len(c.levels) for c in encoding.categories)})")
    if encoding.numbers and scale != "none":
        notes.append("numbers scaled to mean 0 and deviation 1 over the pooled training rows")
    return notes
