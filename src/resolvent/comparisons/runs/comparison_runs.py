"""Run the algorithms of an experiment, once for each seed and fold."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx

from resolvent.comparisons.experiment.checks import straggler_policy_note
from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.judgement.convergence import is_training_alone, is_untuned
from resolvent.comparisons.judgement.decisive_metric import decisive_score
from resolvent.comparisons.judgement.row_values import RowValues, RunPredictions, Score, measure_rows, read_predictions
from resolvent.comparisons.runs.compared_methods import ComparedMethods, MethodRun, ProgressOfMethod, Samples
from resolvent.comparisons.runs.load import load_start
from resolvent.comparisons.runs.shared_ridge import RIDGE, has_shared_ridge, shared_ridge, with_ridge
from resolvent.comparisons.tuning.space import Point
from resolvent.data.federated import FederatedData
from resolvent.data.partition.folds import check_folds, split_fold
from resolvent.data.partition.splits import resplit
from resolvent.errors import InputError, UnusedRepliesWarning, count_of
from resolvent.problem.learning import LearningProblem
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.simulator.mesh import detect_lost_process
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.record.progress import Progress, duration_text
from resolvent.simulator.record.result import Result
from resolvent.simulator.run import simulate

if TYPE_CHECKING:
    from resolvent.comparisons.tuning.files import FoldSearch

Notify = Callable[[str], None]


def ignore(message: str) -> None:
    """Show no message."""


def compare_file(file: ExperimentFile, experiment: Experiment | None = None, **settings: Any) -> ComparedMethods:
    """Run every algorithm of an experiment file, see ``run_comparison``.

    Args:
        experiment: its parts; default: they are built from the file.
        settings: further arguments of ``run_comparison``.

    Raises:
        InputError: the parts of the experiment do not fit together.
    """
    with file.precision():
        experiment = file.build() if experiment is None else experiment
        search = None
        if experiment.search is not None:
            from resolvent.comparisons.tuning.files import fold_search

            search = fold_search(file, experiment)
        return run_comparison(experiment, search=search, **settings)


def run_comparison(experiment: Experiment, *, data_of_seed: Callable[[int], FederatedData] | None = None,
                   search: "FoldSearch | None" = None, checkpoints: Path | None = None, resume: bool = False,
                   progress: ProgressOfMethod | None = None, needs_rows: bool = True,
                   notify: Notify = ignore) -> ComparedMethods:
    """Run every algorithm of an experiment with every seed, and with every fold of each seed.

    The first seed has the data as they are. With every further seed the training and validation samples of each party
    are drawn again among both, and the first model, the cohorts and the minibatches are drawn again. With folds, each
    seed divides the samples into other folds, see ``split_fold``.
    All seeds and folds share their compiled programs.

    Args:
        data_of_seed: the samples of each seed, if they are not the same samples with another split.
        search: chooses hyperparameters inside each fold.
        checkpoints: a folder for the state of each method, seed and fold, see ``simulate``.
        progress: a function that is called with (label, rounds done, rounds in total), which are those of all seeds and
            folds of a method; once for each method before the first round. The choice of a ridge is a part of one
            unit.
        needs_rows: whether the value of every test row is measured; without it there are no intervals.
        notify: a function that is called with messages about the cost.

    Warns:
        UserWarning: the methods treat stragglers differently.
    """
    runner = _Runner(experiment, search, checkpoints, resume, progress)
    folds = experiment.number_of_folds
    if note := straggler_policy_note(experiment.algorithms, experiment.participation):
        warnings.warn(note, stacklevel=2)
    if folds > 1:
        check_folds(experiment.data, folds)
    notify(cost_text(experiment, search))
    runner.announce()
    seeds = tuple(range(experiment.seed, experiment.seed + experiment.seeds))
    first: dict[str, Result] = {}
    fold_models: dict[str, tuple[SavedModels, ...]] = {}
    runs: dict[str, tuple[MethodRun, ...]] = dict.fromkeys(experiment.algorithms, ())
    rows, start = list[RowValues](), time.perf_counter()
    for seed in seeds:
        of_folds = list[RunPredictions]()
        for fold in range(folds):
            samples = samples_of(experiment, seed, data_of_seed, fold)
            results, of_run = runner.run(samples, seed, fold)
            runs = {label: (*runs[label], of_run[label]) for label in runs}
            first = first or results
            if fold and seed == experiment.seed:
                with detect_lost_process():
                    fold_models = {m: (*fold_models.get(m, ()), results[m].saved_models) for m in results}
            if folds > 1 and seed == experiment.seed and not fold:
                notify(f"The first fold took {duration_text(time.perf_counter() - start)}, compilation included.")
            score = _score(experiment, results)
            reads_order_only = score.metric is not None and score.metric.reads_order_only
            predictions = read_predictions(results, samples.rows, samples.is_repeated, is_centred=(
                folds > 1 and reads_order_only)) if needs_rows else None
            if predictions is not None:
                with detect_lost_process():
                    of_folds.append(predictions.stored() if folds > 1 else predictions)
        if of_folds:
            with detect_lost_process():
                rows.append(measure_rows(of_folds, score))
    return ComparedMethods(experiment, first, runs, seeds, RowValues.concatenate(rows) if rows else None,
                      _alone(experiment), fold_models)


class _Runner:
    """Runs all methods of an experiment on given samples."""

    def __init__(self, experiment: Experiment, search: "FoldSearch | None", checkpoints: Path | None, resume: bool,
                 progress: ProgressOfMethod | None) -> None:
        subject = experiment.model if experiment.problem is None else experiment.problem
        assert isinstance(subject, Model | Problem)
        self._experiment, self._subject, self._search = experiment, subject, search
        self._checkpoints, self._resume, self._progress = checkpoints, resume, progress
        self._start = load_start(experiment.start, subject, is_private=experiment.privacy is not None)

    def run(self, samples: Samples, seed: int, fold: int) -> tuple[dict[str, Result], dict[str, MethodRun]]:
        """The result and the measurements of every method, with one seed and one fold."""
        experiment, columns = self._experiment, {"seed": seed}
        suffix = "" if seed == experiment.seed else f"-seed-{seed}"
        number_of_run = (seed - experiment.seed) * experiment.number_of_folds + fold
        if experiment.number_of_folds > 1:
            columns["fold"] = fold
            suffix = f"{suffix}-fold-{fold}"
        algorithms, points = dict(experiment.algorithms), dict[str, Point]()
        if self._search is not None and samples.data is not None:
            folder = None if self._checkpoints is None else self._checkpoints / f"search{suffix}"
            points = self._search.choose(samples.data, folder, lambda label, done, total: self._report(
                f"{label}, tuning", number_of_run)(done, total))
            algorithms |= {label: self._search.methods[label].make(point) for label, point in points.items()}
        results, runs = dict[str, Result](), dict[str, MethodRun]()
        # Later choices are quick, because the program is compiled: they are part of the runs of the first method.
        ridge = shared_ridge(experiment, samples.data, seed, None if number_of_run else self._report_ridge)
        for number, (label, algorithm) in enumerate(algorithms.items()):
            report, subject = self._report(label, number_of_run), with_ridge(self._subject, algorithm, ridge)
            report(0, experiment.rounds)  # what is traced before the first round is its time
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnusedRepliesWarning)  # the record of the comparison says it
                result = simulate(
                    algorithm, subject, samples.data, name=label, resume=self._resume, progress=report,
                    checkpoint=None if self._checkpoints is None else self._checkpoints / f"{number:02d}{suffix}",
                    **experiment.of_run(seed=seed, start=self._start))
            if result.rounds < experiment.rounds:  # a callback has stopped it
                report(experiment.rounds, experiment.rounds)
            results[label] = _with_shared_samples(result, results)
            runs[label] = MethodRun.of(result, points.get(label), **columns)
        return results, runs

    def announce(self) -> None:
        """Report every part before it begins."""
        data = self._experiment.data
        if has_shared_ridge(self._experiment, data if isinstance(data, FederatedData) else None):
            self._report_ridge(0, 1)
        for label in self._experiment.algorithms:
            self._report(label, 0)(0, self._experiment.rounds)

    def _report_ridge(self, done: int, total: int) -> None:
        (self._progress or ignore_progress)(RIDGE, done, total)

    def _report(self, label: str, number: int) -> Progress:
        """The progress of a run of a method as a part of all its runs, of which ``number`` are done."""
        progress, runs = self._progress or ignore_progress, self._experiment.seeds * self._experiment.number_of_folds
        return lambda done, total: progress(label, number * total + done, runs * total)


def ignore_progress(label: str, done: int, total: int) -> None:
    """Show no progress."""


def samples_of(experiment: Experiment, seed: int, data_of_seed: Callable[[int], FederatedData] | None = None,
               fold: int = 0) -> Samples:
    """The samples of a run with one seed and fold; None for prices and problems, which have their own."""
    data = experiment.data
    if not isinstance(data, FederatedData):
        return Samples(None)
    if data_of_seed is not None and seed != experiment.seed:
        data = data_of_seed(seed)
    if (folds := experiment.number_of_folds) > 1:
        try:
            return Samples(*split_fold(data, fold, folds, seed))
        except InputError as error:
            raise InputError(f"folds: in fold {fold + 1} of {folds}, {error}") from error
    if seed == experiment.seed or data_of_seed is not None:
        return Samples(data)
    if not data.is_in_memory:
        raise InputError("seeds: the data are on the disk, where their split is fixed: run one seed at a time, with "
                         "data that were written with another split")
    return Samples(*resplit(data, seed))


def cost_text(experiment: Experiment, search: "FoldSearch | None" = None) -> str:
    """A sentence about what is run, and with folds about their cost."""
    folds, seeds, methods = experiment.number_of_folds, experiment.seeds, len(experiment.algorithms)
    of_seeds = f" x {seeds} seeds" if seeds > 1 else ""
    runs, rounds = count_of(methods, "method"), count_of(experiment.rounds, "round")
    if folds == 1:
        sites = f" at {count_of(len(experiment.data), 'site')}" if isinstance(experiment.data, FederatedData) else ""
        return f"{runs}{of_seeds} of {rounds}{sites}."
    trials = "" if search is None else (f", after a search inside each of {folds * seeds} folds, of at most "
                                        f"{search.rounds:,} rounds each")
    return (f"Every row is tested once: {folds} folds{of_seeds} x {runs} = {folds * seeds * methods} runs of "
            f"{rounds}{trials}. Programs are compiled in the first fold.")


def _alone(experiment: Experiment) -> str | None:
    """The label of local training, of a tuned one if there are several."""
    labels = [m for m, a in experiment.algorithms.items() if is_training_alone(a)]
    return min(labels, key=lambda label: is_untuned(experiment.algorithms[label]), default=None)


def _score(experiment: Experiment, results: dict[str, Result]) -> Score:
    """The number that compares the methods."""
    name, higher = decisive_score(experiment.metrics, experiment.decide_by, next(iter(results.values())).problem)
    return Score(name, higher, (experiment.metrics or {}).get(name))


def _with_shared_samples(result: Result, others: dict[str, Result]) -> Result:
    """The result with the samples of an earlier result, so that memory holds one copy, not one per method."""
    if result.storage is not None:
        return result
    shared: Any = next((r.problem for r in others.values() if r.storage is None), result.problem)
    if isinstance(result.problem, LearningProblem) and result.problem.model is not shared.model:
        shared = eqx.tree_at(lambda problem: problem.model, shared, result.problem.model)
    return replace(result, problem=shared)
