"""The table of defaults that gain and hold agrees with its benchmark, and the defaults keep what the page promises."""

import json
import re

import numpy as np
import pytest
from test_names import ROOT

RECORD = json.loads((ROOT / "benchmarks" / "gain_and_hold.json").read_text("utf-8"))
ROWS = {row["method"]: row for row in RECORD["rows"] if row["problem"] == "30 parties"}
SECTION = (ROOT / "docs" / "choosing.md").read_text("utf-8").split("### Gain and hold")[1].split("\n## ")[0]
FIRST, OTHERS = SECTION.split("Other problems of the benchmark")
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in FIRST.splitlines() if line.startswith("|")]
METHODS = [re.sub("`", "", cell) for cell in LINES[0][1:]]


@pytest.mark.parametrize("cells", LINES[2:], ids=lambda cells: cells[0])
def test_the_table_is_the_benchmarks(cells):
    column = "none" if cells[0] == "no attack" else cells[0]
    for method, cell in zip(METHODS, cells[1:], strict=True):
        mean, worst = ROWS[method].get(column, (None, None))
        assert cell == ("" if mean is None else f"{mean:.1f}, {worst:.1f}")


@pytest.mark.parametrize("method", METHODS[1:])
def test_the_defaults_gain_without_an_attack_and_lose_at_most_a_point_under_any(method):
    row, (alone, worst_alone) = ROWS[method], ROWS["alone"]["none"]
    attacks = set(row) - {"problem", "method", "mean_lost", "worst_lost"}
    assert len(attacks) == 11
    assert row["none"][0] >= (92 if method.endswith("sigma") else 95)
    assert row["none"][0] > alone + 5
    assert all(row[attack][0] >= alone - 1 and row[attack][1] >= worst_alone - 1 for attack in attacks)


PROBLEMS = json.loads((ROOT / "benchmarks" / "gain_and_hold_problems.json").read_text("utf-8"))["rows"]


def pair(values):
    """The text of a mean and of the worst party."""
    return f"{values[0]:.1f}, {values[1]:.1f}"


def test_the_table_of_the_other_problems_is_the_benchmarks():
    rows = {(row["problem"], row["method"]): row for row in PROBLEMS}
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in OTHERS.splitlines()
             if line.startswith("|")][2:]
    assert {line[0] for line in lines} == {row["problem"] for row in PROBLEMS}
    for problem, alone, *cells in lines:
        assert alone == pair(rows[problem, "alone"]["none"])
        methods = ("robust_interpolation", "fedgeomed_plus")
        for method, none, lowest in zip(methods, cells[::2], cells[1::2], strict=True):
            row = rows.get((problem, method))
            attacks = [] if row is None else [row[name] for name in row if isinstance(row[name], list)][1:]
            assert len(attacks) == (0 if row is None else 10)
            assert (none, lowest) == (("", "") if row is None else (pair(row["none"]), pair(np.min(attacks, axis=0))))


def test_what_the_page_says_of_the_other_problems():
    robust = {row["problem"]: row for row in PROBLEMS if row["method"] == "robust_interpolation"}
    alone = {row["problem"]: row["none"] for row in PROBLEMS if row["method"] == "alone"}
    assert len(robust) >= 9
    assert all(row["none"][0] > alone[problem][0] and row["mean_lost"] < 0 for problem, row in robust.items())
    assert {problem: row["worst_lost"] for problem, row in robust.items() if row["worst_lost"] > 0} == {"network": 2.8,
                                                                                                  "convolutions": 4.3}
    plus = {row["problem"]: row for row in PROBLEMS if row["method"] == "fedgeomed_plus"}
    assert set(plus) == set(robust)
    assert all(row["none"][0] > alone[problem][0] and row["mean_lost"] < 0 for problem, row in plus.items())
    assert {problem: row["worst_lost"] for problem, row in plus.items() if row["worst_lost"] > 0} == {
        "convolutions": 4.3}


def test_with_many_test_images_no_worst_party_is_below_alone():
    rows = json.loads((ROOT / "benchmarks" / "gain_and_hold_images.json").read_text("utf-8"))["rows"]
    assert [row["method"] for row in rows] == ["alone", "robust_interpolation", "fedgeomed_plus"]
    assert max(row["worst_lost"] for row in rows[1:]) < 0
    for row in rows:
        assert all(f"{row[column][1]:.1f} %" in OTHERS for column in ("none", "min-max") if column in row)
    equal = {row["problem"]: row["worst_lost"] for row in PROBLEMS if row["method"] == "equal models"}
    network, images = equal["network"], equal["convolutions"]
    assert f"would lose {network['median']} points in the median with the network and more" in OTHERS
    assert f"more than {network['95 %']} in 5 %" in OTHERS
    assert f"with convolutions {images['median']} and {images['95 %']}" in OTHERS
    lost = {(row["problem"], row["method"]): row["worst_lost"] for row in PROBLEMS if "worst_lost" in row}
    assert all(lost[problem, method] <= chance["95 %"] for problem, chance in equal.items()
               for method in ("robust_interpolation", "fedgeomed_plus"))


def test_the_defaults_of_fed_plus_are_near_the_best_pair_and_never_far_below_training_alone():
    rows = json.loads((ROOT / "benchmarks" / "preset_defaults.json").read_text("utf-8"))["rows"]
    plus = [row for row in rows if row["preset"] in {"fedavg_plus", "fedgeomed_plus", "fedcomed_plus"}]
    assert len({row["problem"] for row in plus}) == 12
    assert all(row["best"] - row["default"] <= 0.41 and row["default"] >= row["alone"] + 0.79 for row in plus)
    of_pi = {row["problem"]: row["best"] for row in rows if row["preset"] == "fedpi_plus"}
    splitting = [row for row in rows if row["preset"] == "fedpi_plus"]
    assert all(row["best"] - row["default"] <= 2.01 and row["default"] >= row["alone"] for row in splitting)
    median = {row["problem"]: row["default"] for row in plus if row["preset"] == "fedgeomed_plus"}
    assert {problem for problem, best in of_pi.items() if median[problem] <= best} == {"table", "MNIST personal"}
