"""Agreement of the sites on columns, categories, classes and scaling, without pooling rows.

Each site reports the names and kinds of its columns, the levels of categories, and the classes. For each column of
numbers it reports the count, the mean and the sum of squared deviations over the training rows. No smallest or largest
value leaves a site, because it is the value of one row. Levels and classes with fewer rows than the site's minimum
count are not named.

The reports determine one encoding for all sites. Means and deviations equal those of the pooled training rows up to
rounding: with counts n_k, means m_k and sums of squared deviations S_k, the pooled sum is
S = sum_k S_k + n_k (m_k - m)^2 (Chan, Golub, LeVeque). Missing numbers are imputed by the pooled mean; a simulation
imputes the median, which cannot be computed from sums.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.column_encodings import CategoryColumn, LabelEncoding, NumberColumn, is_missing
from resolvent.data.columns import (
    MAX_CATEGORIES,
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
from resolvent.errors import InputError, nearest, shorten

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Agreement", "ColumnReport", "LabelReport", "SiteTable", "TableReport", "TableSettings", "agree",
           "misfits", "read_site_table"]


class TableSettings(NamedTuple):
    """The settings of an experiment for the sites' tables; ``data.tables.table`` explains each setting."""

    party: str
    label: str
    features: list[str] | None = None
    exclude: list[str] | None = None
    task: str = "auto"
    missing: str = "refuse"
    scale: str = "standard"
    validation: float = 0.2
    test: float = 0.2
    seed: int = 0
    weight: str | None = None


@dataclass(frozen=True)
class ColumnReport:
    """What a site says about one column.

    Attributes:
        name: name of the column.
        kind: ``number``, ``boolean`` or ``text``.
        has_missing: whether a value is missing.
        count: number of training rows with a value.
        mean: over these rows; 0 for text.
        squares: sum of squared deviations from the mean over these rows; 0 for text.
        levels: named level -> number of training rows with it; empty for numbers.
        unnamed: number of levels that are not named.
    """

    name: str
    kind: str
    has_missing: bool
    count: int
    mean: float = 0.0
    squares: float = 0.0
    levels: Mapping[str, int] | None = None
    unnamed: int = 0


@dataclass(frozen=True)
class LabelReport:
    """What a site says about the label column.

    Attributes:
        kind: ``boolean``, ``integer``, ``decimal`` or ``text``.
        classes: class -> number of rows; empty for regression.
        unnamed: number of classes that are not named.
        weights: class -> sum of the weights of its training rows, with the empty text as the class of a regression;
            None if the experiment has no weights.
    """

    kind: str
    classes: Mapping[str, int]
    unnamed: int = 0
    weights: Mapping[str, float] | None = None


@dataclass(frozen=True)
class TableReport:
    """What a site says about its table.

    Attributes:
        rows: number of rows in each split.
        columns: the features, in the order of the table.
        label: the label column.
    """

    rows: Mapping[str, int]
    columns: tuple[ColumnReport, ...]
    label: LabelReport

    def plain(self) -> dict[str, Any]:
        """Plain values, as they are sent."""
        return asdict(self)

    @classmethod
    def from_plain(cls, content: Any) -> "TableReport":
        """The report of plain values from a site.

        Raises:
            InputError: they are not a report.
        """
        try:
            columns = tuple(ColumnReport(**column) for column in content["columns"])
            report = cls(dict(content["rows"]), columns, LabelReport(**content["label"]))
            numbers = [*report.rows.values(), *(x for c in columns for x in (c.count, c.mean, c.squares)),
                       *(n for c in columns for n in (c.levels or {}).values()), *report.label.classes.values(),
                       *(report.label.weights or {}).values()]
            if not all(math.isfinite(float(number)) for number in numbers):
                raise ValueError("a number is not finite")
            return report
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InputError(f"the site sent no report on its table: {shorten(error)}") from error


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
                                 "levels, or lower limits.min_count")
        labels = self._frame[self._settings.label]
        if encoding.classes and not {*map(str, labels.tolist())} <= {*encoding.classes}:
            raise InputError(f"the label {shorten(repr(self._settings.label))} has a class that is not among the "
                             "agreed ones, because it is rarer than the minimum count of this site: leave its rows "
                             "out, or lower limits.min_count")
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


class Agreement(NamedTuple):
    """The common encoding of all sites, or the conflicts between them.

    Attributes:
        encoding: the encoding of every site; None if there are conflicts.
        conflicts: one sentence for each site and column that does not fit the others.
    """

    encoding: TableEncoding | None
    conflicts: tuple[str, ...]


def agree(reports: Mapping[str, TableReport], settings: TableSettings) -> Agreement:
    """Find the common encoding of all sites.

    Args:
        reports: the report of each site, in the order of the parties.
        settings: settings of the experiment.
    """
    columns: dict[str, dict[str, ColumnReport]] = {}
    for site, report in reports.items():
        for column in report.columns:
            columns.setdefault(column.name, {})[site] = column
    conflicts = [line for name, by_site in columns.items() for line in _column_conflicts(name, by_site, [*reports])]
    label, label_conflicts = _agree_label({site: report.label for site, report in reports.items()}, settings)
    conflicts += label_conflicts
    if not columns:
        conflicts.append("no column is left to predict from")
    if conflicts or label is None:
        return Agreement(None, tuple(conflicts))
    rows = sum(report.rows["train"] for report in reports.values())
    numbers = tuple(_pooled(name, [*by_site.values()], rows, settings.scale) for name, by_site in columns.items()
                    if next(iter(by_site.values())).kind != "text")
    categories = tuple(_joined(name, [*by_site.values()]) for name, by_site in columns.items()
                       if next(iter(by_site.values())).kind == "text")
    marked = tuple(name for name, by_site in columns.items() if any(c.has_missing for c in by_site.values()))
    missing: Any = settings.missing
    return Agreement(TableEncoding(settings.party, label, numbers, categories,
                                   marked if missing == "indicate" else (), missing), ())


def misfits(site: str, report: TableReport, encoding: TableEncoding) -> list[str]:
    """One sentence for each column of a site that does not fit an encoding to which the site did not contribute.

    Args:
        site: name of the site.
        report: the report on its table.
        encoding: the encoding of the run that the site joins.
    """
    columns = {column.name: column for column in report.columns}
    kinds = {c.name: "boolean" if c.is_boolean else "number" for c in encoding.numbers}
    levels = {c.name: {*c.levels} for c in encoding.categories}
    kinds |= dict.fromkeys(levels, "text")
    lines = [f"column {shorten(repr(name))} is absent: name the site's column in columns" for name in kinds
             if name not in columns]
    lines += [f"column {shorten(repr(name))} is not a column of the run: leave it out of the site's table"
              for name in columns if name not in kinds]
    for name, column in columns.items():
        if name in kinds and column.kind != kinds[name]:
            lines.append(f"column {shorten(repr(name))} holds {column.kind} values, and {kinds[name]} values in the "
                         "run: convert it")
        elif unknown := {*(column.levels or {})} - levels.get(name, {*(column.levels or {})}):
            lines.append(f"column {shorten(repr(name))} has the level {shorten(repr(min(unknown)))}, which the run "
                         "does not have: join it with another level")
    if unknown := {*report.label.classes} - {*encoding.classes}:
        lines.append(f"the label has the class {shorten(repr(min(unknown)))}, which the run does not have: leave its "
                     "rows out")
    return [f"{site}: {line}" for line in lines]


def _column_conflicts(name: str, by_site: Mapping[str, ColumnReport], sites: Sequence[str]) -> list[str]:
    title = f"column {shorten(repr(name))}"
    absent = [site for site in sites if site not in by_site]
    if absent:
        return [f"{', '.join(absent)}: {title} is absent, and present at {', '.join(by_site)}: name the site's column "
                "in columns, or exclude it"]
    kinds = Counter(column.kind for column in by_site.values())
    usual = kinds.most_common(1)[0][0]
    conflicts = [f"{site}: {title} holds {column.kind} values, and {usual} values at most sites: convert it, or "
                 "exclude it" for site, column in by_site.items() if column.kind != usual]
    if not conflicts and not any(column.count for column in by_site.values()):
        conflicts.append(f"{title} has no value in any training row: exclude it")
    levels = {level for column in by_site.values() for level in column.levels or {}}
    if len(levels) > MAX_CATEGORIES:
        conflicts.append(f"{title} has {len(levels)} levels at all sites, at most {MAX_CATEGORIES} are allowed: "
                         "exclude it, or join levels")
    if not conflicts and usual == "text" and not levels:
        conflicts.append(f"{title} has no level that a site may name: exclude it, or lower limits.min_count")
    return conflicts


def _agree_label(labels: Mapping[str, LabelReport],
                 settings: TableSettings) -> tuple[LabelEncoding | None, list[str]]:
    title = f"the label {shorten(repr(settings.label))}"
    kinds = Counter(label.kind for label in labels.values())
    usual: Any = kinds.most_common(1)[0][0]
    are_numbers = {*kinds} <= {"integer", "decimal"}
    if len(kinds) > 1 and not (settings.task == "regression" and are_numbers):
        return None, [f"{site}: {title} holds {label.kind} values, and {usual} values at most sites: convert it"
                      for site, label in labels.items() if label.kind != usual]
    if settings.task == "regression" or (settings.task == "auto" and usual == "decimal"):
        if not are_numbers:
            return None, [f"{title} holds {usual} values, and regression needs numbers"]
        return LabelEncoding(settings.label, "decimal" if len(kinds) > 1 else usual, "regression"), []
    order: Any = {"integer": int, "decimal": float}.get(usual, str)
    classes = sorted({c for label in labels.values() for c in label.classes}, key=order)
    if len(classes) < 2:
        return None, [f"{title} has {len(classes)} classes at all sites, at least 2 are needed"]
    return LabelEncoding(settings.label, usual, "classification", tuple(classes)), []


def _pooled(name: str, reports: Sequence[ColumnReport], rows: int, scale: str) -> NumberColumn:
    """The encoding of a column of numbers whose missing values become the pooled mean."""
    count = sum(report.count for report in reports)
    mean = math.fsum(report.count * report.mean for report in reports) / count
    column = NumberColumn(name, mean, is_boolean=reports[0].kind == "boolean")
    if scale != "standard":
        return column
    squares = math.fsum(report.squares + report.count * (report.mean - mean) ** 2 for report in reports)
    variance = squares / rows  # an imputed row lies at the mean, and adds nothing to the sum
    # The rule by which scikit-learn recognises a column of equal numbers despite rounding.
    epsilon = float(np.finfo(float).eps)
    is_constant = variance <= rows * epsilon * variance + (rows * mean * epsilon) ** 2
    return replace(column, mean=mean, deviation=1.0 if is_constant else math.sqrt(variance))


def _joined(name: str, reports: Sequence[ColumnReport]) -> CategoryColumn:
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.levels or {})
    levels = tuple(sorted(counts))
    return CategoryColumn(name, max(levels, key=lambda level: counts[level]), levels)
