"""The table of defaults that gain and hold agrees with its benchmark, and the defaults keep what the page promises."""

import json
import re

import pytest
from test_names import ROOT

RECORD = json.loads((ROOT / "benchmarks" / "gain_and_hold.json").read_text("utf-8"))
ROWS = {row["method"]: row for row in RECORD["rows"] if row["problem"] == "30 parties"}
SECTION = (ROOT / "docs" / "choosing.md").read_text("utf-8").split("### Gain and hold")[1].split("\n## ")[0]
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("|")]
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
    assert row["none"][0] > alone + 5
    assert all(row[attack][0] >= alone - 1 and row[attack][1] >= worst_alone - 1 for attack in attacks)


def test_the_defaults_of_fed_plus_are_near_the_best_pair_and_never_far_below_training_alone():
    rows = json.loads((ROOT / "benchmarks" / "preset_defaults.json").read_text("utf-8"))["rows"]
    plus = [row for row in rows if row["preset"] in {"fedavg_plus", "fedgeomed_plus", "fedcomed_plus"}]
    assert len({row["problem"] for row in plus}) == 12
    assert all(row["best"] - row["default"] <= 2.0 and row["default"] >= row["alone"] - 0.31 for row in plus)
