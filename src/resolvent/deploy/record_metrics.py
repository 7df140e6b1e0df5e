"""The record of a federation as metrics, and as a participation with which ``simulate`` repeats the run."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32
from typing_extensions import override

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation import Full, Participation, ParticipationWrapper
from resolvent.deploy.reports import EvaluationReport, PhaseReport, Report, SiteScores
from resolvent.deploy.stores import ServerRecord
from resolvent.errors import InputError
from resolvent.simulate.metrics_table import MetricsTable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RecordedAnswers", "metrics_of_reports", "recorded_participation"]


def metrics_of_reports(method: str, reports: Iterable[Report], record: ServerRecord) -> "pd.DataFrame":
    """The metrics of a run: the scores of evaluations, ``replies`` of each round, and ``refused`` replies.

    Args:
        method: the value of the column ``method``.
        reports: all reports of the run.
        record: the server's record.
    """
    table, reports = MetricsTable(method), tuple(reports)
    last_phase = max((report.phase for report in reports if isinstance(report, PhaseReport)), default=0)
    for report in reports:
        if isinstance(report, PhaseReport):
            if report.phase == last_phase:
                table.add(report.round + 1, None, None, "replies", len(report.counted))
            ids = np.array(sorted(report.refused), int)
            table.add(report.round + 1, ids, None, "refused", np.ones(len(ids)))
        elif isinstance(report, EvaluationReport):
            _add_scores(table, report.round, "", report.personal, record)
            _add_scores(table, report.round, "global_", report.shared, record)
    return table.table()


def _add_scores(table: MetricsTable, rounds: int, prefix: str, scores: Mapping[int, SiteScores],
                record: ServerRecord) -> None:
    """The scores of the parties that have samples, in the order of a simulation."""
    names = dict.fromkeys(("loss", record.score, *sorted({name for values in scores.values() for name in values})))
    for i, split in enumerate(record.splits):
        for name in names:
            ids = [k for k in sorted(scores) if record.split_sizes[i][k] and name in scores[k]]
            values = np.array([scores[k][name][i] for k in ids], float)  # None becomes nan
            table.add(rounds, np.array(ids, int), split, prefix + name, values)


class RecordedAnswers(ParticipationWrapper):
    """The cohorts of another participation, restricted to the parties that answered in the recorded run.

    Attributes:
        keys: [R, words] the data of each round's ``keys.cohort_key``.
        answered: [R, N] whether the reply of a party arrived in time.
        inner: draws the cohorts, as in the run that was recorded.
    """

    keys: UInt32[Array, "R words"]
    answered: Bool[Array, "R N"]
    inner: Participation = Full()

    @override
    def __call__(self, key: Array, sizes: Int[Array, " N"]) -> Cohort:
        cohort = self.inner(key, sizes)
        is_round = jnp.all(self.keys == jax.random.key_data(key), axis=1)
        answered = self.answered[jnp.argmax(is_round)][cohort.index]
        return Cohort(cohort.index, cohort.weight, cohort.shares, cohort.alive & answered, cohort.effort, cohort.late)


def recorded_participation(record: ServerRecord, reports: Iterable[Report], seed: int,
                           participation: Participation | None = None) -> RecordedAnswers:
    """The participation with which ``simulate`` repeats a run from its record: the same parties answer in each round.

    Args:
        record: the server's record.
        reports: all reports of the run.
        seed: the seed of the run.
        participation: the participation of the run.

    Raises:
        InputError: a simulation cannot repeat the run: a party answered in one phase of a round and not in the next, or
            lost its state, or added noise.
    """
    for title, parties in (("started again without its state", record.restarted),
                           ("clips its replies or adds noise", record.protected)):
        if parties:
            raise InputError(f"{record.parties[parties[0]]} {title}, which a simulation cannot repeat")
    answered = np.ones((max(record.round, 1), len(record.parties)), bool)
    for report in reports:
        if isinstance(report, PhaseReport) and report.round < record.round:
            absent = list(report.absent)
            if report.phase and absent:
                raise InputError(
                    f"in round {report.round + 1}, {record.parties[absent[0]]} answered the first phase and not phase "
                    f"{report.phase + 1}: a simulation has one cohort for all phases of a round")
            answered[report.round, absent] = False
    root = keys.root_key(seed)
    of_rounds = jax.vmap(lambda t: jax.random.key_data(keys.cohort_key(keys.round_key(root, t))))(
        jnp.arange(len(answered)))
    return RecordedAnswers(of_rounds, jnp.asarray(answered), Full() if participation is None else participation)
