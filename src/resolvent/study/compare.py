"""Run the algorithms of an experiment with the same random numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.data.federated import FederatedData
from resolvent.problem.models import Model
from resolvent.problem.problem import Problem
from resolvent.simulate.processes import detect_lost_process
from resolvent.simulate.result import Result
from resolvent.simulate.run import simulate
from resolvent.simulate.scheduler_choice import SchedulerChoice
from resolvent.study.experiment import Experiment, ExperimentFile

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "ProgressOfMethod", "compare"]

ProgressOfMethod = Callable[[str, int, int], None]  # label, rounds done, rounds in total


@dataclass(frozen=True)
class Comparison:
    """The results of an experiment, by label.

    Attributes:
        experiment: what was compared.
        results: the result of each algorithm, in the order of the file.
        alone: the label of local training, or None if the experiment has none.
    """

    experiment: Experiment
    results: dict[str, Result]
    alone: str | None

    def collected(self) -> "Comparison":
        """The comparison with all personal models in this process; of several processes, all must call it."""
        with detect_lost_process():
            return replace(self, results={label: result.collected() for label, result in self.results.items()})

    @property
    def metrics(self) -> "pd.DataFrame":
        """All metrics of all methods, one long table."""
        import pandas as pd

        return pd.concat([r.metrics for r in self.results.values()], ignore_index=True)


def compare(file: ExperimentFile, experiment: Experiment | None = None, *, checkpoints: Path | None = None,
            resume: bool = False, progress: ProgressOfMethod | None = None,
            scheduler: SchedulerChoice = "auto") -> Comparison:
    """Run every algorithm of an experiment.

    Args:
        file: the checked experiment.
        experiment: its parts; default: they are built from the file.
        checkpoints: a folder for the state of each method, see ``simulate``.
        resume: continue from the checkpoints in that folder.
        progress: called with (label, rounds done, rounds in total).
        scheduler: how the work is distributed on the machine, see ``simulate``.

    Raises:
        InputError: the parts of the experiment do not fit together.
    """
    with file.precision():
        experiment = file.build() if experiment is None else experiment
        subject = experiment.model if experiment.problem is None else experiment.problem
        assert isinstance(subject, Model | Problem)
        data = experiment.data if isinstance(experiment.data, FederatedData) else None  # prices are in the problem
        results: dict[str, Result] = {}
        for number, (label, algorithm) in enumerate(experiment.algorithms.items()):
            result = simulate(
                algorithm, subject, data, rounds=experiment.rounds, seed=experiment.seed,
                participation=experiment.participation, evaluate_every=experiment.evaluate_every,
                diagnostics=experiment.diagnostics, metrics=experiment.metrics or {}, clock=experiment.clock,
                name=label, resume=resume, scheduler=scheduler,
                checkpoint=None if checkpoints is None else checkpoints / f"{number:02d}",
                progress=(lambda done, total, label=label: progress(label, done, total)) if progress else False)  # type: ignore[misc]
            results[label] = _with_shared_samples(result, results)
        alone = next((label for label in results if file.preset_of(label) == "local"), None)
        return Comparison(experiment, results, alone)


def _with_shared_samples(result: Result, others: dict[str, Result]) -> Result:
    """The result with the samples of an earlier one, so that one copy is in memory and not one of each method."""
    if result.storage is not None:
        return result
    return replace(result, problem=next((r.problem for r in others.values() if r.storage is None), result.problem))
