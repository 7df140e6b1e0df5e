"""The table of methods for parties with different labels has the figures of the benchmark's file."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_has_the_figures_of_the_file():
    page = (ROOT / "docs" / "choosing.md").read_text("utf-8").split("## Different labels")[1].split("\n## ")[0]
    rows = {cells[0]: cells[1:] for cells in (re.split(r" *\| *", line)[1:-1] for line in page.splitlines()
                                             if line.startswith("| "))}
    records = json.loads((ROOT / "benchmarks" / "zoo_methods.json").read_text("utf-8"))["rows"]
    assert len(records) == 26
    for record in records:
        first = 0 if record["concentration"] == 0.1 else 2
        score, difference = rows[record["method"]][first:first + 2]
        assert score == f"{100 * record['test']:.1f}"
        if record["method"] != "FedAvg":
            expected = f"{100 * record['gain']:+.1f} ± {100 * record['error']:.1f}"
            assert difference == expected.replace("-", "\N{MINUS SIGN}")
