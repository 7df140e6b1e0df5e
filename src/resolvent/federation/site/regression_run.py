"""One regression at a site: the rows, the agreement, and a party for each of its two methods."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Full
from resolvent.comparisons.regression.agreement import RowsAgreement, RowsReport, describe_rows
from resolvent.comparisons.regression.rows import NoCompleteRowError, RegressionRows, complete_rows, encode_rows
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import quote
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import LIMITS, Asked, Usage, reasons_to_refuse, refusal_of_limits
from resolvent.federation.protocol.names import PREPARED_FILE, VERSIONS
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.protocol.regression import METHOD, FederatedRegression
from resolvent.federation.protocol.requests import run_of_method
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.site.listed_columns import check_listed_columns
from resolvent.federation.site.party import Party
from resolvent.federation.site.planned_work import Membership, PlannedWork
from resolvent.federation.site.read_rows import check_present, read_site_rows, site_cells
from resolvent.federation.site.regression_guard import RegressionGuard
from resolvent.federation.site.row_sets import check_label, check_row_set
from resolvent.federation.site.site_run import PlanRun, open_store
from resolvent.federation.site.sum_party import secure_site
from resolvent.regression.newton import FederatedNewton


class RegressionRun(PlanRun[FederatedRegression]):
    """One regression at a site.

    Attributes:
        version: number of the version of the table; None in a rehearsal.
        methods: label -> algorithm, when the run is prepared.
    """

    def __init__(self, folder: Path, site: SiteFile, regression: FederatedRegression, membership: Membership, *,
                 lead: str = "", plan: str = "", identity: Identity | None = None) -> None:
        """Read the rows.

        Args:
            identity: the certificate of the site, for secure sums.
        """
        super().__init__(folder, site, regression, membership, lead, plan, identity)
        with refusing(RefusalCode.EXPERIMENT):
            self._formula = regression.formula
        versions = None if regression.is_rehearsal else folder.parent / VERSIONS
        frame, rows = read_site_rows(site, regression.table, folder=versions)
        if rows is not None:
            frame = frame.iloc[np.concatenate([*rows.splits.values()])]
        self.version = None if rows is None else rows.version
        self._ledger.rows = site.table if rows is None else rows.account
        check_present([*self._formula.response.columns, *self._formula.variables], [*map(str, frame.columns)])
        with refusing(RefusalCode.VALUES):
            try:
                self._frame = complete_rows(frame.reset_index(drop=True), self._formula, regression.settings,
                                            cells=site_cells(site, regression.table))
            except NoCompleteRowError as error:
                raise Refusal(RefusalCode.EMPTY, str(error), column=error.column) from error
            self._report = describe_rows(self._frame, self._formula, regression.settings,
                                         len(frame) - len(self._frame))
        self._used = np.isin(np.arange(len(frame)), self._frame.index)
        self._versions = versions
        self.methods: dict[str, Algorithm] = {}

    @property
    def row_counts(self) -> dict[str, int]:
        """The numbers of rows that are used and left out."""
        return {"complete": self._report.rows, "left out": self._report.left_out}

    @property
    def levels(self) -> Mapping[str, Mapping[str, int]]:
        """Column of categories -> its levels with their numbers of rows."""
        return self._report.levels

    def check_limits(self) -> None:
        """Check the plan against the site's limits, before anything about the table leaves the site."""
        limits, settings, report = self._site.limits, self.experiment.settings, self._report
        rounds = self.experiment.total_rounds
        reasons = reasons_to_refuse(limits, self._asked(Usage(rounds, rounds, 1, 0, math.inf)), *(
            Asked(method=METHOD, algorithm=FederatedNewton(), rounds=self.experiment.rounds_of(label),
                  samples=report.rows) for label in self.experiment.labels))
        if few := _few_rows(report, limits.min_cell):
            reasons["min_cell"] = few
        if settings.errors == "clustered" and len(self._membership.sites) < 2:
            reasons["min_sites"] = "errors clustered by site need 2 sites"
        if reasons:
            raise refusal_of_limits(reasons, limits)
        self._check_columns()
        if self._versions is not None:
            check_row_set(self._versions, self.version or 0, self._used, limits)

    def _check_columns(self) -> None:
        """Refuse free text, identifiers and levels that the site does not list."""
        limits, counts = self._site.limits, {**self._report.levels, self._formula.response.label: self._report.classes}
        check_listed_columns({name: len(levels) for name, levels in counts.items()},
                             {name: np.asarray(self._frame[name], np.float64) for name in self._report.numbers},
                             self._report.rows, limits)
        for name, levels in counts.items():
            allowed = (limits.levels or {}).get(name)
            if allowed is not None and (unknown := sorted({*levels} - {*allowed})):
                raise Refusal(RefusalCode.COLUMN, f"{quote(name)} has the level {quote(unknown[0])}, which is not in "
                              f"limits.levels ({LIMITS['levels'].why})", column=name)

    def _check_label(self, rows: RegressionRows) -> None:
        """Refuse a response, such as another threshold of a column, that differs from an earlier one in few rows."""
        for values in (rows.y, rows.event):
            if self._versions is not None and values is not None:
                of_version = np.full(len(self._used), np.nan)
                of_version[self._used] = values
                is_class = len(np.unique(values)) <= 2
                check_label(self._versions, f"version {self.version}, regressions",
                            of_version.astype(str) if is_class else of_version, self._site.limits)

    def _answered_columns(self, rows: RegressionRows) -> dict[str, NDArray[np.float64]]:
        """Column -> [rows of the version, ...] what the sums are about; 0 for rows that are left out.

        The response is indicators of the classes, whether the event occurred, or a number. The times of a Cox model
        are in no sum.
        """
        response, classes = self._formula.response.columns[-1], np.arange(len(rows.model.classes))
        of_rows: dict[str, NDArray[Any]] = {name: rows.x[:, j] for j, name in enumerate(rows.model.columns)}
        of_rows[response] = (rows.event if rows.event is not None else rows.y[:, None] == classes if len(classes)
                             else rows.y)
        if rows.offsets is not None:
            of_rows["offset"] = rows.offsets
        columns = {response: self._used.astype(np.float64)[:, None]}
        for name, values in of_rows.items():
            of_version = np.zeros((len(self._used), values.size // len(rows.y)))
            of_version[self._used] = np.reshape(values, (len(rows.y), -1))
            columns[name] = np.concatenate([columns[name], of_version], axis=1) if name in columns else of_version
        return columns

    def report(self) -> dict[str, Any]:
        """The report on the rows."""
        return asdict(self._report)

    def description(self) -> dict[str, Any]:
        """What leaves the site about its table: the report."""
        return {"table": self.report()}

    def prepare(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Encode the rows by the agreement of the sites, and make the parties; returns the names of the columns."""
        with refusing(RefusalCode.CONFLICT):
            agreement = RowsAgreement.from_plain(content)
        text, prepared = json.dumps(asdict(agreement)), self._folder / PREPARED_FILE
        if prepared.is_file() and prepared.read_text("utf-8") != text:
            raise Refusal(RefusalCode.PLAN, "the site has been prepared for this run with another agreement: the same "
                          "rows would be asked twice")
        if agreement.sites.get(self._membership.name) != self._report.rows:
            raise Refusal(RefusalCode.CONFLICT, "the agreement has another number of rows of this site")
        self.close()
        with self.experiment.precision(), refusing(RefusalCode.ENCODING):
            rows = encode_rows(self._frame, self._formula, self.experiment.settings, agreement, [self._report.rows])
            problem = rows.problem(l2=self.experiment.settings.l2)
            guard = RegressionGuard(rows, problem, self._site.limits)
            if reasons := guard.reasons():
                raise refusal_of_limits(reasons, self._site.limits)
            self._check_label(rows)
            self._count_columns(self._answered_columns(rows), self.version)
            self._folder.mkdir(parents=True, exist_ok=True)
            limits = replace(self._site.limits, scores=False)  # a regression has no evaluations
            self.methods = dict(zip(self.experiment.labels, self.experiment.algorithms(rows.model), strict=True))
            for number, (label, algorithm) in enumerate(self.methods.items()):
                rounds = self.experiment.rounds_of(label)
                self._stores.append(open_store(self._folder / "stores" / f"{number:02d}"))
                planned = PlannedWork(algorithm, Full(), self._membership, 0, rounds, rounds,
                                      self.experiment.is_rehearsal, may_end_early=True)
                party = Party(algorithm, problem, self._stores[-1], rounds=rounds, method=METHOD,
                              name=self._membership.name, limits=limits, ledger=self._ledger,
                              lead=self._lead, planned=planned, rehearsal=self.experiment.is_rehearsal,
                              guard=guard.check, secure=secure_site(
                                  self.experiment.privacy, self._membership, self._site.limits,
                                  run_of_method(self._folder.name, number, self._plan), self._stores[-1].folder,
                                  self._identity))
                party.check()
                self._parties.append(party)
        write_text(prepared, text)
        return {"columns": list(rows.model.columns)}

    def finish(self) -> dict[str, Any]:
        """The site has nothing to add: the fit is the lead's."""
        return {"methods": list(self.experiment.labels)}


def _few_rows(report: RowsReport, min_cell: int) -> str:
    """The first level or class with too few rows; empty if there is none."""
    for name, levels in {**report.levels, "the label": report.classes}.items():
        for level, count in levels.items():
            if 0 < count < min_cell:
                return f"the level {quote(level)} of {quote(name)} has {count} rows"
    return f"{report.rows} rows are complete" if report.rows < min_cell else ""
