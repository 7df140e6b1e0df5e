"""Compute the numbers of a study again from its run folders, with NumPy alone, and compare them with its files.

    python benchmarks/study_numbers.py PAPER NAME=RUN NAME=RUN ...

It imports nothing of the library: it reads ``metrics.parquet``, ``test_rows.parquet`` and ``summary.json`` of the runs
and the CSV files of the folder that ``Study.paper`` wrote, and fails where two numbers differ by more than rounding.
The bootstrap intervals are computed with other random numbers, so their ends must agree within a fifth of their width.
"""

import json
import math
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

RESAMPLES = 4000


class Run:
    """The arrays of one run folder: scores [method, seed, party] at every evaluated round, and values of test rows."""

    def __init__(self, folder):
        folder = Path(folder)
        self.summary = json.loads((folder / "summary.json").read_text())
        metrics = pd.read_parquet(folder / "metrics.parquet")
        score, split = self.summary["score"], self.summary["split"]
        self.methods, self.seeds = list(self.summary["methods"]), self.summary["seeds"]
        self.sign = 1.0 if self.summary["higher_is_better"] else -1.0
        rows = metrics[(metrics["metric"] == score) & (metrics["split"] == split)]
        self.rounds = np.unique(rows["round"])
        parties = np.unique(rows["party"].astype(int))
        self.scores = np.full((len(self.methods), len(self.seeds), len(self.rounds), len(parties)), np.nan)
        for row in rows.itertuples():
            self.scores[self.methods.index(row.method), self.seeds.index(row.seed),
                        np.searchsorted(self.rounds, row.round), np.searchsorted(parties, int(row.party))] = row.value
        self.by_round = metrics[metrics["metric"].isin(["bytes_down", "bytes_up", "simulated_seconds"])]
        tested = pd.read_parquet(folder / "test_rows.parquet")
        self.site = tested["party"].to_numpy()
        self.row = tested["row"].to_numpy()
        self.row_seed = tested["seed"].to_numpy()
        self.values = {m: tested[f"value {m}"].to_numpy() for m in self.methods}

    @property
    def last(self):
        """[method, seed, party] the scores after the last round."""
        return self.scores[:, :, -1]


def holm(p):
    return [max(min(1, p[j] * sum(q >= p[j] for q in p)) for j in range(len(p)) if p[j] <= p[i]) for i in range(len(p))]


def hochberg(p):
    return [min(min(1, p[j] * len(p) / sum(q <= p[j] for q in p)) for j in range(len(p)) if p[j] >= p[i])
            for i in range(len(p))]


def row_difference(run, method, reference, rng):
    """The mean over the sites of the mean difference of their rows, with a bootstrap interval and its p-value."""
    gain = run.sign * (run.values[method] - run.values[reference])
    means, draws, by_seed, explained = [], [], [], []
    for site in np.unique(run.site):
        is_site = run.site == site
        rows = np.unique(run.row[is_site])
        table = np.full((len(run.seeds), len(rows)), np.nan)
        cells = np.searchsorted(run.seeds, run.row_seed[is_site]), np.searchsorted(rows, run.row[is_site])
        table[cells] = gain[is_site]
        assert np.isfinite(table).all(), "every seed tests the same rows"
        means.append(table.mean())
        is_binary = np.isin(np.concatenate([run.values[m][is_site] for m in (method, reference)]), (0, 1)).all()
        bound = 1.0 if is_binary else np.abs(table).max()
        of_rows = np.concatenate([table.mean(axis=0), [-bound, bound]])  # the two rows that the definition adds
        draws.append(of_rows[rng.integers(len(of_rows), size=(RESAMPLES, len(of_rows)))].mean(axis=1))
        by_seed.append(table.mean(axis=1))
        seeds = len(run.seeds)
        if seeds > 1 and len(rows) > 1:
            covariance = np.cov(table) / len(rows)
            explained.append(max((np.trace(covariance) - covariance.sum() / seeds) / (seeds - 1), 0))
    mean, draws = np.mean(means), np.mean(draws, axis=0)
    noise = np.zeros(RESAMPLES)
    if seeds > 1:
        between = max(np.var(np.mean(by_seed, axis=0), ddof=1) - np.sum(explained) / len(means) ** 2, 0)
        noise = math.sqrt(between / seeds) * rng.standard_t(seeds - 1, RESAMPLES)
    drawn = [d + noise for d in (draws, draws - draws.mean() + mean)]
    both = [np.quantile(d, [0.025, 0.975]) for d in drawn]
    p = max(min(2 * min(np.mean(d <= 0), np.mean(d >= 0)), 1) for d in drawn)
    return mean, min(mean, *(ends[0] for ends in both)), max(mean, *(ends[1] for ends in both)), p


def check(name, expected, actual, *, atol=1e-9):
    expected, actual = np.asarray(expected, float), np.asarray(actual, float)
    assert np.isnan(expected).tolist() == np.isnan(actual).tolist(), name
    is_equal = expected == actual  # infinite costs of targets that are not reached, too
    difference = np.nanmax(np.abs(np.where(is_equal, 0, expected) - np.where(is_equal, 0, actual)), initial=0.0)
    assert difference <= atol, f"{name}: {difference}"
    print(f"{name}: {np.size(actual)} numbers, largest difference {difference:.1e}")


def check_scores(runs, frame):
    means = [(np.mean(run.last[m]), np.std(run.last[m].mean(axis=1), ddof=1) if len(run.seeds) > 1 else np.nan)
             for run in runs.values() for m in range(len(run.methods))]
    check("means and standard deviations", means, frame[["mean", "sd"]])


def check_differences(runs, frame, pairs_of, title):
    rng = np.random.default_rng(1)
    for data, run in runs.items():
        rows, expected, widths = frame[frame["data"] == data], [], []
        for (method, reference), row in zip(pairs_of(run), rows.itertuples(), strict=True):
            assert (row.method, row.reference) == (method, reference)
            mean, low, high, p = row_difference(run, method, reference, rng)
            assert abs(p - row.p) < 0.02 + 0.12 * math.sqrt(p), (data, method, reference, p, row.p)
            expected.append(mean)
            widths += [abs(low - row.low) / (row.high - row.low), abs(high - row.high) / (row.high - row.low)]
        check(f"{title}, {data}", expected, rows["difference"])
        assert max(widths) < 0.2, (data, max(widths))
        print(f"{title}, {data}: ends of the intervals differ by at most {max(widths):.0%} of their width")
        check(f"{title}, {data}: Holm", holm(rows["p"].tolist()), rows["holm"])
        check(f"{title}, {data}: Benjamini and Hochberg", hochberg(rows["p"].tolist()), rows["bh"])


def check_marks(runs, scores, pairs):
    """The best method, and those that Holm's test does not distinguish from it, are marked; and so the second best."""
    for data, run in runs.items():
        rows, marks = pairs[pairs["data"] == data], dict.fromkeys(run.summary["collapsed"], "collapsed")
        p_of = {frozenset((row.method, row.reference)): row.p for row in rows.itertuples()}
        remaining = dict(zip(run.methods, run.sign * run.last.mean(axis=(1, 2)), strict=True))
        remaining = {m: v for m, v in remaining.items() if m not in marks}
        for mark in ("best", "second"):
            if remaining:
                top = max(remaining, key=remaining.get)
                others = [m for m in remaining if m != top]
                p_values = holm([p_of[frozenset((top, m))] for m in others])
                group = [top, *(m for m, p in zip(others, p_values, strict=True) if p >= 0.05)]
                marks |= dict.fromkeys(group, mark)
                remaining = {m: v for m, v in remaining.items() if m not in group}
        of_data = scores[scores["data"] == data].fillna({"mark": ""})
        actual = dict(zip(of_data["method"], of_data["mark"], strict=True))
        assert actual == dict.fromkeys(run.methods, "") | marks, (data, actual, marks)
    print("marks of the best and the second best methods agree")


def check_costs(runs, frame):
    expected = []
    for data, run in runs.items():
        curves = run.scores.mean(axis=3)
        best = -np.sort(-(run.sign * curves).max(axis=2), axis=1)[:, curves.shape[1] // 2]  # half of the seeds reach it
        target = run.sign * np.sort(best)[::-1][min(1, len(best) - 1)]
        assert frame.loc[frame["data"] == data, "target"].sub(target).abs().max() < 1e-12
        for m, method in enumerate(run.methods):
            reaches = [run.sign * (curve - target) >= 0 for curve in curves[m]]
            reached = [run.rounds[np.argmax(of_seed)] if of_seed.any() else np.inf for of_seed in reaches]
            traffic = []
            for seed, until in zip(run.seeds, reached, strict=True):
                if np.isinf(until):
                    traffic.append((np.inf, np.inf if len(run.by_round) else np.nan))
                    continue
                rows = run.by_round[(run.by_round["method"] == method) & (run.by_round["seed"] == seed)
                                    & (run.by_round["round"] <= until)]
                is_bytes = rows["metric"] != "simulated_seconds"
                if len(run.by_round):
                    traffic.append((rows.loc[is_bytes, "value"].sum(), rows.loc[~is_bytes, "value"].sum()))
                else:
                    of_method = run.summary["methods"][method]
                    traffic.append((sum(of_method["bytes"].values()) / of_method["rounds"] * until, np.nan))
            upper_median = len(reached) // 2
            area = np.mean([np.sum((c[1:] + c[:-1]) / 2 * np.diff(run.rounds)) / run.rounds[-1] for c in curves[m]])
            expected.append([sorted(reached)[upper_median], sorted(t[0] for t in traffic)[upper_median],
                             sorted(t[1] for t in traffic)[upper_median], area])
    actual = frame[["rounds", "bytes", "seconds", "area"]].to_numpy(float)
    check("rounds, bytes and seconds to the target, areas", expected, actual, atol=1e-3)


def check_fairness(runs, frame):
    expected = []
    for run in runs.values():
        for of_method in run.last:
            rows = []
            for x in of_method:
                worst = np.sort(run.sign * x)[:math.ceil(len(x) / 10)] * run.sign
                shares = x / x.sum()
                rows.append([x.mean(), x.std(), worst.mean(), worst[0],
                             np.abs(x[:, None] - x).sum() / (2 * len(x) ** 2 * x.mean()),
                             -(shares * np.log(shares)).sum() / math.log(len(x))])
            expected.append(np.mean(rows, axis=0))
    check("fairness", expected, frame[["mean", "sd", "worst decile", "worst", "gini", "entropy"]])


def mean_ranks(runs):
    """method -> its mean rank over the data sets; ties have their mean rank."""
    ranks = []
    for run in runs.values():
        means = run.sign * run.last.mean(axis=(1, 2))
        ranks.append([(means > mean).sum() + ((means == mean).sum() + 1) / 2 for mean in means])
    return dict(zip(next(iter(runs.values())).methods, np.mean(ranks, axis=0), strict=True))


def check_ranks(runs, paragraph):
    for method, rank in mean_ranks(runs).items():
        assert f"{method} {rank:.2f}" in paragraph, (method, rank)
    print("mean ranks in the paragraph agree")


def recompute(paper, folders):
    """Check all files of a paper's folder against the run folders: name of a data set -> folder."""
    paper, runs = Path(paper), {name: Run(folder) for name, folder in folders.items()}
    tables = {name: pd.read_csv(paper / f"{name}.csv") for name in ("scores", "differences", "pairs", "costs",
                                                                    "fairness")}
    reference = tables["differences"]["reference"].iloc[0]
    check_scores(runs, tables["scores"])
    check_differences(runs, tables["differences"],
                      lambda run: [(m, reference) for m in run.methods if m != reference], "differences")
    check_differences(runs, tables["pairs"], lambda run: list(combinations(run.methods, 2)), "pairs")
    check_marks(runs, tables["scores"], tables["pairs"])
    check_costs(runs, tables["costs"])
    check_fairness(runs, tables["fairness"])
    if len(runs) > 1:
        check_ranks(runs, (paper / "paper.md").read_text("utf-8"))


if __name__ == "__main__":
    recompute(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:]))
