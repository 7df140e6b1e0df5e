"""The reports of a run as events for the lead, with the names of the sites."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from resolvent.federation.protocol.reports import (
    EvaluationReport,
    MembersReport,
    PhaseReport,
    Report,
    StartReport,
)


def event_of_report(label: str, rounds: int, names: Sequence[str], score: str, report: Report) -> dict[str, Any]:
    """A report as an event.

    Args:
        score: the score whose mean is shown.
    """
    if isinstance(report, MembersReport):
        return {"event": "members", "method": label, "round": report.round + 1, "joined": list(report.joined),
                "left": list(report.left)}
    if isinstance(report, StartReport):
        return {"event": "start", "method": label, "resumed": report.resumed, "rounds": rounds}
    if isinstance(report, PhaseReport):
        return {"event": "round", "method": label, "round": report.round + 1, "phase": report.phase, "rounds": rounds,
                "attempts": report.attempts, "asked": [names[k] for k in report.asked],
                "counted": [names[k] for k in report.counted],
                "refused": {names[k]: reason for k, reason in report.refused.items()},
                "norms": {names[k]: norm for k, norm in report.norms.items()},
                "absent": {names[k]: reason for k, reason in report.absent.items()},
                "late": [names[k] for k in report.late]}
    if isinstance(report, EvaluationReport):
        values = [scores[score].get("test") for scores in report.personal.values() if score in scores]
        finite = [value for value in values if value is not None]
        return {"event": "scores", "method": label, "round": report.round, "score": score,
                "mean": float(np.mean(finite)) if finite else None,
                "withheld": [names[k] for k in report.withheld]}
    return {"event": "finish", "method": label, "absent": {names[k]: why for k, why in report.absent.items()}}
