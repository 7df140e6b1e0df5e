"""Factors of a formula that are several columns: splines with stated knots, and orthogonal polynomials.

No site's rows decide what the columns are. Knots and bounds are written in the formula, and polynomials are orthogonal
over the rows of all sites, by moments on which the sites agree.
"""

import ast
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, quote

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = {"bs": "bs(age, knots=[40, 60], lower_bound=18, upper_bound=95)",
            "cr": "cr(age, knots=[40, 60], lower_bound=18, upper_bound=95)", "poly": "poly(age, 2)"}
_SETTINGS = {"bs": ({"knots", "lower_bound", "upper_bound"}, {"degree"}),
             "cr": ({"knots", "lower_bound", "upper_bound"}, set[str]()), "poly": ({"degree"}, set[str]())}
_MAX_DEGREE = 3
_FEW_VALUES = 1e-10  # of the variance of a power that lower powers leave unexplained: the column has too few values


class Basis(NamedTuple):
    """A factor with several columns.

    Attributes:
        function: ``bs``, ``cr`` or ``poly``.
        column: the column of the table.
        width: the number of its columns.
        constants: its knots and bounds.
    """

    function: str
    column: str
    width: int
    constants: tuple[float, ...] = ()


def read_basis(call: ast.Call, column: str) -> Basis:
    """A spline or polynomial as a formula states it.

    Args:
        call: such as ``bs(age, knots=[40, 60], lower_bound=18, upper_bound=95)``.
        column: the column that it names first.

    Raises:
        InputError: a setting is missing, is not known or is out of range.
    """
    function = call.func.id  # type: ignore[attr-defined]
    given = {str(keyword.arg): keyword.value for keyword in call.keywords}
    if function == "poly" and len(call.args) == 2:
        given["degree"] = call.args[1]
    needed, allowed = _SETTINGS[function]
    positional = 2 if function == "poly" and not call.keywords else 1
    if len(call.args) != positional or not needed <= {*given} <= needed | allowed:
        raise InputError(f"{function}() states a column and {', '.join(sorted(needed))}, which are not learnt from "
                         f"rows: write such as {EXAMPLES[function]}")
    try:
        settings = {name: ast.literal_eval(value) for name, value in given.items()}
    except ValueError as error:
        raise InputError(f"the settings of {function}() are written numbers: write such as "
                         f"{EXAMPLES[function]}") from error
    degree = settings.get("degree", _MAX_DEGREE)
    if type(degree) is not int or not 1 <= degree <= _MAX_DEGREE:
        raise InputError(f"the degree of {function}() is {quote(degree)}, and must be a whole number from 1 to "
                         f"{_MAX_DEGREE}")
    if function == "poly":
        return Basis(function, column, degree)
    knots, low, high = (settings[name] for name in ("knots", "lower_bound", "upper_bound"))
    if not isinstance(knots, list | tuple) or not knots or not all(
            type(x) in (int, float) and abs(x) < sys.float_info.max for x in (*knots, low, high)):
        raise InputError(f"the knots of {function}() are a list of numbers between two bounds: write such as "
                         f"{EXAMPLES[function]}")
    if not all(a < b for a, b in zip((low, *knots), (*knots, high), strict=True)):
        raise InputError(f"the knots of {function}() must rise from lower_bound to upper_bound, and are "
                         f"{', '.join(map(str, knots))} between {low} and {high}")
    count = len(knots) + (degree if function == "bs" else 1)
    return Basis(function, column, count, tuple(map(float, (*knots, low, high))))


def functions(moments: Mapping[str, Sequence[float]]) -> dict[str, Callable[..., Any]]:
    """The functions of a formula, by name.

    Args:
        moments: column of a polynomial -> what ``pooled_moments`` returns.
    """
    return {"bs": _b_spline, "cr": _natural_spline, "poly": partial(_polynomials, moments)}


def moments_of(values: NDArray[np.float64], degree: int) -> tuple[float, ...]:
    """The mean of a site's values, their standard deviation, and the means of the powers 3, ..., 2 degree of
    (x - mean) / deviation; zeros where all values are equal.
    """
    mean, deviation = float(values.mean()), float(values.std())
    scaled = (values - mean) / deviation if deviation > 0 else np.zeros_like(values)
    return mean, deviation, *(float((scaled**k).mean()) for k in range(3, 2 * degree + 1))


def pooled_moments(name: str, sites: Sequence[tuple[int, Sequence[float]]], degree: int) -> tuple[float, ...]:
    r"""The number of all rows, and the moments of their values as ``moments_of`` has them.

    With site k's share s_k of the rows, its mean m_k and deviation r_k, and the pooled ones m and r,

    .. math:: \frac{1}{n}\sum_i \Big(\frac{x_i - m}{r}\Big)^j = \sum_k s_k \sum_{i=0}^{j} \binom{j}{i}
              \Big(\frac{r_k}{r}\Big)^i \mu_{ki} \Big(\frac{m_k - m}{r}\Big)^{j-i}.

    Args:
        name: the column.
        sites: of each site its number of rows and ``moments_of`` them.

    Raises:
        InputError: a site's moments are of another degree, or the column has too few different values.
    """
    if any(len(moments) != 2 * degree for _, moments in sites):
        raise InputError(f"a site has sent other moments of {quote(name)} than those of a polynomial of degree "
                         f"{degree}")
    rows, own = np.array([float(n) for n, _ in sites]), np.array([moments for _, moments in sites])
    shares, ones = rows / rows.sum(), np.ones(len(rows))
    mean = float(shares @ own[:, 0])
    shift = own[:, 0] - mean
    deviation = float(np.sqrt(shares @ (own[:, 1]**2 + shift**2)))
    pooled = [1.0, 0.0, 1.0]
    if deviation > 0:
        ratio, shift, powers = own[:, 1] / deviation, shift / deviation, [ones, 0 * ones, ones, *own[:, 2:].T]
        pooled += [float(shares @ sum(math.comb(j, i) * ratio**i * powers[i] * shift**(j - i) for i in range(j + 1)))
                   for j in range(3, 2 * degree + 1)]
    if deviation == 0 or not _has_values(pooled, degree):
        raise InputError(f"{quote(name)} has too few different values for a polynomial of degree {degree}: write a "
                         f"smaller degree, or C({name}) for a category")
    return rows.sum(), mean, deviation, *pooled[3:]


def _has_values(moments: Sequence[float], degree: int) -> bool:
    """Whether each power has a part that lower powers do not explain."""
    try:
        pivots = np.diag(_orthogonal(moments, degree))**2
    except np.linalg.LinAlgError:
        return False
    return bool(np.all(pivots > _FEW_VALUES * np.array(moments)[:2 * degree + 1:2]))


def _orthogonal(moments: Sequence[float], degree: int) -> NDArray[np.float64]:
    """[d + 1, d + 1] L with LL' = the means of z^(i + j): L^-1 (1, z, ..., z^d) are orthonormal."""
    places = np.add.outer(np.arange(degree + 1), np.arange(degree + 1))
    return np.asarray(np.linalg.cholesky(np.array(moments)[places]))


def _polynomials(moments: Mapping[str, Sequence[float]], x: "pd.Series[float]", degree: int) -> Any:
    """The columns of ``poly(x, degree)`` of R on the rows of all sites: orthogonal to 1 and each other, of length 1."""
    from scipy.linalg import solve_triangular

    rows, mean, deviation, *further = moments[str(x.name)]
    scaled = (np.asarray(x, np.float64) - mean) / deviation
    lower = _orthogonal([1.0, 0.0, 1.0, *further], degree)
    values = solve_triangular(lower, scaled**np.arange(degree + 1)[:, None], lower=True) / math.sqrt(rows)
    return _columns({k: values[k] for k in range(1, degree + 1)})


def _b_spline(x: "pd.Series[float]", *, knots: Sequence[float], lower_bound: float, upper_bound: float,
              degree: int = _MAX_DEGREE) -> Any:
    """B-splines without the first, as ``bs`` of R and patsy has them; not a number beyond the bounds."""
    from formulaic.transforms import basis_spline

    return basis_spline(np.asarray(x, np.float64), knots=knots, degree=degree, lower_bound=lower_bound,
                        upper_bound=upper_bound, extrapolation="na")


def _natural_spline(x: "pd.Series[float]", *, knots: Sequence[float], lower_bound: float, upper_bound: float) -> Any:
    """Natural cubic splines that are zero at the lower bound, 1 at one of the other knots and 0 at the rest.

    So a coefficient is the difference of the curve at its knot from that at the lower bound. Beyond the bounds the
    curve is a line. The columns and the constant span what ``ns`` of R and the constant span.
    """
    from formulaic.transforms import natural_cubic_spline

    return natural_cubic_spline(np.asarray(x, np.float64), knots=knots, lower_bound=lower_bound,
                                upper_bound=upper_bound, constraints=np.eye(1, len(knots) + 2))


def _columns(values: dict[int, NDArray[np.float64]]) -> Any:
    from formulaic.materializers.types import FactorValues

    return FactorValues(values, kind="numerical")
