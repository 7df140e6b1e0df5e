"""What the page of decisions promises is what the calibration benchmark shows."""

import json
from collections import defaultdict

import numpy as np
import pytest
from test_names import ROOT

DRAWN, TRAINED = (json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))
                  for name in ("calibration", "calibration_folds"))
PAGE = (ROOT / "docs" / "decisions.md").read_text("utf-8")
SECTION = PAGE.split("## What it promises")[1].split("\n## ")[0]
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


CHOICES = json.loads((ROOT / "benchmarks" / "calibration_choices.json").read_text("utf-8"))["cells"]


def choice_cells(family, **chosen):
    return [c for c in CHOICES if c["family"] == family and all(c[key] == value for key, value in chosen.items())]


def rows_of_choices():
    """The rows of the tables about choices, few sites and rows of one person, as the results say."""
    def points(value):
        return signed(round(100 * value, 1) + 0.0)[:-2]

    methods = [[str(c["methods"]), *map(percent, (c["best_better"], c["best_covered"])), points(c["best_bias"]),
                *map(percent, (c["named_better"], c["named_covered"], c["chosen_covered"], c["any_better"],
                               c["any_left"]))] for c in choice_cells("methods", kind="null")]
    tuned = [[*map(percent, (c["own_better"], c["chosen_better"], c["chosen_covered"])), points(c["chosen_bias"]),
              percent(c["join"])] for c in choice_cells("tuned", kind="null")]
    few = [[*map(percent, (null["own_better"] + null["own_worse"], mixed["own_covered"], mixed["chosen_covered"],
                           mixed["expected_covered"], mixed["stated"], mixed["probably_join_gains"]))]
           for null, mixed in zip(few_cells("null"), few_cells("mixed"), strict=True)]
    persons = [[str(c["sites"]), str(c["patient"]), f"{c['alike']:g}", *map(percent, (
        c["own_better"] + c["own_worse"], c["own_covered"], c["chosen_covered"], c["join"]))]
        for c in choice_cells("patients", kind="null")]
    forecast = [[str(c["rows"]), f"{c['further']:,.0f}", *map(percent, (c["shown_near"], c["shown"], c["shown_worse"]))]
                for c in choice_cells("forecast")]
    return methods, tuned, few, persons, forecast


def few_cells(kind):
    return [*choice_cells("patients", kind=kind, patient=1), *choice_cells("seeds", kind=kind),
            *choice_cells("folds", kind=kind)]


def test_choices_few_sites_and_rows_of_one_person():
    section = PAGE.split("## After a choice")[1].split("## What it does not promise")[0]
    tables = [[[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()[2:]]
              for part in section.split("\n\n") if part.startswith("|")]
    assert len(tables) == 5
    for table, expected in zip(tables, rows_of_choices(), strict=True):
        assert [row[-len(expected[0]):] for row in table] == expected
