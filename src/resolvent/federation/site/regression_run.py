"""A regression at a site: its complete rows, and what the guard of its sums refuses."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.regression.agreement import (
    RowsAgreement,
    RowsReport,
    describe_rows,
    level_names,
)
from resolvent.comparisons.regression.imputation import has_draws, impute
from resolvent.comparisons.regression.label_numbers import numbers_of, offsets_of
from resolvent.comparisons.regression.rows import (
    RegressionRows,
    encode_rows,
    used_cells,
    without_gaps,
)
from resolvent.errors import quote
from resolvent.federation.protocol.limits import refusal_of_limits
from resolvent.federation.protocol.refusals import RefusalCode, refusing
from resolvent.federation.protocol.regression import FederatedRegression, fits_of, sends_own_fits
from resolvent.federation.site.chosen_columns import check_listed_columns
from resolvent.federation.site.plan_run import SiteMethod
from resolvent.federation.site.read_rows import site_cells
from resolvent.federation.site.regression_guard import RegressionGuard
from resolvent.federation.site.row_sets import check_label, check_row_set
from resolvent.federation.site.table_run import TableRun, refusing_values
from resolvent.regression.newton import FederatedNewton

if TYPE_CHECKING:
    import pandas as pd


class RegressionRun(TableRun[FederatedRegression]):
    """One regression at a site.

    Attributes:
        rows: the complete rows of the site, after ``prepare``; with imputations those of the first completed table.
    """

    rows: RegressionRows

    @override
    def _read_table(self) -> None:
        plan = self.plan
        with refusing(RefusalCode.EXPERIMENT):
            self._formula = plan.formula
        frame = self._read_frame([*self._formula.response.columns, *self._formula.variables])
        if not frame.index.is_unique:  # such as that of a Parquet file
            frame = frame.reset_index(drop=True)
        with refusing_values():
            used = used_cells(frame, self._formula, plan.settings, cells=site_cells(self._site, plan.table))
            self._frames = [without_gaps(table) for table in self._completed(used)]
            self._frame = self._frames[0]
            self._imputed = has_draws(used.loc[self._frame.index], self._frame)
            self._report = describe_rows(self._frame, self._formula, plan.settings, len(frame) - len(self._frame),
                                         int(self._imputed.sum()))
        self._used = frame.index.isin(self._frame.index)

    def _completed(self, used: "pd.DataFrame") -> Iterator["pd.DataFrame"]:
        """The table, or with imputations the completed ones: the draws are those of this site where rows are pooled."""
        if self.plan.settings.imputations is None:
            yield used
        for number in range(self.plan.settings.imputations or 0):
            in_order, owners = used.sort_index(), np.full(len(used), self._membership.name, object)
            yield impute(in_order, self._formula, self.plan.settings, owners, number).loc[used.index]

    @override
    def _algorithm(self, label: str) -> Algorithm:
        return FederatedNewton()

    @property
    @override
    def row_counts(self) -> dict[str, int]:
        return {"complete": self._report.rows, "left out": self._report.left_out}

    @property
    @override
    def training_rows(self) -> int:
        return self._report.rows

    @override
    def _own_reasons(self) -> dict[str, str]:
        reasons = {}
        if few := _few_rows(self._report, self._limits.min_cell):
            reasons["min_cell"] = few
        settings = self.plan.settings
        if settings.errors == "clustered" and settings.cluster is None and len(self._membership.sites) < 2:
            reasons["min_sites"] = "errors clustered by site need 2 sites"
        return reasons

    @override
    def _check_table(self) -> None:
        if new := {*map(repr, self._formula.constants)} - self._numbers:
            self._journal.append("numbers", version=self.version, numbers=sorted(new))
        self._check_columns()
        if self._versions is not None:
            check_row_set(self._journal, self.version or 0, self._used, self._limits)

    @property
    def _numbers(self) -> set[str]:
        """The numbers in the formulas about this version of the table, whether or not the plans were refused."""
        return {number for entry in self._journal.of("numbers", version=self.version) for number in entry["numbers"]}

    def _check_columns(self) -> None:
        """Refuse free text, identifiers and levels that the site does not list."""
        limits, counts = self._limits, {**self._report.levels, self._formula.response.label: self._report.classes}
        check_listed_columns({name: len(levels) for name, levels in counts.items()},
                             {name: np.asarray(self._frame[name], np.float64) for name in self._report.numbers},
                             self._report.rows, limits)
        for name, levels in counts.items():
            self._check_levels(name, levels)

    def _check_label(self, rows: RegressionRows) -> None:
        """Refuse a response, such as another threshold of a column, that differs from an earlier one in few rows."""
        for values in (rows.y, rows.event, rows.entry):
            if self._versions is not None and values is not None:
                of_version = np.full(len(self._used), np.nan)
                of_version[self._used] = values
                is_class = len(np.unique(values)) <= 2
                check_label(self._journal, f"version {self.version}, regressions",
                            of_version.astype(str) if is_class else of_version, self._limits)

    @override
    def _reported_columns(self) -> dict[str, NDArray[np.float64]]:
        """The rows that are used, with the numbers, levels and classes that are summed or counted in the report."""
        frame, report, label = self._frame, self._report, self._formula.response.columns[-1]
        counted = {**report.levels, label: report.classes} if report.classes else report.levels
        of_rows: dict[str, NDArray[Any]] = {"rows with drawn values": self._imputed} if self._imputed.any() else {}
        of_rows |= {
            name: np.array(level_names(frame[name]), object)[:, None] == np.array([*levels], object)
            for name, levels in counted.items()}
        if not report.classes:
            of_rows[label] = numbers_of(frame[label], "any")
        for name, degree in self._formula.degrees.items():
            mean, deviation = report.moments[name][:2]
            scaled = (numbers_of(frame[name], "any") - mean) / (deviation or 1)
            of_rows[name] = scaled[:, None]**np.arange(1, 2 * degree + 1)
        offsets = offsets_of(frame, self.plan.settings.added)
        if offsets is not None:
            of_rows["offset"] = np.stack([offsets, np.exp(offsets - offsets.max())], axis=1)
        return self._among_used(of_rows)

    def _answered_columns(self, rows: RegressionRows) -> dict[str, NDArray[np.float64]]:
        """Column -> [rows of the version, ...] what the sums are about; 0 for rows that are left out.

        The response is indicators of the classes, whether the event occurred, or a number. The times of a Cox model
        are in no sum.
        """
        response, classes = self._formula.response.columns[-1], np.array([*rows.model.codes])
        of_rows: dict[str, NDArray[Any]] = {name: rows.x[:, j] for j, name in enumerate(rows.model.columns)}
        of_rows[response] = (rows.event if rows.event is not None else rows.y[:, None] == classes if len(classes)
                             else rows.y)
        if rows.offsets is not None:
            of_rows["offset"] = rows.offsets
        if rows.weights is not None:  # X'WX and X'Wy are products of the columns with the weighted ones
            of_rows |= {f"weighted {name}": rows.weights[:, None] * np.reshape(values, (len(rows.y), -1))
                        for name, values in of_rows.items()}
            of_rows["weights"] = rows.weights
        return self._among_used(of_rows)

    def _among_used(self, of_rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """[rows of the version, ...] columns of the complete rows, and which these are, by the response's name."""
        columns = {self._formula.response.columns[-1]: self._used.astype(np.float64)[:, None]}
        for name, values in self._of_version(of_rows).items():
            columns[name] = np.concatenate([columns[name], values], axis=1) if name in columns else values
        return columns

    def _of_version(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """[rows of the version, ...] columns of the complete rows; 0 for the others."""
        of_version = {}
        for name, values in columns.items():
            of_version[name] = np.zeros((len(self._used), values.size // max(1, len(values))))
            of_version[name][self._used] = np.reshape(values, (len(values), -1))
        return of_version

    def _count_added(self, columns: Mapping[str, NDArray[np.float64]]) -> None:
        self._count_round(self._of_version(columns), self._share)

    @override
    def report(self) -> RowsReport:
        return self._report

    @override
    def _agreed(self, agreement: RowsAgreement) -> tuple[dict[str, Any], list[SiteMethod]]:
        """Encode the rows; the answer has the names of the columns."""
        settings = self.plan.settings
        total, sites = sum(agreement.sites.values()), len(self._membership.sites)
        # The sizes are claims of the others, through the server: they do not lower the share below that of equals.
        self._share = max(self._report.rows / total, 1 / sites) if self.plan.privacy is not None else 1.0
        tables = [encode_rows(frame, self._formula, settings, agreement, [self._report.rows])
                  for frame in self._frames]
        self.rows = tables[0]
        self._guards, methods = list[RegressionGuard](), list[SiteMethod]()
        for part, rows in zip(self.plan.parts, tables, strict=True):
            for fit in fits_of(rows, settings):
                guard = RegressionGuard(rows, fit, self._limits, len(self._numbers),
                                        self._formula.response.columns[-1], self._count_added)
                if reasons := guard.reasons():
                    raise refusal_of_limits(reasons, self._limits)
                self._guards.append(guard)
                methods += [SiteMethod(label, part, algorithm, fit.problem, guard=guard.check)
                            for label, algorithm in zip(fit.labels, self.plan.algorithms(fit), strict=True)]
        self._check_label(self.rows)
        of_tables = [self._answered_columns(rows) for rows in tables]
        self._columns = {name: np.concatenate([columns[name] for columns in of_tables], axis=1)
                         for name in of_tables[0]}
        return {"columns": list(self.rows.model.columns)}, methods

    @property
    @override
    def _smaller(self) -> str:
        settings = self.plan.settings
        if settings.imputations is not None:
            return "set fewer imputations, or leave them out (complete cases), leave columns out or join levels"
        return ("set site=fixed, " if settings.site == "random" else "") + super()._smaller

    @override
    def _columns_to_count(self) -> dict[str, NDArray[np.float64]]:
        return self._columns

    @override
    def lines_before(self) -> Iterator[str]:
        yield f"{self._report.rows} complete rows; {self._report.left_out} with missing values left out"
        yield "The site would send before the rounds:"
        drawn = ", and of those in which missing values are drawn" if self.plan.settings.imputations else ""
        yield f"  the numbers of complete rows and of those left out{drawn}"
        for column, levels in self._report.levels.items():
            yield f"  {column}: the names of {len(levels)} levels with their numbers of rows"
        for column, moments in self._report.moments.items():
            yield f"  {column}: its mean, its standard deviation and the means of {len(moments) - 2} of its powers"
        yield f"  {self._formula.response.label} (the label): its classes with their numbers of rows, or its sum"

    @override
    def lines_after(self) -> Iterator[str]:
        if sends_own_fits(self.plan.settings):
            yield "The sums of this site alone, at its own estimates, leave it with heterogeneity: true"
        if self.span is not None and self._limits.max_leverage is not None:
            span = self._span_of_rounds()
            with self.plan.precision():
                for guard in self._guards:
                    for columns in guard.foreseen(self.plan.rounds):
                        span = span.extended(self._of_version(columns))
            share = "" if self.plan.privacy is None else ", times this site's share of all rows"
            yield (f"With the rounds of the fit, as they would be at this site alone, they have {span.rank}; the "
                   f"largest leverage is {span.largest:.2f}{share}, of the allowed {self._limits.max_leverage:.2f}")


def _few_rows(report: RowsReport, min_cell: int) -> str:
    """The first level or class with too few rows; empty if there is none."""
    for name, levels in {**report.levels, "the label": report.classes}.items():
        for level, count in levels.items():
            if 0 < count < min_cell:
                return f"the level {quote(level)} of {quote(name)} has {count} rows"
    return f"{report.rows} rows are complete" if report.rows < min_cell else ""
