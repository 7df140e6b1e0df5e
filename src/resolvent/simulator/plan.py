"""The plan of a run: everything that ``simulate`` is asked to do, checked before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.asynchronous import check_concurrency
from resolvent.algorithms.combinators.fixed_point_sums import check_weighting
from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.algorithms.description import Description
from resolvent.algorithms.participation import Arrivals, Full, Participation
from resolvent.differential_privacy import PrivacyAccount, PrivacyBudget
from resolvent.errors import InputError
from resolvent.problem.metrics.metric import Metric, name_metrics
from resolvent.problem.problem import SolvedProblem
from resolvent.simulator.engine.schedulers import SchedulerChoice, Sharded
from resolvent.simulator.evaluation_plan import EvaluationPlan, recorded_names
from resolvent.simulator.record.diagnostics import READS_ALL_PARTIES
from resolvent.simulator.record.events import OnEvaluation
from resolvent.simulator.record.party_metrics import PartyMetrics
from resolvent.simulator.task import Task, check_held_out, check_sizes


@dataclass(frozen=True)
class CheckpointPlan:
    """Where checkpoints are.

    Attributes:
        folder: the folder of the checkpoints, or None for a run without checkpoints.
        resume: whether the run continues from a checkpoint in the folder, if there is one.
    """

    folder: Path | None
    resume: bool

    @property
    def rows_folder(self) -> Path | None:
        """The folder of the party states on the host; it is next to the checkpoints, because it is not replaced."""
        if self.folder is None:
            return None
        folder = self.folder.resolve()  # "." has no name
        return folder.with_name(f"{folder.name}.parties")


@dataclass(frozen=True, eq=False)
class Plan:
    """A run of an algorithm.

    Attributes:
        name: name of the method, for metrics and errors.
        task: what is learned.
        participation: draws the cohorts.
        scheduler: how the work of a cohort is distributed on the machine.
        memory: where the parties' data and states are.
        evaluation: when and how models are evaluated.
        privacy: measures what the parties spend of their privacy, and stops the run; or None.
        spent: what the parties released in the run from whose model this one starts; or None.
    """

    name: str
    algorithm: Algorithm
    description: Description
    task: Task
    participation: Participation
    rounds: int
    seed: int
    scheduler: SchedulerChoice
    memory: Literal["device", "host"]
    evaluation: EvaluationPlan
    checkpoint: CheckpointPlan
    callbacks: tuple[OnEvaluation, ...] = ()
    privacy: PrivacyBudget | None = None
    spent: PrivacyAccount | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds={self.rounds} must be at least 1")
        check_sizes(self.task.sizes)
        self.participation.check(self.task.parties)
        check_concurrency(self.algorithm, self.participation, self.task.parties)
        check_weighting(self.algorithm, self.participation, self.task.problem)
        if self.evaluation.clock is not None and isinstance(self.participation, Arrivals):
            raise InputError("clock= measures rounds in which the server waits for all parties; Arrivals have a clock "
                             "of their own, and record simulated_seconds: leave clock= out")
        if (held_out := self.task.validation_sizes) is not None:
            check_held_out(self.description, held_out, self.name)
        if self.scheduler == "measured" and jax.process_count() > 1:
            raise InputError("scheduler='measured' is for one process, because several could choose differently: "
                             "measure in one process, and name the scheduler that it chooses")

    @property
    def pools_data(self) -> bool:
        """Whether one party has the samples of all: there are no cohorts, messages and measurements of parties."""
        return uses_pooled_data(self.algorithm)

    @property
    def divides_parties(self) -> bool:
        """Whether each process has the data and states of its own parties only.

        Otherwise every process has those of all parties: of a problem without ``data``, of pooled data, for diagnostics
        that read the samples of all parties, if there are fewer parties than devices, and with a scheduler that
        distributes the cohort itself.
        """
        return (jax.process_count() > 1 and self.task.data is not None and not self.pools_data
                and not isinstance(self.scheduler, Sharded) and self.task.parties >= jax.device_count()
                and not READS_ALL_PARTIES.intersection(self.evaluation.diagnostics))

    @property
    def training_participation(self) -> Participation:
        """The participation of the rounds: that of one party if the data are pooled."""
        return Full() if self.pools_data else self.participation

    @property
    def training_parties(self) -> int:
        """The number of parties of the rounds: 1 if the data are pooled."""
        return 1 if self.pools_data else self.task.parties

    @property
    def cohort_size(self) -> int:
        """C, the number of parties that work in a round."""
        return self.training_participation.capacity(self.training_parties)

    @property
    def recorded(self) -> tuple[str, ...]:
        """The names that each round records, see ``engine.run_chunk``."""
        return (*recorded_names(self.evaluation), *(("gap",) if isinstance(self.task.problem, SolvedProblem) else ()))


def plan_metrics(metrics: Sequence[Metric] | Mapping[str, Metric], task: Task) -> PartyMetrics | None:
    """Computes the metrics of ``simulate(metrics=)``; None if there are none in addition to the score."""
    named = name_metrics(metrics, None if task.model is None else task.model.loss.score_name)
    if not named:
        return None
    if task.model is None or task.data is None:
        raise InputError("metrics are computed from predictions for data: give simulate a model and data=, not a "
                         "problem of its own")
    return PartyMetrics(named, task.model, task.data)
