"""How often the statements about sites are true: tables whose truth is known.

    python benchmarks/calibration.py [--federations 12] [--out benchmarks/calibration.json]

Every cell is a metric, a number of test rows of a site, a rate of class 1, a number of seeds, and a kind of federation.
A federation has ten sites. Two classifiers score every row: training alone and a federated method. Their scores have
the means +a/2 and -a/2 for the two classes and correlated noise of variance 1, so that a is how well a classifier
separates the classes; a differs between seeds. The truth of a site is the metric on 20,000 fresh rows.

- null: both separate equally well at every site, so that every statement "better" or "worse" is false.
- gain: the method separates better; the gain differs between the sites.
- outlier: the same, but the first site has inverted labels for the method.
- mixed: the mean gain and the spread between sites differ from federation to federation; the mean may be negative.

The table says, per cell: the share of sites called better or worse while the truth is the opposite or, in null
federations, at all; the share called the opposite of the truth ("wrong sign"); and of the sites told "probably join
(p)", the mean p and the share that gains.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd

import resolvent as rv
from resolvent.problem.metrics.metric import Predictions
from resolvent.study.decisions import decide
from resolvent.study.row_values import RowValues
from resolvent.study.sites import Evidence, judge_sites

SITES, TRUTH_ROWS = 10, 20_000
METRICS = {"accuracy": rv.metrics.Accuracy(), "balanced_accuracy": rv.metrics.BalancedAccuracy(),
           "roc_auc": rv.metrics.ROCAUC(), "f1": rv.metrics.F1(), "average_precision": rv.metrics.AveragePrecision(),
           "calibration_error": rv.metrics.CalibrationError(), "log_loss": rv.metrics.LogLoss(),
           "brier_score": rv.metrics.BrierScore()}
KINDS = {"null": 1.0, "gain": 0.34, "outlier": 0.34, "mixed": 0.84}  # share of the federations of a cell


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


def predictions(y, p):
    probabilities = np.stack([1 - p, p], axis=1)
    return Predictions(y, (p > 0.5).astype(int), probabilities, probabilities)


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
        values = {name: [m.value(predictions(y, q)) for q in p[0]] for name, m in metrics.items()}
        for name, (a, b) in values.items():
            gains[name].append((b - a) * (1 if metrics[name].higher_is_better else -1))
    return {name: np.array(values) for name, values in gains.items()}


def federation(rng, kind, metrics, n, rate, seeds):
    """One federation: name -> (truth [K], the sites with their decisions)."""
    separation, mean = separations(rng, kind, seeds)
    true = truth(rng, metrics, mean if seeds > 1 else separation[:, 0], rate, seeds)
    sites = [draw(rng, n, rate, separation[k]) for k in range(SITES)]
    outcome = {}
    for name, metric in metrics.items():
        parts = []
        for k, (y, p) in enumerate(sites):
            for s in range(seeds):
                values = {label: metric.row_values(predictions(y, p[s, i]))
                          for i, label in enumerate(("alone", "method"))}
                parts.append(RowValues(np.full(n, s), np.full(n, k), np.arange(n), values, metric.sampling,
                                       None if metric.sampling == "rows" else y))
        table = pd.DataFrame({name: [] for name in ("method", "round", "party", "split", "metric", "value", "seed")})
        evidence = Evidence(name, "test", metric.higher_is_better, ("alone", "method"), "alone",
                            [f"site {k}" for k in range(SITES)], table, tuple(range(seeds)),
                            RowValues.concatenate(parts))
        outcome[name] = true[name], decide(judge_sites(evidence), evidence).sites
    return outcome


def measure(cell, federations, rng):
    """The rows of the table for a cell: one per metric."""
    kind, n, rate, seeds = cell
    sites = {name: [] for name in METRICS}
    for _ in range(max(1, round(federations * KINDS[kind]))):
        for name, (true, judged) in federation(rng, kind, METRICS, n, rate, seeds).items():
            sites[name] += list(zip(true, judged, strict=True))
    rows = []
    for name, pairs in sites.items():
        true = np.array([t for t, _ in pairs])
        gains = [site.gains["method"] for _, site in pairs]
        sign = np.array([gain.sign for gain in gains])
        advice = np.array([site.decision.advice for _, site in pairs])
        p = np.array([site.decision.probability for _, site in pairs])
        joins = np.isin(advice, ["join", "probably join"])
        probably = advice == "probably join"
        false = sign != 0 if kind == "null" else sign * true < 0
        rows.append({"metric": name, "kind": kind, "rows": n, "rate": rate, "seeds": seeds,
                     "sites": len(pairs), "false": float(false.mean()),
                     "wrong_sign": 0.0 if kind == "null" else float((sign * true < 0).mean()),
                     "covered": float(np.mean([g.low <= t <= g.high for g, t in zip(gains, true, strict=True)])),
                     "found": float((sign > 0).mean()), "joined": float(joins.mean()),
                     "gains": float((true > 0).mean()),
                     "pairs": [[round(float(q), 3), bool(t > 0)] for q, t in zip(p, true, strict=True)]
                     if kind == "mixed" else [],
                     "joined_right": float((true[joins] > 0).mean()) if joins.any() else None,
                     "told": float(p[probably].mean()) if probably.any() else None,
                     "probably": int(probably.sum()),
                     "gained": float((true[probably] > 0).mean()) if probably.any() else None,
                     "width": float(np.nanmean([g.high - g.low for g in gains]))})
    return rows


def calibration(table):
    """Of the sites of mixed federations, by the stated probability of a gain: the mean probability and the share."""
    pairs = np.array([pair for cell in table for pair in cell["pairs"]], dtype=float).reshape(-1, 2)
    edges = [0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0001]
    rows = []
    for low, high in itertools.pairwise(edges):
        chosen = (pairs[:, 0] >= low) & (pairs[:, 0] < high)
        if chosen.any():
            rows.append({"from": low, "to": min(high, 1.0), "sites": int(chosen.sum()),
                         "stated": round(float(pairs[chosen, 0].mean()), 3),
                         "gained": round(float(pairs[chosen, 1].mean()), 3)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=12, help="federations in each cell")
    parser.add_argument("--rows", type=int, nargs="+", default=[30, 100, 500])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.1, 0.5])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    start, table = time.process_time(), []
    for number, cell in enumerate(itertools.product(KINDS, arguments.rows, arguments.rates, (1, 5))):
        table += measure(cell, arguments.federations, np.random.default_rng(number))
        print("{} {} rows, rate {}, {} seeds".format(*cell), f"{time.process_time() - start:.0f} s of CPU", flush=True)
    bins = calibration(table)
    frame = pd.DataFrame(table).drop(columns="pairs")
    print(frame.to_string(float_format=lambda v: f"{v:.3f}"))
    print(pd.DataFrame(bins).to_string(float_format=lambda v: f"{v:.3f}"))
    if arguments.out:
        cells = [{key: round(v, 4) if isinstance(v, float) else v for key, v in cell.items() if key != "pairs"}
                 for cell in table]
        lines = ",\n".join(json.dumps(cell) for cell in cells)
        arguments.out.write_text(f'{{"command": "python benchmarks/calibration.py --federations '
                                 f'{arguments.federations}",\n"bins": {json.dumps(bins)},\n"cells": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
