"""Tables of calibrations and explanations on the terminal."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from resolvent.cli.terminal import framed
from resolvent.comparisons.after.held_out_rows import SHARED
from resolvent.comparisons.runs.later_sections import Records, calibration_row, threshold_row
from resolvent.comparisons.runs.summary import as_number

__all__ = ["calibration_tables", "explanation_table"]



def calibration_tables(records: Records) -> list[Table]:
    """The calibration of each site with its effect on test rows, and the thresholds if there are any."""
    table = framed("Calibration, measured on test rows", "rows: validation rows of the site (and of other sites) to "
                   "which it was fitted; log loss on its test rows; better by: before minus after, with its "
                   "interval of level 95 %", ["site", "calibration"], ["rows", "log loss", "better by"])
    for name, record in records.items():
        row = calibration_row(name, record)
        table.add_row(escape(row["site"]), escape(row["title"]), row["rows"], row["cells"][0]["text"],
                      row["cells"][0]["gain"])
    thresholds = {name: record["threshold"] for name, record in records.items() if record["threshold"]}
    return [table, *([_threshold_table(thresholds)] if thresholds else [])]


def _threshold_table(thresholds: Records) -> Table:
    first = next(iter(thresholds.values()))
    positive, goal = first["threshold"]["positive"], first["text"].partition("(")[2].rstrip(")")
    has_cost = first.get("cost") is not None
    table = framed(escape(f"From which probability on {positive} is predicted: {goal}"),
                   "reached on test rows, with intervals of level 95 %"
                   + ("; cost per row: of the most probable class, and with the threshold" if has_cost else ""),
                   ["site"], ["from", "sensitivity", "specificity", *(["cost per row"] if has_cost else [])])
    for name, record in thresholds.items():
        row = threshold_row(name, record)
        shares = [f"{share['text']} {share['interval']}" for share in row["shares"]] or ["", ""]
        table.add_row(escape(row["site"]), row["value"], *shares, *([row["cost"]] if has_cost else []))
    return table


def explanation_table(records: Records) -> Table:
    """The importance of every column at every site; columns whose interval excludes zero at no site are pale."""
    names = list(records)
    table = framed("By how much the mean loss on test rows grows if a column is exchanged between the rows",
                   "*: the interval (95 %) excludes zero; ↑ ↓: larger or smaller than at the other sites, beyond the "
                   "intervals of all sites and columns", ["column"], [escape(name or SHARED) for name in names])
    columns = list(next(iter(records.values()))["importance"])
    means = {column: float(np.nan_to_num(np.array([as_number(records[name]["importance"][column][0])
                                                    for name in names])).mean()) for column in columns}
    for column in sorted(columns, key=lambda c: -means[c]):
        table.add_row(escape(column), *(_importance(records[name], column) for name in names))
    return table


def _importance(record: Mapping[str, Any], column: str) -> str:
    value, low, high = (as_number(end) for end in record["importance"][column])
    mark = {1: "↑", -1: "↓", 0: ""}[record["differs"].get(column, 0)]
    return "-" if not isfinite(value) else f"{mark}{value:.4f}{'*' if low > 0 or high < 0 else ' '}"
