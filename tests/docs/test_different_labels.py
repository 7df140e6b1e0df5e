"""The tables about parties with different labels have the figures of the benchmarks' files."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("data", "number"), [("digits", 0), ("mnist", 1), ("cifar10", 2)])
def test_the_table_has_the_figures_of_the_file(data, number):
    page = (ROOT / "docs" / "choosing.md").read_text("utf-8").split("## Different labels")[1].split("\n## ")[0]
    table = page.split("|---|---|---|---|---|")[number + 1].split("\n\n")[0]
    rows = {cells[0]: cells[1:] for cells in (re.split(r" *\| *", line)[1:-1] for line in table.splitlines() if line)}
    records = [record for record in json.loads((ROOT / "benchmarks" / "zoo_methods.json").read_text("utf-8"))["rows"]
               if record["data"] == data]
    assert len(records) == 26
    for record in records:
        first = 0 if record["concentration"] == 0.1 else 2
        score, difference = rows[record["method"]][first:first + 2]
        assert score == f"{100 * record['test']:.1f}"
        if record["method"] != "FedAvg":
            expected = f"{100 * record['gain']:+.1f} ± {100 * record['error']:.1f}"
            assert difference == expected.replace("-", "\N{MINUS SIGN}")


def test_the_table_of_normalisations_has_the_figures_of_the_file():
    page = (ROOT / "docs" / "choosing.md").read_text("utf-8").split("## Batch normalisation")[1].split("\n## ")[0]
    records = json.loads((ROOT / "benchmarks" / "model_state.json").read_text("utf-8"))["rows"]
    shown = {name: [100 * (of.get("shared") or of["own"])[0] for data in ("digits", "cifar10") for classes in (10, 2)
                    for of in records if (of["method"], of["data"], of["classes"]) == (name, data, classes)]
             for name in (of["method"] for of in records)}
    assert len(shown) == 6
    for name, values in shown.items():
        assert f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |" in page
