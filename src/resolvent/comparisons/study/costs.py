"""What a method costs until it reaches a score, and how it treats the parties."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import format_value, is_in_percent, is_share, range_of, title_of
from resolvent.comparisons.study.scores import cost_by_round, curves, last_rounds, last_scores
from resolvent.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Values = NDArray[np.float64]
_BYTES = ("bytes_down", "bytes_up")


def costs(evidence: Evidence, target: float | None = None) -> "pd.DataFrame":
    """Rounds, bytes, seconds and epsilon until a target, and the area under the curve, see ``Study.costs``."""
    import pandas as pd

    of_curves, of_areas, rows = curves(evidence), areas(evidence), []
    target = _default_target(of_curves, evidence) if target is None else _checked_target(target, evidence.score)
    for method in evidence.methods:
        by_seed = [_until(evidence, method, seed, of_curves[method].T[seed], target) for seed in evidence.seeds]
        reached = [cost for cost in by_seed if np.isfinite(cost["rounds"])]
        rows.append({"method": method, "target": target, "reached": len(reached), "seeds": len(by_seed), **{
            name: _median([cost[name] for cost in by_seed]) for name in by_seed[0]}, "area": of_areas[method]})
    return pd.DataFrame(rows)


def _default_target(of_curves: "dict[str, pd.DataFrame]", evidence: Evidence) -> float:
    """The best score that two methods reach in half of their seeds or more; that of one method, if there is no other.

    A method that stays at one bad score has no influence, where the worst last score would be its score.
    """
    sign = 1.0 if evidence.higher_is_better else -1.0
    # _median takes the higher of two: of the negated scores it is the worse.
    reached = sorted(_median((-sign * table).min(axis=1).tolist()) for table in of_curves.values())
    return -sign * reached[min(1, len(reached) - 1)]


def _checked_target(target: float, score: str) -> float:
    """The target as a score, from the unit that tables print."""
    low, high = range_of(score)
    name, value = title_of(score), target / 100 if is_in_percent(score) else target
    if is_in_percent(score) and is_share(score) and 0 < target <= 1:
        raise InputError(f"target={target:g}: {name} is in percent here, as in the tables: write {100 * target:g} for "
                         f"{100 * target:g} %")
    if not low <= value <= high:
        raise InputError(f"target={target:g}: no run can reach it, {name} lies between {format_value(low, score)} and "
                         f"{format_value(high, score)}")
    return value


def _median(values: list[float]) -> float:
    """The median over the seeds; infinite if half of them do not reach the target, NaN if it was not measured."""
    return float("nan") if np.isnan(values).any() else float(np.quantile(values, 0.5, method="higher"))


def _until(evidence: Evidence, method: str, seed: int, curve: "pd.Series[float]", target: float) -> dict[str, float]:
    """What one run spends until the first evaluation that reaches the target; infinite if none does."""
    reaches = (curve >= target) if evidence.higher_is_better else (curve <= target)
    round_ = int(str(reaches.idxmax())) if reaches.any() else None
    seconds = cost_by_round(evidence, method, seed, ("simulated_seconds",))
    traffic = bytes_by_round(evidence, method, seed)
    epsilons = _epsilons(evidence, method, seed)
    if round_ is None:
        return {"rounds": np.inf, "bytes": np.inf if traffic is not None else np.nan,
                "seconds": np.inf if len(seconds) else np.nan, "epsilon": np.inf if len(epsilons) else np.nan}
    return {"rounds": float(round_), "bytes": np.nan if traffic is None else float(traffic.loc[:round_].sum()),
            "seconds": float(seconds.loc[:round_].sum()) if len(seconds) else np.nan,
            "epsilon": float(epsilons.loc[round_]) if len(epsilons) else np.nan}


def _epsilons(evidence: Evidence, method: str, seed: int) -> "pd.Series[float]":
    """round -> the largest epsilon of a party."""
    metrics = evidence.metrics
    rows = metrics[(metrics["method"] == method) & (metrics["seed"] == seed) & (metrics["metric"] == "epsilon")]
    largest: pd.Series[float] = rows.groupby("round")["value"].max()
    return largest


def bytes_by_round(evidence: Evidence, method: str, seed: int) -> "pd.Series[float] | None":
    """round -> bytes that all parties of it receive and send.

    They are measured with a virtual clock. Without one, each round has the mean of the rounds of the first seed. None
    if the bytes are not known.
    """
    import pandas as pd

    measured = cost_by_round(evidence, method, seed, _BYTES)
    if len(measured):
        return measured
    total = None if evidence.traffic is None else evidence.traffic.get(method)
    if total is None:
        return None
    rounds = last_rounds(evidence, method)
    return pd.Series(total / max(rounds[evidence.seeds[0]], 1), index=pd.RangeIndex(1, rounds[seed] + 1))


def areas(evidence: Evidence) -> dict[str, float]:
    """method -> the mean over the seeds of the area under the curve of mean scores, divided by the rounds.

    It is the score of a random round between the first and the last.
    """
    means = {}
    for method, table in curves(evidence).items():
        rounds = table.columns.to_numpy(float)
        area = np.trapezoid(table.to_numpy(float), rounds, axis=1)
        means[method] = float(np.mean(area) / np.ptp(rounds)) if len(rounds) > 1 else float("nan")
    return means


def fairness(evidence: Evidence) -> "pd.DataFrame":
    """How the scores are distributed over the parties, see ``Study.fairness``."""
    import pandas as pd

    table, rows = last_scores(evidence), list[dict[str, Any]]()
    for method in evidence.methods:
        of_seeds = [values[~np.isnan(values)] for values in table.loc[method].to_numpy(float)]
        measured = [{"mean": float(np.mean(v)), "sd": float(np.std(v)) if np.isfinite(v).all() else np.nan,
                     "worst decile": worst_decile(v, higher_is_better=evidence.higher_is_better),
                     "worst": float(v.min() if evidence.higher_is_better else v.max()),
                     "gini": gini(v), "entropy": entropy(v)} for v in of_seeds]
        rows.append({"method": method, **{name: float(np.mean([m[name] for m in measured])) for name in measured[0]}})
    return pd.DataFrame(rows)


def worst_decile(scores: Values, *, higher_is_better: bool = True) -> float:
    """The mean score of the tenth of the parties with the worst scores, at least one party."""
    ordered = np.sort(scores if higher_is_better else -scores)[:max(1, int(np.ceil(len(scores) / 10)))]
    return float(np.mean(ordered)) * (1 if higher_is_better else -1)


def gini(scores: Values) -> float:
    """Gini's coefficient sum_ij |x_i - x_j| / (2 n^2 mean): 0 if all parties have the same score, less than 1.

    NaN if a score is negative or not finite, or all are zero.

    Example:
        >>> import numpy as np
        >>> from resolvent.comparisons.study.costs import gini
        >>> gini(np.array([0.0, 0.0, 0.0, 1.0]))
        0.75
    """
    if not _is_share(scores):
        return float("nan")
    ordered, number = np.sort(scores), len(scores)
    weights = 2 * np.arange(1, number + 1) - number - 1
    return float(weights @ ordered / (number * ordered.sum()))


def entropy(scores: Values) -> float:
    """The entropy of the parties' shares x_k / sum(x), divided by log n: 1 if all parties have the same score.

    NaN if a score is negative or not finite, or all are zero, or there is one party.
    """
    if not _is_share(scores) or len(scores) < 2:
        return float("nan")
    shares = scores / scores.sum()
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum() / np.log(len(scores)))


def _is_share(scores: Values) -> bool:
    return bool(np.isfinite(scores).all() and (scores >= 0).all() and scores.sum() > 0)
