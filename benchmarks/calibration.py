"""How often the statements about sites are true: tables whose truth is known.

    python benchmarks/calibration.py [--federations 12] [--out benchmarks/calibration.json] [--cache FOLDER]
    python benchmarks/calibration.py --processes 14 --cache FOLDER     # in parallel

    python benchmarks/calibration.py --gains 12 --folds 5 --rates 0.1 0.5    # only the share of sites that gain

The folder of ``--cache`` has the measurements of each federation, on which the decisions are made again.

Every cell is a metric, a number of rows of a site, a rate of class 1, a number of seeds, and a kind of federation,
which has ten sites. There are two families of cells.

*Drawn scores*: the rows are test rows. Two classifiers score every row: training alone and a federated method. Their
scores have the means +a/2 and -a/2 for the two classes and correlated noise of variance 1, so that a is how well a
classifier separates the classes; a differs between seeds. The truth of a site is the metric on 20,000 fresh rows.

*Trained classifiers*, see ``calibration_models``: the rows are all rows of a site, of which one split tests a fifth,
and five folds test each once. There are null and mixed federations.

- null: both separate equally well at every site, so that every statement "better" or "worse" is false.
- gain: the method separates better; the gain differs between the sites.
- outlier: the same, but the first site has inverted labels for the method.
- mixed: the mean gain and the spread between sites differ from federation to federation; the mean may be negative.

The table says, per cell: the share of sites called better or worse while the truth is the opposite or, in null
federations, at all; the share called the opposite of the truth ("wrong sign"); and of the sites told "probably join
(p)", the mean p and the share that gains.
"""

import argparse
import hashlib
import itertools
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

import resolvent as rv
from calibration_models import as_predictions, trained_federation
from resolvent.comparisons.judgement.decisions import decide
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.sites import Evidence, SiteJudgement, Sites, measured_sites
from resolvent.predict.intervals import Interval, interval_of

SITES, TRUTH_ROWS = 10, 20_000
METRICS = {"accuracy": rv.metrics.Accuracy(), "balanced_accuracy": rv.metrics.BalancedAccuracy(),
           "roc_auc": rv.metrics.ROCAUC(), "f1": rv.metrics.F1(), "average_precision": rv.metrics.AveragePrecision(),
           "calibration_error": rv.metrics.CalibrationError(), "log_loss": rv.metrics.LogLoss(),
           "brier_score": rv.metrics.BrierScore()}
EVERY = {"null": 1, "gain": 3, "outlier": 3, "mixed": 1}  # one of this number of federations is drawn


def draw(rng, n, rate, separation, shared=0.8, shift=0.6):
    """Predictions of several classifiers on the same n rows.

    Args:
        separation: [S, M] how well each classifier separates the classes with each seed; negative is inverted.
        shared: share of the variance of a score that all classifiers have in common.
        shift: share of the logarithm of the odds of class 1 that the threshold includes.
    """
    y = (rng.random(n) < rate).astype(int)
    if y.min() == y.max():
        y[0] = 1 - y[0]  # metrics by class need both classes
    noise = np.sqrt(shared) * rng.standard_normal(n) + np.sqrt(1 - shared) * rng.standard_normal((*separation.shape, n))
    score = separation[..., None] * (y - 0.5) + noise
    logit = np.abs(separation)[..., None] * score + shift * np.log(rate / (1 - rate))
    p = 1 / (1 + np.exp(-logit))
    return y, p


def separations(rng, kind, seeds):
    """[K, S, 2] of training alone and of the method, and [K, 2] their means over seeds."""
    alone = 1.5 + 0.2 * rng.standard_normal(SITES)
    middle, spread = 0.4, 0.3
    if kind == "null":
        middle, spread = 0.0, 0.0
    elif kind == "mixed":
        middle, spread = rng.normal(0.1, 0.4), abs(rng.normal(0, 0.4))
    gain = middle + spread * rng.standard_normal(SITES)
    mean = np.stack([alone, alone + gain], axis=1)
    if kind == "outlier":
        mean[0, 1] = -1.0
    of_seeds = 0.1 if seeds > 1 else 0.0
    return mean[:, None] + of_seeds * rng.standard_normal((SITES, seeds, 2)), mean


def truth(rng, metrics, mean, rate, seeds):
    """name -> [K] the gain of the method over training alone, on fresh rows."""
    gains = {name: [] for name in metrics}
    for of_site in mean:
        y, p = draw(rng, TRUTH_ROWS, rate, of_site[None])
        values = {name: [m.value(as_predictions(y, q)) for q in p[0]] for name, m in metrics.items()}
        for name, (a, b) in values.items():
            gains[name].append((b - a) * (1 if metrics[name].higher_is_better else -1))
    return {name: np.array(values) for name, values in gains.items()}


def drawn_federation(rng, kind, metrics, n, rate, seeds):
    """The true gains of a federation of drawn scores, and for each site and seed the tested rows and predictions."""
    separation, mean = separations(rng, kind, seeds)
    true = truth(rng, metrics, mean if seeds > 1 else separation[:, 0], rate, seeds)
    sites = [draw(rng, n, rate, separation[k]) for k in range(SITES)]
    both = [[[as_predictions(y, q) for q in p[s]] for s in range(seeds)] for y, p in sites]
    return true, [[(np.arange(n), predictions, predictions) for predictions in of_site] for of_site in both]


def federation(cell, index, names=tuple(METRICS)):
    """One federation: metric -> for each site its true gain, what its rows say, and the variance of its gain."""
    metrics = {name: METRICS[name] for name in names}
    rng = np.random.default_rng([number_of(cell), index])
    kind, n, rate, seeds, folds = cell
    if folds is None:
        true, sites = drawn_federation(rng, kind, metrics, n, rate, seeds)
    else:
        fresh = TRUTH_ROWS if seeds * folds <= 5 else TRUTH_ROWS // 5  # for each of the models
        true, sites = trained_federation(rng, kind, metrics, n, rate, seeds, folds, SITES, fresh)
    evidence = {}
    for name, metric in metrics.items():
        parts = []
        for k, of_seeds in enumerate(sites):
            for s, (rows, *of_run) in enumerate(of_seeds):
                predictions = of_run[metric.reads_order_only]
                values = dict(zip(("alone", "method"), map(metric.row_values, predictions), strict=True))
                if np.isfinite(values["alone"]).all():  # both classes are among the test rows
                    parts.append(RowValues(np.full(len(rows), s), np.full(len(rows), k), rows, values, metric.sampling,
                                           None if metric.sampling == "rows" else predictions[0].labels))
        evidence[name] = [] if not parts else [
            [float(true[name][party]), party, rows.is_tested.shape[1], rows.rarest_class, site.intervals[0].value,
             *site.intervals[-1], float(site.variances[-1]), resampled_low(site)]
            for party, rows, site in measured_sites(evidence_of(name, seeds, folds, RowValues.concatenate(parts)),
                                                    ("alone", "method"), "alone")]
    return evidence


def resampled_low(site):
    """The lower end of the interval by resampled rows with a row of -1 and +1, by which sites once joined."""
    return interval_of(site.sample, np.random.default_rng(0), site.limits)[-1].low


def number_of(cell):
    """The seed of a cell."""
    return int.from_bytes(hashlib.sha256(repr(cell).encode()).digest()[:4], "big")


def file_of(task, cache):
    """The file of a federation."""
    cell, index = task
    return cache / f"{number_of(cell)}-{index}.json"


def measure(task, cache=None, names=tuple(METRICS)):
    """The decisions of a federation by metric, see ``decided``; its measurements are in a file if it has one."""
    cell, index = task
    file = None if cache is None else file_of(task, cache)
    measured = json.loads(file.read_text()) if file is not None and file.exists() else {}
    missing = [name for name in names if name not in measured]
    if missing:
        measured |= federation(cell, index, missing)
        if file is not None:
            file.write_text(json.dumps(measured))
    return {metric: decided(metric, *cell[3:], measured[metric]) for metric in names if measured[metric]}


def evidence_of(metric, seeds, folds, rows=None):
    """The evidence of a federation of two methods."""
    table = pd.DataFrame({name: [] for name in ("method", "round", "party", "split", "metric", "value", "seed")})
    return Evidence(metric, "test", METRICS[metric].higher_is_better, ("alone", "method"), "alone",
                    [f"site {k}" for k in range(SITES)], table, tuple(range(seeds)), rows, folds=folds or 1)


def decided(metric, seeds, folds, measured):
    """For each site: the true gain, the interval on own rows, the advice, its probability, and the former lower end."""
    sites = tuple(SiteJudgement(party, "", rows, rarest, {"alone": Interval(alone, alone, alone)},
                                {"method": Interval(*gain)}, variances={"method": variance})
                  for _, party, rows, rarest, alone, *gain, variance, _ in measured)
    decisions = decide(Sites(sites, None), evidence_of(metric, seeds, folds)).sites
    return [[true[0], *true[5:8], site.decision.advice, float(site.decision.probability), true[9]]
            for true, site in zip(measured, decisions, strict=True)]


def row_of(metric, cell, sites):
    """The rates of a cell, by one metric."""
    kind, n, rate, seeds, folds = cell
    true, value, low, high, p, former = np.array([[s[i] for i in (0, 1, 2, 3, 5, 6)] for s in sites], dtype=float).T
    sign = (low > 0).astype(int) - (high < 0)
    advice = np.array([s[4] for s in sites])
    joins, probably = np.isin(advice, ["join", "probably join"]), advice == "probably join"
    wrong = sign * true < 0
    gains = true > 0
    return {"metric": metric, "kind": kind, "rows": n, "rate": rate, "seeds": seeds, "folds": folds,
            "sites": len(sites), "false": float((sign != 0 if kind == "null" else wrong).mean()),
            "wrong_sign": 0.0 if kind == "null" else float(wrong.mean()),
            "covered": float(np.mean((low <= true + 1e-12) & (true <= high + 1e-12))),
            "bias": float(np.mean(value - true)), "found": float((sign > 0).mean()), "joined": float(joins.mean()),
            "gains": float(gains.mean()), "found_gains": int((sign > 0)[gains].sum()),
            "former_gains": int((former > 0)[gains].sum()) if metric == "accuracy" else None,
            "joined_gains": int(joins[gains].sum()), "true_gains": int(gains.sum()),
            "pairs": [[round(float(q), 3), bool(t)] for q, t in zip(p, gains, strict=True)] if kind == "mixed" else [],
            "joined_right": float(gains[joins].mean()) if joins.any() else None,
            "told": float(p[probably].mean()) if probably.any() else None, "probably": int(probably.sum()),
            "gained": float(gains[probably].mean()) if probably.any() else None, "width": float(np.nanmean(high - low))}


def calibration(table):
    """Of the sites of mixed federations, by the stated probability of a gain: the mean probability and the share."""
    edges = [0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0001]
    rows = []
    for folds in dict.fromkeys(cell["folds"] for cell in table):
        pairs = np.array([pair for cell in table if cell["folds"] == folds for pair in cell["pairs"]],
                         dtype=float).reshape(-1, 2)
        for low, high in itertools.pairwise(edges):
            chosen = (pairs[:, 0] >= low) & (pairs[:, 0] < high)
            if not chosen.any():
                continue
            rows.append({"folds": folds, "from": low, "to": min(high, 1.0), "sites": int(chosen.sum()),
                         "stated": round(float(pairs[chosen, 0].mean()), 3),
                         "gained": round(float(pairs[chosen, 1].mean()), 3)})
    return rows


def failures(table):
    """The cells that break a promise by more than the noise of their number of sites, as sentences."""
    lines = []
    for cell in table:
        for key, allowed in (("false", 0.05), ("wrong_sign", 0.01)):
            if binomtest(round(cell[key] * cell["sites"]), cell["sites"], allowed,
                         alternative="greater").pvalue < 0.001:
                lines.append("{metric} {kind} {rows} rows, rate {rate}, {seeds} seeds, folds {folds}: ".format(**cell)
                             + f"{key} {cell[key]:.1%} of {cell['sites']} sites")
    return lines


def power(table):
    """Of the sites that gain: the share advised to join, and the shares whose whole interval is above zero.

    ``found`` is by the present interval, ``former`` for the accuracy by that of resampled rows, see ``resampled_low``.
    """
    frame = pd.DataFrame(table)
    frame = frame[frame["kind"].isin(["gain", "mixed"])]
    frame["family"] = frame["folds"].map(lambda folds: "drawn" if pd.isna(folds) else f"folds {folds:.0f}")
    sums = frame.groupby(["family", "metric"])[["true_gains", "former_gains", "found_gains", "joined_gains"]].sum(
        min_count=1)
    shares = sums.drop(columns="true_gains").div(sums["true_gains"], axis=0).rename(columns=lambda c: c.split("_")[0])
    return shares.assign(ratio=sums["joined_gains"] / sums["found_gains"].clip(lower=1)).reset_index()


def as_records(frame):
    """The rows of a table for a JSON file, with four decimals; None is a value that is not known."""
    return [{key: (round(v, 4) if np.isfinite(v) else None) if isinstance(v, float) else v for key, v in row.items()}
            for row in frame.astype(object).to_dict("records")]


def shares_that_gain(arguments):
    """Of the sites of mixed federations of trained classifiers: the share that gains, by cell; nothing is judged."""
    metrics = {name: METRICS[name] for name in ("accuracy", "brier_score", "roc_auc")}
    for folds, rows, rate in itertools.product(filter(None, arguments.folds), arguments.rows, arguments.rates):
        gains = [trained_federation(np.random.default_rng([7, index, rows]), "mixed", metrics, rows, rate, 1, folds,
                                    SITES, 3000)[0] for index in range(arguments.gains)]
        yield {"folds": folds, "rows": rows, "rate": rate,
               **{name: round(float(np.mean([of[name] > 0 for of in gains])), 2) for name in metrics}}


def tasks_of(arguments):
    """The federations of all cells: the cell and a number."""
    for cell in itertools.product(arguments.kinds, arguments.rows, arguments.rates, arguments.seeds, arguments.folds):
        kind, *others, folds = cell
        if not folds or kind in ("null", "mixed"):  # mixed federations have gains and losses of every size
            for index in range(0, arguments.federations, EVERY[kind]):
                yield (kind, *others, folds or None), index


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=12, help="federations in each cell")
    parser.add_argument("--kinds", nargs="+", default=list(EVERY), choices=EVERY)
    parser.add_argument("--rows", type=int, nargs="+", default=[30, 100, 500])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.1, 0.5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--folds", type=int, nargs="*", default=[0, 1, 5], help="0: drawn scores; 1: one split")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), choices=METRICS)
    parser.add_argument("--cache", type=Path, help="a folder that stores each federation, to run in several parts")
    parser.add_argument("--stored", action="store_true", help="only the federations that the folder has")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gains", type=int, help="federations a cell: only the shares of sites that gain")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.gains:
        print(pd.DataFrame(shares_that_gain(arguments)).to_string())
        return
    if arguments.cache is not None:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in tasks_of(arguments) if not arguments.stored or file_of(task, arguments.cache).exists()]
    sites = {}
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        compute = pool.map if arguments.processes > 1 else map
        work = partial(measure, cache=arguments.cache, names=arguments.metrics)
        for done, ((cell, _), measured) in enumerate(zip(tasks, compute(work, tasks), strict=True), start=1):
            for metric, of_metric in measured.items():
                sites.setdefault((cell, metric), []).extend(of_metric)
            if done % 20 == 0:
                print(f"{done} of {len(tasks)} federations", flush=True)
    table = [row_of(metric, cell, of_cell) for (cell, metric), of_cell in sites.items()]
    bins, ratios, broken = calibration(table), power(table), failures(table)
    frame = pd.DataFrame(table).drop(columns="pairs")
    print(frame.to_string(float_format=lambda v: f"{v:.3f}"))
    print(pd.DataFrame(bins).to_string(float_format=lambda v: f"{v:.3f}"))
    print(ratios.to_string(float_format=lambda v: f"{v:.3f}"))
    print("\n".join(broken or ["no cell breaks a promise"]))
    if arguments.out:
        lines = ",\n".join(json.dumps(cell) for cell in as_records(frame))
        folds = " ".join(map(str, arguments.folds))
        arguments.out.write_text(f'{{"command": "python benchmarks/calibration.py --folds {folds} --federations '
                                 f'{arguments.federations}",\n"bins": {json.dumps(bins)},\n"power": '
                                 f'{json.dumps(as_records(ratios))},\n"failures": '
                                 f'{json.dumps(broken)},\n"cells": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
