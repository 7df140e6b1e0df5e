"""Federations of trained classifiers whose truth is known, for ``calibration.py``: one split or folds of the same rows.

Inputs have eleven normal coordinates. At site k the two classes differ by a vector m_k in the first three, the others
are noise. Training alone is the logistic regression with a quadratic penalty on the site's own training rows; the
federated method is that of the pooled training rows of all sites. In null federations the method is training alone
with its weights of noise moved to other coordinates of noise: on new rows it is exactly as good.

The truth of a site is the mean, over all trained models of its folds and seeds, of the metric on new rows.
"""

import numpy as np

from resolvent.comparisons.judgement.row_values import centred
from resolvent.data.partition.folds import fold_numbers
from resolvent.problem.metrics.metric import Predictions

USEFUL, NOISE = 3, 4  # coordinates; the noise occurs twice
TEST, VALIDATION = 0.2, 0.2


def fit(x, y, penalty=1.0, steps=12):
    """[d + 1] weights and intercept of the logistic regression, by Newton's method."""
    x = np.hstack([x, np.ones((len(x), 1))])
    curvature = penalty * np.eye(x.shape[1])
    curvature[-1, -1] = 0.05  # the intercept, which is infinite if all rows have one class
    weights = np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-x @ weights))
        weights -= np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + curvature,
                                   x.T @ (p - y) + curvature @ weights)
    return weights


def means(rng, kind, sites):
    """[K, 3] the difference of the means of the classes at each site."""
    spread = {"gain": 0.3, "outlier": 0.3, "mixed": abs(rng.normal(0, 1.0))}.get(kind, 0.3)
    common = rng.standard_normal(USEFUL)
    directions = common / np.linalg.norm(common) + spread * rng.standard_normal((sites, USEFUL))
    result = 1.5 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    if kind == "outlier":
        result[0] *= -1
    return result


def sample(rng, mean, n, rate, at_least=2):
    """n rows of a site, with at least two of each class."""
    y = (rng.random(n) < rate).astype(int)
    for c in (0, 1):
        while (y == c).sum() < at_least:
            y[rng.integers(n)] = c
    x = rng.standard_normal((n, USEFUL + 2 * NOISE))
    x[:, :USEFUL] += (y[:, None] - 0.5) * mean
    return x, y


def splits(rng, labels, folds, seeds):
    """For each seed, its folds: the training rows and the test rows of a site."""
    n = len(labels)
    if folds > 1:
        result = []
        for _ in range(seeds):
            numbers = fold_numbers(labels, n, folds, rng)
            result.append([(_train(rng, np.flatnonzero(numbers != fold)), np.flatnonzero(numbers == fold))
                           for fold in range(folds)])
        return result
    order, tested = rng.permutation(n), round(n * TEST)
    return [[(_train(rng, order[tested:]), order[:tested])] for _ in range(seeds)]


def _train(rng, rows):
    """The training rows among those that are not tested: the others are for validation."""
    return rng.permutation(rows)[:len(rows) - round(len(rows) * VALIDATION / (1 - TEST))]


def probabilities(x, weights):
    return 1 / (1 + np.exp(-(x @ weights[:-1] + weights[-1])))


def two_classes(p):
    return np.stack([1 - p, p], axis=1)


def as_predictions(y, p):
    both = two_classes(p)
    return Predictions(y, (p > 0.5).astype(int), both, both)


def trained_federation(rng, kind, metrics, n, rate, seeds, folds, sites, fresh):
    """A federation of trained models.

    Args:
        n: rows of a site, for training, validation and testing.
        fresh: number of new rows of a site on which the truth is computed.

    Returns:
        name -> [K] the true gain; and for each site and seed the tested rows, the predictions of both methods, and
        those for metrics that read their order only.
    """
    visible = slice(0, USEFUL + NOISE)
    differences = means(rng, kind, sites)
    rows = [sample(rng, mean, n, rate) for mean in differences]
    of_sites = [splits(rng, y, folds, seeds) for _, y in rows]
    new = [sample(rng, mean, fresh, rate) for mean in differences]
    true = {name: np.zeros(sites) for name in metrics}
    tested = [[] for _ in range(sites)]
    for seed in range(seeds):
        collected = [([], [], [], [], []) for _ in range(sites)]  # rows, predictions of both methods, centred ones
        for fold in range(folds):
            training = [of_sites[k][seed][fold][0] for k in range(sites)]
            alone = [np.concatenate([w[:-1], np.zeros(NOISE), w[-1:]]) for w in
                     (fit(x[t][:, visible], y[t]) for (x, y), t in zip(rows, training, strict=True))]
            pooled = fit(np.concatenate([x[t][:, visible] for (x, _), t in zip(rows, training, strict=True)]),
                         np.concatenate([y[t] for (_, y), t in zip(rows, training, strict=True)]))
            for k, (x, _) in enumerate(rows):
                method = np.concatenate([pooled[:-1], np.zeros(NOISE), pooled[-1:]])
                if kind == "null":
                    method = alone[k].copy()
                    method[USEFUL + NOISE:-1], method[USEFUL:USEFUL + NOISE] = alone[k][USEFUL:USEFUL + NOISE], 0
                test = of_sites[k][seed][fold][1]
                plain = [probabilities(x[test], w) for w in (alone[k], method)]
                comparable = plain if folds == 1 else [
                    centred(two_classes(p), two_classes(probabilities(x[training[k]], w)))[:, 1]
                    for p, w in zip(plain, (alone[k], method), strict=True)]
                for part, values in zip(collected[k], (test, *plain, *comparable), strict=True):
                    part.append(values)
                if kind == "null":
                    continue
                both = [as_predictions(new[k][1], probabilities(new[k][0], w)) for w in (alone[k], method)]
                for name, metric in metrics.items():
                    a, b = (metric.value(p) for p in both)
                    true[name][k] += (b - a) * (1 if metric.higher_is_better else -1) / (seeds * folds)
        for k, (_, y) in enumerate(rows):
            test, *of_methods = map(np.concatenate, collected[k])
            order = np.argsort(test)
            predictions = [as_predictions(y[test[order]], p[order]) for p in of_methods]
            tested[k].append((test[order], predictions[:2], predictions[2:]))
    return true, tested
