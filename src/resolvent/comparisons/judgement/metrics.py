"""What the name of a metric says: whether higher values are better, how a value is written, and columns of scores."""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Ends of the names of metrics, so that those of the shared model, such as global_accuracy, are included.
_SHARES = ("accuracy", "average_precision", "calibration_error", "f1", "roc_auc")  # between 0 and 1
_IN_PERCENT = ("accuracy", "annual_return", "max_drawdown", "turnover", "cash_share", "largest_weight")
GAP = "gap"  # the optimality gap f(w) - f* of the shared model
GAP_TARGETS = ("1e-6", "1e-8")  # relative to the first gap


def is_share(metric: str) -> bool:
    """Whether values lie between 0 and 1."""
    return metric.endswith(_SHARES)


@cache
def range_of(metric: str) -> tuple[float, float]:
    """The smallest and the largest possible value; infinite for a metric that is none of the library's."""
    from resolvent.comparisons.experiment.registry import registry_of
    from resolvent.problem.metrics.metric import Metric  # here, because it loads JAX

    name = metric.removeprefix("global_")
    if name == "squared_error":
        return 0, math.inf
    kinds = (kind for kind in registry_of(Metric).functions.values()
             if isinstance(kind, type) and issubclass(kind, Metric))
    return next((kind.limits for kind in kinds if kind().name == name), Metric.limits)


def is_in_percent(metric: str) -> bool:
    """Whether tables print values in percent."""
    return metric.endswith(_IN_PERCENT)


def run_columns(metrics: "pd.DataFrame") -> list[str]:
    """The columns of a table of metrics that, with ``method``, identify a run: those of the seed and of the fold."""
    return [column for column in ("seed", "fold") if column in metrics]


def last_rows(metrics: "pd.DataFrame", metric: str, split: str) -> "pd.DataFrame":
    """The rows of a metric at the last evaluation of each run: callbacks may stop runs after different rounds."""
    rows = metrics[(metrics["metric"] == metric) & (metrics["split"] == split)]
    return rows[rows["round"] == rows.groupby(["method", *run_columns(rows)])["round"].transform("max")]


def over_parties(scores: "Sequence[float] | pd.Series[float]", prefix: str = "", *,
                 higher_is_better: bool) -> dict[str, float]:
    """The mean, the tenth that nine parties in ten reach, and the worst of the parties' scores."""
    import pandas as pd

    values: Any = pd.Series(scores, dtype=float)
    with np.errstate(invalid="ignore"):  # there is no number between an infinite and a finite score
        return {f"{prefix}mean": values.mean(), f"{prefix}p10": values.quantile(0.1 if higher_is_better else 0.9),
                f"{prefix}worst": values.min() if higher_is_better else values.max()}


def title_of(metric: str) -> str:
    """The metric's name in a text."""
    return "RMSE" if metric == "rmse" else metric.replace("_", " ")


def format_value(value: float, metric: str) -> str:
    """A value of a metric as text: shares and returns in percent."""
    return f"{value:.1%}" if is_in_percent(metric) else f"{value:.4g}"


def columns_of(score: str) -> dict[str, str]:
    """The columns of a verdict's table with one number per method, and the text for a missing number."""
    if score == GAP:
        return {"first gap": "diverged", "final gap": "diverged", **{f"rounds to {t}": "" for t in GAP_TARGETS}}
    return {"mean": "diverged", "p10": "diverged", "worst": "diverged", "global mean": "", "global p10": "",
            "global worst": ""}
