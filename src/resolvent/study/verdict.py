"""What a comparison shows: a table with a row per method, and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.problem.problem import SolvedProblem
from resolvent.simulate.result import Result
from resolvent.study.compare import Comparison
from resolvent.study.decisive_metric import decisive_score
from resolvent.study.gap import GAP_COLUMNS, gap_finding, gap_table
from resolvent.study.metrics import GAP, format_value, title_of
from resolvent.study.wording import enumerate_names

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Verdict", "columns_of", "finding", "judge", "refusals", "score_table"]

_MAX_NAMED = 10  # parties that a warning names


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        score: the metric that ranks the methods: the problem's score on test samples, or ``gap``.
        split: the split of that score: ``test``, or the last one of a problem that has no such split.
        higher_is_better: whether higher values of it are better.
        alone: the label of local training, if the parties' scores are compared with it.
        table: a row per method; its columns are those of ``columns_of``.
        finding: one sentence.
    """

    score: str
    split: str
    higher_is_better: bool
    alone: str | None
    table: "pd.DataFrame"
    finding: str


def judge(comparison: Comparison) -> Verdict:
    """Judge methods by the parties' test scores, or by the optimality gap if the problem's optimum is known."""
    methods = list(comparison.results)
    if isinstance(comparison.experiment.problem, SolvedProblem):
        gaps = gap_table(comparison.metrics, methods)
        return Verdict(GAP, "train", False, None, gaps, gap_finding(gaps, comparison.metrics))
    problem, alone = comparison.results[methods[0]].problem, comparison.alone
    score, higher = decisive_score(comparison.experiment, problem)
    split = "test" if "test" in problem.splits else problem.splits[-1]
    scores = score_table(comparison.metrics, methods, score, higher_is_better=higher, alone=alone, split=split)
    return Verdict(score, split, higher, alone, scores, finding(scores, score, alone, higher_is_better=higher))


def columns_of(score: str) -> dict[str, str]:
    """The columns of a verdict's table with one number per method, and the text for a missing number."""
    if score == GAP:
        return GAP_COLUMNS
    return {"mean": "diverged", "p10": "diverged", "worst": "diverged", "global mean": "", "global p10": "",
            "global worst": ""}


def score_table(metrics: "pd.DataFrame", methods: Sequence[str], score: str, *, higher_is_better: bool = True,
                alone: str | None = None, split: str = "test") -> "pd.DataFrame":
    """The scores of each method over the parties at the last evaluation.

    ``mean``, ``p10`` and ``worst`` are of the parties' personal models, ``global mean`` and so on of the shared model.
    Nine parties in ten do at least as well as ``p10``: it is the 10th percentile, or the 90th if lower is better. With
    ``alone``, ``better``, ``level`` and ``worse`` count the parties in comparison with local training. A score that is
    not a number, because the method diverged, counts as the worst possible one.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    diverged = -np.inf if higher_is_better else np.inf
    by_party = {method: _last(metrics, method, score, split).fillna(diverged) for method in methods}
    for method in methods:
        row: dict[str, Any] = {"method": method}
        shared = _last(metrics, method, f"global_{score}", split).fillna(diverged)
        for prefix, values in (("", by_party[method]), ("global ", shared)):
            row[f"{prefix}mean"] = values.mean()
            row[f"{prefix}p10"] = _quantile(values, 0.1 if higher_is_better else 0.9)
            row[f"{prefix}worst"] = values.min() if higher_is_better else values.max()
        if alone is not None:
            scores, baseline = (by_party[m] if higher_is_better else -by_party[m] for m in (method, alone))
            row |= {"better": int((scores > baseline).sum()), "level": int((scores == baseline).sum()),
                    "worse": int((scores < baseline).sum())}
        rows.append(row)
    return pd.DataFrame(rows)


def finding(table: "pd.DataFrame", score: str, alone: str | None, *, higher_is_better: bool = True) -> str:
    """One sentence: which methods leave parties worse off than local training, and which method is best on average."""
    best = table.sort_values("mean", ascending=not higher_is_better, kind="stable").iloc[0]
    top = f"{best['method']} gives the parties the best models on average ({_score_phrase(best['mean'], score)})"
    if alone is None:
        return f"{top}; without local training among the methods, no comparison with training alone is possible."
    others = table[table["method"] != alone]
    if others.empty:
        return f"{top}; there is no other method to compare it with."
    parties = int(others.iloc[0][["better", "level", "worse"]].sum())
    harmless = list(others.loc[others["worse"] == 0, "method"])
    harmful = others[others["worse"] > 0].sort_values("worse", ascending=False, kind="stable")
    if harmful.empty:
        return f"No method leaves any party worse off than alone; {top}."
    (count, method), *further = zip(harmful["worse"], harmful["method"], strict=True)
    losses = enumerate_names([f"{count} {'is' if count == 1 else 'are'} worse off than alone with {method}",
                              *(f"{n} with {m}" for n, m in further)])
    spared = (f"; {enumerate_names(harmless)} leave{'s' if len(harmless) == 1 else ''} none worse off" if harmless
              else "")
    return f"Of {parties} parties, {losses}{spared}; {top}."


def refusals(result: Result) -> str | None:
    """One sentence that names the parties whose replies were refused, most often first; None if none was refused."""
    counts = sorted(result.refused.items(), key=lambda item: -item[1])
    if not counts:
        return None
    names = [f"{party} ({times})" for party, times in counts[:_MAX_NAMED]]
    if len(counts) > _MAX_NAMED:
        names.append(f"{len(counts) - _MAX_NAMED} more")
    total = sum(result.refused.values())
    replies, were = ("reply", "was") if total == 1 else ("replies", "were")
    return (f"{result.name}: {total} {replies} that {were} not finite did not count, of {enumerate_names(names)}; "
            "such a party is broken or malicious, or its training diverges.")


def _last(metrics: "pd.DataFrame", method: str, metric: str, split: str) -> "pd.Series":
    """The values of a method's metric at the last evaluation, by party."""
    import pandas as pd

    rows = metrics[(metrics["method"] == method) & (metrics["metric"] == metric) & (metrics["split"] == split)]
    last = rows[rows["round"] == rows["round"].max()]
    return pd.Series(last["value"].to_numpy(), index=last["party"].to_numpy(dtype=np.int64), dtype=float)


def _quantile(values: "pd.Series", q: float) -> float:
    with np.errstate(invalid="ignore"):  # there is no number between an infinite and a finite score
        return float(values.quantile(q))


def _score_phrase(value: float, score: str) -> str:
    number = format_value(value, score)
    return f"{number} {title_of(score)}" if number.endswith("%") else f"{title_of(score)} {number}"
