"""The table of the first pages: what `resolvent run digits` finds.

    resolvent run digits --out RUN
    python benchmarks/digits.py RUN [--out benchmarks/digits.json]

A row has a method's test accuracy over the sites, and the numbers of sites that are better off, level and worse off
than with training alone; ``gain`` is the mean gain over training alone with its interval.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from records import as_json


def main() -> None:
    """Write the file from the summary of the run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"), help="the figures, as JSON")
    options = parser.parse_args()
    summary = json.loads((options.run / "summary.json").read_text("utf-8"))
    kept = ("mean", "p10", "worst", "better", "level", "worse")
    rows = [{"method": name, **{key: of["final"][key] for key in kept if key in of["final"]}}
            for name, of in summary["methods"].items()]
    answers = Counter(site["advice"]["answer"] for site in summary["sites"] if site["advice"])
    facts = {"command": "resolvent run digits", "versions": summary["versions"],
             "method": summary["federation"]["about"], "gain": summary["federation"]["gain"],
             "advice": dict(answers.most_common())}
    options.out.write_text(as_json(facts, rows=rows))


if __name__ == "__main__":
    main()
