"""Quantiles and p values of Student's and the normal law, without SciPy's statistics, whose import takes a second."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc, fdtrc, ndtr, ndtri, stdtr, stdtrit


def quantile(level: float, freedom: ArrayLike | None) -> Any:
    """How many standard errors an interval of this level reaches on each side.

    Args:
        freedom: degrees of freedom of the t statistic; None: it is normal.
    """
    p = (1 + level) / 2
    return ndtri(p) if freedom is None else stdtrit(freedom, p)


def two_sided(statistic: NDArray[np.float64], freedom: ArrayLike | None) -> NDArray[np.float64]:
    """The p values of z or t statistics."""
    below = -np.abs(statistic)
    return np.asarray(2 * (ndtr(below) if freedom is None else stdtr(freedom, below)))


def beyond(statistic: float, freedom: float, rest: float | None = None) -> float:
    """The p value of a chi-squared statistic; with ``rest``, degrees of freedom of the denominator, of F."""
    statistic = max(statistic, 0.0)  # of a likelihood ratio it can be rounded to below zero
    return float(chdtrc(freedom, statistic) if rest is None else fdtrc(freedom, rest, statistic))
