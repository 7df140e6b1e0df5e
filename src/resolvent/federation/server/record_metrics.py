"""The record of a federation as metrics, and as a participation with which ``simulate`` repeats the run."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation.rules import Full, Participation, ParticipationState
from resolvent.errors import InputError
from resolvent.federation.protocol.events import EvaluationReport, Event, PhaseReport, SiteScores
from resolvent.federation.protocol.stores import ServerRecord
from resolvent.federation.server.membership import draw_cohort, members_of_round
from resolvent.math import tree
from resolvent.simulator.record.metrics_table import MetricsTable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RecordedCohorts", "metrics_of_reports", "recorded_participation"]


def metrics_of_reports(method: str, reports: Iterable[Event], record: ServerRecord) -> "pd.DataFrame":
    """The metrics of a run: the scores of evaluations, ``replies`` of each round, ``staleness``, ``refused`` replies.

    Args:
        method: the value of the column ``method``.
    """
    table, reports = MetricsTable(method), tuple(reports)
    last_phase = max((report.phase for report in reports if isinstance(report, PhaseReport)), default=0)
    for report in reports:
        if isinstance(report, PhaseReport):
            if report.phase == last_phase:
                table.add(report.round + 1, None, None, "replies", len(report.counted))
            if report.staleness is not None:
                table.add(report.round + 1, None, None, "staleness", report.staleness)
            ids = np.array(sorted(report.refused), int)
            table.add(report.round + 1, ids, None, "refused", np.ones(len(ids)))
        elif isinstance(report, EvaluationReport):
            _add_scores(table, report.round, "", report.personal, record)
            _add_scores(table, report.round, "global_", report.shared, record)
            for name, split, value in report.means:
                table.add(report.round, None, split, name, np.nan if value is None else value)
    return table.table()


def _add_scores(table: MetricsTable, rounds: int, prefix: str, scores: Mapping[int, SiteScores],
                record: ServerRecord) -> None:
    """The scores of the parties that have them, in the order of a simulation."""
    names = dict.fromkeys(("loss", record.score, *sorted({name for values in scores.values() for name in values})))
    for split in record.splits:
        for name in names:
            ids = [k for k in sorted(scores) if split in scores[k].get(name, {})]
            values = np.array([scores[k][name][split] for k in ids], float)  # None becomes nan
            table.add(rounds, np.array(ids, int), split, prefix + name, values)


class RecordedCohorts(Participation):
    """The cohorts of a recorded run, in which the parties without a reply do not take part.

    Attributes:
        cohorts: leaves [R, C]; rows beyond the cohort of a round are parties that do not take part.
    """

    cohorts: Cohort
    inner: Participation = Full()

    @override
    def capacity(self, parties: int) -> int:
        return int(self.cohorts.index.shape[1])

    @override
    def shares(self, sizes: Int[Array, " N"]) -> Float[Array, " N"]:
        return self.inner.shares(sizes)

    @override
    def draw(self, state: ParticipationState, key: Array, t: Int[Array, ""],
             sizes: Int[Array, " N"]) -> tuple[Cohort, ParticipationState]:
        return tree.rows(self.cohorts, t), state


def recorded_participation(record: ServerRecord, reports: Iterable[Event], seed: int,
                           participation: Participation | None = None) -> RecordedCohorts:
    """The participation with which ``simulate`` repeats a run from its record: the same parties answer in each round.

    Args:
        record: the server's record.
        reports: all reports of the run.
        seed: the seed of the run.
        participation: the participation of the run.

    Raises:
        InputError: a simulation cannot repeat the run: a party answered in one phase of a round and not in the next, or
            lost its state, or the server or a party added noise.
    """
    for title, parties in (("started again without its state", record.restarted),
                           ("clips its replies or adds noise", record.protected)):
        if parties:
            raise InputError(f"{record.parties[parties[0]]} {title}, which a simulation cannot repeat")
    if record.protects:
        raise InputError("the server drew cohorts and noise from a secret of its own, which a simulation cannot repeat")
    participation, rounds = Full() if participation is None else participation, max(record.round, 1)
    absent: dict[int, set[int]] = {t: set() for t in range(rounds)}
    began: dict[int, Mapping[int, int]] = {}
    for report in reports:
        if isinstance(report, PhaseReport) and report.round < record.round:
            if report.phase and report.absent:
                raise InputError(
                    f"in round {report.round + 1}, {record.parties[min(report.absent)]} answered the first phase and "
                    f"not phase {report.phase + 1}: a simulation has one cohort for all phases of a round")
            absent[report.round] |= {*report.absent}
            if report.began:
                began[report.round] = report.began
    drawn = [draw_cohort(participation, members_of_round(record.members, t), record.sizes, keys.root_key(seed), t)[1]
             for t in range(rounds)]
    capacity = max(len(cohort.index) for cohort in drawn)
    cohorts = [_padded(cohort, absent[t], capacity, len(record.parties)) for t, cohort in enumerate(drawn)]
    if began:
        cohorts = [replace(cohort, began=jnp.asarray([began.get(t, {}).get(k, t) for k in cohort.index.tolist()]))
                   for t, cohort in enumerate(cohorts)]
    return RecordedCohorts(jax.tree.map(lambda *rows: jnp.stack(rows), *cohorts), participation)


def _padded(cohort: Cohort, absent: set[int], capacity: int, parties: int) -> Cohort:
    """The cohort with ``capacity`` rows, in which absent parties and the added rows do not take part."""
    index = np.asarray(cohort.index)
    others = [k for k in range(parties) if k not in index][:capacity - len(index)]

    def padded(values: Array, value: float) -> Array:
        return jnp.concatenate([values, jnp.full(len(others), value, values.dtype)])

    return Cohort(jnp.asarray([*index.tolist(), *others], cohort.index.dtype), padded(cohort.weight, 0),
                  padded(cohort.shares, 0), padded(cohort.alive & ~np.isin(index, [*absent]), 0),
                  padded(cohort.effort, 1), padded(cohort.late, 0))
