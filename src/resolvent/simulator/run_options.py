"""The options of a run: the one list that ``simulate``, ``compare``, ``sweep``, ``tune`` and experiment files share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from resolvent.algorithms.participation.rules import Participation
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.problem.metrics.metric import Metric
from resolvent.simulator.engine.schedulers import SchedulerChoice
from resolvent.simulator.record.events import OnEvaluation
from resolvent.simulator.record.systems import VirtualClock

MemoryChoice: TypeAlias = Literal["auto", "device", "host"]
Diagnostic = Literal["model_change", "start_change", "inexactness", "steps", "dissimilarity", "line", "heterogeneity"]
# Diagnostics that the rounds record; the others are measured at evaluations. Other names are those of an algorithm's
# info, and are recorded as well.
RECORDED = frozenset({"model_change", "start_change", "inexactness", "steps"})
READS_ALL_PARTIES = frozenset({"dissimilarity", "heterogeneity"})  # the samples of all parties at once


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run may set, by one name wherever runs are started.

    Attributes:
        rounds: number of rounds, at least 1.
        seed: seed of all random numbers: first model, cohorts, stragglers, minibatches.
        start: a trained model with which the server and all parties begin, instead of the first model of the seed: its
            parameters, a ``Fitted``, or a ``Result`` with a shared model. With ``privacy``, what the parties of a
            ``Result`` have spent counts for parties with the same names; parameters count as trained on samples of
            others.
        participation: which parties take part in a round, with which weights, and which are slow; default: all,
            weighted by size.
        evaluate_every: rounds between evaluations of every party's model; default: 20 evaluations; fewer, but at least
            5, when the cohort is small; between the sites of a federation one, at the end.
        diagnostics: what is measured in addition to losses and scores: ``model_change``, ``start_change``,
            ``inexactness``, ``steps``, ``dissimilarity``, ``line``, ``heterogeneity``; or the name of a number in the
            info that the algorithm's party functions return, which is recorded per party and round.
        metrics: metrics of ``rv.metrics``, or a name for each, that are computed at evaluations for each party's
            validation and test samples, in addition to the loss and the score. A party for whose labels a metric is
            not defined has no row of it.
        clock: virtual clock that measures ``simulated_seconds``, ``bytes_down`` and ``bytes_up`` of each round.
        privacy: measure each party's epsilon at every evaluation, and stop before one exceeds a limit; see
            ``rv.privacy.PrivacyBudget``. The algorithm must be differentially private.
        scheduler: how the parties of a cohort are distributed on the machine: one after the other (``sequential``), in
            parallel lanes (``lanes``), or in lanes that continue with the next party when one is done (``queue``).
            ``auto`` is ``sequential`` on a CPU and ``lanes`` on other devices; several devices divide the cohort.
            ``measured`` compiles these in several widths, times a round of each, and takes the fastest; it pays for
            long runs. In a program, also a ``Scheduler``. It changes results by rounding only.
        memory: where the parties' data and states are: all on the ``device``, or on the ``host``, from which a chunk of
            rounds gets those of its cohorts. The host is for data of more parties than fit on the device, such as
            those of ``open_packed``. Default: the device, unless they take more than half of its memory.
        evaluate_parties: number of parties whose models are evaluated during a run, drawn once from the seed: curves
            and mean scores are over these. Decisions and their intervals read the test rows of all parties. Default:
            all parties, but at most 1,000 if they are in host memory.
        on_evaluation: a function, or several, that is called with an ``EvaluationEvent`` after every evaluation but
            that of the first model. It can read metrics and models, and stop the run; ``rv.callbacks`` has
            ready-made ones. With a folder for checkpoints, one is written before each call, and a run that is
            resumed does not repeat calls.
    """

    rounds: int
    seed: int = 0
    start: Any = None
    participation: Participation | None = None
    evaluate_every: int | None = None
    diagnostics: Sequence[str] = ()
    metrics: Sequence[Metric] | Mapping[str, Metric] | None = None
    clock: VirtualClock | None = None
    privacy: PrivacyBudget | None = None
    scheduler: SchedulerChoice = "auto"
    memory: MemoryChoice = "auto"
    evaluate_parties: int | None = None
    on_evaluation: OnEvaluation | Sequence[OnEvaluation] | None = None

    def of_run(self, **changes: Any) -> dict[str, Any]:
        """All options, as arguments of ``simulate``.

        Args:
            changes: options that one run has of its own, such as its seed.
        """
        return {name: getattr(self, name) for name in NAMES} | changes

    def of_trial(self, **changes: Any) -> dict[str, Any]:
        """The options of a trial, or of a training that is repeated, that are not the default; see ``OF_A_TRIAL``."""
        return {name: value for name, value in self.of_run(**changes).items()
                if name in OF_A_TRIAL and value is not None and not (isinstance(value, str) and value == "auto")}


NAMES = tuple(field.name for field in fields(RunOptions))
OF_A_TRIAL = ("start", "participation", "clock", "scheduler", "memory", "evaluate_parties")
"""The options that trials of a search have from outside; the search itself says how long and how often they run, and
what is measured, and it cannot keep a budget of privacy."""
OF_THE_MACHINE = ("scheduler", "memory")
"""The options that say how a run uses the machine: a resumed run may have others."""
