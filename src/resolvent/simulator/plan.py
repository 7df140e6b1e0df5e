"""The plan of a run: everything that ``simulate`` is asked to do, checked before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import innermost
from resolvent.algorithms.description import Description
from resolvent.algorithms.participation.rules import Full, Participation
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError, nearest, quote
from resolvent.problem.metrics.metric import Metric, name_metrics
from resolvent.problem.problem import SolvedProblem
from resolvent.simulator.engine.schedulers import SchedulerChoice, Sharded
from resolvent.simulator.record.events import OnEvaluation
from resolvent.simulator.run_options import READS_ALL_PARTIES, RECORDED, Diagnostic
from resolvent.simulator.states import Rounds
from resolvent.simulator.task import Task, check_held_out, check_sizes

if TYPE_CHECKING:
    from resolvent.differential_privacy.account import PrivacyAccount
    from resolvent.simulator.record.party_metrics import PartyMetrics
    from resolvent.simulator.record.systems import VirtualClock

# Metrics of a party and a round that are no diagnostics: info with such a name is not recorded.
_NAMES_OF_METRICS = ("loss", "global_loss", "epsilon", "refused", "memory")
_MIN_EVALUATIONS, _MAX_EVALUATIONS = 5, 20  # by default
_MAX_EVALUATED_ON_HOST = 1000  # parties, by default


@dataclass(frozen=True, eq=False)
class EvaluationPlan:
    """When, on which parties and how models are evaluated.

    Attributes:
        parties: [M] ids of the evaluated parties, ascending.
        diagnostics: what is measured in addition to losses and scores.
        clock: measures simulated seconds and bytes of each round, or None.
        metrics: computes metrics in addition to losses and scores, or None.
    """

    every: int
    parties: NDArray[np.int32]
    diagnostics: tuple[str, ...]
    clock: "VirtualClock | None"
    metrics: "PartyMetrics | None" = None


def recorded_names(evaluation: EvaluationPlan) -> tuple[str, ...]:
    """The names of the parties' numbers that each round records, in alphabetical order."""
    custom = set(evaluation.diagnostics).difference(get_args(Diagnostic))
    names = RECORDED.intersection(evaluation.diagnostics) | custom | (
        set() if evaluation.clock is None else {"steps"})
    return tuple(sorted(names))


def plan_evaluation(algorithm: Algorithm, *, rounds: int, cohort: int, every: int | None, parties: NDArray[np.int32],
                    diagnostics: Sequence[str], clock: "VirtualClock | None", metrics: "PartyMetrics | None" = None,
                    info: Sequence[str] = (), pools_data: bool = False) -> EvaluationPlan:
    """Check the arguments of ``simulate`` about evaluation, and complete them.

    By default there are 20 evaluations; fewer, but at least 5, when the cohort is small: an evaluation reads the
    samples of all evaluated parties, a round those of its cohort. The algorithm has no influence on the number, so that
    all methods of a comparison are evaluated after the same rounds.

    Args:
        every: rounds between evaluations, or None.
        parties: [M] ids of the evaluated parties.
        clock: the virtual clock, or None.
        metrics: computes metrics in addition to losses and scores, or None.
        info: names of the numbers that the algorithm's parties return, see ``Description``.
        pools_data: whether one party has all data: diagnostics of single parties are then left out.
    """
    built_in, custom = get_args(Diagnostic), [
        name for name in (*info, "update_norm") if name not in _NAMES_OF_METRICS]
    for diagnostic in diagnostics:
        if diagnostic not in (allowed := [*dict.fromkeys((*built_in, *custom))]):
            raise InputError(
                f"diagnostics: there is no diagnostic {quote(diagnostic)}{nearest(diagnostic, allowed)} Use any of "
                f"{list(built_in)}, or of the numbers in the info of {type(innermost(algorithm)).__name__}'s parties: "
                f"{[name for name in allowed if name not in built_in]}. Numbers of the server are always recorded")
    if every is None:
        evaluations = max(_MIN_EVALUATIONS, min(_MAX_EVALUATIONS, rounds * cohort // len(parties)))
        every = max(1, rounds // evaluations)
    elif every < 1:
        raise InputError(f"evaluate_every={every} must be at least 1")
    if pools_data:
        diagnostics, clock = [name for name in diagnostics if name in READS_ALL_PARTIES], None
    return EvaluationPlan(every, parties, tuple(diagnostics), clock, metrics)


def choose_evaluated_parties(requested: int | None, parties: int, seed: int, memory: str) -> NDArray[np.int32]:
    """The ids of the parties whose models are evaluated, ascending; a subset is drawn from the seed."""
    if requested is not None and not 1 <= requested <= parties:
        raise InputError(f"evaluate_parties={requested} must lie in 1 to {parties}, the number of parties")
    default = min(parties, _MAX_EVALUATED_ON_HOST) if memory == "host" else parties
    count = default if requested is None else requested
    if count == parties:
        return np.arange(parties, dtype=np.int32)
    generator = np.random.default_rng([seed, _MAX_EVALUATED_ON_HOST])
    return np.sort(generator.choice(parties, count, replace=False, shuffle=False)).astype(np.int32)


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
    spent: "PrivacyAccount | None" = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds={self.rounds} must be at least 1")
        check_sizes(self.task.sizes)
        self.participation.check(self.task.parties)
        self.algorithm.check_participation(self.participation, self.task.parties, self.task.problem)
        if self.evaluation.clock is not None and self.participation.is_asynchronous:
            raise InputError("clock= measures rounds in which the server waits for all parties; Arrivals have a clock "
                             "of their own, and record simulated_seconds: leave clock= out")
        if (held_out := self.task.validation_sizes) is not None:
            check_held_out(self.description, held_out, self.name)
        if self.scheduler == "measured" and jax.process_count() > 1:
            raise InputError("scheduler='measured' is for one process, because several could choose differently: "
                             "measure in one process, and name the scheduler that it chooses")

    @property
    def divides_parties(self) -> bool:
        """Whether each process has the data and states of its own parties only.

        Otherwise every process has those of all parties: of a problem without ``data``, of pooled data, for diagnostics
        that read the samples of all parties, if there are fewer parties than devices, and with a scheduler that
        distributes the cohort itself.
        """
        return (jax.process_count() > 1 and self.task.data is not None and not self.task.pools_data
                and not isinstance(self.scheduler, Sharded) and self.task.parties >= jax.device_count()
                and not READS_ALL_PARTIES.intersection(self.evaluation.diagnostics))

    @property
    def training_participation(self) -> Participation:
        """The participation of the rounds: that of one party if the data are pooled."""
        return Full() if self.task.pools_data else self.participation

    @property
    def cohort_size(self) -> int:
        """C, the number of parties that work in a round."""
        return self.training_participation.capacity(len(self.task.training_sizes))

    @property
    def of_rounds(self) -> Rounds:
        """What those read who hold the data and the states."""
        return Rounds(self.algorithm, self.training_participation, self.seed, self.rounds, self.evaluation.every,
                      self.evaluation.parties)

    @property
    def recorded(self) -> tuple[str, ...]:
        """The names that each round records, see ``engine.run_chunk``."""
        return (*recorded_names(self.evaluation), *(("gap",) if isinstance(self.task.problem, SolvedProblem) else ()))


def plan_metrics(metrics: Sequence[Metric] | Mapping[str, Metric], task: Task) -> "PartyMetrics | None":
    """Computes the metrics of ``simulate(metrics=)``; None if there are none in addition to the score."""
    named = name_metrics(metrics, None if task.model is None else task.model.loss.score_name)
    if not named:
        return None
    if task.model is None or task.data is None:
        raise InputError("metrics are computed from predictions for data: give simulate a model and data=, not a "
                         "problem of its own")
    from resolvent.simulator.record.party_metrics import PartyMetrics  # most runs have no metric but the score

    return PartyMetrics(named, task.model, task.data)
