"""A site's table: its report, and its samples in the encoding on which the sites have agreed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.column_encodings import is_missing
from resolvent.data.columns import (
    Columns,
    RowNames,
    check_magnitudes,
    is_boolean,
    is_empty,
    is_text,
    label_kind,
    read_feature,
)
from resolvent.data.encoding import TableEncoding, check_missing
from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.data.samples import split_order, split_sizes
from resolvent.data.table_files import read_table_file
from resolvent.data.text_formats import TextFormat
from resolvent.deploy.table_reports import ColumnReport, LabelReport, TableReport, TableSettings
from resolvent.errors import InputError, nearest, shorten

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SiteTable", "read_site_table"]


class SiteTable:
    """A site's table before the sites have agreed on an encoding.

    Attributes:
        site: name of the site.
        rows: number of rows.
    """

    def __init__(self, frame: "pd.DataFrame", settings: TableSettings, site: str, party: int) -> None:
        """Read the columns of a table.

        Args:
            frame: the table.
            settings: settings of the experiment.
            site: name of the site.
            party: the site's number, on which the split of its rows depends.

        Raises:
            InputError: a column is absent, or a value cannot be used; the message has the row and the column.
        """
        import pandas as pd

        names = [str(c) for c in frame.columns]
        self.site, self.rows, self._settings = site, len(frame), settings
        if not self.rows:
            raise InputError(f"the table of {site} has no rows")
        self._frame = frame.set_axis(pd.Index(names, dtype=object), axis=1)
        self._names = RowNames(frame.index)
        chosen = _choose_columns(names, settings)
        self._names.refuse(is_empty(self._frame[settings.label])[:, None], [settings.label],
                           "the label is missing: fill it in, or leave the row out")
        self._columns: Columns = {c: read_feature(c, self._frame[c]) for c in chosen}
        check_magnitudes(self._columns.items(), self._names)
        if settings.missing == "refuse":
            check_missing(self._columns, self._names, "fill it in, leave the row out, or ask the lead for "
                          "missing: impute")
        self._row_weights = self._read_weights()
        self._order = split_order(self.rows, party, settings.seed)
        lengths = split_sizes(self.rows, settings.validation, settings.test)
        self._lengths = dict(zip(SPLITS, lengths, strict=True))

    @property
    def training_rows(self) -> int:
        """Number of training rows."""
        return self._lengths["train"]

    @property
    def _train(self) -> NDArray[np.intp]:
        return self._order[:self._lengths["train"]]

    def _read_weights(self) -> NDArray[np.float64]:
        """[rows] the weight of each row in the loss, before the weights of classes."""
        name = self._settings.weight
        if name is None:
            return np.ones(self.rows)
        values = read_feature(name, self._frame[name])
        if is_text(values):
            raise InputError(f"weight: the column {shorten(repr(name))} has text: name a column of numbers")
        self._names.refuse(~(np.isfinite(values) & (values >= 0))[:, None], [name],
                           "the weight must be a number that is not negative: correct it, or leave the row out")
        return values

    def report(self, min_count: int = 1, *, with_weights: bool = False) -> TableReport:
        """The report on the table, which leaves the site.

        Args:
            min_count: levels and classes with fewer rows are not named.
            with_weights: whether the sums of weights are reported, which an experiment with weights needs.
        """
        settings, labels = self._settings, self._frame[self._settings.label]
        kind = label_kind(settings.label, labels)
        is_target = settings.task == "regression" or (settings.task == "auto" and kind == "decimal")
        classes: Counter[str] = Counter() if is_target else Counter(map(str, labels.tolist()))
        named = {c: n for c, n in classes.items() if n >= min_count}
        columns = tuple(self._column_report(name, values, min_count) for name, values in self._columns.items())
        weights = self._sum_weights(None if is_target else {*named}) if with_weights else None
        return TableReport(dict(self._lengths), columns, LabelReport(kind, named, len(classes) - len(named), weights))

    def _sum_weights(self, classes: set[str] | None) -> dict[str, float]:
        """Class -> sum of the weights of its training rows; without classes, the sum of all under the empty text."""
        weights = self._row_weights[self._train]
        if classes is None:
            return {"": float(weights.sum())}
        labels = np.array([str(label) for label in self._frame[self._settings.label]], object)[self._train]
        return {name: float(weights[labels == name].sum()) for name in sorted(classes)}

    def _column_report(self, name: str, values: NDArray[Any], min_count: int) -> ColumnReport:
        missing = is_missing(values)
        train = values[self._train]
        present = train[~is_missing(train)]
        if is_text(values):
            counts = Counter(values[~missing])
            levels = [level for level, n in counts.items() if n >= min_count]
            in_train = Counter(present)
            return ColumnReport(name, "text", bool(missing.any()), len(present),
                                levels={level: in_train[level] for level in sorted(levels)},
                                unnamed=len(counts) - len(levels))
        mean = float(present.mean()) if len(present) else 0.0
        kind = "boolean" if is_boolean(self._frame[name]) else "number"
        return ColumnReport(name, kind, bool(missing.any()), len(present), mean,
                            float(((present - mean) ** 2).sum()))

    def encode(self, encoding: TableEncoding, weights: Mapping[str, float] | None = None) -> FederatedData:
        """The site's samples in the agreed encoding.

        Args:
            encoding: on which the sites have agreed.
            weights: class -> factor of the weights of its rows, see ``row_weights``; None: rows have no weights.

        Raises:
            InputError: a value does not fit the encoding. The message names the column and the number of rows, but no
                value.
        """
        for column in encoding.categories:
            count = int(column.is_unknown(self._columns[column.name]).sum())
            if count:
                raise InputError(f"column {shorten(repr(column.name))}: {count} rows have a level that is not among "
                                 "the agreed ones, because it is rarer than the minimum count of this site: join rare "
                                 "levels, or lower min_count in site.yaml")
        labels = self._frame[self._settings.label]
        if encoding.classes and not {*map(str, labels.tolist())} <= {*encoding.classes}:
            raise InputError(f"the label {shorten(repr(self._settings.label))} has a class that is not among the "
                             "agreed ones, because it is rarer than the minimum count of this site: leave its rows "
                             "out, or lower min_count in site.yaml")
        x = encoding.encode_columns(self._columns, self._names)[self._order]
        y = np.asarray(encoding.label.encode(labels, self._names))[self._order]
        if encoding.task == "regression":
            y = y.astype(np.result_type(y.dtype, np.float32))
        starts = np.cumsum([0, *self._lengths.values()])
        splits = {s: Split(np.array([starts[i]], np.int32), np.array([n], np.int32))
                  for i, (s, n) in enumerate(self._lengths.items())}
        sample_weights = None
        if weights is not None:
            names = ("",) if encoding.task == "regression" else encoding.classes
            factors = np.array([weights.get(name, 1.0) for name in names])
            of_rows = factors[0] if encoding.task == "regression" else factors[y.astype(np.int64)]
            sample_weights = (self._row_weights[self._order] * of_rows).astype(np.float32)
        return FederatedData(x, y, splits, (self.site,), encoding.task, encoding.classes, encoding.features,
                             "table", encoding=encoding, weights=sample_weights)


def read_site_table(path: str, text: TextFormat, columns: Mapping[str, str], settings: TableSettings, site: str,
                    party: int) -> SiteTable:
    """Read a site's table from its file.

    Args:
        path: path of the file.
        text: the format of a text file.
        columns: the site's name of a column, by its name in the federation.
        settings: settings of the experiment.
        site: name of the site.
        party: the site's number.

    Raises:
        InputError: the file cannot be read, or a column or a value cannot be used.
    """
    label = columns.get(settings.label, settings.label)
    frame, _ = read_table_file(path, text, (label,), (), lambda column: True)
    names = [str(c) for c in frame.columns]
    for name, local in columns.items():
        if local not in names:
            raise InputError(f"columns.{name}: the table has no column {shorten(repr(local))}: its columns are "
                             f"{shorten(', '.join(map(repr, names)))}{nearest(local, names)}")
    return SiteTable(frame.rename(columns={local: name for name, local in columns.items()}), settings, site, party)


def _choose_columns(names: Sequence[str], settings: TableSettings) -> list[str]:
    """The columns to predict from, in the order of the table or of ``features``."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"two columns are named {shorten(repr(name))}: give each a different name, or leave one "
                             "out of columns")
    weight = [] if settings.weight is None else [settings.weight]
    for name in [settings.label, *weight, *(settings.features or [])]:
        if name not in names:
            raise InputError(f"the table has no column {shorten(repr(name))}, which the experiment needs: its columns "
                             f"are {shorten(', '.join(map(repr, names)))}; if it has another name, set "
                             f"columns: {{{shorten(name)}: NAME}} in the site's file{nearest(name, names)}")
    if settings.features:
        return list(settings.features)
    left_out = {settings.label, settings.party, *weight, *(settings.exclude or [])}
    return [name for name in names if name not in left_out]
