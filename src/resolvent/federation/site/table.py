"""A site's table: its report, and its samples in the encoding on which the sites have agreed."""

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import RowNames
from resolvent.data.federated import SPLITS, FederatedData, Split
from resolvent.data.partition.folds import fold_of_party, stream_of_party, stream_of_secret
from resolvent.data.samples import split_order, split_sizes
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import LIMITS, NO_LIMITS, Limits
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.protocol.table_reports import ColumnReport, LabelReport, TableReport
from resolvent.federation.site.chosen_columns import (
    check_hidden_numbers,
    check_listed_columns,
    common_values,
    hidden_levels,
    listed_levels,
)
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.read_rows import choose_columns, read_site_rows, site_cells
from resolvent.federation.site.row_sets import check_label
from resolvent.federation.site.table_versions import TableRows
from resolvent.tables.cells import CellRules, read_cells
from resolvent.tables.column_encodings import CategoryColumn, NumberColumn, is_missing
from resolvent.tables.columns import (
    MAX_CATEGORIES,
    Columns,
    LabelKind,
    check_magnitudes,
    is_boolean,
    is_empty,
    is_text,
    label_kind,
    read_feature,
)
from resolvent.tables.dates import expand_dates, find_dates, replace_dates
from resolvent.tables.encoding import TableEncoding, check_missing, label_values, missing_values
from resolvent.tables.table_options import TableOptions

if TYPE_CHECKING:
    import pandas as pd


class FoldOfTable(NamedTuple):
    """The rows of a table that are tested: those of one fold.

    Attributes:
        seed: seed of the folds of a site without a split of its own.
    """

    number: int
    folds: int
    seed: int


class SiteTable:
    """A site's table before the sites have agreed on an encoding.

    Attributes:
        version: number of the version of the table; None if the split is that of a simulation.
        secret: the secret of the site; None if the split is that of a simulation.
        numbers: [rows] the number of each sample, the same in all folds.
        is_repeated: [rows] the samples that are tested in another fold, see ``Fold``; None without folds.
    """

    is_repeated: NDArray[np.bool_] | None = None

    def __init__(self, frame: "pd.DataFrame", settings: TableOptions, site: str, party: int,
                 limits: Limits = NO_LIMITS, held_out: Sequence[str] | None = None,
                 rows: TableRows | None = None, cells: CellRules | None = None,
                 fold: FoldOfTable | None = None) -> None:
        """Read the columns of a table.

        Args:
            party: the site's number, on which the split depends that is drawn from the seed of the experiment.
            limits: which columns and levels may take part. Levels with fewer rows than ``min_cell`` are hidden,
                whatever the server asks; a class with fewer rows is refused.
            held_out: the splits whose rows do not train in a refit, in which all others do, except those with fewer
                than ``min_cell`` rows; None: it is no refit.
            rows: the rows that the site uses, with its own split and its stored answers; None: all rows, with the split
                of a simulation.
            cells: what the cells mean; default: what the settings say.
            fold: the rows that are tested; None: those of the split.
        """
        import pandas as pd

        names = [str(c) for c in frame.columns]
        if rows is not None:
            frame = frame.iloc[np.concatenate([rows.splits[split] for split in SPLITS])]
        self.site, self.rows, self._settings, self._min_cell = site, len(frame), settings, limits.min_cell
        if not self.rows:
            raise Refusal(RefusalCode.TABLE, f"the table of {site} has no rows")
        self._answer = _answer_anew if rows is None else rows.answer
        if rows is None:
            self._order = split_order(self.rows, party, settings.seed)
            lengths = split_sizes(self.rows, settings.validation, settings.test)
            self._lengths = dict(zip(SPLITS, lengths, strict=True))
        else:
            self._order, self._lengths = np.arange(self.rows), {split: len(rows.splits[split]) for split in SPLITS}
        self._trained = ["train"]
        if held_out is not None:
            self._join_splits({*held_out, *(s for s, n in self._lengths.items() if n < self._min_cell)} - {"train"})
        chosen = choose_columns(names, settings, limits)
        self._names = RowNames(frame.index)
        frame = frame.set_axis(pd.Index(names, dtype=object), axis=1)
        for name in dict.fromkeys([*settings.labels, *([settings.weight] if settings.weight else []), *chosen]):
            with refusing(RefusalCode.VALUES, name):
                frame = read_cells(frame, [name], settings.cells if cells is None else cells)
        with refusing(RefusalCode.VALUES):
            self._dates = find_dates(frame, chosen, settings.dates)
            self._frame = expand_dates(frame, self._dates, self._names)
        max_levels = MAX_CATEGORIES if settings.rare == "keep" else None
        self._label_kinds: dict[str, LabelKind] = {}
        self._classes = {label: self._read_classes(label) for label in settings.labels}
        self.numbers: NDArray[np.intp] = np.arange(self.rows)
        if fold is not None:
            self._test_fold(fold, party, rows)
            self._classes = {label: self._read_classes(label) for label in settings.labels}
        self._columns: Columns = {}
        for name in replace_dates(chosen, self._dates):
            with refusing(RefusalCode.VALUES, name):
                values = read_feature(name, self._frame[name], max_levels=max_levels)
                self._columns[name] = values if is_text(values) else common_values(values, self._train, self._min_cell)
                check_magnitudes([(name, self._columns[name])], self._names)
        if settings.treatment == "refuse" and (gaps := missing_values(self._columns)):
            with refusing(RefusalCode.MISSING, next(iter(gaps))):
                check_missing(self._columns, self._names, "fill it in, leave the row out, or ask the lead for "
                              "missing: impute")
        self.version = None if rows is None else rows.version
        self.secret = None if rows is None else rows.secret
        self.account = "" if rows is None else rows.account
        self._hidden = {name: hidden_levels(values, self._min_cell, (limits.levels or {}).get(name))
                        for name, values in self._columns.items() if is_text(values)}
        self._listed = listed_levels(settings, self._label_kinds, self._hidden, self._classes)
        levels = {name: {*values[~is_missing(values)]} for name, values in self._columns.items() if is_text(values)}
        for name, hidden in self._hidden.items():
            with refusing(RefusalCode.VALUES, name):
                check_hidden_numbers(name, levels[name], hidden, settings.cells if cells is None else cells)
        check_listed_columns({name: len(of_column) for name, of_column in {**levels, **self._classes}.items()},
                             {name: values for name, values in self._columns.items() if not is_text(values)},
                             self.rows, limits)
        self._row_weights = self._read_weights()

    def _test_fold(self, fold: FoldOfTable, party: int, rows: TableRows | None) -> None:
        """Let the rows of a fold be the test rows.

        The folds of a site follow from its secret alone, whatever the label of a plan is. Without a split of its own
        they are those of a simulation, which have like shares of the classes.

        Raises:
            Refusal: the answers about this fold, and others about the table, would differ by a few rows.
        """
        labels, stream = None, stream_of_party(fold.seed, party)
        if rows is not None:
            if not rows.is_first:
                raise Refusal(RefusalCode.FOLDS, "the table has rows of an earlier version: in folds, the answers "
                              "about two versions can differ by a single row")
            if fold.folds != (before := rows.answer("number of folds", lambda: fold.folds)):
                raise Refusal(RefusalCode.FOLDS, f"the site has answered about this table in {before} folds")
            stream = stream_of_secret(rows.secret)
        elif len(self._classes) == 1 and self._classes[name := self._settings.labels[0]]:
            values = np.array(self._frame[name].tolist(), str if self._label_kinds[name] == "text" else None)
            labels = np.unique(values, return_inverse=True)[1][self._order]
        if self.rows // fold.folds < self._min_cell:
            raise Refusal(RefusalCode.FOLDS, f"a fold has fewer rows than min_cell {self._min_cell}")
        of_party = fold_of_party(labels, self.rows, self._lengths["train"], self._lengths["validation"], fold.number,
                                 fold.folds, stream)
        self._order, self.numbers, self.is_repeated = self._order[of_party.order], of_party.order, of_party.is_repeated
        self._lengths = dict(zip(SPLITS, of_party.sizes, strict=True))
        self._trained = [f"fold {fold.number + 1} of {fold.folds}"]

    def _join_splits(self, held_out: Collection[str]) -> None:
        """Let the rows of all splits but these be training rows, in the order of ``refit_rows.join_splits``."""
        parts = dict(zip(SPLITS, np.split(self._order, np.cumsum([*self._lengths.values()])[:-1]), strict=True))
        self._trained = joined = [split for split in SPLITS if split not in held_out]
        others = [split for split in SPLITS if split not in joined]
        self._order = np.concatenate([parts[split] for split in (*joined, *others)])
        self._lengths = {split: len(parts[split]) if split in held_out else 0 for split in SPLITS}
        self._lengths["train"] = sum(len(parts[split]) for split in joined)

    @property
    def row_counts(self) -> dict[str, int]:
        """Number of rows of each split, without an answer about them."""
        return dict(self._lengths)

    @property
    def training_rows(self) -> int:
        """Number of training rows."""
        return self._lengths["train"]

    @property
    def _train(self) -> NDArray[np.intp]:
        return self._order[:self._lengths["train"]]

    def _read_classes(self, label: str) -> Counter[str]:
        """Class of a label -> number of rows; empty for regression."""
        task, labels = self._settings.task, self._frame[label]
        with refusing(RefusalCode.MISSING, label):
            self._names.refuse(is_empty(labels)[:, None], [label],
                               "the label is missing: fill it in, or leave the row out")
        with refusing(RefusalCode.VALUES, label):
            self._label_kinds[label] = label_kind(label, labels)
        if task == "regression" or (task == "auto" and self._label_kinds[label] == "decimal"):
            return Counter()
        names = np.array([str(name) for name in labels], object)
        classes, trained = Counter(names.tolist()), Counter(names[self._train].tolist())
        # A class without training rows is in no update; that of a few is a sum over these rows.
        fewest = {name: trained.get(name) or count for name, count in classes.items()}
        rare = min(fewest, key=lambda name: fewest[name])
        if fewest[rare] < self._min_cell:
            raise Refusal(RefusalCode.RARE, f"the label {shorten(repr(label))} has the class "
                          f"{shorten(repr(rare))} in {classes[rare]} rows, of which {trained[rare]} train: fewer than "
                          f"min_cell {self._min_cell} (limits.min_cell: {LIMITS['min_cell'].why}): leave its "
                          "rows out, or lower min_cell in site.yaml", column=label)
        return classes

    def _read_weights(self) -> NDArray[np.float64]:
        """[rows] the weight of each row in the loss, before the weights of classes."""
        name = self._settings.weight
        if name is None:
            return np.ones(self.rows)
        with refusing(RefusalCode.VALUES, name):
            values = read_feature(name, self._frame[name])
            if is_text(values):
                raise InputError(f"weight: the column {shorten(repr(name))} has text: name a column of numbers")
            self._names.refuse(~(np.isfinite(values) & (values >= 0))[:, None], [name],
                               "the weight must be a number that is not negative: correct it, or leave the row out")
        return values

    def check_labels(self, journal: Journal, limits: Limits) -> None:
        """Refuse a label that agrees in nearly all training rows with an earlier one, see ``row_sets.check_label``."""
        if self.version is None:
            return
        train = np.sort(self._train)
        for label, classes in self._classes.items():
            values = self._frame[label].iloc[train]
            check_label(journal, f"version {self.version}, {'+'.join(self._trained)} rows",
                        np.array([str(value) for value in values]) if classes else values.to_numpy(np.float64), limits)

    def answered_columns(self, encoding: TableEncoding) -> dict[str, NDArray[np.float64]]:
        """Column -> [rows, ...] what the sums of updates are about, as numbers; 0 for rows that do not train.

        The inputs of a model are in the span of these: numbers whose gaps are filled in, an indicator of each level,
        and the constant of the training rows. The labels are numbers, or indicators of the classes. Rows without a
        level that is used count with the commonest level: as a column of their own, they would close the table to
        every plan. They can be told from the others if a plan trains on the column.
        """
        train = np.zeros(self.rows)
        train[self._train] = 1
        parts: dict[str, list[NDArray[Any]]] = {self._settings.labels[0]: [train]}
        for column in encoding.columns:
            values = self._columns[column.name]
            gaps = is_missing(values)
            if isinstance(column, NumberColumn):
                parts[column.name] = [np.where(gaps, column.imputed, values)]
            else:
                counts = Counter(values[~gaps].tolist())
                levels = sorted({*counts} - self._unused(column.name))
                of_rows = np.where(np.isin(values, levels), values, max(levels, key=counts.__getitem__, default=""))
                parts[column.name] = [of_rows == level for level in levels]
        for name, classes in self._classes.items():
            labels = self._frame[name]
            of_rows = labels.to_numpy(np.float64) if not classes else np.array([str(label) for label in labels], object)
            parts.setdefault(name, []).extend([of_rows == label for label in sorted(classes)] or [of_rows])
        if self._settings.weight is not None:
            parts.setdefault(self._settings.weight, []).append(self._row_weights)
        return {name: np.stack([train * np.asarray(values, np.float64) for values in of_column], axis=1)
                for name, of_column in parts.items() if of_column}

    def report(self, *, with_weights: bool = False) -> TableReport:
        """The report on the table, which leaves the site. No mean and no sum is over fewer rows than the minimum count.

        Args:
            with_weights: whether the sums of weights are reported, which an experiment with weights needs.
        """
        columns = tuple(self._reported(f"column {name!r}", partial(self._column_report, name))
                        for name in self._columns)
        weights = None
        if with_weights:
            weights = self._reported(f"weights {self._settings.weight!r} of {self._settings.labels[0]!r}",
                                     self._sum_weights)
        reports = [self._listed_only(ColumnReport(**column)) for column in columns]
        labels = tuple(self._label_report(name, weights) for name in self._settings.labels)
        return TableReport(self.row_counts, tuple(reports), labels, tuple(date.name for date in self._dates))

    def _label_report(self, label: str, weights: Mapping[str, float] | None) -> LabelReport:
        kind = self._label_kinds[label]
        classes = self._reported(f"classes {label!r} {kind}", partial(self._count_classes, label))
        if (listed := self._listed.get(label)) is not None:
            classes = {name: classes.get(name, 0) for name in listed}
        return LabelReport(kind, classes, weights if label == self._settings.labels[0] else None)

    def _listed_only(self, report: ColumnReport) -> ColumnReport:
        """The part of the stored answer about the levels that the experiment lists; it has the same for every list."""
        listed = self._listed.get(report.name)
        if listed is None:
            return report
        levels = {level: (report.levels or {}).get(level, 0) for level in listed}
        return replace(report, levels=levels, count=sum(levels.values()), has_hidden=False)

    def _reported(self, question: str, compute: Callable[[], Any]) -> Any:
        """A part of the report: the stored answer, if this was asked before about the version of the table."""
        return self._answer(f"{question} of {'+'.join(self._trained)} rows, min_cell {self._min_cell}", compute)

    def _count_classes(self, label: str) -> dict[str, int]:
        labels = np.array([str(name) for name in self._frame[label]], object)[self._train]
        counts = self._visible(Counter(labels.tolist()))
        return {name: counts.get(name, 0) for name in self._classes[label]}

    def _sum_weights(self) -> dict[str, float]:
        """Class -> sum of the weights of its training rows; without one class per row, all under the empty text.

        No class has fewer training rows than the minimum count, except none: see ``_read_classes``.
        """
        weights, label = self._row_weights[self._train], self._settings.labels[0]
        classes = {*self._classes[label]} if len(self._classes) == 1 else set[str]()
        names = np.array([str(name) if classes else "" for name in self._frame[label]], object)[self._train]
        return {name: float(weights[names == name].sum()) for name in sorted(classes or {""})}

    def _column_report(self, name: str) -> dict[str, Any]:
        values = self._columns[name]
        missing = is_missing(values)
        train = values[self._train]
        present = train[~is_missing(train)]
        if is_text(values):
            counts, hidden = self._visible(Counter(present)), self._hidden[name]
            levels = {level: counts.get(level, 0) for level in sorted({*values[~missing]} - hidden)}
            return asdict(ColumnReport(name, "text", bool(missing.any()), sum(levels.values()), levels=levels,
                                       has_hidden=bool(hidden)))
        kind = "boolean" if is_boolean(self._frame[name]) else "number"
        if len(present) < self._min_cell:
            return asdict(ColumnReport(name, kind, bool(missing.any()), 0))
        # A few gaps are not counted: their number would be one of few rows.
        count = len(train) if len(train) - len(present) < self._min_cell else len(present)
        mean = float(present.mean())
        squares = float(((present - mean) ** 2).sum()) * (count / len(present))
        return asdict(ColumnReport(name, kind, bool(missing.any()), count, mean, squares))

    def _visible(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Level -> its number of rows, 0 for those below the minimum count.

        The others are 0 as well, the smallest first, until all that are 0 have at least ``min_cell`` rows together:
        otherwise the number of all rows would tell that of the rare ones.
        """
        hidden, visible = 0, {}
        for level, count in sorted(counts.items(), key=lambda item: item[1]):
            is_hidden = count < self._min_cell or 0 < hidden < self._min_cell
            hidden += count * is_hidden
            visible[level] = 0 if is_hidden else count
        return visible

    def encode(self, encoding: TableEncoding, weights: Mapping[str, float] | None = None) -> FederatedData:
        """The site's samples in the agreed encoding.

        Args:
            weights: class -> factor of the weights of its rows, see ``row_weights``; None: rows have no weights.

        A row with a hidden level has zeros in the inputs of its column, or the level of rare values if the encoding has
        one, whatever other levels it has. So the
        answer, and the models that leave the site, do not depend on whether the server has guessed a hidden level.
        """
        for column in encoding.columns:
            self._check_column(column)
        if [label.name for label in encoding.labels] != [*self._classes]:
            raise Refusal(RefusalCode.ENCODING, "the encoding has other labels than the experiment")
        for label in encoding.labels:
            if unknown := {*self._classes[label.name]} - {*label.classes}:
                raise Refusal(RefusalCode.ENCODING, f"the label {shorten(repr(label.name))} has the class "
                              f"{shorten(repr(min(unknown)))}, which the encoding does not have", column=label.name)
        with refusing(RefusalCode.ENCODING):
            x = encoding.encode_columns(self._visible_columns(), self._names)[self._order]
        with refusing(RefusalCode.VALUES):
            y = label_values(encoding.labels, self._frame, self._names)[self._order]
        if encoding.task == "regression":
            y = y.astype(np.result_type(y.dtype, np.float32))
        starts = np.cumsum([0, *self._lengths.values()])
        splits = {s: Split(np.array([starts[i]], np.int32), np.array([n], np.int32))
                  for i, (s, n) in enumerate(self._lengths.items())}
        sample_weights = None
        if weights is not None:
            names = encoding.classes if encoding.task == "classification" else ("",)
            factors = np.array([weights.get(name, 1.0) for name in names])
            of_rows = factors[y.astype(np.int64)] if encoding.task == "classification" else factors[0]
            sample_weights = (self._row_weights[self._order] * of_rows).astype(np.float32)
        return FederatedData(x, y, splits, (self.site,), encoding.task, encoding.classes, encoding.features,
                             "table", encoding=encoding, weights=sample_weights)


    def _check_column(self, column: NumberColumn | CategoryColumn) -> None:
        """Raise an error if a column of the encoding does not fit that of the table."""
        values, name = self._columns.get(column.name), column.name
        if values is None or is_text(values) != isinstance(column, CategoryColumn):
            raise Refusal(RefusalCode.ENCODING, f"the encoding has the column {shorten(repr(name))}, which the "
                          "table does not have, or has with values of another kind")
        if isinstance(column, CategoryColumn):
            unknown = {*values[~is_missing(values)]} - {*column.levels, *column.rare} - self._unused(name)
            if unknown:
                raise Refusal(RefusalCode.ENCODING, f"column {shorten(repr(name))} has the level "
                              f"{shorten(repr(min(unknown)))}, which the encoding does not have", column=name)

    def _visible_columns(self) -> Columns:
        """The columns, with a text instead of hidden levels that is no level of any encoding."""
        columns, no_level = dict(self._columns), secrets.token_hex()
        for name in self._hidden:
            if unused := self._unused(name):
                values = self._columns[name].copy()
                values[[value in unused for value in values]] = no_level
                columns[name] = values
        return columns


    def _unused(self, name: str) -> frozenset[str]:
        """The levels that are used in no row: those that are hidden, and those that the experiment does not list."""
        listed = self._listed.get(name)
        if listed is None:
            return self._hidden[name]
        values = self._columns[name]
        return self._hidden[name] | {*values[~is_missing(values)].tolist()}.difference(listed)


def _answer_anew(question: str, compute: Callable[[], Any]) -> Any:
    return compute()


def read_site_table(site: SiteFile, settings: TableOptions, name: str, party: int, *, folder: Path | None = None,
                    version: int | None = None, held_out: Sequence[str] | None = None,
                    fold: FoldOfTable | None = None) -> SiteTable:
    """Read a site's table from its file.

    Args:
        folder: the folder of the versions of the site's tables; None: the split is that of a simulation.
        version: the version of an earlier run; None: the present one.
        held_out: see ``SiteTable``.
        fold: see ``SiteTable``.

    Raises:
        Refusal: the file cannot be read, or a column or a value cannot be used.
    """
    frame, rows = read_site_rows(site, settings, folder=folder, version=version)
    return SiteTable(frame, settings, name, party, site.limits, held_out, rows, site_cells(site, settings), fold)
