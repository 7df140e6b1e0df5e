"""The sections of the report about calibrations and explanations, which commands make after the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resolvent.comparisons.after.held_out_rows import SHARED
from resolvent.comparisons.after.later_files import EXPLANATION_FILE, read_records
from resolvent.comparisons.judgement.site_judgement import number_of
from resolvent.comparisons.runs.record import RunRecord
from resolvent.simulator.record.model_folder import CALIBRATION_FILE

_MAX_INPUTS = 60  # rows of the table of coefficients

Records = Mapping[str | None, Mapping[str, Any]]


def later_sections(folder: Path, record: RunRecord) -> dict[str, Any]:
    """The calibrations and the explanations of a run folder, for the template of the report."""
    calibrated, explained = (read_records(folder, record.methods, name)
                             for name in (CALIBRATION_FILE, EXPLANATION_FILE))
    return {"calibrations": [_calibration(method, _by_site(content)) for method, content in calibrated.items()],
            "explanations": [_explanation(method, _by_site(content)) for method, content in explained.items()]}


def _by_site(content: Mapping[str, Any]) -> dict[str | None, Any]:
    shared = content["shared"]
    return {**content["sites"], **({} if shared is None else {None: shared})}


def _calibration(method: str, records: Records) -> dict[str, Any]:
    from resolvent.comparisons.runs import figures  # imports matplotlib, which takes long

    thresholds = {name: record["threshold"] for name, record in records.items() if record["threshold"] is not None}
    goals = list(dict.fromkeys(record["text"].partition("(")[2].rstrip(")") for record in thresholds.values()))
    return {"method": method, "panels": figures.reliability_panels(method, records),
            "rows": [calibration_row(name, record) for name, record in records.items()],
            "thresholds": [threshold_row(name, record) for name, record in thresholds.items()],
            "goals": goals, "positive": next((r["threshold"]["positive"] for r in thresholds.values()), ""),
            "has_cost": any(record.get("cost") for record in thresholds.values())}


def calibration_row(name: str | None, record: Mapping[str, Any]) -> dict[str, Any]:
    """The texts about the calibration of a site's model: its scores on test rows before and after, and the gain."""
    cells = []
    for metric in ("log_loss", "brier_score", "calibration_error"):
        change = record["scores"].get(metric)
        if change is None:
            cells.append({"text": "–", "gain": "", "interval": "", "side": ""})
            continue
        before, after = (number_of(change[stage][0]) for stage in ("before", "after"))
        value, low, high = (number_of(end) for end in change["gain"])
        gain = f"{value:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")
        cells.append({"text": f"{before:.3f} → {after:.3f}" if before != after else f"{before:.3f}", "gain": gain,
                      "interval": _interval(change["after"]) if before == after else gain,
                      "side": "gain" if low > 0 else "loss" if high < 0 else ""})
    others = f" + {record['other_rows']} of other sites" if record["other_rows"] else ""
    return {"site": name or SHARED, "title": record["title"], "rows": f"{record['rows']}{others}", "cells": cells,
            "test_rows": record["test_rows"], "note": record["note"]}


def threshold_row(name: str | None, record: Mapping[str, Any]) -> dict[str, Any]:
    """The texts about the threshold of a site, and what it reaches on its test rows."""
    value, cost = record["threshold"]["value"], record.get("cost")
    return {"site": name or SHARED, "text": record["text"], "value": "never" if value > 1 else f"{value:.3g}",
            "shares": [{"text": _share(record[key][0]), "interval": _interval(record[key], is_share=True)}
                       for key in ("sensitivity", "specificity") if key in record],
            "cost": "" if cost is None else f"{number_of(cost['before'][0]):.3f} → {number_of(cost['after'][0]):.3f}"}


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _interval(interval: list[float | None], *, is_share: bool = False) -> str:
    _, low, high = (number_of(end) for end in interval)
    if low != low:  # nan
        return ""
    return f"[{low:.1%}, {high:.1%}]" if is_share else f"[{low:.3f}, {high:.3f}]"


def _explanation(method: str, records: Records) -> dict[str, Any]:
    from resolvent.comparisons.runs import figures  # imports matplotlib, which takes long

    linear = {name or SHARED: record["coefficients"] for name, record in records.items() if record["coefficients"]}
    outputs = list(next(iter(linear.values()))["outputs"]) if linear else []
    inputs = next(iter(linear.values()))["inputs"] if len(outputs) == 1 else []
    rows = [{"input": name, "cells": [f"{table['outputs'][outputs[0]][i]:.3g}".replace("-", "−")
                                      for table in linear.values()]}
            for i, name in enumerate(inputs) if i < _MAX_INPUTS or name == "intercept"]
    return {"method": method, "picture": figures.importance_panel(method, records), "sites": list(linear),
            "output": outputs[0] if rows else "", "coefficients": rows, "hidden": len(inputs) - len(rows),
            "differing": _differing(records), "is_linear": bool(linear)}


def _differing(records: Records) -> list[str]:
    """A sentence for each column that rests on it more or less at a site than at the others."""
    words = {1: "more", -1: "less"}
    return [f"{column}: {words[sign]} important at {name} than at the other sites"
            for name, record in records.items() for column, sign in record["differs"].items() if sign]
