"""The plan of a run: everything that ``simulate`` is asked to do, checked before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.persistent_memory import Prepared, prepare
from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.algorithms.concurrency import check_concurrency
from resolvent.algorithms.description import Description
from resolvent.algorithms.participation import Arrivals, Full, Participation
from resolvent.algorithms.privacy import PrivacyAccount, PrivacyBudget
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Metric, name_metrics
from resolvent.problem.models.model import Model
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.subset import Gatherer
from resolvent.simulator.engine.scheduler_choice import SchedulerChoice
from resolvent.simulator.engine.schedulers import Sharded
from resolvent.simulator.evaluation_plan import EvaluationPlan, recorded_names
from resolvent.simulator.record.diagnostics import READS_ALL_PARTIES
from resolvent.simulator.record.events import OnEvaluation
from resolvent.simulator.record.party_metrics import PartyMetrics
from resolvent.simulator.storage.device_memory import fits_device
from resolvent.simulator.user_errors import naming_errors
from resolvent.xla.shapes import shapes_of

__all__ = ["CheckpointPlan", "MemoryChoice", "Plan", "Task", "check_held_out", "check_sizes", "choose_memory",
           "plan_metrics"]

MemoryChoice: TypeAlias = Literal["auto", "device", "host"]



@dataclass(frozen=True, eq=False)
class Task:
    """What is learned: a model on federated data, or a problem of its own.

    Attributes:
        model: the model, or None if there is a problem.
        data: the parties' samples, or None if there is a problem.
        problem: the objectives of all parties, or None if they are made from the model and the data.
    """

    model: Model | None
    data: FederatedData | None
    problem: Problem | None

    @classmethod
    def from_arguments(cls, model: Model | Problem, data: FederatedData | None) -> "Task":
        """Check the two first arguments of ``simulate``.

        Raises:
            InputError: data are missing, or superfluous, or ``model`` is neither a model nor a problem.
        """
        if isinstance(model, Problem):
            if data is not None:
                raise InputError("a Problem brings its own data: leave data= out")
            return cls(None, None, model)
        if data is None:
            raise InputError(
                f"the model {type(model).__name__} needs data=: FederatedData, such as rv.datasets.digits()")
        if not isinstance(model, Model):
            raise InputError(f"model must be a Model, got {type(model).__name__}: see rv.models.from_functions, "
                             "from_equinox and from_flax")
        return cls(model, data, None)

    @cached_property
    def gatherer(self) -> Gatherer:
        """Gathers the data of a few parties, for a model on data."""
        assert self.model is not None
        assert self.data is not None
        return Gatherer(self.model, self.data)

    def prepare(self, algorithm: Algorithm, name: str) -> Prepared:
        """The algorithm as it runs on this task, and its description: the only trace before that of the rounds.

        Raises:
            InputError: with the name: the parts do not fit together.
        """
        def oracle() -> Oracle:
            of_party: Oracle = shapes_of(self.gatherer.template.oracle, jnp.array(0))
            return of_party

        source = self.init if self.problem is None else self.problem
        with naming_errors(name):
            return prepare(algorithm, source, parties=self.parties, oracle=oracle)

    def whole_problem(self) -> Problem:
        """The problem of all parties."""
        if self.problem is not None:
            return self.problem
        assert self.model is not None
        assert self.data is not None
        return LearningProblem(self.model, self.data)

    @property
    def parties(self) -> int:
        """N, the number of parties."""
        if self.problem is not None:
            return self.problem.parties
        assert self.data is not None
        return len(self.data)

    @property
    def sizes(self) -> NDArray[np.integer]:
        """[N] number of training samples of each party."""
        if self.data is not None:
            return self.data.sizes()
        assert self.problem is not None
        return np.asarray(self.problem.sizes)

    @property
    def init(self) -> Callable[[Array], Vector]:
        """Random key -> first model."""
        source = self.problem if self.model is None else self.model
        assert source is not None
        return source.init

    def split_sizes(self, split: str) -> NDArray[np.integer]:
        """[N] number of samples of each party in a split."""
        if self.data is not None:
            return self.data.sizes(split)
        assert self.problem is not None
        return np.asarray(self.problem.split_sizes(self.problem.splits.index(split)))

    @property
    def validation_sizes(self) -> ArrayLike | None:
        """[N] number of validation samples of each party; None if the problem has no such split."""
        if self.problem is not None and "validation" not in self.problem.splits:
            return None
        return self.split_sizes("validation")


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
        algorithm: the algorithm.
        description: its description.
        task: what is learned.
        participation: draws the cohorts.
        rounds: number of rounds.
        seed: seed of all random numbers.
        scheduler: how the work of a cohort is distributed on the machine.
        memory: where the parties' data and states are.
        evaluation: when and how models are evaluated.
        checkpoint: where checkpoints are.
        callbacks: functions that are called at evaluations.
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
    """The object that computes the metrics of ``simulate(metrics=)``; None if there are none in addition to the score.

    Raises:
        InputError: they do not fit the data or the model, or there are no data.
    """
    named = name_metrics(metrics, None if task.model is None else task.model.loss.score_name)
    if not named:
        return None
    if task.model is None or task.data is None:
        raise InputError("metrics are computed from predictions for data: give simulate a model and data=, not a "
                         "problem of its own")
    return PartyMetrics(named, task.model, task.data)


def choose_memory(memory: MemoryChoice, prepared: Prepared, task: Task, name: str) -> Literal["device", "host"]:
    """Where the parties' data and states are to be; ``auto`` is the device if they take less than half of its memory.

    Raises:
        InputError: the choice does not exist, or the host is impossible for this algorithm or task.
    """
    if memory not in get_args(MemoryChoice):
        raise InputError(f"memory={memory!r} is not known: use any of {list(get_args(MemoryChoice))}")
    obstacle = None
    if task.model is None or task.data is None:
        obstacle = "memory='host' gathers from data: give simulate a model and data=, not a problem of its own"
    elif uses_pooled_data(prepared.algorithm):
        obstacle = (f"{name}: it trains on the pooled samples of all parties, which are on the device then: leave it "
                    "out, or use memory='device'")
    elif jax.process_count() > 1:
        obstacle = "memory='host' is for one process, which owns the files: use memory='device' with several processes"
    if memory == "host" and obstacle is not None:
        raise InputError(obstacle)
    if memory != "auto":
        return memory
    if obstacle is not None:
        return "device"
    with naming_errors(name):
        return "device" if fits_device(task.gatherer, prepared.description.party) else "host"


def check_sizes(sizes: NDArray[np.integer]) -> None:
    """Refuse numbers of samples from which no shares follow.

    Args:
        sizes: [N] number of training samples of each party.

    Raises:
        InputError: a number is negative, or the sum is 0 or at least 2^31, so that it is not a 32-bit integer.
    """
    total = int(sizes.sum(dtype=np.int64))
    if (negative := np.flatnonzero(sizes < 0)).size:
        raise InputError(f"party {negative[0]} has {sizes[negative[0]]} training samples: sizes must not be negative")
    if not 0 < total < 2**31:
        raise InputError(f"the {len(sizes)} parties have {total} training samples in all: their sum must lie between 1 "
                         "and 2^31 - 1, because parties are weighted by their shares of it")


def check_held_out(description: Description, samples: Any, name: str) -> None:
    """Refuse an algorithm that needs held-out samples if no party has any.

    Args:
        description: the description of the algorithm.
        samples: [N] number of validation samples of each party.
        name: name of the method, for the error.

    Raises:
        InputError: naming the method.
    """
    if description.needs_held_out and not np.asarray(samples).any():
        raise InputError(f"{name}: it chooses by validation samples, and none of the {len(samples)} parties has any: "
                         "set a share for validation in the data")
