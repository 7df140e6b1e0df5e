"""The page on six real tables shows the numbers of its JSON file."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def test_the_page_shows_the_scores_and_the_decisions_of_the_file():
    from benchmarks.tables.report import markdown

    record = json.loads((ROOT / "benchmarks" / "tables.json").read_text())
    page = (ROOT / "docs" / "tables.md").read_text()
    scores, decisions = markdown(record).strip().split("\n\n")
    assert scores in page
    assert decisions in page


def test_what_the_page_says_of_the_best_methods_is_in_the_file():
    tables = {row["table"]: row for row in json.loads((ROOT / "benchmarks" / "tables.json").read_text())["tables"]}
    best = {name: min((m for m in table["methods"]), key=lambda m: m["score"][0]) for name, table in tables.items()}
    trees = {name for name, method in best.items() if method["method"].startswith(("histogram", "XGBoost"))}
    assert trees == {"randhie", "wine", "penguins"}
    assert all(best[name]["gain over the chosen"][1] < 0 for name in trees)
    methods = {name: {m["method"]: m for m in table["methods"]} for name, table in tables.items()}
    assert all(methods["actg175"][f"{tree}, pooled"]["gain over the chosen"][2] < 0
               for tree in ("histogram boosting", "XGBoost"))
    assert {name: table["chosen"] for name, table in tables.items()} == dict.fromkeys(tables, "FedAvg") | {
        "wine": "robust"}
    assert all(methods[name]["FedAvg"]["score"][0] < methods[name]["robust"]["score"][0] for name in tables)
    assert methods["actg175"]["robust"]["gain over the chosen"][2] < 0
    low, high = methods["wine"]["FedAvg"]["gain over the chosen"][1:]
    assert low < 0 < high
