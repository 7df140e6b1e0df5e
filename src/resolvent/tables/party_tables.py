"""Data from a table: a CSV or Parquet file, or a frame. One column names the party, one holds the label.

`columns` reads the columns, `encoding` turns them into inputs, and `table_files` reads files.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import with_options
from resolvent.data.encoded_rows import RowNames
from resolvent.data.federated import FederatedData, split_rows
from resolvent.data.samples import check_name
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.tables.cells import duplicate_names, read_cells, with_unique_names
from resolvent.tables.checks.units import refuse_other_units, spread_of
from resolvent.tables.column_encodings import is_missing, label_encoding, looks_like_identifier
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
)
from resolvent.tables.dates import expand_dates, find_dates, replace_dates
from resolvent.tables.encoding import TableEncoding, UnencodedColumns, check_missing, label_values, missing_values
from resolvent.tables.owners import group_rows, read_owners
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_options import FileOptions, Scale, TableOptions

__all__ = ["from_frame", "table"]

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class FrameOptions(TableOptions):
    """The options of a table in a data frame.

    Attributes:
        name: the name of the data set, for reports.
        encoding: a fitted encoding, such as the ``encoding`` of other data, which is applied to the rows; nothing is
            estimated from them. It determines the features, the task and what is done with missing values, so these
            options must be left out. Notes say how the rows differ from those that it was fitted to. None: an encoding
            is fitted.
    """

    name: str = "table"
    encoding: TableEncoding | None = None
    given: frozenset[str] = frozenset()  # the names of the options that the caller has set, see ``with_options``

    def __post_init__(self) -> None:
        free = {"party", "label", "validation", "test", "seed", "weight", "name", "encoding"}
        if self.encoding is not None and (fixed := sorted(self.given - free)):
            raise InputError(f"{fixed[0]}: the encoding determines it: leave it out")
        super().__post_init__()


@with_options(FileOptions)
def table(table: str, options: FileOptions) -> FederatedData:
    """Data from a file with a row per sample, a column that names the party and one that holds the label.

    `from_frame` says how the columns become inputs. In errors about a text file, the row is the line on which it
    begins, and the header is line 1; for Parquet it is the index label of the frame that pandas reads.

    Args:
        table: path of a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file.

    Raises:
        InputError: the file does not exist, cannot be read or is cut off; its format is not clear, in which case the
            message names the setting that decides; or what `from_frame` raises.

    Example:
        >>> data = rv.datasets.table("hospitals.csv", party="hospital", label="readmitted")  # doctest: +SKIP
    """
    frame, name = read_table_file(table, options.format, (options.party, *options.labels), options.cells, options.uses)
    return _data_from(frame, options, name)


@with_options(FrameOptions)
def from_frame(frame: "pd.DataFrame", options: FrameOptions) -> FederatedData:
    """Data from a frame with a row per sample, a column that names the party and one that holds the label.

    Columns of numbers or true/false are imputed and scaled; columns of text or pandas' category type become
    one 0/1 column ``column=value`` per value, in sorted order. The inputs, 32-bit floats, are the numbers, then the
    categories, then the marks ``column missing``. Notes say what was imputed, encoded and scaled, and which columns
    look like identifiers. The data's ``encoding`` can be applied to new rows. Medians, most frequent values, means and
    deviations are those of the pooled training rows; a real federation would need to agree on them. Parties are in the
    natural order of their names (``site 2`` before ``site 10``), whatever the order of the rows.

    Args:
        frame: the table; it is not changed.

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
    if options.encoding is not None:
        return _encoded(frame, options, options.encoding)
    return _data_from(frame, options, options.name)


def _data_from(frame: "pd.DataFrame", options: TableOptions, name: str) -> FederatedData:
    """Data from a frame, by an encoding that is fitted to its training rows."""
    frame, labels = with_unique_names(frame), options.labels
    chosen = choose_columns([*frame.columns], options)
    if not len(frame):
        raise InputError(f"the table {quote(name)} has no rows: give one row per sample")
    weight = [] if options.weight is None else [options.weight]
    frame = read_cells(frame, [options.party, *labels, *weight, *chosen], options.cells)
    owners = read_owners(frame, options.party)
    rows = RowNames(frame.index, owners)
    rows.refuse(np.column_stack([is_empty(frame[label]) for label in labels]), labels,
                "the label is missing: a sample cannot be used without it; fill it in, or leave the row out")
    date_columns = find_dates(frame, chosen, options.dates)
    frame, chosen = expand_dates(frame, date_columns, rows), replace_dates(chosen, date_columns)
    columns = read_features(frame, chosen, max_levels=MAX_CATEGORIES if options.rare == "keep" else None)
    targets = [read_label(label, frame[label], options.task) for label in labels]
    check_magnitudes([*columns.items(), *zip(labels, (target.values for target in targets), strict=True)], rows)
    if options.treatment == "refuse":
        check_missing(columns, rows, "set missing: impute, or indicate to mark them as well, or exclude the column")
    listed = options.levels or {}
    encodings = tuple(label_encoding(label, target, listed.get(label))
                      for label, target in zip(labels, targets, strict=True))
    parties, members = group_rows(owners)
    if len(labels) == 1 and targets[0].task == "regression":
        refuse_other_units(labels[0], {party: spread_of(targets[0].values[rows])
                                       for party, rows in zip(parties, members, strict=True)})
    order, splits = split_rows(members, validation=options.validation, test=options.test, seed=options.seed)
    fit = partial(TableEncoding.fit, options=options, labels=encodings, booleans=_booleans(frame, chosen),
                  dates=date_columns)
    unencoded = UnencodedColumns(columns, rows, order, fit)
    x, encoding = unencoded.encode(splits["train"].rows)
    for feature in encoding.features:
        check_name(feature, "the name of an input")
    y = label_values(encodings, frame, rows)[order]
    data = FederatedData(x, y, splits, parties, encoding.task, encoding.classes, encoding.features, name,
                         encoding=encoding, unencoded=unencoded)
    data = _weighted(data, frame, options.weight, order)
    return data.with_notes(*_notes(columns, encoding, options.scale),
                           *_identifier_notes(columns, options.features is not None))


def _booleans(frame: "pd.DataFrame", names: list[str]) -> frozenset[str]:
    """The columns among these that hold true/false; those of numbers are recognised by their type alone."""
    chosen = set(names)
    return frozenset(c for c, dtype in zip(frame.columns, frame.dtypes, strict=True) if c in chosen
                     and (dtype.kind == "b" if isinstance(dtype, np.dtype) and dtype.kind in "biuf" else
                          is_boolean(frame[c])))


def _encoded(frame: "pd.DataFrame", options: FrameOptions, encoding: TableEncoding) -> FederatedData:
    """Data from a frame by a fitted encoding; nothing is estimated from the rows."""
    frame, labels = with_unique_names(frame), options.labels
    features = [c.name for c in encoding.columns if c.name in frame.columns] or None
    choose_columns([*frame.columns], replace(options, features=features))
    frame = read_cells(frame, [options.party], options.cells)
    owners = read_owners(frame, options.party)
    if len(labels) != len(encoding.labels):
        raise InputError(f"label: the encoding has {len(encoding.labels)} labels, and there are {len(labels)}: name as "
                         "many")
    encoding = replace(encoding, party=options.party, labels=tuple(
        replace(old, name=name) for old, name in zip(encoding.labels, labels, strict=True)))
    encoded, y = encoding.encode(frame), encoding.encode_labels(frame)
    parties, members = group_rows(owners)
    order, splits = split_rows(members, validation=options.validation, test=options.test, seed=options.seed)
    data = FederatedData(encoded.x[order], y[order], splits, parties, encoding.task, encoding.classes,
                         encoding.features, options.name, encoding=encoding)
    data = _weighted(data, frame, options.weight, order)
    return data.with_notes("The inputs are made by a fitted encoding", *encoded.remarks.messages())


def choose_columns(columns: Sequence[str], options: TableOptions) -> list[str]:
    """The columns to predict from."""
    for mistake in column_mistakes(columns, options):
        raise InputError(mistake)
    return remaining_columns(columns, options)


def remaining_columns(columns: Sequence[str], options: TableOptions) -> list[str]:
    """The features if they are named, otherwise the columns that have no other use."""
    if options.features is not None:
        return list(options.features)
    used = {options.party, *options.labels, options.weight, *(options.exclude or [])}
    return [c for c in columns if c not in used]


def column_mistakes(columns: Sequence[str], options: TableOptions, *, is_of_site: bool = False) -> Iterator[str]:
    """A sentence for each setting or name of a column that is wrong.

    Args:
        is_of_site: whether all rows are those of one site, so that no column names the party.
    """
    labels, weight = options.labels, options.weight
    yield from duplicate_names(columns)
    for c in columns:
        check_name(c, "the name of a column")
    uses_of = {"party": [] if is_of_site else [options.party], "label": labels, "features": options.features or [],
               "exclude": options.exclude or [], "weight": [] if weight is None else [weight],
               "text": options.text or [], "missing": options.missing_columns}
    known = set(columns)
    for option, names in uses_of.items():
        for c in names:
            if c not in known:
                yield (f"{option} names the column {quote(c)}, which the table does not have: its columns are "
                       f"{shorten(', '.join(map(repr, columns)))}{nearest(str(c), columns)}")
    used = [*uses_of["party"], *labels, *uses_of["weight"], *uses_of["features"],
            *set(uses_of["exclude"]).difference((*uses_of["party"], *labels))]
    for c, count in Counter(used).items():
        if count > 1:
            uses = [option for option in uses_of if c in uses_of[option]]
            yield f"the column {quote(c)} is named twice, as {' and '.join(uses)}: name it once"
    if options.features:
        return
    chosen = remaining_columns(columns, options)
    if not chosen:
        yield "no column is left to predict from: name some in features, or exclude fewer"
    for c in chosen:
        if c.startswith("Unnamed: "):
            yield (f"column {columns.index(c) + 1} has no name (often it is the row's number): "
                   f"exclude {quote(c)}, or give it a name")


def _weighted(data: FederatedData, frame: "pd.DataFrame", weight: str | None,
              order: NDArray[np.intp]) -> FederatedData:
    """Data with the weights of a column of the frame, whose rows are packed in this order."""
    if weight is None:
        return data
    values = read_feature(weight, frame[weight])
    if is_text(values):
        raise InputError(f"weight: the column {quote(weight)} has text: name a column of numbers")
    RowNames(frame.index).refuse(~(np.isfinite(values) & (values >= 0))[:, None], [weight],
                                 "the weight must be a number that is not negative: correct it, or leave the row out")
    return data.with_weights(values[order])


def _identifier_notes(columns: Columns, is_chosen: bool) -> list[str]:
    """A note for each feature of whole numbers or text that has another value in every row, as identifiers have."""
    notes = []
    for name, values in columns.items():
        if looks_like_identifier(values):
            present = values[~is_missing(values)]
            kind = "texts" if is_text(present) else "whole numbers"
            title = quote(name)
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
