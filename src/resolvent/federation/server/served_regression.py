"""The server's part of a regression: agreement on the rows, Newton's method, and the sums of the fit."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm, ServerState
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.comparisons.regression.agreement import RowsReport, agree_on_rows
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regress import check_rows
from resolvent.comparisons.regression.rows import rows_without_values
from resolvent.errors import InputError
from resolvent.federation.protocol.events import Agreement
from resolvent.federation.protocol.fitted_regression import FittedRegression, write_fit
from resolvent.federation.protocol.plan import Part
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.server.coordinator import FederationResult
from resolvent.federation.server.served_plan import Agreed, Known, ServedPlan
from resolvent.regression.objective import RegressionProblem


class ServedRegression(ServedPlan[FederatedRegression]):
    """One regression at the server.

    Attributes:
        model: what is fitted: the columns follow from the formula and the levels, and every site has the same.
    """

    model: RegressionModel

    @override
    def _agree(self, answers: Mapping[str, Mapping[str, Any]], known: Known | None) -> Agreed:
        plan, reports = self.plan, self._read_reports(answers, RowsReport)
        self._agreement = agree_on_rows(reports, plan.formula, plan.settings, plan.table.cells)
        return self._agreed(answers, {"agreement": asdict(self._agreement)},
                            Agreement(len(plan.formula.variables), self._agreement.sites))

    @override
    def _accept(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        columns = {site: tuple(map(str, answer["columns"])) if isinstance(answer.get("columns"), list) else ()
                   for site, answer in answers.items()}
        first = next(iter(columns.values()))
        if other := [site for site, names in columns.items() if names != first or not names]:
            raise InputError(f"{', '.join(other)} has other columns of the design: install the same version of "
                             "formulaic at all sites")
        self.model = RegressionModel.of_agreement(self.plan.settings, first, self._agreement)
        check_rows(self.model, self.plan.settings)

    @override
    def _run_methods(self) -> None:
        newton, sums = self.plan.algorithms(self.model)
        problem = rows_without_values(self.model).problem(l2=self.plan.settings.l2)
        fitted = self._method(0, newton, problem, lambda state: bool(_state_of(state).search.has_converged))
        search = _state_of(fitted.state).search
        start = jnp.asarray(search.point)
        reported = self._method(1, sums, eqx.tree_at(lambda p: p.start, problem, start), lambda state: False)
        records = (fitted.record, reported.record)
        self._fit = FittedRegression(self.model, self.plan.settings, search, _state_of(reported.state),
                                     sum(r.bytes_down for r in records), sum(r.bytes_up for r in records))

    def _method(self, number: int, algorithm: Algorithm, problem: RegressionProblem,
                has_ended: Callable[[ServerState], bool]) -> FederationResult:
        return self._run_method(self.plan.labels[number], Part(0), algorithm, problem, score="objective",
                                samples=sum(self._agreement.sites.values()), has_ended=has_ended).result

    @override
    def _write(self, results: Path, answers: Mapping[str, Mapping[str, Any]], warnings: list[str]) -> None:
        write_fit(results, self._fit)


def _state_of(state: ServerState) -> Any:
    """The state of the method, without the integers around it."""
    return state.inner if isinstance(state, Wrapped) else state
