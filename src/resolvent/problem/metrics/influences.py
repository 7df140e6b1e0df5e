"""Values of single samples whose mean is a metric: the jackknife's pseudo-values."""

import numpy as np
from numpy.typing import NDArray

from resolvent.problem.metrics.metric import Metric, Predictions

__all__ = ["influences"]

_MAX_GROUPS = 50  # number of groups of samples that the jackknife leaves out in turn


def influences(predictions: Predictions, metric: Metric) -> NDArray[np.float64]:
    """[n] values whose mean is the metric, and whose variance is n times the variance of the metric.

    They are the pseudo-values of the jackknife, which leaves out every sample in turn, or with more than 50 samples
    each of 50 groups. If the metric is not defined without a group, the influence of this group is set to 0. If it is
    not defined at all, all values are nan.
    """
    n, value = len(predictions.labels), metric.value(predictions)
    if not np.isfinite(value):
        return np.full(n, np.nan)
    group = np.arange(n) % _MAX_GROUPS
    influence = np.zeros(n)
    for number in range(min(n, _MAX_GROUPS)):
        is_left = group != number
        count = int(n - is_left.sum())
        left = Predictions(*(None if a is None else a[is_left] for a in predictions))  # type: ignore[arg-type]
        without = metric.value(left) if n > count else np.nan
        if np.isfinite(without):
            influence[~is_left] = (n - count) / np.sqrt(count) * (value - without)
    result: NDArray[np.float64] = value + influence - influence.mean()
    return result
