"""What a site lets out of a regression: no sum to which few rows contribute.

A sum of a regression is over all rows of a site, but most terms can be zero: the entry of X'WX for two indicators is a
sum over the rows that have both, and a server that chooses the coefficients can make the weights W of all rows but one
vanish. The guard counts the rows behind every sum, at every evaluation:

- each level, each value of an indicator, each class, and each cell of two of them has no row or at least ``min_cell``;
  the same holds for rows in which a column is not zero;
- at the coefficients of the server, the effective number of rows of each such cell, (sum w)^2 / sum w^2 with the
  weights w of the rows in X'WX, is at least ``min_cell`` / 2;
- all evaluations together have at most as many numbers as the rows have values.

Combinations of columns, of this plan and of all others, are judged by their leverages, see ``leverage``.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from resolvent.comparisons.regression.rows import RegressionRows
from resolvent.errors import quote
from resolvent.federation.protocol.limits import Limits, refusal_of_limits
from resolvent.regression.objective import RegressionProblem
from resolvent.regression.regression_fits import FitQuestion

_NONE = 1e-12  # weights of a cell whose sum is smaller, relative to the number of rows, are zero


@dataclass(frozen=True, eq=False)
class RegressionGuard:
    """Checks the sums of one site's rows.

    Attributes:
        constants: how many different numbers the formula contains, which the lead has chosen.
    """

    rows: RegressionRows
    problem: RegressionProblem
    limits: Limits
    constants: int = 0

    def reasons(self) -> dict[str, str]:
        """Name of a limit that the rows and columns exceed -> the reason; empty if the site takes part."""
        rows, parameters, largest = len(self.rows.y), len(self.rows.model.names), self.limits.max_parameters_per_row
        reasons = {}
        if rows < self.limits.min_rows:
            reasons["min_rows"] = f"{rows} complete rows are fewer than {self.limits.min_rows}"
        if largest is not None and parameters + self.constants > largest * rows:
            numbers = f" and {self.constants} numbers in its formula" if self.constants else ""
            reasons["max_parameters_per_row"] = (f"the regression has {parameters} parameters{numbers}, more than "
                                                 f"{largest:.3g} for each of {rows} rows")
        if few := self._few_cells():
            reasons["min_cell"] = "; ".join(few[:3])
        return reasons

    def check(self, w: Any, number: int) -> None:
        """Check the sums at the coefficients of the server.

        Args:
            w: [P] the coefficients, or a ``FitQuestion``.
            number: number of evaluations that the site has answered before.

        Raises:
            Refusal: a sum would be one of few rows, or the answers would have more numbers than the rows.
        """
        w, inverse = w if isinstance(w, FitQuestion) else (w, None)
        parameters = len(self.rows.model.names)
        numbers = (number + 1) * (1 + parameters + parameters * (parameters + 1) // 2)
        values = len(self.rows.y) * (sum(name != "Intercept" for name in self.rows.model.columns) + 1)
        if self.limits.max_parameters_per_row is not None and numbers > values:
            raise refusal_of_limits({"max_parameters_per_row": f"{number + 1} evaluations have {numbers} numbers, and "
                                     f"the rows have {values}"}, self.limits)
        if self.limits.min_cell <= 1:
            return
        for weight in np.abs(np.asarray(_row_weights(self.problem, jnp.asarray(w)))).T:
            if not np.isfinite(weight).all():
                continue  # the reply says only that it has failed
            self._check_weights(weight / max(float(weight.max()), np.finfo(float).tiny))

        if inverse is not None:
            self._check_leverages(np.asarray(_row_leverages(self.problem, jnp.asarray(w), jnp.asarray(inverse))))

    def _check_leverages(self, leverages: NDArray[np.float64]) -> None:
        """Refuse an inverse of the information with which the weights 1/(1 - leverage) would single out a row."""
        low, high, largest = float(leverages.min()), float(leverages.max()), self.limits.max_leverage
        if largest is not None and not -_NONE <= low <= high <= largest:
            raise refusal_of_limits({"max_leverage": "with the server's inverse of the information the leverages are "
                                     f"{low:.2g} to {high:.2g}, and must be from 0 to {largest:.2g}"}, self.limits)

    def _check_weights(self, weight: NDArray[np.float64]) -> None:
        marks = self._marks[1]
        total = (marks * weight[:, None]).T @ marks
        squares = (marks * (weight**2)[:, None]).T @ marks
        has_rows = (total > _NONE * len(weight)) & (squares > 0)
        effective = np.where(has_rows, total**2 / np.where(has_rows, squares, 1), np.inf)
        if effective.min() < self.limits.min_cell / 2:
            j, k = np.unravel_index(int(effective.argmin()), effective.shape)
            names = self._marks[0]
            raise refusal_of_limits({"min_cell": f"at the server's coefficients {effective.min():.2g} rows make up the "
                                     f"sum of {names[int(j)]} and {names[int(k)]}"}, self.limits)

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
            marks |= {f"class {value:g} of the label": label == value for value in np.unique(label)}
        return [*marks], np.stack([mark.astype(float) for mark in marks.values()], axis=1)


@jax.jit
def _row_leverages(problem: RegressionProblem, w: Float[Array, " P"],
                   inverse: Float[Array, "P P"]) -> Float[Array, " rows"]:
    return problem.row_leverages(w, inverse)


@jax.jit
def _row_weights(problem: RegressionProblem, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
    return problem.row_weights(w)
