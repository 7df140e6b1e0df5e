"""The figures of a release, computed from the committed results of the benchmarks when the site is built.

``python docs/release.py`` prints the table, so that a release can be compared with the last one.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from hooks import RESULTS, verdict_counts

ROOT = Path(__file__).parents[1]
MARK = "<!-- the figures of the release -->"


class Figure(NamedTuple):
    """A row of the table."""

    subject: str
    value: str
    command: str


def benchmark(name: str) -> Any:
    """The committed result of a benchmark."""
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))


def speed() -> Iterator[Figure]:
    """For each workload, seconds per round and those of the fastest other simulator."""
    record = benchmark("simulators")
    for key, workload in record["workloads"].items():
        rows = [row for row in record["rows"] if row["workload"] == key and row["name"] != "C kernel"]
        ours, peer = (min((row for row in rows if (row["name"] == "ours") == is_ours), key=lambda row: row["round"])
                      for is_ours in (True, False))
        yield Figure(f"Speed: {workload['title']}, {workload['parties']} parties",
                     f"{1000 * ours['round']:,.4g} ms per round ({ours['setting']}); {peer['name']}: "
                     f"{1000 * peer['round']:,.4g} ms, {peer['round'] / ours['round']:.1f} times as long",
                     "python -m benchmarks.simulators")


def start() -> Iterator[Figure]:
    """Seconds to the first rounds."""
    record = benchmark("startup")
    warm, cold = (record[key]["to the first rounds"] for key in ("warm", "cold"))
    yield Figure("Start: seconds to the first rounds of `digits`", f"{warm:.1f}; {cold:.1f} in the first run",
                 record["command"])


def claims() -> Iterator[Figure]:
    """Verdicts on the papers' claims."""
    from resolvent.papers.reproductions.results import shown_records

    *_, (_, holds, in_part, does_not, not_decided, ours) = verdict_counts(shown_records(RESULTS).values())
    yield Figure("Claims of the papers", f"{holds} hold, {in_part} hold in part, {does_not} do not hold, "
                 f"{not_decided} not decided; {ours} more are ours", "resolvent reproduce NAME")


def coverage() -> Iterator[Figure]:
    """How often the intervals of single sites, at the level of 95 %, have the true gain, and which errors occur."""
    record = benchmark("calibration")
    cells = [cell for cell in record["cells"] if cell["metric"] == "accuracy"]
    sites = sum(cell["sites"] for cell in cells)
    shares = {name: sum(cell["sites"] * cell[name] for cell in cells) / sites
              for name in ("covered", "false", "wrong_sign")}
    yield Figure(f"Intervals of the gain in accuracy of {sites:,} simulated sites, level 95 %",
                 f"{shares['covered']:.1%} cover the true gain; {shares['false']:.1%} claim a gain or a loss falsely, "
                 f"{shares['wrong_sign']:.1%} with the wrong sign", record["command"])


def kills() -> Iterator[Figure]:
    """Runs of a federation whose processes were killed."""
    record = benchmark("federation_faults")
    yield Figure("Kills: processes of a federation over NVIDIA FLARE",
                 f"{record['cases'] - record['cases without such a process']} kills in {record['runs']} runs; "
                 f"{record['runs with another result']} runs ended with another result", record["command"])


def privacy() -> Iterator[Figure]:
    """The audit: the bound that attacks prove against the epsilon that is claimed."""
    rows = benchmark("audit")["rows"]
    below = sum(row["lower_bound"] <= row["claim"] for row in rows)
    yield Figure("Privacy: audits by attack", f"in {below} of {len(rows)} compositions "
                 "the attack stays below the claimed epsilon", "python benchmarks/audit.py")


def figures() -> list[Figure]:
    """All rows."""
    return [row for part in (speed, start, claims, coverage, kills, privacy) for row in part()]


def table() -> str:
    """The rows as a table in Markdown."""
    lines = ["| what | measured | again with |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.subject} | {row.value} | `{row.command}` |" for row in figures())])


def on_config(config: Any) -> Any:
    """Name the version in the footer of every page."""
    import resolvent

    config.copyright = f"Resolvent {resolvent.__version__}"
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by the table."""
    return markdown.replace(MARK, table()) if MARK in markdown else markdown


if __name__ == "__main__":
    print(table())
