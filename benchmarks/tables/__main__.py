"""Six real tables: Resolvent, scikit-learn and XGBoost, on the same rows.

    python -m venv PEERS && PEERS/bin/pip install -r benchmarks/tables/requirements.txt
    python -m benchmarks.tables CACHE PEERS/bin/python                    everything: JSON and picture
    python -m benchmarks.tables CACHE PEERS/bin/python --tables lung      some of the tables; others stay in the file
    python -m benchmarks.tables CACHE PEERS/bin/python --redraw           only the picture

CACHE is a folder of yours for the tables, the runs and the peers' scores. All methods are tested on the same rows.
The same functions compute intervals for all of them.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from benchmarks.records import as_json
from benchmarks.tables.judge import judged, splits_of
from benchmarks.tables.report import draw

FOLDER = Path(__file__).parent
TABLES = ("lung", "actg175", "randhie", "penguins", "diabetes", "wine")
COMMAND = "python -m benchmarks.tables CACHE PEERS/bin/python"


def main() -> None:
    """Parse the arguments, run, judge and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, help="a folder for tables and runs")
    parser.add_argument("peers", type=Path, help="the Python of an environment with requirements.txt")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="default: all")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "tables.json", help="the figures, as JSON")
    parser.add_argument("--redraw", action="store_true", help="only the picture of the JSON file")
    options = parser.parse_args()
    out = options.out.absolute()
    if not options.redraw:
        python = options.peers.absolute()
        options.cache.mkdir(parents=True, exist_ok=True)
        os.chdir(options.cache)
        run([python, FOLDER / "prepare.py", "."])
        rows = {row["table"]: row for row in json.loads(out.read_text())["tables"]} if out.exists() else {}
        for name in options.tables:
            rows[name] = measured(name, python)
            out.write_text(as_json({"command": COMMAND}, tables=[rows[name] for name in TABLES if name in rows]))
    draw(json.loads(out.read_text()), out.with_suffix(".svg"))


def measured(name: str, python: Path) -> dict[str, Any]:
    """The figures of a table; CPU seconds include imports and compilation for Resolvent, and not for the peers."""
    experiment = FOLDER / f"{name}.yaml"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run([sys.executable, "-m", "resolvent.cli", "run", experiment, "--out", f"runs/{name}", "--overwrite"])
    seconds = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 1)
    splits_of(experiment).to_csv(f"{name}.splits.csv", index=False)
    peers = Path(f"{name}.peers.csv")
    of_peers = json.loads(run([python, FOLDER / "peers.py", experiment, f"{name}.splits.csv", peers]))
    return {"table": name, **judged(Path("runs") / name, pd.read_csv(peers)),
            "cpu_seconds": {"resolvent": seconds, "peers": of_peers}}


def run(command: list[Any]) -> str:
    """What a command prints; with threads, histogram boosting spends its time waiting on tables this small."""
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout


if __name__ == "__main__":
    main()
