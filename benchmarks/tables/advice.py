"""What the sites of the six tables are told, beside what the former rule told them.

    python -m benchmarks.tables.advice CACHE                 CACHE: the folder to which prepare.py wrote the tables

The experiments are those of this folder as a new user would write them: ``careful_local`` is the reference, every row
is tested once by five folds, and the log loss or the squared error decides. ``former`` stays as it is in the JSON file:
the advice of the rule that had one population of gains and no strangers, with one split, five seeds, a ridge of 1 for
*alone*, and the Brier score, as it was last committed. A site that is too small for a test row in one split has none.
"""

import argparse
import json
import os
from pathlib import Path

from benchmarks.records import as_json
from benchmarks.tables.__main__ import FOLDER, TABLES

import resolvent as rv

CHANGES = ("folds=5", "seeds=1", "algorithms.alone=careful_local", "decide_by=null", "metrics=null")


def main() -> None:
    """Run the experiments and write the advice to every site."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables.advice", description=__doc__)
    parser.add_argument("cache", type=Path, help="the folder of the tables")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="default: all")
    options = parser.parse_args()
    out = FOLDER.parent.absolute() / "tables_advice.json"
    rows = {row["table"]: row for row in json.loads(out.read_text())["tables"]}
    os.chdir(options.cache)
    for name in options.tables:
        changes = [change for change in CHANGES if name != "diabetes" or not change.endswith("null")]
        file = rv.experiment_files.ExperimentFile.load(str(FOLDER.absolute() / f"{name}.yaml"), changes)
        verdict = rv.experiment_files.compare_file(file).verdict
        federation = verdict.sites.federation
        assert federation is not None
        rows[name] |= {"method": federation.method, "about": federation.about, "sites": [
            {"site": site.name, "rows": site.test_rows, "answer": site.advice.answer, "reason": site.advice.reason,
             "probability": round(site.advice.probability, 3), "expected": _rounded(site.advice.expected),
             "own": _rounded(site.advice.own)} for site in verdict.sites.sites if site.advice is not None]}
        out.write_text(as_json({"command": "python -m benchmarks.tables.advice CACHE"}, tables=[*rows.values()]))
        print(name, federation.method, flush=True)


def _rounded(numbers: tuple[float, ...]) -> list[float | None]:
    """Numbers for a JSON file, which has none that are not finite."""
    return [round(number, 4) if abs(number) < 1e9 else None for number in numbers]


if __name__ == "__main__":
    main()
