"""Tests of linear hypotheses about the coefficients: a factor, several terms together, or a contrast."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.fit import Fit
from resolvent.comparisons.regression.formula import columns_of_terms, parse_formula
from resolvent.comparisons.regression.imputation import joint_test
from resolvent.comparisons.regression.laws import beyond, quantile
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.errors import InputError, quote

_SINGULAR = 1e-12  # eigenvalue of a correlation matrix, relative to the largest, that counts as zero
_NUMBER = re.compile(r"(?<![\w.`])\d+(\.\d*)?(e[+-]?\d+)?(?![\w.])")
_SHOWN = 12  # names in a message


@dataclass(frozen=True)
class HypothesisTest:
    """The test that linear combinations of the coefficients have stated values, all together.

    Attributes:
        hypothesis: what was tested, as it was written.
        statistic: F with ``freedom`` and ``rest`` degrees of freedom, or chi-squared with ``freedom``.
        freedom: q, the number of combinations.
        rest: degrees of freedom of the denominator, of imputations no whole number; None: chi-squared.
        estimate: the combination R beta, if it is one; otherwise NaN.
        error: its standard error.
        low: lower end of its interval.
        high: upper end of its interval.
        kind: ``Wald`` or ``Likelihood-ratio``.
    """

    hypothesis: str
    statistic: float
    freedom: int
    rest: float | None
    p: float
    estimate: float
    error: float
    low: float
    high: float
    kind: str = "Wald"


def wald_test(fit: Fit, hypotheses: Sequence[str]) -> HypothesisTest:
    """Wald's test of hypotheses, all together, see ``Regression.test``."""
    text = ", ".join(hypotheses)
    matrix, values = constraints_of(text, fit.model)
    involved = check_known(fit, text, matrix)
    if any(fit.penalties):
        raise InputError("a fit with a penalty has no standard errors, and so no tests: leave l1 and l2 out")
    difference = matrix @ np.where(involved, fit.estimates, 0) - values
    covariance = matrix @ fit.covariance @ matrix.T
    scale = np.sqrt(np.diag(covariance))
    spread = np.linalg.eigvalsh(covariance / np.outer(scale, scale)) if scale.all() else np.zeros(1)
    if spread[0] <= _SINGULAR * spread[-1]:
        few = (f", or are more than {fit.clusters - 1}, which is all that errors of {fit.clusters} "
               f"{'sites' if fit.model.cluster is None else 'clusters'} can tell" if fit.errors == "clustered" else "")
        raise InputError(f"the hypotheses {quote(text)} depend on each other{few}: leave some out")
    q = len(values)
    freedom = fit.freedom_of(matrix)
    rest: float | None = float(freedom[0]) if isinstance(freedom, np.ndarray) else freedom
    if fit.imputed is not None and q > 1:
        covariance, rest = joint_test(matrix @ fit.imputed.within @ matrix.T, covariance, fit.imputed.count)
    statistic = float(difference @ np.linalg.solve(covariance, difference))
    statistic = statistic if rest is None else statistic / q
    estimate, error = (float(difference[0] + values[0]), float(scale[0])) if q == 1 else (np.nan, np.nan)
    half = float(quantile(fit.level, rest)) * error
    return HypothesisTest(text, statistic, q, rest, beyond(statistic, q, rest), estimate, error, estimate - half,
                          estimate + half)


def check_known(fit: Fit, text: str, matrix: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[P] the coefficients that a hypothesis is about; refuse those without an estimate."""
    involved = np.asarray(np.any(matrix != 0, axis=0))
    if unknown := [name for name, is_used, is_known in zip(fit.names, involved, fit.identification.is_identified,
                                                           strict=True) if is_used and not is_known]:
        raise InputError(f"{quote(text)} cannot be tested: there is no estimate of {', '.join(map(quote, unknown))}")
    return involved


def coordinates_of(text: str, model: RegressionModel) -> tuple[NDArray[np.float64], NDArray[np.bool_],
                                                               NDArray[np.float64]]:
    """[P, P] a matrix T, [P] which numbers of theta are free, and [P] the others, so that w = T theta are the
    parameters that fulfil the hypotheses R w = r: one parameter for each equation follows from those that are free.
    """
    from scipy.linalg import qr, solve_triangular

    matrix, values = constraints_of(text, model)
    (q, p), (orthogonal, upper, order) = matrix.shape, qr(matrix, mode="economic", pivoting=True)
    sizes = np.abs(np.diag(upper))
    if q > p or sizes.min() <= _SINGULAR * sizes.max():
        raise InputError(f"the hypotheses {quote(text)} depend on each other: leave some out")
    following, free = order[:q], order[q:]
    turn, fixed, is_free = np.eye(p), np.zeros(p), np.ones(p, bool)
    turn[np.ix_(following, free)] = -solve_triangular(upper[:, :q], upper[:, q:])
    fixed[following], is_free[following] = solve_triangular(upper[:, :q], orthogonal.T @ values), False
    return turn, is_free, fixed


def constraints_of(text: str, model: RegressionModel) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """R, [q, P], and r, [q], of hypotheses that commas separate."""
    from formulaic.errors import FormulaicError
    from formulaic.utils.constraints import LinearConstraints

    p, terms = len(model.names), _terms(model)
    known = [*model.names, *(name for name in terms if name not in model.names)]
    pattern = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    # A name becomes its number in backticks: names such as ward[T.a, b] have signs that mean something in an equation.
    numbered = re.sub(rf"`?(?<![\w.])({pattern})(?![\w.\[])`?", lambda m: f"`n{known.index(m[1])}`", text)
    rows, values = [], []
    for part in numbered.split(","):
        alone = re.fullmatch(r"\s*`n(\d+)`\s*", part)
        if alone and known[int(alone[1])] in terms:
            columns = terms[known[int(alone[1])]]
            rows.append(np.eye(p)[columns])
            values.append(np.zeros(len(columns)))
            continue
        part = _NUMBER.sub(lambda m: np.format_float_positional(float(m[0])), part)  # formulaic reads no 1e-3
        wrong = re.search(r"\*\*|=.*=|\w+|[^\s+\-*/=()]", _NUMBER.sub(" ", re.sub(r"`n\d+`", " ", part)))
        of_terms = [name for name in map(int, re.findall(r"`n(\d+)`", part)) if name >= p]
        if wrong or of_terms or "`" not in part:
            reason = (f"has {quote(wrong[0])}" if wrong else f"has the term {quote(known[of_terms[0]])} in an equation"
                      if of_terms else "names no coefficient")
            shown = ", ".join(known[:_SHOWN]) + ", ..." * (len(known) > _SHOWN)
            raise InputError(f"the hypothesis {quote(text)} {reason}. A hypothesis is a term of the formula or an "
                             f"equation of coefficients, such as {quote(f'{model.names[-1]} = 0')}; the names are "
                             f"{shown}")
        try:
            parsed = LinearConstraints.from_spec(part, variable_names=[f"n{j}" for j in range(p)])
        except (FormulaicError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise InputError(f"the hypothesis {quote(text)} cannot be read: write such as "
                             f"{quote(f'{model.names[-1]} = 0')}") from error
        rows.append(np.asarray(parsed.constraint_matrix, np.float64))
        values.append(np.asarray(parsed.constraint_values, np.float64))
    return np.concatenate(rows), np.concatenate(values)


def _terms(model: RegressionModel) -> dict[str, list[int]]:
    """Term -> the positions of its coefficients in ``names``, of each class; a category also without its C()."""
    terms, d = dict[str, list[int]](), len(model.columns)
    predictors = 1 if model.family is None else model.family.predictors
    for term, columns in columns_of_terms(parse_formula(model.formula), model.levels).items():
        if term != "1":
            positions = [model.columns.index(name) + d * block for block in range(predictors) for name in columns]
            terms |= dict.fromkeys((term, re.sub(r"^C\((.*)\)$", r"\1", term).strip("`")), positions)
    return terms
