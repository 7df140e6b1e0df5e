"""Runs the trials of a search and selects the best ones."""

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.judgement.metrics import GAP, title_of
from resolvent.comparisons.tuning.jobs import in_jobs
from resolvent.comparisons.tuning.settings import Search
from resolvent.comparisons.tuning.space import Point, Space, beyond
from resolvent.comparisons.tuning.strategies import check_budgets, run_strategy
from resolvent.comparisons.tuning.trials import Candidates, Reading, Trial, TrialFiles, segments
from resolvent.data.federated import FederatedData
from resolvent.data.files.atomic_files import remove_folder
from resolvent.data.files.folder_lock import make_temporary_folder
from resolvent.errors import InputError, UnusedRepliesWarning
from resolvent.problem.metrics.metric import Metric
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.record.result import Result
from resolvent.simulator.run import simulate
from resolvent.simulator.together import groups_of_one_structure, simulate_together

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FIRST_SEED = 1000  # seeds of trials count up from here, so that none is a seed of the final runs
ProgressOfSearch = Callable[[str, int, int], None]  # label, rounds done, rounds in total


class TunableMethod(NamedTuple):
    """A method with parameters to choose."""

    space: Space
    make: Callable[[Point], Algorithm]


class Criterion(NamedTuple):
    """The metric by which trials are compared.

    Attributes:
        higher_is_better: whether higher values are better.
        metrics: the metrics that a run must compute for it, by name.
        split: the samples on which it is measured.
    """

    name: str
    higher_is_better: bool
    metrics: Mapping[str, Metric]
    split: str

    def loss(self, score: float) -> float:
        """A number that is smaller for better scores, and infinite for a score that is not finite."""
        return math.inf if not math.isfinite(score) else -score if self.higher_is_better else score


class Subject(NamedTuple):
    """The learning problem of every trial.

    Attributes:
        data: the samples, or None with a problem.
        options: settings of the runs, as of ``simulate``, such as the participation.
    """

    model: Model | Problem
    data: FederatedData | None
    options: Mapping[str, Any]
    parties: tuple[str, ...]


@dataclass(frozen=True)
class Tuned:
    """The trials of a search, and the best ones.

    Attributes:
        search: the settings.
        criterion: the metric by which trials are compared.
        trials: label -> trials of the method.
        methods: label -> the method with its space.
        parties: the parties' names.
    """

    search: Search
    criterion: Criterion
    trials: dict[str, list[Trial]]
    methods: dict[str, TunableMethod]
    parties: tuple[str, ...]

    @property
    def best(self) -> dict[str, Trial]:
        """Label -> the best complete trial: the first one, if several are equal.

        Raises:
            InputError: the training of every trial diverged.
        """
        return {label: self._best(label, lambda trial: trial.reading.score) for label in self.trials}

    @property
    def best_of_parties(self) -> dict[str, dict[str, Trial]]:
        """Label -> party -> the complete trial that is best on the party's own validation samples.

        A party without validation samples, or for which the metric is not defined, has the best trial of all parties.
        """
        chosen: dict[str, dict[str, Trial]] = {}
        for label, best in self.best.items():
            chosen[label] = {}
            for party in self.parties:
                is_defined = math.isfinite(best.reading.of_parties.get(party, math.nan))
                chosen[label][party] = self._best(
                    label, lambda t, p=party: t.reading.of_parties.get(p, math.nan)) if is_defined else best  # type: ignore[misc]
        return chosen

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """Label -> the algorithm with the parameters of its best trial."""
        return {label: self.methods[label].make(trial.point) for label, trial in self.best.items()}

    @property
    def point(self) -> Point:
        """The chosen parameters, if one method was searched."""
        trial: Trial = self._only(self.best)
        return trial.point

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with the chosen parameters, if one method was searched."""
        algorithm: Algorithm = self._only(self.algorithms)
        return algorithm

    @property
    def rounds_spent(self) -> dict[str, int]:
        """Label -> rounds of all of its trials."""
        return {label: sum(trial.spent for trial in trials) for label, trials in self.trials.items()}

    @property
    def edges(self) -> list[str]:
        """A sentence for each chosen number beyond which no number was tried, so that a better one may lie there."""
        return [f"{label}: the chosen {name} = {trial.point[name]} is {where}"
                for label, trial in self.best.items() for name, values in self.methods[label].space.items()
                if (where := beyond(values, trial.point[name], [t.point[name] for t in self.trials[label]]))]

    @property
    def table(self) -> "pd.DataFrame":
        """A row per trial: method, trial, its parameters, rounds, the score, and whether it was chosen."""
        import pandas as pd

        best = self.best
        rows = [{"method": label, "trial": t.number, **t.point, "rounds": t.rounds, "complete": t.is_complete,
                 self.criterion.name: t.reading.score, "chosen": t.number == best[label].number}
                for label, trials in self.trials.items() for t in trials]
        first = ["method", "trial"]
        last = ["rounds", "complete", self.criterion.name, "chosen"]
        names = list(dict.fromkeys(name for row in rows for name in row if name not in (*first, *last)))
        return pd.DataFrame(rows, columns=[*first, *names, *last])

    def plot(self, label: str | None = None) -> "Figure":
        """The scores of a method's trials against each of its parameters; default: the first method."""
        label = next(iter(self.trials)) if label is None else label
        if label not in self.trials:
            raise InputError(f"there is no method {label!r}; there are {', '.join(self.trials)}")
        figure = self.panels(label)
        figure.suptitle(label, fontsize=10)
        return figure

    def panels(self, label: str) -> "Figure":
        """The figure of ``plot`` without the name of the method."""
        from resolvent.comparisons.tuning.plots import trial_figure

        return trial_figure(self.methods[label].space, self.trials[label], self.best[label],
                            f"{self.criterion.split} {title_of(self.criterion.name)}")

    def _best(self, label: str, score_of: Callable[[Trial], float]) -> Trial:
        complete = [trial for trial in self.trials[label] if trial.is_complete and math.isfinite(score_of(trial))]
        if not complete:
            raise InputError(f"{label}: no trial has a {self.criterion.name}: the training of each diverged; search "
                             "smaller learning rates")
        return min(complete, key=lambda trial: self.criterion.loss(score_of(trial)))

    def _only(self, values: dict[str, Any]) -> Any:
        if len(values) > 1:
            raise InputError(f"{len(values)} methods were searched: use best, or algorithms, with a label of "
                             f"{', '.join(values)}")
        return next(iter(values.values()))


def run_search(search: Search, methods: dict[str, TunableMethod], subject: Subject, criterion: Criterion, *,
               rounds: int, folder: Path | None = None, identity: str = "", jobs: int = 1,
               progress: ProgressOfSearch | None = None) -> Tuned:
    """Run all trials of all methods.

    Args:
        criterion: the metric by which trials are compared.
        rounds: rounds of a full trial, unless the settings have their own.
        folder: stores the finished trials and the checkpoints of unfinished ones; a search with the same identity
            resumes from them.
        jobs: number of trials of a method that run at the same time.
        progress: a function that is called with (label, rounds done, rounds in total).

    Raises:
        InputError: a candidate cannot be built, budgets differ, all trainings of a method diverged, or the folder
            belongs to another search.

    Warns:
        UserWarning: a chosen value lies at the edge of the values that were tried.
    """
    if jobs > 1 and (search.strategy == "optuna" or search.trials_at_once > 1):
        raise InputError(f"jobs={jobs}: Optuna proposes a trial from the results of the earlier ones, and "
                         "trials_at_once is another way to run several at the same time: leave jobs out")
    if search.trials_at_once > 1 and (others := [name for name in subject.options if name != "participation"]):
        raise InputError(f"{others[0]} is for trials one after the other: leave trials_at_once out")
    check_budgets(search, {label: method.space for label, method in methods.items()})
    rounds = search.rounds or rounds
    files = TrialFiles(None if folder is None else folder / "trials", identity)
    trials = {}
    with contextlib.ExitStack() as stack:
        work = folder
        if work is None:
            work = make_temporary_folder()
            stack.callback(remove_folder, work)
        checkpoints = work / "checkpoints"
        for number, (label, method) in enumerate(methods.items()):
            runner = _Runner(search, label, method, subject, criterion, rounds, files, progress, jobs,
                             checkpoints / f"{number:02d}" if folder is not None or _continues(search) else None)
            trials[label] = run_strategy(search, Candidates(label, method.space, rounds, criterion.loss), runner.run)
        remove_folder(checkpoints)
    tuned = Tuned(search, criterion, trials, methods, subject.parties)
    for sentence in tuned.edges:
        warnings.warn(sentence, stacklevel=3)
    return tuned


def _continues(search: Search) -> bool:
    """Whether trials run in several parts."""
    return search.strategy == "optuna" and search.pruner != "none"


class _Runner:
    """Runs the trials of a method; parts of trials whose readings are stored are not run again."""

    def __init__(self, search: Search, label: str, method: TunableMethod, subject: Subject, criterion: Criterion,
                 rounds: int, files: TrialFiles, progress: ProgressOfSearch | None, jobs: int,
                 checkpoints: Path | None) -> None:
        self._search, self._label, self._method, self._subject, self._criterion = (
            search, label, method, subject, criterion)
        self._rounds, self._files, self._progress, self._checkpoints = rounds, files, progress, checkpoints
        self._budget = search.trials_of_a_method * rounds * search.seeds
        self._reached: dict[int, int] = {}  # trial -> rounds
        self._jobs, self._lock = jobs, threading.Lock()
        # All trials have the same number of rounds between evaluations, so that they share a compiled program.
        self._every = segments(rounds)[0] if _continues(search) else rounds

    def run(self, trials: Mapping[int, Point], rounds: int) -> list[Reading]:
        """The reading of each trial after a number of rounds, as ``RunTrials``."""
        readings = {number: self._files.read(self._label, number, point, rounds) for number, point in trials.items()}
        finished = {number: reading for number, reading in readings.items() if reading is not None}
        self._report(finished, rounds)
        algorithms = {number: self._method.make(point) for number, point in trials.items() if number not in finished}

        def run_group(group: Mapping[int, Algorithm]) -> None:
            of_seeds = [[(read_result(result, self._criterion, self._subject), result.digest)
                         for result in self._run(group, seed, rounds)] for seed in range(self._search.seeds)]
            for number, of_trial in zip(group, zip(*of_seeds, strict=True), strict=True):
                of_runs, digests = zip(*of_trial, strict=True)
                finished[number] = _mean(of_runs)
                self._files.write(self._label, number, trials[number], rounds, finished[number], digests)
            with self._lock:
                self._report(group, rounds)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnusedRepliesWarning)  # such a trial has no score
            in_jobs([partial(run_group, group)
                     for group in groups_of_one_structure(algorithms, self._search.trials_at_once)], self._jobs)
        return [finished[number] for number in trials]

    def _report(self, numbers: Iterable[int], rounds: int) -> None:
        """Report that these trials have run this number of rounds."""
        self._reached |= dict.fromkeys(numbers, rounds)
        if self._progress is not None and self._reached:
            self._progress(self._label, min(sum(self._reached.values()) * self._search.seeds, self._budget),
                           self._budget)

    def _run(self, algorithms: Mapping[int, Algorithm], seed: int, rounds: int) -> list[Result]:
        if self._search.trials_at_once == 1:
            return [self._run_alone(algorithm, number, seed, rounds) for number, algorithm in algorithms.items()]
        return simulate_together(
            list(algorithms.values()), self._subject.model, self._subject.data, rounds=rounds, seed=_FIRST_SEED + seed,
            **self._subject.options, evaluate_every=self._every, metrics=self._criterion.metrics, name=self._label)

    def _run_alone(self, algorithm: Algorithm, number: int, seed: int, rounds: int) -> Result:
        folder = None if self._checkpoints is None else self._checkpoints / f"{number:04d}-{seed}"
        result = simulate(
            algorithm, self._subject.model, self._subject.data, rounds=rounds, seed=_FIRST_SEED + seed,
            **self._subject.options, evaluate_every=self._every, metrics=self._criterion.metrics, name=self._label,
            progress=False, checkpoint=folder, resume=folder is not None)
        if folder is not None and rounds == self._rounds:
            remove_folder(folder)
        return result


def read_result(result: Result, criterion: Criterion, subject: Subject) -> Reading:
    """The scores at the last evaluation of a run.

    The score of all parties together is the mean over them, weighted by their numbers of validation samples. If the
    metric is a mean over samples, this equals the metric on the pooled validation samples.
    """
    table = result.metrics
    if criterion.name == GAP:
        return Reading(float(table.loc[table["metric"] == GAP, "value"].iloc[-1]), {}, {})
    last = table[(table["metric"] == criterion.name) & (table["round"] == result.rounds)]
    of_splits = {split: {subject.parties[int(k)]: float(v) for k, v in zip(rows["party"], rows["value"], strict=True)}
                 for split, rows in last.groupby("split")}
    values = of_splits.get(criterion.split, {})
    if not values:
        raise InputError(f"no party has a {criterion.name} on {criterion.split} samples, by which the trials are "
                         "compared: set a larger share for validation in the data, or another metric")
    sizes = _sizes(subject, criterion.split)
    weights = [sizes[party] for party in values]
    return Reading(float(np.average(list(values.values()), weights=weights)), values, of_splits.get("test", {}))


def _sizes(subject: Subject, split: str) -> dict[str, int]:
    """Number of samples of each party in a split; 1 for problems without splits."""
    if subject.data is not None:
        sizes = subject.data.sizes(split)
    else:
        assert isinstance(subject.model, Problem)
        sizes = np.asarray(subject.model.split_sizes(subject.model.splits.index(split)))
    return dict(zip(subject.parties, map(int, sizes), strict=True))


def _mean(readings: Sequence[Reading]) -> Reading:
    def mean_of(values: list[dict[str, float]]) -> dict[str, float]:
        return {party: float(np.mean([v[party] for v in values])) for party in values[0]}

    return Reading(float(np.mean([r.score for r in readings])), mean_of([r.of_parties for r in readings]),
                   mean_of([r.test for r in readings]))
