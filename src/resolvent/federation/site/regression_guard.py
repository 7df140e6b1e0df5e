"""What a site lets out of a regression: no sum to which few rows contribute.

A sum of a regression is over all rows of a site, but most terms can be zero: the entry of X'WX for two indicators is a
sum over the rows that have both, and a server that chooses the coefficients can make the weights W of all rows but one
vanish. The guard counts the rows behind every sum, at every evaluation:

- each level, each value of an indicator, each class, and each cell of two of them has no row or at least ``min_cell``;
  the same holds for rows in which a column is not zero;
- at the coefficients of the server, the effective number of rows of each such cell, (sum w)^2 / sum w^2 with the
  weights w of the rows in X'WX, is at least ``min_cell`` / 2.

Combinations of columns, of this plan and of all others, are judged by their leverages, see ``leverage``. So are the
columns that an evaluation adds: X'WX and X's have the columns of WX and the slopes s beside those of X, with another W
and s for all coefficients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from numpy.typing import NDArray

from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.errors import quote
from resolvent.federation.protocol.limits import Limits, refusal_of_limits
from resolvent.federation.protocol.regression import PlannedFit
from resolvent.math import newton
from resolvent.math.newton import NewtonState
from resolvent.regression.newton import TOLERANCE_POWER
from resolvent.regression.objective import RegressionProblem, ScoreWeights
from resolvent.regression.random_intercept import RandomIntercept
from resolvent.regression.regression_fits import FitQuestion, fit_of_party

_NONE = 1e-12  # weights of a cell whose sum is smaller, relative to the number of rows, are zero


@dataclass(frozen=True, eq=False)
class RegressionGuard:
    """Checks the sums of one site's rows.

    Attributes:
        constants: how many different numbers the formulas of all plans contain, which leads have chosen.
        label: the column that is explained.
        fit: the fit whose messages are checked.
        count: name -> [rows, ...] columns that an evaluation adds -> raises ``Refusal`` if they may not.
    """

    rows: RegressionRows
    fit: PlannedFit
    limits: Limits
    constants: int = 0
    label: str = "the label"
    count: Callable[[Mapping[str, NDArray[np.float64]]], None] = lambda columns: None

    def reasons(self) -> dict[str, str]:
        """Name of a limit that the rows and columns exceed -> the reason; empty if the site takes part."""
        rows, parameters, largest = len(self.rows.y), len(self.rows.model.names), self.limits.max_parameters_per_row
        reasons = {}
        if largest is not None and parameters + self.constants > largest * rows:
            numbers = f" and {self.constants} numbers in the formulas of all plans" if self.constants else ""
            reasons["max_parameters_per_row"] = (f"the regression has {parameters} parameters{numbers}, more than "
                                                 f"{largest:.3g} for each of {rows} rows")
        if few := self._few_cells():
            reasons["min_cell"] = "; ".join(few[:3])
        return reasons

    def check(self, w: Any) -> None:
        """Check the sums at the coefficients of the server.

        Args:
            w: [P] the coefficients, or a ``FitQuestion``; in secure sums with the combinator's part around it.

        Raises:
            Refusal: a sum would be one of few rows, alone or together with other answers.
        """
        w = w.inner if isinstance(w, Wrapped) else w
        is_report = isinstance(w, FitQuestion)
        w, inverse = w if is_report else (w, None)
        problem = self.fit.problem
        if self.limits.min_cell > 1:
            check_curvatures(np.asarray(_row_weights(problem, jnp.asarray(w))), self.limits, *self._marks)
            if inverse is not None:
                self._check_leverages(np.asarray(_row_leverages(problem, jnp.asarray(w), jnp.asarray(inverse))))
        for columns in self._added(jnp.asarray(w), inverse, is_report=is_report):
            self.count(columns)

    def foreseen(self, rounds: int) -> Iterator[Mapping[str, NDArray[np.float64]]]:
        """The columns that each evaluation of a fit would add if the site were the only one."""
        search = newton.start(self.fit.problem.start)
        for _ in range(rounds):
            yield from self._added(search.candidate, None, is_report=False)
            search = _newton_step(self.fit.problem, self.fit.newton.tolerance, search)
            if self.fit.has_ended(search):
                break
        yield from self._added(search.point, None, is_report=True)

    def _added(self, w: Float[Array, " P"], inverse: Any, *,
               is_report: bool) -> Iterator[Mapping[str, NDArray[np.float64]]]:
        """Name -> [rows, ...] the columns of the sums at ``w``; with own fits, also of those at the own estimates."""
        problem, sums, points = self.fit.problem, self.fit.sums, [w]
        weights = None if inverse is None else ScoreWeights(jnp.asarray(inverse), sums.leverage_power)
        if is_report and sums.with_local_fits:
            points.append(_own_fit(problem, w))
        for point in points:
            columns = np.asarray(_answered_columns(problem, point, is_report, is_report and sums.scores, weights))
            if np.isfinite(columns).all():  # otherwise the reply says only that it has failed
                yield self._named(columns)

    def _named(self, columns: NDArray[np.float64]) -> Mapping[str, NDArray[np.float64]]:
        """The columns of ``answered_columns`` by the features that are in them; the slopes are the label's."""
        names, family = self.rows.model.columns, self.rows.model.family
        slopes = 1 if family is None else family.predictors + len(family.extra)
        width = len(names) + self.rows.model.keeps_intercepts
        if (columns.shape[1] - slopes) % width or isinstance(self.fit.problem, RandomIntercept):
            return {self.label: columns}
        features = ["Intercept", *names][-width:]
        return {self.label: columns[:, :slopes]} | {
            name: columns[:, slopes + j::width] for j, name in enumerate(features)}

    def _check_leverages(self, leverages: NDArray[np.float64]) -> None:
        """Refuse an inverse of the information with which the weights 1/(1 - leverage) would single out a row."""
        low, high, largest = float(leverages.min()), float(leverages.max()), self.limits.max_leverage
        if largest is not None and not -_NONE <= low <= high <= largest:
            raise refusal_of_limits({"max_leverage": "with the server's inverse of the information the leverages are "
                                     f"{low:.2g} to {high:.2g}, and must be from 0 to {largest:.2g}"}, self.limits)

    def _few_cells(self) -> list[str]:
        names, marks = self._marks
        counts = np.rint(marks.T @ marks).astype(int)
        few = (counts > 0) & (counts < self.limits.min_cell)
        return [f"{names[j]} and {names[k]} together have {counts[j, k]} rows" if j != k
                else f"{names[j]} has {counts[j, j]} rows" for j, k in zip(*np.nonzero(np.triu(few)), strict=True)]

    @cached_property
    def _marks(self) -> tuple[list[str], NDArray[np.float64]]:
        """[rows, M] 1 for the rows of a level or class, of a value of an indicator, and where a column is not 0."""
        x, label = self.rows.x, self.rows.y if self.rows.event is None else self.rows.event
        marks: dict[str, NDArray[Any]] = {"all rows": np.ones(len(x))}
        for name, of_column in self.rows.levels.items():  # with the base level, which is no column of its own
            marks |= {f"{quote(name)} = {quote(level)}": of_column == level for level in np.unique(of_column)}
        for j, name in enumerate(self.rows.model.columns):
            values = np.unique(x[:, j])
            if len(values) == 2:
                marks |= {f"{quote(name)} = {value:g}": x[:, j] == value for value in values}
            elif 0 in values and len(values) > 2:
                marks |= {f"{quote(name)} = 0": x[:, j] == 0, f"{quote(name)} other than 0": x[:, j] != 0}
        if self.rows.model.counts:
            names = self.rows.model.codes
            marks |= {names.get(value, f"class {value:g} of the label"): label == value
                      for value in map(float, np.unique(label))}
        return [*marks], np.stack([mark.astype(float) for mark in marks.values()], axis=1)


def check_curvatures(curvatures: NDArray[np.float64], limits: Limits, names: Sequence[str] = ("all rows",),
                     marks: NDArray[np.float64] | None = None) -> None:
    """Refuse coefficients of the server at which few rows have a curvature, so that they alone make up sums.

    The curvature is that of a row's loss in a linear predictor. Where it is zero, or zero for all rows but a few, the
    slopes are steps, and between two such points the sum of the rows' gradients changes by single rows. A cell in which
    no row has a curvature is no sum; all rows together must have one.

    Args:
        curvatures: [rows, C] for each linear predictor.
        marks: [rows, M] 1 for the rows of a cell, 0 for others; the first cell has all rows.

    Raises:
        Refusal: the effective number of rows of a cell is below ``min_cell`` / 2.
    """
    marks = np.ones((len(curvatures), 1)) if marks is None else marks
    for weight in np.abs(curvatures).T:
        if not np.isfinite(weight).all():  # the reply says only that it has failed
            continue
        weight = weight / max(float(weight.max()), np.finfo(float).tiny)
        total = (marks * weight[:, None]).T @ marks
        squares = (marks * (weight**2)[:, None]).T @ marks
        has_rows = (total > _NONE * len(weight)) & (squares > 0)
        effective = np.where(has_rows, total**2 / np.where(has_rows, squares, 1), np.inf)
        if not has_rows[0, 0]:
            effective[0, 0] = 0.0
        if effective.min() < limits.min_cell / 2:
            j, k = np.unravel_index(int(effective.argmin()), effective.shape)
            raise refusal_of_limits({"min_cell": f"at the server's coefficients {effective.min():.2g} rows make up the "
                                     f"sum of {names[int(j)]} and {names[int(k)]}"}, limits)


@partial(jax.jit, static_argnums=(2, 3))
def _answered_columns(problem: RegressionProblem, w: Float[Array, " P"], sums: bool, scores: bool,
                      weights: ScoreWeights | None) -> Float[Array, "rows columns"]:
    columns: Array = problem.answered_columns(w, sums, scores, weights)
    return columns


@jax.jit
def _own_fit(problem: RegressionProblem, w: Float[Array, " P"]) -> Float[Array, " P"]:
    own: Array = fit_of_party(problem.oracle(jnp.array(0)), w)[0]
    return own


@jax.jit
def _newton_step(problem: RegressionProblem, tolerance: ArrayLike | None, search: NewtonState) -> NewtonState:
    evaluation = problem.oracle(jnp.array(0)).second_order(search.candidate)
    tolerance = newton.precision(search.point)**TOLERANCE_POWER if tolerance is None else tolerance
    after: NewtonState = newton.advance(search, evaluation, tolerance)
    return after


@jax.jit
def _row_leverages(problem: RegressionProblem, w: Float[Array, " P"],
                   inverse: Float[Array, "P P"]) -> Float[Array, " rows"]:
    return problem.row_leverages(w, inverse)


@jax.jit
def _row_weights(problem: RegressionProblem, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
    return problem.row_weights(w)
