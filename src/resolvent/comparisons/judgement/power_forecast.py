r"""How many further test rows would show a gain.

A gain on n rows with the variance v has the variance v n / N on N rows. Its interval excludes zero with the probability
0.8 if the true gain d is (z_0.975 + z_0.8) standard deviations:

.. code-block:: text

    N = n v (z_0.975 + z_power)^2 / d^2

Before a run there is no interval. If exactly one of two models is right in a share q of the rows, the difference d of
their accuracies has the variance (q - d^2) / n, so that the smallest gain that is shown with this probability is

.. code-block:: text

    d^2 = z^2 u q / (1 + z^2 u),  z = z_0.975 + z_power,  u = 1 / n

For a metric by class, u is the mean of 1 / n_c over the classes, divided by their number. A gain cannot exceed q.

Source: Cohen, *Statistical Power Analysis for the Behavioral Sciences*, 2nd edition, 1988, chapter 2.
"""

import math
from collections.abc import Sequence

from resolvent.predict.intervals import LEVEL

POWER = 0.8  # the probability with which an interval excludes zero
DIFFERING = 0.2  # share of the rows in which exactly one of two models is right
_MAX_ROWS = 10**9


def further_rows(variance: float, rows: int, gain: float) -> int | None:
    """The number of further rows with which an interval excludes zero.

    Args:
        variance: the variance of the gain on the present rows.
        gain: the true gain, not zero.

    Returns:
        The number; None if the variance is zero, or so large that the number exceeds 10^9.

    Example:
        >>> further_rows(0.0026, 100, 0.1)
        105
    """
    if rows < 1 or gain == 0 or not math.isfinite(variance) or variance == 0:
        return None
    further = rows * (variance * _deviations() ** 2 / gain**2 - 1)
    return max(math.ceil(further), 0) if further < _MAX_ROWS else None


def smallest_gain(test_rows: Sequence[int]) -> float | None:
    """The smallest gain in accuracy that an interval on a site's test rows would show.

    Args:
        test_rows: number of test rows; for a metric by class, the number of each class.

    Returns:
        The gain; None if no gain up to ``DIFFERING`` would be shown.

    Example:
        >>> round(smallest_gain([200]), 3)
        0.087
    """
    if min(test_rows, default=0) < 1:
        return None
    unit = _deviations() ** 2 * sum(1 / rows for rows in test_rows) / len(test_rows) ** 2
    gain = math.sqrt(unit * DIFFERING / (1 + unit))
    return gain if gain <= DIFFERING else None


def _deviations() -> float:
    """z_0.975 + z_power."""
    from scipy.special import ndtri  # here, because its import takes 0.1 s, and a run does not need it

    return float(ndtri((1 + LEVEL) / 2) + ndtri(POWER))
