"""Run the algorithms of an experiment in one common random world, and say what came out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.simulate.result import Result
from resolvent.simulate.run import simulate
from resolvent.simulate.schedulers import Choice
from resolvent.study.experiment import Experiment, ExperimentFile
from resolvent.study.gap import TARGETS, gap_finding, gap_table
from resolvent.study.wording import listed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "Verdict", "columns_of", "compare", "finding", "judge", "refusals", "score_table"]


@dataclass(frozen=True)
class Comparison:
    """The results of an experiment, by label.

    Attributes:
        experiment: what was compared.
        results: a result per algorithm, in the file's order.
        alone: the label of local training, or None where it was not compared.
    """

    experiment: Experiment
    results: dict[str, Result]
    alone: str | None

    @property
    def metrics(self) -> "pd.DataFrame":
        """All metrics of all methods, one long table."""
        import pandas as pd

        return pd.concat([r.metrics for r in self.results.values()], ignore_index=True)


def compare(file: ExperimentFile, experiment: Experiment | None = None, *, checkpoints: Path | None = None,
            resume: bool = False, progress: Callable[[str, int, int], None] | None = None,
            scheduler: Choice = "auto") -> Comparison:
    """Run every algorithm of an experiment.

    Args:
        file: the checked experiment.
        experiment: its parts, where they have been built already.
        checkpoints: a folder for the state of each method, see ``simulate``.
        resume: go on from the checkpoints there.
        progress: called with (label, rounds done, rounds in all).
        scheduler: how the work is laid out on the machine, see ``simulate``.
    """
    with file.precision():
        return _compare(file, file.build() if experiment is None else experiment, checkpoints, resume, progress,
                        scheduler)


def _compare(file: ExperimentFile, experiment: Experiment, checkpoints: Path | None, resume: bool,
             progress: Callable[[str, int, int], None] | None, scheduler: Choice) -> Comparison:
    subject = experiment.model if experiment.problem is None else experiment.problem
    assert subject is not None
    results: dict[str, Result] = {}
    for number, (label, algorithm) in enumerate(experiment.algorithms.items()):
        result = simulate(
            algorithm, subject, experiment.data, rounds=experiment.rounds, seed=experiment.seed,
            participation=experiment.participation, evaluate_every=experiment.evaluate_every,
            diagnostics=experiment.diagnostics, clock=experiment.clock, name=label, resume=resume,
            scheduler=scheduler,
            checkpoint=None if checkpoints is None else checkpoints / f"{number:02d}",
            progress=(lambda done, total, label=label: progress(label, done, total)) if progress else False)  # type: ignore[misc]
        # All are of the same samples: one copy of them is kept, not one for every method.
        shared = next((r.problem for r in results.values() if r.memory is None), result.problem)
        results[label] = replace(result, problem=shared) if result.memory is None else result
    alone = next((label for label in results if file.preset_of(label) == "local"), None)
    return Comparison(experiment, results, alone)


@dataclass(frozen=True)
class Verdict:
    """What came out of a comparison.

    Attributes:
        score: what the methods are judged by: the problem's score on test samples, or ``gap``, the optimality gap.
        higher_is_better: whether more of it is better.
        alone: the label of local training where the parties' scores are compared with it.
        table: a row per method; its columns are those of ``columns_of``.
        finding: one sentence.
    """

    score: str
    higher_is_better: bool
    alone: str | None
    table: "pd.DataFrame"
    finding: str


def judge(comparison: Comparison) -> Verdict:
    """By the parties' test scores, or on a problem whose optimum is known by the shared model's gap."""
    methods = list(comparison.results)
    if comparison.experiment.problem is not None:
        gaps = gap_table(comparison.metrics, methods)
        return Verdict("gap", False, None, gaps, gap_finding(gaps, comparison.metrics))
    problem, alone = comparison.results[methods[0]].problem, comparison.alone
    score, higher = problem.score_name, problem.higher_is_better
    scores = score_table(comparison.metrics, methods, score, higher_is_better=higher, alone=alone)
    return Verdict(score, higher, alone, scores, finding(scores, score, alone, higher_is_better=higher))


def columns_of(score: str) -> dict[str, str]:
    """The columns of a verdict's table that have one number per method, and what it means where there is none."""
    if score == "gap":
        return {"first gap": "diverged", "final gap": "diverged", **{f"rounds to {t}": "" for t in TARGETS}}
    return {"mean": "diverged", "p10": "diverged", "worst": "diverged", "global mean": "", "global p10": "",
            "global worst": ""}


def score_table(metrics: "pd.DataFrame", methods: Sequence[str], score: str, *, higher_is_better: bool = True,
                alone: str | None = None, split: str = "test") -> "pd.DataFrame":
    """Per method, over parties at the last evaluation: mean, 10th percentile and worst of the model each party deploys
    and of the shared model, and how many parties are better off, level or worse off than alone.

    For a score where less is better, the 10th percentile is the 90th: always the party that nine in ten do better than.
    A score that is not a number (the method diverged there) counts as the worst there can be.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    diverged = -np.inf if higher_is_better else np.inf
    by_party = {m: _last(metrics, m, score, split).fillna(diverged) for m in methods}
    for m in methods:
        row: dict[str, Any] = {"method": m}
        shared = _last(metrics, m, f"global_{score}", split).fillna(diverged)
        for prefix, values in (("", by_party[m]), ("global ", shared)):
            row[f"{prefix}mean"] = values.mean()
            row[f"{prefix}p10"] = _quantile(values, 0.1 if higher_is_better else 0.9)
            row[f"{prefix}worst"] = values.min() if higher_is_better else values.max()
        if alone is not None:
            mine, theirs = (by_party[x] if higher_is_better else -by_party[x] for x in (m, alone))
            row |= {"better": int((mine > theirs).sum()), "level": int((mine == theirs).sum()),
                    "worse": int((mine < theirs).sum())}
        rows.append(row)
    return pd.DataFrame(rows)


def finding(table: "pd.DataFrame", score: str, alone: str | None, *, higher_is_better: bool = True) -> str:
    """One sentence: who gains from the federation and who loses by it."""
    best = table.sort_values("mean", ascending=not higher_is_better, kind="stable").iloc[0]
    top = f"{best['method']} gives the parties the best models on average ({_number(best['mean'], score)})"
    if alone is None:
        return f"{top}; without local training among the methods, nothing says who would be better off alone."
    others = table[table["method"] != alone]
    if others.empty:
        return f"{top}; there is no other method to compare it with."
    parties = int(others.iloc[0][["better", "level", "worse"]].sum())
    safe = list(others.loc[others["worse"] == 0, "method"])
    harmful = others[others["worse"] > 0].sort_values("worse", ascending=False, kind="stable")
    if harmful.empty:
        return f"No method leaves any party worse off than alone; {top}."
    (most, by), *rest = zip(harmful["worse"], harmful["method"], strict=True)
    hurt = listed([f"{most} {'is' if most == 1 else 'are'} worse off than alone with {by}",
                    *(f"{n} with {m}" for n, m in rest)])
    spared = f"; {listed(safe)} leave{'s' if len(safe) == 1 else ''} none worse off" if safe else ""
    return f"Of {parties} parties, {hurt}{spared}; {top}."


def refusals(result: Result) -> str | None:
    """One sentence that names the parties whose replies were refused, most often first; None without any."""
    most = sorted(result.refused.items(), key=lambda item: -item[1])
    if not most:
        return None
    named = [f"{party} ({times})" for party, times in most[:10]]
    rest = [f"{len(most) - 10} more"] if len(most) > 10 else []
    total = sum(result.refused.values())
    replies, were = ("reply", "was") if total == 1 else ("replies", "were")
    return (f"{result.name}: {total} {replies} that {were} not finite did not count, of {listed([*named, *rest])}; "
            "such a party is broken or malicious, or its training diverges.")


def _last(metrics: "pd.DataFrame", method: str, metric: str, split: str) -> "pd.Series":
    import pandas as pd

    rows = metrics[(metrics["method"] == method) & (metrics["metric"] == metric) & (metrics["split"] == split)]
    last = rows[rows["round"] == rows["round"].max()]
    return pd.Series(last["value"].to_numpy(), index=last["party"].to_numpy(dtype=np.int64), dtype=float)


def _quantile(values: "pd.Series", q: float) -> float:
    with np.errstate(invalid="ignore"):  # between an infinite and a finite score lies nothing
        return float(values.quantile(q))


def _number(value: float, score: str) -> str:
    return f"{value:.1%} {score.replace('_', ' ')}" if score == "accuracy" else f"{score.replace('_', ' ')} {value:.4g}"
