"""How often statements are true after a choice, with few sites or seeds, and where rows belong together.

    python benchmarks/calibration_choices.py [--federations 300] [--out benchmarks/calibration_choices.json]
    python benchmarks/calibration_choices.py --families patients --federations 1000

Statements are those of ``resolvent.comparisons.judgement`` by the accuracy. *Drawn rows*: a classifier with the
separation a is right where a/2 + noise > 0, so that its true accuracy is Phi(a/2). Of the variance of the noise 80 %
are common to all classifiers, and with several rows of a patient a share of both parts is common to the patient's rows.
Test and validation rows are independent, with the same number at each site. *Folds* are the trained classifiers of
``calibration_models``.

In null federations all classifiers are equally good at every site, so that every statement is false. In mixed ones the
mean gain of each method and the spread between sites differ from federation to federation.

Families of cells:

- methods: the best of several methods on the test rows ("best", with the interval of one method), as the finding names
  it ("named"), and the one that the validation rows choose ("chosen").
- tuned: of ten candidates of each method, the best by the validation rows or by the test rows is judged on the test
  rows; training alone is tuned in the same way, or not at all.
- patients: several rows of a patient, at two or five sites.
- seeds: the same rows with several seeds, which change the separation.
- folds: all rows of a site, each tested once by five folds.
- forecast: the further test rows that a site is advised are drawn; whether the interval of all its rows excludes zero.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

import resolvent as rv
from calibration_models import trained_federation
from resolvent.comparisons.judgement.decisions import decide
from resolvent.comparisons.judgement.row_values import RowValues
from resolvent.comparisons.judgement.sites import Evidence, judge_sites
from resolvent.predict.special_intervals import gains_of_shares

ALONE, SEPARATION, OF_SEEDS = "alone", 1.5, 0.1
SHARED = 0.8  # share of the variance of the noise that all classifiers have in common
CANDIDATES, OF_CANDIDATES = 10, 0.15
MAX_FURTHER, NEAR = 20_000, 0.25


class Cell(NamedTuple):
    """A setting; ``tuned`` says which rows choose among candidates, and whether those of training alone too."""

    family: str
    kind: str
    sites: int = 6
    rows: int = 60
    methods: int = 1
    seeds: int = 1
    patient: int = 1
    alike: float = 0.0
    folds: int = 1
    tuned: str = ""


def cells(families):
    """All settings of some families."""
    every = [Cell("methods", kind, methods=m) for kind in ("null", "mixed") for m in (1, 3, 8, 20)]
    every += [Cell("tuned", kind, methods=3 if "validation" in tuned else 1, tuned=tuned) for kind in ("null", "mixed")
              for tuned in ("validation, both", "test, both", "test, method")]
    every += [Cell("patients", kind, sites=k, patient=g, alike=share) for kind in ("null", "mixed") for k in (2, 5)
              for g, share in ((1, 0.0), (5, 0.5), (5, 0.9))]
    every += [Cell("seeds", kind, sites=3, seeds=s) for kind in ("null", "mixed") for s in (2, 3, 5)]
    every += [Cell("folds", kind, sites=k, folds=5) for kind in ("null", "mixed") for k in (2, 5)]
    every += [Cell("forecast", "mixed", rows=n) for n in (14, 60, 300)]
    return [cell for cell in every if cell.family in families]


def is_right(rng, rows, separation, patient=1, alike=0.0):
    """[..., rows] whether each classifier is right, with the probability Phi(separation / 2)."""
    def noise(*shape):
        of_rows = rng.standard_normal((*shape, rows))
        if patient == 1:
            return of_rows
        of_patients = np.repeat(rng.standard_normal((*shape, -(-rows // patient))), patient, axis=-1)[..., :rows]
        return np.sqrt(alike) * of_patients + np.sqrt(1 - alike) * of_rows

    common = np.sqrt(SHARED) * noise()
    return separation[..., None] / 2 + common + np.sqrt(1 - SHARED) * noise(*separation.shape) > 0


def separations(rng, cell):
    """[K, 1 + M] of training alone and of the methods."""
    middle, spread = np.zeros(cell.methods), 0.0
    if cell.kind == "mixed":
        middle, spread = rng.normal(0.1, 0.4, cell.methods), abs(rng.normal(0, 0.4))
    alone = SEPARATION + 0.2 * rng.standard_normal((cell.sites, 1))
    return np.hstack([alone, alone + middle + spread * rng.standard_normal((cell.sites, cell.methods))])


def candidates_of(rng, cell, separation):
    """[K, 1 + M, C] the separations of all candidates; one of each, if nothing is tuned."""
    number = CANDIDATES if cell.tuned else 1
    effect = OF_CANDIDATES * rng.standard_normal((1, separation.shape[1], number)) * (cell.kind == "mixed")
    return separation[..., None] + (effect if cell.tuned else 0.0)


def drawn(rng, cell):
    """The true accuracies [K, 1 + M], and of the test and validation rows [K][S, 1 + M, n] which are right."""
    every = candidates_of(rng, cell, separations(rng, cell))
    deviation = OF_SEEDS * (cell.seeds > 1)
    of_seeds = every[:, None] + deviation * rng.standard_normal((cell.sites, cell.seeds, *every.shape[1:]))
    test, validation = (np.stack([is_right(rng, cell.rows, s, cell.patient, cell.alike) for s in of_seeds])
                        for _ in range(2))
    scores = (test if "test" in cell.tuned else validation).mean(axis=(0, 1, -1))  # [1 + M, C]
    choice = scores.argmax(axis=1)
    if cell.tuned == "test, method":
        choice[0] = 0
    methods = np.arange(len(choice))
    true = ndtr(every[:, methods, choice] / 2 / np.hypot(1, deviation / 2))
    return true, *(rows[:, :, methods, choice] for rows in (test, validation))


def trained(rng, cell):
    """The same of trained classifiers in five folds, without validation rows: there is one method."""
    metrics = {"accuracy": rv.metrics.Accuracy()}
    gains, sites = trained_federation(rng, cell.kind, metrics, cell.rows, 0.5, cell.seeds, cell.folds, cell.sites, 4000)
    right = np.stack([np.stack([np.stack([of.predicted == of.labels for of in predictions])
                                for _, predictions, _ in of_site]) for of_site in sites])
    return np.stack([np.zeros(cell.sites), gains["accuracy"]], axis=1), right, right


def evidence_of(cell, test, validation):
    """The evidence of a federation from the rows that are right."""
    methods = (ALONE, *(f"method {m}" for m in range(1, cell.methods + 1)))
    site, seed, row = (part.ravel() for part in np.meshgrid(
        np.arange(cell.sites), np.arange(cell.seeds), np.arange(test.shape[-1]), indexing="ij"))
    values = {name: test[:, :, i].ravel().astype(float) for i, name in enumerate(methods)}
    party, seeds, number = (part.ravel() for part in np.meshgrid(*map(np.arange, validation.shape[:3]), indexing="ij"))
    table = pd.DataFrame({"method": np.array(methods)[number], "round": 1, "party": party, "split": "validation",
                          "metric": "accuracy", "value": validation.mean(axis=-1).ravel(), "seed": seeds})
    return Evidence("accuracy", "test", True, methods, ALONE, [f"site {k}" for k in range(cell.sites)], table,
                    tuple(range(cell.seeds)), RowValues(seed, site, row, values), folds=cell.folds)


def forecasts(rng, cell, sites, test, true):
    """For each site with a forecast: rows, further rows, the gain to be seen, the true gain, and the sign shown."""
    stated = []
    for site in sites:
        forecast = site.decision.forecast
        if forecast is None or not 0 < forecast.rows <= MAX_FURTHER:
            continue
        more = is_right(rng, forecast.rows, 2 * ndtri(true[site.party])[None])
        both = np.concatenate([test[site.party], more], axis=-1).astype(float)
        change = both[:, 1] - both[:, 0]
        shown = gains_of_shares(change[None], np.ones_like(change, bool))[0].sign
        stated.append([cell.rows, forecast.rows, forecast.gain, float(np.subtract(*true[site.party][::-1])), shown])
    return stated


def outcome(interval, true):
    """Called better, called worse, truth in the interval, error of the value."""
    return [interval.low > 0, interval.high < 0, interval.low - 1e-12 <= true <= interval.high + 1e-12,
            interval.value - true]


def federation(cell, index):
    """The statements about one federation and their truth."""
    rng = np.random.default_rng([20_261_128, *map(ord, cell.family), cell.kind == "null", cell.sites, cell.rows,
                                 cell.methods, cell.seeds, cell.patient, len(cell.tuned), index])
    true, test, validation = (drawn if cell.folds == 1 else trained)(rng, cell)
    evidence = evidence_of(cell, test, validation)
    sites = decide(judge_sites(evidence), evidence)
    gains = dict(zip(evidence.methods[1:], (true[:, 1:] - true[:, :1]).T, strict=True))
    means = {name: float(of.mean()) for name, of in gains.items()}
    best = max(gains, key=lambda name: sites.means.plain[name].value)
    chosen = sites.choice.method
    of_best = sites.means.plain_gains[best]
    decided = [(site.decision, float(gains[chosen][site.party])) for site in sites.sites]
    pairs = [(site.gains[m], gains[m][site.party]) for site in sites.sites for m in gains]
    return {"own": [outcome(*of) for of in pairs], "best": [outcome(of_best, means[best])],
            "named": [outcome(of_best if chosen == best else of_best.of_several(cell.methods), means[best])],
            "left": any(gain.of_several(len(pairs)).low > 0 for gain, _ in pairs),
            "chosen": [outcome(sites.means.plain_gains[chosen], means[chosen])],
            "expected": [outcome(d.expected, gain) for d, gain in decided],
            "advice": [[d.advice, float(d.probability), gain] for d, gain in decided],
            "forecasts": forecasts(rng, cell, sites.sites, test, true) if cell.family == "forecast" else []}


def row_of(cell, measured):
    """The rates of a cell."""
    row = cell._asdict()
    for name in ("own", "best", "named", "chosen", "expected"):
        better, worse, covered, error = np.array([o for of in measured for o in of[name]], float).T
        row |= {f"{name}_better": better.mean(), f"{name}_worse": worse.mean(), f"{name}_covered": covered.mean(),
                f"{name}_bias": error.mean()}
    row["any_better"] = np.mean([any(o[0] for o in of["own"]) for of in measured])
    row["any_left"] = np.mean([of["left"] for of in measured])
    advice, p, gain = (np.array(part) for part in zip(*(a for of in measured for a in of["advice"]), strict=True))
    for text in ("join", "probably join", "stay alone"):
        is_given = advice == text
        name = text.replace(" ", "_")
        row |= {name: is_given.mean(), f"{name}_gains": (gain[is_given] > 0).mean() if is_given.any() else None}
    probably = advice == "probably join"
    row["stated"] = p[probably].mean() if probably.any() else None
    if stated := [of for part in measured for of in part["forecasts"]]:
        _, further, wanted, true, shown = np.array(stated, float).T
        near = np.abs(true - wanted) <= NEAR * wanted
        row |= {"forecasts": len(stated), "further": float(np.median(further)), "shown": (shown > 0).mean(),
                "shown_worse": (shown < 0).mean(), "near": int(near.sum()),
                "shown_near": (shown > 0)[near].mean() if near.any() else None}
    return {k: round(float(v), 4) if isinstance(v, float | np.floating) else v for k, v in row.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=300, help="federations in each cell")
    parser.add_argument("--families", nargs="+", default=["methods", "tuned", "patients", "seeds", "folds", "forecast"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for cell in cells(arguments.families):
        rows.append(row_of(cell, [federation(cell, index) for index in range(arguments.federations)]))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        lines = ",\n".join(map(json.dumps, rows))
        arguments.out.write_text(f'{{"command": "python benchmarks/calibration_choices.py --federations '
                                 f'{arguments.federations}",\n"cells": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
