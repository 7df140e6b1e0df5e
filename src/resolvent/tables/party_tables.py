"""Data from a table: a CSV or Parquet file, or a frame. One column names the party, one holds the label.

`columns` reads the columns, `encoding` turns them into inputs, and `table_files` reads files.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.encoded_rows import RowNames
from resolvent.data.federated import FederatedData
from resolvent.data.samples import check_encodable
from resolvent.errors import InputError, nearest, shorten
from resolvent.tables.column_encodings import (
    Scale,
    is_missing,
    label_encoding,
    looks_like_identifier,
    task_of_labels,
)
from resolvent.tables.columns import (
    MAX_CATEGORIES,
    Columns,
    check_magnitudes,
    excluding,
    is_boolean,
    is_empty,
    is_text,
    read_feature,
    read_features,
    read_label,
    read_parties,
)
from resolvent.tables.dates import Dates, expand_dates, find_dates, replace_dates
from resolvent.tables.encoding import Missing, TableEncoding, UnencodedColumns, Unseen, check_missing, missing_values
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_settings import label_names
from resolvent.tables.text_formats import Decimal, TextFormat

__all__ = ["from_frame", "table"]

if TYPE_CHECKING:
    import pandas as pd

AnyTask = Literal["auto", "classification", "regression"]
Rare = Literal["keep", "other"]


@checked
def table(
    table: str, party: str, label: str | list[str], *, features: list[str] | None = None,
    exclude: list[str] | None = None, task: AnyTask = "auto", missing: Missing = "refuse",
    scale: Scale = "standard", validation: float = 0.2, test: float = 0.2, seed: int = 0,
    separator: str = "auto", decimal: Decimal = "auto", encoding: str = "auto", weight: str | None = None,
    dates: Dates = "refuse", rare: Rare = "keep", rare_count: int = 10, unseen: Unseen = "refuse",
    levels: dict[str, list[str]] | None = None,
) -> FederatedData:
    """Data from a file with a row per sample, a column that names the party and one that holds the label.

    `from_frame` says how the columns become inputs. In errors about a text file, the row is the line on which it
    begins, and the header is line 1; for Parquet it is the index label of the frame that pandas reads.

    Args:
        table: path of a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file.
        party: the column that names the party. In a text file it is read as text, so that ``007`` is not ``7``.
        label: the column to predict; or several, which are all numbers, for regression, or have two values each.
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
        seed: seed of the split.
        separator: the character between two values in a text file. ``auto``: a comma (in ``.tsv`` a tab), or the one of
            comma, semicolon, tab and ``|`` that gives a header with the columns ``party`` and ``label``.
        decimal: the decimal mark of numbers in a text file. ``auto``: a point; or a comma if values are not separated
            by commas, numbers have commas that cannot separate thousands, and none has a point.
        encoding: encoding of a text file. ``auto``: UTF-8, or what the file's byte-order mark says.
        weight: a column of numbers, the weight of each row in the loss, as if the row occurred this many times.
            Predictions do not use it, and scores count every row once.
        dates: what to do with a column of dates: ``refuse`` it; replace it by a number, the ``days`` since 1970-01-01;
            or by its ``parts``: year, month and weekday.
        rare: what to do with the rare levels of a column of text: ``keep`` them, or join them in the level ``other``.
            At most 100 levels may be left.
        rare_count: a level is rare if it has fewer rows.
        unseen: what a model does with levels of new rows that the table does not have: ``refuse`` the rows; take them
            for the level ``other``, or for no level if nothing was joined; or take them for ``missing`` values.
        levels: column of text -> its levels, or the label -> its classes, so that none is read from the rows. Rows with
            another level have none, that is, zeros in the inputs of the column; another class is refused.

    Raises:
        InputError: the file does not exist, cannot be read or is cut off; its format is not clear, in which case the
            message names the setting that decides; or what `from_frame` raises.

    Example:
        >>> data = rv.datasets.table("hospitals.csv", party="hospital", label="readmitted")  # doctest: +SKIP
    """
    excluded, chosen = set(map(str, exclude or [])), None if features is None else set(map(str, features))
    labels = label_names(label)

    def is_used(column: str) -> bool:
        is_feature = column not in excluded if chosen is None else column in chosen
        return column in (*labels, weight) or (column != party and is_feature)

    frame, name = read_table_file(table, TextFormat(separator, decimal, encoding), (party, *labels), (party,), is_used)
    return from_frame(frame, party, label, features=features, exclude=exclude, task=task, missing=missing,
                      scale=scale, validation=validation, test=test, seed=seed, name=name, weight=weight,
                      dates=dates, rare=rare, rare_count=rare_count, unseen=unseen, levels=levels)


def from_frame(
    frame: "pd.DataFrame", party: str, label: str | list[str], *, features: list[str] | None = None,
    exclude: list[str] | None = None, task: AnyTask = "auto", missing: Missing = "refuse",
    scale: Scale = "standard", validation: float = 0.2, test: float = 0.2, seed: int = 0, name: str = "table",
    encoding: TableEncoding | None = None, weight: str | None = None, dates: Dates = "refuse", rare: Rare = "keep",
    rare_count: int = 10, unseen: Unseen = "refuse", levels: dict[str, list[str]] | None = None,
) -> FederatedData:
    """Data from a frame with a row per sample, a column that names the party and one that holds the label.

    Columns of numbers or true/false are imputed and scaled; columns of text or pandas' category type become
    one 0/1 column ``column=value`` per value, in sorted order. The inputs, 32-bit floats, are the numbers, then the
    categories, then the marks ``column missing``. Notes say what was imputed, encoded and scaled, and which columns
    look like identifiers. The data's ``encoding`` can be applied to new rows. Medians, most frequent values, means and
    deviations are those of the pooled training rows; a real federation would need to agree on them. Parties are in the
    natural order of their names (``site 2`` before ``site 10``), whatever the order of the rows.

    Args:
        frame: the table; it is not changed. The other arguments are those of `table`.
        name: the name of the data set, for reports.
        encoding: a fitted encoding, such as the ``encoding`` of other data, which is applied to the rows; nothing is
            estimated from them. It determines the features, the task and what is done with missing values, so these
            options must be left out. Notes say how the rows differ from those that it was fitted to. None: an encoding
            is fitted.

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
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"the table is a {type(frame).__name__}, and a pandas.DataFrame is needed: convert it")
    for option, (value, allowed) in {"task": (task, AnyTask), "missing": (missing, Missing),
                                     "scale": (scale, Scale), "dates": (dates, Dates), "rare": (rare, Rare),
                                     "unseen": (unseen, Unseen)}.items():
        if value not in get_args(allowed):
            raise InputError(f"{option}={shorten(repr(value))} is not known: use one of {', '.join(get_args(allowed))}")
    if encoding is not None:
        for option, changed in {"features": features, "exclude": exclude, "task": task != "auto",
                                "missing": missing != "refuse", "scale": scale != "standard",
                                "dates": dates != "refuse", "rare": rare != "keep", "unseen": unseen != "refuse",
                                "levels": levels}.items():
            if changed:
                raise InputError(f"{option}: the encoding determines it: leave it out")
        return _encoded(frame, party, label_names(label), encoding, validation, test, seed, name, weight)
    if unseen == "missing" and missing == "refuse":
        raise InputError("unseen: missing needs missing: impute or indicate, because missing values are refused")
    if levels and rare == "other":
        raise InputError("levels: list the levels, or join the rare ones with rare: other, not both")
    if rare_count < 1:
        raise InputError(f"rare_count={rare_count} must be at least 1")
    names = [str(c) for c in frame.columns]
    frame = frame.set_axis(pd.Index(names, dtype=object), axis=1)
    labels = label_names(label)
    chosen = choose_columns(names, party, labels, features, exclude, weight)
    if not len(frame):
        raise InputError(f"the table {shorten(repr(name))} has no rows: give one row per sample")
    owners = _read_parties(frame, party)
    rows = RowNames(frame.index, owners)
    rows.refuse(np.column_stack([is_empty(frame[name]) for name in labels]), labels,
                "the label is missing: a sample cannot be used without it; fill it in, or leave the row out")
    date_columns = find_dates(frame, chosen, dates)
    frame, chosen = expand_dates(frame, date_columns, rows), replace_dates(chosen, date_columns)
    columns = read_features(frame, chosen, max_levels=MAX_CATEGORIES if rare == "keep" else None)
    targets = [read_label(name, frame[name], task) for name in labels]
    check_magnitudes([*columns.items(), *zip(labels, (target.values for target in targets), strict=True)], rows)
    if missing == "refuse":
        check_missing(columns, rows, "set missing: impute, or indicate to mark them as well, or exclude the column")
    # Row numbers are split first: the encoding is fitted to the training rows.
    parties, members = _group_rows(owners)
    listed = dict(levels or {})
    encodings = [label_encoding(name, target, listed.pop(name, None))
                 for name, target in zip(labels, targets, strict=True)]
    y = (targets[0].values if len(labels) == 1 else
         np.stack([encoding.encode(frame[encoding.name], rows) for encoding in encodings], axis=1))
    label_task = task_of_labels(encodings)
    classes = encodings[0].classes if label_task == "classification" else None
    data = FederatedData.from_arrays(members, [y[m] for m in members], parties=parties, task=label_task,
                                     classes=classes, validation=validation, test=test, seed=seed, name=name)
    fit = partial(TableEncoding.fit, party=party, missing=missing, scale=scale, labels=encodings,
                  booleans=_booleans(frame, chosen), rare_count=rare_count if rare == "other" else 0,
                  dates=date_columns, unseen=unseen, levels=listed)
    unencoded = UnencodedColumns(columns, rows, data.x, fit)
    x, encoding = unencoded.encode(data.is_train)
    for feature in encoding.features:
        check_encodable(feature, "the name of an input")
    data = replace(_weighted(data, frame, weight), x=x, features=encoding.features, encoding=encoding,
                   unencoded=unencoded)
    return data.with_notes(*_notes(columns, encoding, scale), *_identifier_notes(columns, features is not None))


def _booleans(frame: "pd.DataFrame", names: list[str]) -> frozenset[str]:
    """The columns among these that hold true/false; those of numbers are recognised by their type alone."""
    chosen = set(names)
    return frozenset(c for c, dtype in zip(frame.columns, frame.dtypes, strict=True) if c in chosen
                     and (dtype.kind == "b" if isinstance(dtype, np.dtype) and dtype.kind in "biuf" else
                          is_boolean(frame[c])))


def _encoded(frame: "pd.DataFrame", party: str, labels: Sequence[str], encoding: TableEncoding, validation: float,
             test: float, seed: int, name: str, weight: str | None) -> FederatedData:
    """Data from a frame by a fitted encoding; nothing is estimated from the rows."""
    import pandas as pd

    names = [str(c) for c in frame.columns]
    frame = frame.set_axis(pd.Index(names, dtype=object), axis=1)
    choose_columns(names, party, labels, [c.name for c in encoding.columns if c.name in names] or None, None, weight)
    owners = _read_parties(frame, party)
    if len(labels) != len(encoding.labels):
        raise InputError(f"label: the encoding has {len(encoding.labels)} labels, and there are {len(labels)}: name as "
                         "many")
    renamed = [replace(old, name=name) for old, name in zip(encoding.labels, labels, strict=True)]
    encoding = replace(encoding, party=party, label=renamed[0], more_labels=tuple(renamed[1:]))
    encoded, y = encoding.encode(frame), encoding.encode_labels(frame)
    parties, members = _group_rows(owners)
    data = FederatedData.from_arrays(members, [y[m] for m in members], parties=parties, task=encoding.task,
                                     validation=validation, test=test, seed=seed, name=name)
    labels = y[data.x] if encoding.task == "classification" else data.y
    data = replace(_weighted(data, frame, weight), x=encoded.x[data.x], y=labels, classes=encoding.classes,
                   features=encoding.features, encoding=encoding)
    return data.with_notes("The inputs are made by a fitted encoding", *encoded.remarks.messages())


def choose_columns(
    columns: list[str], party: str, labels: Sequence[str], features: list[str] | None, exclude: list[str] | None,
    weight: str | None
) -> list[str]:
    """The columns to predict from."""
    for mistake in column_mistakes(columns, party, labels, features, exclude, weight):
        raise InputError(mistake)
    return remaining_columns(columns, party, labels, features, exclude, weight)


def remaining_columns(columns: Sequence[str], party: str | None, labels: Sequence[str], features: Sequence[str] | None,
                      exclude: Sequence[str] | None, weight: str | None) -> list[str]:
    """The features if they are named, otherwise the columns that have no other use."""
    if features:
        return list(features)
    used = {party, *labels, weight, *(exclude or [])}
    return [] if features is not None else [c for c in columns if c not in used]


def column_mistakes(columns: Sequence[str], party: str | None, labels: Sequence[str], features: Sequence[str] | None,
                    exclude: Sequence[str] | None, weight: str | None) -> Iterator[str]:
    """A sentence for each setting or name of a column that is wrong; ``party`` is None for the table of one party."""
    for c, count in Counter(columns).items():
        if count > 1:
            yield f"two columns are named {shorten(repr(c))}: give each a different name"
        check_encodable(c, "the name of a column")
    options = {"party": [] if party is None else [party], "label": labels, "features": features or [],
               "exclude": exclude or [], "weight": [] if weight is None else [weight]}
    known = set(columns)
    for option, names in options.items():
        for c in names:
            if c not in known:
                yield (f"{option} names the column {shorten(repr(c))}, which the table does not have: its columns are "
                       f"{shorten(', '.join(map(repr, columns)))}{nearest(str(c), columns)}")
    used = [*options["party"], *labels, *options["weight"], *options["features"],
            *set(options["exclude"]).difference((party, *labels))]
    for c, count in Counter(used).items():
        if count > 1:
            uses = [option for option in options if c in options[option]]
            yield f"the column {shorten(repr(c))} is named twice, as {' and '.join(uses)}: name it once"
    if features:
        return
    chosen = remaining_columns(columns, party, labels, features, exclude, weight)
    if not chosen:
        yield "no column is left to predict from: name some in features, or exclude fewer"
    for c in chosen:
        if c.startswith("Unnamed: "):
            yield (f"column {columns.index(c) + 1} has no name (often it is the row's number): "
                   f"exclude {shorten(repr(c))}, or give it a name")


def _weighted(data: FederatedData, frame: "pd.DataFrame", weight: str | None) -> FederatedData:
    """Data whose inputs are row numbers of a frame, with the weights of a column of the frame."""
    if weight is None:
        return data
    values = read_feature(weight, frame[weight])
    if is_text(values):
        raise InputError(f"weight: the column {shorten(repr(weight))} has text: name a column of numbers")
    RowNames(frame.index).refuse(~(np.isfinite(values) & (values >= 0))[:, None], [weight],
                                 "the weight must be a number that is not negative: correct it, or leave the row out")
    return data.with_weights(values[data.x])


def _read_parties(frame: "pd.DataFrame", party: str) -> NDArray[np.object_]:
    """[n] the name of each row's party."""
    RowNames(frame.index).refuse(is_empty(frame[party])[:, None], [party], "the party is missing, and every sample "
                                 "needs one: fill it in, or leave the row out")
    return read_parties(frame[party])


def _group_rows(owners: NDArray[np.object_]) -> tuple[list[str], Sequence[NDArray[np.intp]]]:
    """The parties' names in natural order, and the rows of each party, from the name of each row's party."""
    import pandas as pd

    parties = sorted(set(owners), key=natural_order)
    numbers = pd.Categorical(owners, categories=parties).codes
    return parties, np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])


def natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key by which numbers in names are compared as numbers: ``site 2`` before ``site 10``."""
    return [int(part) if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", name)], name


def _identifier_notes(columns: Columns, is_chosen: bool) -> list[str]:
    """A note for each feature of whole numbers or text that has another value in every row, as identifiers have."""
    notes = []
    for name, values in columns.items():
        if looks_like_identifier(values):
            present = values[~is_missing(values)]
            kind = "texts" if is_text(present) else "whole numbers"
            title = shorten(repr(name))
            advice = "remove it from features" if is_chosen else f"leave it out with {excluding(name)}"
            notes.append(f"Column {title} looks like an identifier, because its {len(present)} values are {kind} that "
                         f"all differ: if it is one, {advice}")
    return notes


def _notes(columns: Columns, encoding: TableEncoding, scale: Scale) -> list[str]:
    gaps = missing_values(columns)
    notes = []
    if gaps:
        notes.append("Missing values are imputed from the pooled training rows "
                     f"(values: {sum(g.sum() for g in gaps.values())}, columns: {len(gaps)})")
    if encoding.categories:
        notes.append(f"Columns of text are one-hot encoded (columns: {len(encoding.categories)}, "
                     f"0/1 inputs: {sum(len(c.levels) for c in encoding.categories)})")
    if encoding.numbers and scale != "none":
        notes.append("Numbers are scaled to mean 0 and deviation 1 over the pooled training rows")
    return notes
