"""The reports of a running federation, which the server's log stores: answers, scores, and the end of the run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = ["EvaluationReport", "FinishReport", "MembersReport", "PhaseReport", "Report", "SiteScores", "StartReport",
           "entry_of_report", "event_of_report", "report_from_entry"]

SiteScores: TypeAlias = Mapping[str, Mapping[str, float | None]]


class StartReport(NamedTuple):
    """All parties have answered once.

    Attributes:
        run: the run.
        parties: names of the parties.
        sizes: [N] number of training samples of each party.
        resumed: number of rounds that were done before; 0 for a new run.
    """

    run: str
    parties: tuple[str, ...]
    sizes: tuple[int, ...]
    resumed: int = 0


class MembersReport(NamedTuple):
    """Parties have joined a run, or have left it.

    Attributes:
        round: number of the first round with these members, from 0.
        joined: names of the parties that join, or join again.
        left: names of the parties that are no longer asked.
        sizes: [N] number of training samples of each party of the run, also of those that have left.
    """

    round: int
    joined: tuple[str, ...]
    left: tuple[str, ...]
    sizes: tuple[int, ...]


class PhaseReport(NamedTuple):
    """A phase of a round has ended.

    Attributes:
        round: number of the round, from 0.
        phase: number of the phase, from 0.
        attempts: how often the messages were sent to parties that had not answered.
        asked: ids of the parties that were asked.
        counted: ids of the parties whose reply counted.
        refused: party id -> why its reply did not count, although it arrived in time.
        absent: party id -> why it has no reply.
        late: ids of parties whose reply to an earlier message arrived during the phase; it did not count.
        norms: party id -> norm of its update (``admission.update_norm``), also if it did not count; None if the norm is
            too large for a number.
        began: party id -> round of the message that it has answered, if it is an earlier one.
        stale: ids of parties whose message is of a version that the server has forgotten; they get a new one.
        staleness: mean number of versions since the message, over the replies that counted and the stale parties; None:
            the server is not asynchronous.
    """

    round: int
    phase: int
    attempts: int
    asked: tuple[int, ...]
    counted: tuple[int, ...]
    refused: Mapping[int, str]
    absent: Mapping[int, str]
    late: tuple[int, ...]
    norms: Mapping[int, float | None] = {}
    began: Mapping[int, int] = {}
    stale: tuple[int, ...] = ()
    staleness: float | None = None


class EvaluationReport(NamedTuple):
    """The parties have computed the scores of their models.

    Attributes:
        round: number of rounds that were done.
        personal: party id -> name of a score -> split -> its value, for the party's personal model.
        shared: party id -> name of a score -> split -> its value, for the shared model.
        withheld: ids of the parties whose scores do not leave their site.
        absent: party id -> why it has no scores.
        means: with secure sums, the mean scores over the sites, see ``score_sums``; then there are no others.
    """

    round: int
    personal: Mapping[int, SiteScores]
    shared: Mapping[int, SiteScores]
    withheld: tuple[int, ...]
    absent: Mapping[int, str]
    means: tuple[tuple[str, str, float | None], ...] = ()


class FinishReport(NamedTuple):
    """The run has ended.

    Attributes:
        rounds: number of rounds.
        stored: ids of the parties that have stored their models.
        absent: party id -> why it has not stored its models.
    """

    rounds: int
    stored: tuple[int, ...]
    absent: Mapping[int, str]


Report: TypeAlias = StartReport | MembersReport | PhaseReport | EvaluationReport | FinishReport
_KINDS = {kind.__name__: kind for kind in (StartReport, MembersReport, PhaseReport, EvaluationReport, FinishReport)}


def entry_of_report(report: Report) -> dict[str, Any]:
    """The report as a line of the log."""
    return {"event": type(report).__name__, **report._asdict()}


def report_from_entry(entry: Mapping[str, Any]) -> Report:
    """The report that a line of the log holds."""
    kind = _KINDS[entry["event"]]
    values = {name: _with_ids(entry[name]) for name in kind._fields if name in entry}
    report: Report = kind(**values)
    return report


def _with_ids(value: Any) -> Any:
    """A value from JSON with tuples instead of lists, and with integers as party ids (JSON keys are strings)."""
    if isinstance(value, Mapping):
        return {int(key): item for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def event_of_report(label: str, rounds: int, names: Sequence[str], score: str, report: Report) -> dict[str, Any]:
    """A report as an event for the lead, with the names of the sites.

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
