"""The outcome of a comparison: a table with a row per method, the judgement of every site, and a finding."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.judgement.advice import used_method
from resolvent.comparisons.judgement.convergence import Convergence, convergence_of_methods
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.decisions import decide
from resolvent.comparisons.judgement.divergence import ALL_DIVERGED, collapses, diverged_sites, no_reference
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.gap import gap_finding, gap_table
from resolvent.comparisons.judgement.metrics import GAP, format_value, last_rows, over_parties, title_of
from resolvent.comparisons.judgement.site_judgement import SiteJudgement, Sites
from resolvent.comparisons.judgement.sites import judge_sites
from resolvent.comparisons.judgement.wording import (
    below_baseline,
    below_baseline_text,
    enumerate_names,
    federation_text,
)
from resolvent.errors import InputError
from resolvent.predict.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd

_MAX_NAMED = 10  # parties that a warning names


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        evidence: the measurements; their score ranks the methods.
        table: a row per method; its columns are those of ``columns_of``, and the counts of parties.
        finding: one or two sentences.
        sites: the judgement of every site; empty if no interval is possible.
        diverged: method -> site -> the round of the first evaluation since which its model there has no score.
        collapsed: method -> why its training counts as collapsed.
        convergence: method -> whether its training has converged, and the number of rounds to try.
    """

    evidence: Evidence
    table: "pd.DataFrame"
    finding: str
    sites: Sites
    diverged: Mapping[str, Mapping[str, int]]
    collapsed: Mapping[str, str]
    convergence: Mapping[str, Convergence]

    @property
    def baseline(self) -> str | None:
        """The label of the predictions that need no training, if the judgements of the sites have it."""
        return self.evidence.baseline if self.sites.sites else None

    def recommendations(self) -> "pd.DataFrame":
        """The method that each site should use, see ``Comparison.recommend``.

        Raises:
            InputError: training alone is not among the methods, or no interval is possible.
        """
        import pandas as pd

        alone, federation = self.evidence.alone, self.sites.federation
        if alone is None:
            raise InputError("there is no recommendation without training alone among the methods: add "
                             "rv.careful_local(solver)")
        if not self.sites.sites:
            raise InputError("there is no recommendation without intervals: they need test rows, or several seeds "
                             "(seeds=5)")
        return pd.DataFrame([_recommendation(site, None if federation is None else federation.method, alone)
                             for site in self.sites.sites])

    def site_table(self) -> "pd.DataFrame":
        """A row per site and method, see ``Comparison.sites``."""
        import pandas as pd

        return pd.DataFrame([
            {"site": site.name, "method": method, **_columns("score", score),
             **(_columns("gain", site.gains[method]) if method in site.gains else {}), "test_rows": site.test_rows}
            for site in self.sites.sites for method, score in site.scores.items()])


def _recommendation(site: SiteJudgement, method: str | None, alone: str) -> dict[str, Any]:
    """A row of ``Verdict.recommendations``; without numbers where training alone diverged."""
    advice, nothing = site.advice, Interval(math.nan, math.nan, math.nan)
    expected, own = (nothing, nothing) if advice is None else (advice.expected, advice.own)
    return {"site": site.name, "use": used_method(advice, method, alone),
            "model": None if advice is None else advice.model,
            "advice": None if advice is None else advice.answer, "reason": None if advice is None else advice.reason,
            "probability": math.nan if advice is None else advice.probability,
            "expected": expected.value, "expected_low": expected.low, "expected_high": expected.high,
            "own": own.value, "own_low": own.low, "own_high": own.high, "test_rows": site.test_rows,
            "settled_by": "" if advice is None else advice.settled_by}


def _columns(title: str, interval: Any) -> dict[str, float]:
    return {title: interval.value, f"{title} low": interval.low, f"{title} high": interval.high}


def judge(evidence: Evidence, sites: Sites | None = None, rule: DecisionRule | None = None) -> Verdict:
    """Judge methods by the parties' test scores, or by the optimality gap if the problem's optimum is known.

    Args:
        sites: the judgements of the sites, if they have judged the methods themselves; default: from the evidence.
        rule: how a site weighs gains and losses.
    """
    convergence = convergence_of_methods(evidence)
    table, text, sites = _judge(evidence, sites, convergence, rule)
    return Verdict(evidence, table, text, sites, diverged_sites(evidence), collapses(evidence), convergence)


def _judge(evidence: Evidence, sites: Sites | None, convergence: Mapping[str, Convergence],
           rule: DecisionRule | None) -> "tuple[pd.DataFrame, str, Sites]":
    """The table, the finding and the judgement of every site."""
    score, higher, alone = evidence.score, evidence.higher_is_better, evidence.alone
    methods = list(evidence.methods)
    if score == GAP:
        metrics = _median_gaps(evidence.metrics)
        gaps = gap_table(metrics, methods)
        return gaps, gap_finding(gaps, metrics), Sites((), None)
    table = score_table(evidence.metrics, methods, score, higher_is_better=higher, alone=alone, split=evidence.split)
    sites = decide(judge_sites(evidence) if sites is None else sites, evidence, convergence,
                   rule or DecisionRule())
    if not sites.sites:
        return table, finding(table, score, alone, higher_is_better=higher), sites
    table = _with_intervals(table, sites, alone)
    if evidence.folds > 1:
        table = _with_pooled_scores(table, sites, higher_is_better=higher)
    return table, _finding(table, sites, evidence), sites


def _median_gaps(metrics: "pd.DataFrame") -> "pd.DataFrame":
    """The gap of each round, the median over the seeds."""
    rows = metrics[metrics["metric"] == GAP]
    return rows.groupby(["method", "metric", "round"], sort=False)["value"].median().reset_index()


def _with_intervals(table: "pd.DataFrame", sites: Sites, alone: str | None) -> "pd.DataFrame":
    """The table with the counts of sites by the intervals of their gains, and the mean weighted by test rows."""
    table = table.copy()
    if alone is not None:
        compared = [site for site in sites.sites if site.has_reference(alone)]
        for column, sign in (("better", 1), ("level", 0), ("worse", -1)):
            table[column] = [sum(site.gains[m].sign == sign for site in compared) if m != alone else
                             len(compared) * (sign == 0) for m in table["method"]]
    if sites.means is not None:
        table["weighted mean"] = [sites.means.weighted[m].value for m in table["method"]]
    return table


def _with_pooled_scores(table: "pd.DataFrame", sites: Sites, *, higher_is_better: bool) -> "pd.DataFrame":
    """The table with the scores of all rows of a site together, where ``score_table`` has means over the folds."""
    import pandas as pd

    rows = [over_parties([site.scores[method].value for site in sites.sites], higher_is_better=higher_is_better)
            for method in table["method"]]
    return table.assign(**pd.DataFrame(rows, index=table.index))


def _finding(table: "pd.DataFrame", sites: Sites, evidence: Evidence) -> str:
    """The finding: what the federation should run, who should join, and where the shared model does not fit."""
    alone = evidence.alone
    below, are_all = below_baseline(sites.sites, evidence.methods, evidence.baseline)
    untrained = below_baseline_text(below, are_all, evidence.baseline) if are_all else ""
    if alone is None or not evidence.candidates:
        return untrained or finding(table, evidence.score, alone, higher_is_better=evidence.higher_is_better)
    if not any(site.has_reference(alone) for site in sites.sites):
        return f"{no_reference(alone)}."
    if sites.federation is None:
        return untrained or finding(table, evidence.score, alone, higher_is_better=evidence.higher_is_better)
    unit = f" of {title_of(evidence.score)}" if evidence.decides else " of skill"
    text = federation_text(sites.federation, sites.sites, unit)
    return f"{untrained} {text}" if untrained and sites.federation.method is None else text


def _harmed(rows: "pd.DataFrame") -> str:
    """How many sites are worse off with each method."""
    (count, method), *further = zip(rows["worse"], rows["method"], strict=True)
    return enumerate_names([f"{count} {'is' if count == 1 else 'are'} worse off than alone with {method}",
                            *(f"{n} with {m}" for n, m in further)])


def score_table(metrics: "pd.DataFrame", methods: Sequence[str], score: str, *, higher_is_better: bool = True,
                alone: str | None = None, split: str = "test") -> "pd.DataFrame":
    """The scores of each method over the parties at the last evaluation.

    ``mean``, ``p10`` and ``worst`` are of the parties' personal models, ``global mean`` and so on of the shared model.
    Nine parties in ten do at least as well as ``p10``: it is the 10th percentile, or the 90th if lower is better. With
    ``alone``, ``better``, ``level`` and ``worse`` count the parties in comparison with local training. A score that is
    not a number, because the method diverged, counts as the worst possible one; parties where local training diverged
    are not compared with it.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    diverged = -np.inf if higher_is_better else np.inf
    by_party = {method: _last(metrics, method, score, split).fillna(diverged) for method in methods}
    for method in methods:
        row: dict[str, Any] = {"method": method}
        shared = _last(metrics, method, f"global_{score}", split).fillna(diverged)
        for prefix, values in (("", by_party[method]), ("global ", shared)):
            row |= over_parties(values, prefix, higher_is_better=higher_is_better)
        if alone is not None:
            scores, baseline = (by_party[m] if higher_is_better else -by_party[m] for m in (method, alone))
            scores, baseline = scores.align(baseline, join="inner")  # sites of a federation can join between methods
            scores, baseline = (s[np.isfinite(baseline)] for s in (scores, baseline))
            row |= {"better": int((scores > baseline).sum()), "level": int((scores == baseline).sum()),
                    "worse": int((scores < baseline).sum())}
        rows.append(row)
    return pd.DataFrame(rows)


def finding(table: "pd.DataFrame", score: str, alone: str | None, *, higher_is_better: bool = True) -> str:
    """One sentence: which methods leave parties worse off than local training, and which method is best on average."""
    best = table.sort_values("mean", ascending=not higher_is_better, kind="stable").iloc[0]
    top = (f"{best['method']} gives the parties the best models on average ({_score_phrase(best['mean'], score)})"
           if np.isfinite(best["mean"]) else ALL_DIVERGED)
    if alone is None:
        return f"{top}; without local training among the methods, no comparison with training alone is possible."
    others = table[table["method"] != alone]
    if others.empty:
        return f"{top}; there is no other method to compare it with."
    parties = int(others.iloc[0][["better", "level", "worse"]].sum())
    if not parties:
        return f"{no_reference(alone)}; {top}."
    harmless = list(others.loc[others["worse"] == 0, "method"])
    harmful = others[others["worse"] > 0].sort_values("worse", ascending=False, kind="stable")
    if harmful.empty:
        return f"No method leaves any party worse off than alone; {top}."
    spared = (f"; {enumerate_names(harmless)} leave{'s' if len(harmless) == 1 else ''} none worse off" if harmless
              else "")
    return f"Of {parties} parties, {_harmed(harmful)}{spared}; {top}."


def refusals(method: str, refused: Mapping[str, int]) -> str | None:
    """One sentence that names the parties whose replies did not count, most often first; None if all counted.

    Args:
        refused: party -> number of refused replies.
    """
    counts = sorted(refused.items(), key=lambda item: -item[1])
    if not counts:
        return None
    names = enumerate_names([f"{party} ({times})" for party, times in counts], _MAX_NAMED)
    total = sum(refused.values())
    replies, were = ("reply", "was") if total == 1 else ("replies", "were")
    return (f"{method}: {total} {replies} that {were} not finite, or far longer than the median, did not count, of "
            f"{names}; such a party is broken or malicious, or its training diverges.")


def _last(metrics: "pd.DataFrame", method: str, metric: str, split: str) -> "pd.Series":
    """The values of a method's metric at the last evaluation, by party: the means over the seeds and folds."""
    import pandas as pd

    last = last_rows(metrics[metrics["method"] == method], metric, split)
    values = pd.Series(last["value"].to_numpy(), index=last["party"].to_numpy(dtype=np.int64), dtype=float)
    return values if values.index.is_unique else values.groupby(level=0).agg(lambda v: v.mean(skipna=False))


def _score_phrase(value: float, score: str) -> str:
    number = format_value(value, score)
    return f"{number} {title_of(score)}" if number.endswith("%") else f"{title_of(score)} {number}"
