"""The server's part of a regression: agreement on the rows, Newton's method, and the sums of the fit."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import ArrayLike
from typing_extensions import override

from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.random_intercepts import random_start
from resolvent.comparisons.regression.regress import check_rows, regression_of
from resolvent.comparisons.regression.rows import rows_without_values
from resolvent.errors import InputError
from resolvent.federation.protocol.fitted_regression import FittedPart, FittedRegression, write_fit
from resolvent.federation.protocol.regression import FederatedRegression, fits_of
from resolvent.federation.server.served_plan import ServedTablePlan
from resolvent.math.newton import NewtonState
from resolvent.regression.objective import RegressionProblem


class ServedRegression(ServedTablePlan[FederatedRegression]):
    """One regression at the server.

    Attributes:
        model: what is fitted: the columns follow from the formula and the levels, and every site has the same.
    """

    model: RegressionModel

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
        rows, settings = rows_without_values(self.model), self.plan.settings
        fits, sizes = list[FittedPart](), [0, 0]
        for part in self.plan.parts:
            start = None
            for fit in fits_of(rows, settings):
                newton, sums = self.plan.algorithms(fit)
                problem = fit.problem if start is None else _begin_at(fit.problem, start)
                fitted, state = self._run_rounds(fit.labels[0], part, newton, problem, _of_search(fit.has_ended))
                search = state.search
                reported, report = self._run_rounds(fit.labels[1], part, sums, _begin_at(problem, search.point),
                                                    lambda state: False)
                fits.append(FittedPart(search, report))
                for result in (fitted, reported):
                    sizes = [sizes[0] + result.record.bytes_down, sizes[1] + result.record.bytes_up]
                if settings.site == "random":
                    start = random_start(regression_of(self.model, settings, search, fits[-1].report.means))
        self._fit = FittedRegression(self.model, settings, tuple(fits), *sizes)

    @override
    def _write(self, results: Path, answers: Mapping[str, Mapping[str, Any]], warnings: list[str]) -> None:
        write_fit(results, self._fit)


def _of_search(has_ended: Callable[[NewtonState], bool]) -> Callable[[Any], bool]:
    return lambda state: has_ended(state.search)


def _begin_at(problem: RegressionProblem, start: ArrayLike) -> RegressionProblem:
    begun: RegressionProblem = eqx.tree_at(lambda p: p.start, problem, jnp.asarray(start))
    return begun
