"""Tables of calibrations and explanations on the terminal."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from resolvent.cli.terminal import framed
from resolvent.comparisons.after.held_out_rows import SHARED
from resolvent.comparisons.judgement.metrics import format_value
from resolvent.comparisons.runs.summary import as_number

__all__ = ["calibration_tables", "explanation_table"]

_NAME_WIDTH = 8  # smallest width of a column of names


def calibration_tables(records: Mapping[str | None, Mapping[str, Any]]) -> list[Table]:
    """The calibration of each site with its effect on test rows, and the thresholds if there are any."""
    table = framed("Calibration, measured on test rows", "rows: validation rows of the site (and of other sites) to "
                    "which it was fitted; log loss on its test rows; better by: before minus after, with its "
                    "interval of level 95 %")
    table.add_column("site", overflow="fold", min_width=_NAME_WIDTH)
    table.add_column("calibration", overflow="fold")
    for column in ("rows", "log loss", "better by"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, record in records.items():
        scores = record["scores"]
        cells = ["", ""] if not scores else [_before_after(scores["log_loss"]), _gain(scores["log_loss"]["gain"])]
        others = f" (+{record['other_rows']})" if record["other_rows"] else ""
        table.add_row(escape(name or SHARED), escape(record["title"]), f"{record['rows']}{others}", *cells)
    thresholds = {name: record["threshold"] for name, record in records.items() if record["threshold"]}
    return [table, *([_threshold_table(thresholds)] if thresholds else [])]


def _threshold_table(thresholds: Mapping[str | None, Mapping[str, Any]]) -> Table:
    first = next(iter(thresholds.values()))
    positive, goal = first["threshold"]["positive"], first["text"].partition("(")[2].rstrip(")")
    has_cost = first.get("cost") is not None
    table = framed(escape(f"From which probability on {positive} is predicted: {goal}"),
                    "reached on test rows, with intervals of level 95 %"
                    + ("; cost per row: of the most probable class, and with the threshold" if has_cost else ""))
    table.add_column("site", overflow="fold", min_width=_NAME_WIDTH)
    for column in ("from", "sensitivity", "specificity", *(["cost per row"] if has_cost else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for name, record in thresholds.items():
        value = record["threshold"]["value"]
        cells = ["never" if value > 1 else f"{value:.3g}"]
        cells += [_interval(record[key], "accuracy") if key in record else "" for key in ("sensitivity", "specificity")]
        cost = record.get("cost")
        table.add_row(escape(name or SHARED), *cells,
                      *([_before_after(cost) if cost else ""] if has_cost else []))
    return table


def explanation_table(records: Mapping[str | None, Mapping[str, Any]]) -> Table:
    """The importance of every column at every site; columns whose interval excludes zero at no site are pale."""
    names = list(records)
    table = framed("By how much the mean loss on test rows grows if a column is exchanged between the rows",
                    "*: the interval (95 %) excludes zero; ↑ ↓: larger or smaller than at the other sites, beyond the "
                    "intervals of all sites and columns")
    table.add_column("column", overflow="fold", min_width=_NAME_WIDTH)
    for name in names:
        table.add_column(escape(name or SHARED), justify="right", no_wrap=True)
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


def _before_after(change: Mapping[str, Sequence[float | None]]) -> str:
    before, after = (as_number(change[stage][0]) for stage in ("before", "after"))
    return f"{before:.3f} → {after:.3f}"


def _gain(gain: Sequence[float | None]) -> str:
    value, low, high = (as_number(end) for end in gain)
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")


def _interval(interval: Sequence[float | None], metric: str) -> str:
    value, low, high = (as_number(end) for end in interval)
    return "not defined" if not isfinite(value) else (
        f"{format_value(value, metric)} [{format_value(low, metric)}, {format_value(high, metric)}]")
