r"""Score intervals of shares and of paired differences of shares.

An interval that inverts a score test stays inside the possible values and has nearly its stated coverage where the
normal approximation fails: with few rows, and with shares near 0 and 1. Counts need not be whole numbers: an effective
number of rows, n times the variance of independent rows over the true variance, accounts for rows that depend on each
other (Korn and Graubard).

Source: Wilson, *Probable Inference, the Law of Succession, and Statistical Inference*, JASA 1927; Newcombe, *Two-sided
Confidence Intervals for the Single Proportion*, Statistics in Medicine 1998; Tango, *Equivalence Test and Confidence
Interval for the Difference in Proportions for the Paired-Sample Design*, Statistics in Medicine 1998; Korn, Graubard,
*Confidence Intervals for Proportions with Small Expected Number of Positive Counts Estimated from Survey Data*, Survey
Methodology 1998.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BISECTIONS = 45  # halvings of an interval of length 2 that reach the resolution of the result, 1e-13

Array = NDArray[np.float64]


def wilson_interval(share: ArrayLike, number: ArrayLike, z: ArrayLike) -> tuple[Array, Array]:
    """The ends of Wilson's interval of a share: all p with |share - p| <= z sqrt(p (1 - p) / number).

    Args:
        share: the observed share, in [0, 1].
        number: the (effective) number of rows, positive.
        z: quantile of the standard normal distribution, such as 1.96 for the level 95 %.
    """
    p, n, z = (np.asarray(a, dtype=float) for a in (share, number, z))
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)


def paired_interval(gained: ArrayLike, lost: ArrayLike, number: ArrayLike, z: ArrayLike) -> tuple[Array, Array]:
    r"""The ends of Tango's interval of the difference of two shares that are measured on the same rows.

    .. code-block:: text

        estimate  = gained - lost
        |estimate - d| <= z sqrt((2 q + d - d^2) / number)  for all d of the interval,

    where q is the maximum-likelihood estimate of the share that is lost if the difference is d.

    Args:
        gained: share of the rows with the value 1 by the first and 0 by the second method, in [0, 1].
        lost: share of the rows with the value 0 by the first and 1 by the second method, in [0, 1].
        z: quantile of the standard normal distribution.
    """
    gained, lost, number, z = np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in (gained, lost, number, z)))
    estimate = gained - lost
    inner = np.stack([estimate, estimate])
    outer = np.stack([np.full_like(estimate, -1), np.full_like(estimate, 1)])
    for _ in range(_BISECTIONS):
        middle = (inner + outer) / 2
        is_inside = (estimate - middle) ** 2 * number <= z**2 * _variance(gained, lost, middle)
        inner, outer = np.where(is_inside, middle, inner), np.where(is_inside, outer, middle)
    return inner[0], inner[1]


def _variance(gained: Array, lost: Array, difference: Array) -> Array:
    """The variance of one row's difference if the true difference is d: 2 q + d - d^2, with q from Tango's (3)."""
    linear = (2 - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    q = (np.sqrt(np.maximum(linear**2 - 8 * constant, 0)) - linear) / 4
    return np.maximum(2 * q + difference * (1 - difference), 0)
