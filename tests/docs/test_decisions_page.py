"""What the page of decisions promises is what the calibration benchmark shows."""

import json
from collections import defaultdict

import numpy as np
import pytest
from test_names import ROOT

DRAWN, TRAINED = (json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))
                  for name in ("calibration", "calibration_folds"))
SECTION = (ROOT / "docs" / "decisions.md").read_text("utf-8").split("## What it promises")[1].split("\n## ")[0]
NAMES = {"area under the ROC curve": "roc_auc", "F1": "f1", "Brier score": "brier_score"}
TABLES = [[[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
          for part in SECTION.split("\n\n") if part.startswith("|")]
STATEMENTS, ADVICE, POWER, FOLDS, FOLDS_ADVICE = TABLES
FAMILIES = {None: DRAWN["cells"], 1: TRAINED["cells"], 5: TRAINED["cells"]}


def metric(name):
    return NAMES.get(name, name.replace(" ", "_"))


def cells(folds, name=None, kinds=("null", "gain", "outlier", "mixed")):
    return [c for c in FAMILIES[folds] if c["folds"] == folds and c["kind"] in kinds and name in (None, c["metric"])]


def mean(chosen, key):
    return np.mean([cell[key] for cell in chosen])


def percent(value, digits=1):
    return f"{100 * value + 1e-9:.{digits}f} %"


def signed(value):
    return f"{value:+.3f}".replace("-", "−")


def advice_rows(record, folds):
    """Of each family the texts of a bin: the sites, the mean of the stated probabilities, the share that gains."""
    return [[f"{b['sites']:,}", percent(b["stated"]), percent(b["gained"])] for b in record["bins"]
            if b["folds"] == folds]


def stated_and_gained(chosen):
    """Of the sites that should probably join: their number, the mean stated probability, and the share that gains."""
    advised = [cell for cell in chosen if cell["probably"]]
    sites = np.array([cell["probably"] for cell in advised])
    stated, gained = (np.average([cell[key] for cell in advised], weights=sites) for key in ("told", "gained"))
    return sites.sum(), stated, gained


def test_statements_on_own_rows():
    for name, *texts in STATEMENTS[2:]:
        null, others = (cells(None, metric(name), kinds) for kinds in (("null",), ("gain", "outlier", "mixed")))
        assert texts == [percent(mean(null, "false")), percent(max(c["false"] for c in null), 0),
                         percent(mean(null + others, "covered")), percent(mean(others, "wrong_sign"))]


def test_advice():
    assert [row[1:] for row in ADVICE[2:]] == advice_rows(DRAWN, None)
    families = (advice_rows(TRAINED, folds) for folds in (1, 5))
    assert [row[1:] for row in FOLDS_ADVICE[2:]] == [[a[0], ", ".join(a[1:]), b[0], ", ".join(b[1:])]
                                                     for a, b in zip(*families, strict=True)]


def test_power():
    sums = defaultdict(lambda: np.zeros(3))
    few = defaultdict(lambda: np.zeros(2))
    for cell in cells(None, kinds=("gain", "mixed")):
        counts = np.array([cell[key] for key in ("found_gains", "joined_gains", "true_gains")])
        sums[cell["metric"]] += counts
        few[cell["metric"]] += counts[:2] * (cell["rows"] <= 100)
    for name, share, joined, ratio, ratio_few in POWER[2:]:
        better, advised, gain = sums[metric(name)]
        assert [share, joined, ratio, ratio_few] == [
            percent(better / gain, 0), percent(advised / gain, 0),
            *(f"{b / a:.1f}" if b < 20 * a else "above 20" for a, b in ((better, advised), few[metric(name)]))]
    assert all(advised >= 3 * better for better, advised in few.values())


def test_folds():
    for name, *texts in FOLDS[2:]:
        null = [mean(cells(folds, metric(name), ("null",)), "false") for folds in (1, 5)]
        every = cells(5, metric(name))
        assert texts == [*map(percent, null), percent(mean(every, "covered")), signed(mean(every, "bias"))]


def test_no_cell_breaks_a_promise():
    assert DRAWN["failures"] == TRAINED["failures"] == []
    every = [c for folds in FAMILIES for c in cells(folds)]
    assert {(c["kind"], c["rows"], c["rate"], c["seeds"], c["folds"]) for c in every} >= {
        ("mixed", rows, rate, seeds, folds) for rows in (30, 100, 500) for rate in (0.02, 0.1, 0.5) for seeds in (1, 5)
        for folds in FAMILIES}


@pytest.mark.parametrize("folds", FAMILIES)
def test_of_the_sites_that_probably_gain_the_stated_share_gains(folds):
    _, stated, gained = stated_and_gained(cells(folds, kinds=("mixed",)))
    assert abs(stated - gained) <= 0.05
