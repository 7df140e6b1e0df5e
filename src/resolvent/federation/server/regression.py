"""The server of a federated regression: agreement on the rows, Newton's method, and the sums of the fit."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.algorithm import Algorithm, ServerState
from resolvent.algorithms.combinators.combinator import CombinatorState
from resolvent.comparisons.regression.agreement import RowsAgreement, RowsReport, agree_on_rows
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regress import check_rows
from resolvent.comparisons.regression.rows import rows_without_values
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.exchange import FederationStoppedError
from resolvent.federation.protocol.fitted_regression import FittedRegression
from resolvent.federation.protocol.job import FederationJob, Observer
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.reports import FinishReport, PhaseReport, Report, event_of_report
from resolvent.federation.protocol.requests import FederationRefusedError, ask_all, request_bytes, run_of_method
from resolvent.federation.protocol.stores import ServerStore
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.server.agreement import ask_for_reports
from resolvent.federation.server.coordinator import Coordinator
from resolvent.federation.server.result import FederationResult
from resolvent.regression.objective import RegressionProblem

_ROWS = "rows.json"  # the reports of the sites


def fit_regression(job: FederationJob, regression: FederatedRegression, transport: Transport, folder: Path,
                   observe: Observer) -> FittedRegression:
    """Fit a regression over the sites; rounds that are stored are not run again."""
    if job.quorum is not None or job.roster:
        raise FederationRefusedError("a regression needs all of its sites in every round, because sums over other "
                                     "sites are of another likelihood: run it without --quorum, and with the sites "
                                     "with which it began")
    rules = SumRules.of_plan(regression.privacy)
    if rules is not None and len(job.sites) < rules.min_sites:
        raise FederationRefusedError(f"a secure sum has at least {rules.min_sites} sites, and the run has "
                                     f"{len(job.sites)}: with fewer, a site's own sums could be computed from it")
    agreement = _agree(job, regression, transport, folder, observe)
    request = request_bytes("prepare", run=job.run, plan=job.plan, agreement=asdict(agreement))
    answers = ask_all(transport, dict.fromkeys(job.sites, request), job.deadline)
    model = _model(regression, agreement, answers)
    with regression.precision():
        newton, sums = regression.algorithms(model)
        problem = rows_without_values(model).problem(l2=regression.settings.l2)
        methods = _Methods(job, regression, transport, folder, observe)
        fitted = methods.run(0, newton, problem, lambda state: bool(_state_of(state).search.has_converged))
        search = _state_of(fitted.state).search
        start = jnp.asarray(search.point)
        reported = methods.run(1, sums, eqx.tree_at(lambda p: p.start, problem, start), lambda state: False)
        ask_all(transport, dict.fromkeys(job.sites, request_bytes("finish", run=job.run, plan=job.plan)), job.deadline)
        records = (fitted.record, reported.record)
        return FittedRegression(model, regression.settings, search, _state_of(reported.state),
                                sum(r.bytes_down for r in records), sum(r.bytes_up for r in records))


def _state_of(state: ServerState) -> Any:
    """The state of the method, without the integers around it."""
    return state.inner if isinstance(state, CombinatorState) else state


def _agree(job: FederationJob, regression: FederatedRegression, transport: Transport, folder: Path,
           observe: Observer) -> RowsAgreement:
    """What the sites agree on; their reports must be those with which the run began."""
    reports = {}
    for site, answer in ask_for_reports(job, regression, transport).items():
        try:
            reports[site] = RowsReport.from_plain(answer.get("table"))
        except InputError as error:
            raise FederationRefusedError(f"{site}: {error}") from error
    path = folder / _ROWS
    known = json.loads(path.read_text("utf-8")) if path.is_file() else None
    plain = json.loads(json.dumps({site: asdict(report) for site, report in reports.items()}))
    if known is not None and known != plain:
        changed = [site for site in job.sites if known.get(site) != plain[site]]
        raise FederationRefusedError(f"the table of {', '.join(changed)} has changed since the run {job.run} began: "
                                     "start a new run with another --out")
    try:
        agreement = agree_on_rows(reports, regression.formula, regression.settings, regression.table.cells)
    except InputError as error:
        raise FederationRefusedError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(plain))
    observe({"event": "agreed", "features": len(regression.formula.variables), "task": agreement.family, "findings": [],
             "rows": {site: {"train": rows} for site, rows in agreement.sites.items()}})
    return agreement


def _model(regression: FederatedRegression, agreement: RowsAgreement, answers: dict[str, Any]) -> RegressionModel:
    """What is fitted: the columns follow from the formula and the levels, and every site has the same."""
    columns = {site: tuple(map(str, answer["columns"])) if isinstance(answer.get("columns"), list) else ()
               for site, answer in answers.items()}
    first = next(iter(columns.values()))
    if other := [site for site, names in columns.items() if names != first or not names]:
        raise FederationRefusedError(f"{', '.join(other)} has other columns of the design: install the same version of "
                                     "formulaic at all sites")
    try:
        model = RegressionModel.of_agreement(regression.settings, first, agreement)
        check_rows(model)
    except InputError as error:
        raise FederationRefusedError(str(error)) from error
    return model


class _Methods:
    def __init__(self, job: FederationJob, regression: FederatedRegression, transport: Transport, folder: Path,
                 observe: Observer) -> None:
        self._job, self._regression, self._transport, self._folder, self._observe = (
            job, regression, transport, folder, observe)

    def run(self, number: int, algorithm: Algorithm, problem: RegressionProblem,
            has_ended: Callable[[ServerState], bool]) -> FederationResult:
        """The outcome of a method."""
        job, label = self._job, self._regression.labels[number]
        rounds = self._regression.rounds_of(label)

        def report_event(report: Report) -> None:
            self._observe(event_of_report(label, rounds, coordinator.parties, "objective", report))

        with ServerStore(self._folder / "stores" / f"{number:02d}") as store:
            coordinator = Coordinator(
                algorithm, problem, self._transport, store, rounds=rounds, rules=job.rules, method=label,
                rehearsal=self._regression.is_rehearsal, run=run_of_method(job.run, number, job.plan),
                secure=SumRules.of_plan(self._regression.privacy), samples=int(np.sum(np.asarray(problem.sizes))),
                has_ended=has_ended)
            result = coordinator.run(report_event)
        lost = [f"{result.record.parties[k]}: {reason}" for report in result.reports
                if isinstance(report, PhaseReport | FinishReport)
                for reasons in (report.absent, getattr(report, "refused", {})) for k, reason in reasons.items()]
        if lost:
            raise FederationStoppedError(f"a reply did not count, so that the sums are not those of all sites: "
                                         f"{'; '.join(lost)}")
        return result
