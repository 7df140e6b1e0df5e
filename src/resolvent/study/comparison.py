"""Run the algorithms of an experiment with the same random numbers, once for each seed."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.combinators.pooled_data import uses_pooled_data
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.data.federated import FederatedData
from resolvent.data.html_tables import html_facts, html_table
from resolvent.data.resplit import resplit
from resolvent.errors import InputError
from resolvent.problem.models import Model
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.threshold import goal_of
from resolvent.simulator.processes import detect_lost_process
from resolvent.simulator.progress import progress_bars
from resolvent.simulator.result import Result
from resolvent.simulator.run import simulate
from resolvent.simulator.scheduler_choice import SchedulerChoice
from resolvent.study.decisive_metric import decisive_score
from resolvent.study.experiment import Experiment, ExperimentFile
from resolvent.study.load import load_start
from resolvent.study.metrics import GAP
from resolvent.study.row_values import RowValues, Score, baseline_name, measure_rows
from resolvent.study.sites import Evidence

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.problem.calibration import CalibrationKind
    from resolvent.study.calibrations import Calibrations
    from resolvent.study.explanations import Explanations
    from resolvent.study.held_out_rows import HeldOutRows
    from resolvent.study.refit import Refit
    from resolvent.study.verdict import Verdict

__all__ = ["Comparison", "MethodRun", "ProgressOfMethod", "Samples", "compare_file", "run_comparison"]

ProgressOfMethod = Callable[[str, int, int], None]  # label, rounds done, rounds in total


class Samples(NamedTuple):
    """The samples of a run with one seed.

    Attributes:
        data: the samples; None if the problem has its own.
        rows: [total] the number of each row in the data of the first seed; None: 0, 1, and so on.
    """

    data: FederatedData | None
    rows: NDArray[np.integer] | None = None


class MethodRun(NamedTuple):
    """The measurements of a method's run with one seed.

    Attributes:
        metrics: the metrics of the run, with a column ``seed``.
        facts: seconds and bytes, see ``Result``.
        refused: party -> number of its replies that did not count.
        digest: SHA-256 of the last state.
    """

    metrics: "pd.DataFrame"
    facts: dict[str, Any]
    refused: dict[str, int]
    digest: str


@dataclass(frozen=True, repr=False)
class Comparison:
    """The outcome of comparing several methods on one federation.

    Attributes:
        experiment: the experiment with the compared methods.
        results: the result of each method with the first seed, by label.
        runs: label -> its run with each seed.
        seeds: the seeds.
        rows: the value of every test row with every method; None if the problem has no samples.
        alone: the label of local training, or None if the experiment has none.
    """

    experiment: Experiment
    results: dict[str, Result]
    runs: dict[str, tuple[MethodRun, ...]] = field(repr=False)
    seeds: tuple[int, ...]
    rows: RowValues | None = field(repr=False)
    alone: str | None

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.results)}; {self.experiment.rounds} rounds, {len(self.seeds)} seed(s))"

    def _repr_html_(self) -> str:
        facts = {"methods": ", ".join(self.results), "rounds": self.experiment.rounds, "seeds": len(self.seeds),
                 "finding": self.finding}
        shown = html_facts(self.experiment.title or "Comparison", facts)
        for table in (self.table, *([] if self.alone is None or self.rows is None else [self.recommend()])):
            shown += html_table([*map(str, table.columns)], table.to_numpy(object).tolist())
        return shown

    def collected(self) -> "Comparison":
        """The comparison with all personal models in this process. If there are several processes, all must call it."""
        with detect_lost_process():
            return replace(self, results={label: result.collected() for label, result in self.results.items()})

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """All metrics of all methods and seeds, one long table: those of ``Result``, and the column ``seed``."""
        import pandas as pd

        return pd.concat([run.metrics for runs in self.runs.values() for run in runs], ignore_index=True)

    @property
    def evidence(self) -> Evidence:
        """The measurements by which the methods are judged."""
        problem = next(iter(self.results.values())).problem
        score, higher = decisive_score(self.experiment.metrics, self.experiment.decide_by, problem)
        split = "test" if "test" in problem.splits else problem.splits[-1]
        if isinstance(problem, SolvedProblem):
            score, split, higher = GAP, "train", False
        data, baseline = self.experiment.data, None
        if self.rows is not None and isinstance(data, FederatedData):
            baseline = baseline_name(data, self.results)
            baseline = baseline if baseline in self.rows.values else None
        return Evidence(score, split, higher, tuple(self.results), self.alone if score != GAP else None,
                        self.experiment.parties, self.metrics, self.seeds, self.rows, baseline,
                        data.sizes("train").tolist() if isinstance(data, FederatedData) else None,
                        {label: float(sum(runs[0].facts["bytes"].values())) for label, runs in self.runs.items()},
                        frozenset(m for m, a in self.experiment.algorithms.items() if uses_pooled_data(a)))

    @cached_property
    def verdict(self) -> "Verdict":
        """The table of scores, the finding, and the judgement of every site."""
        from resolvent.study.verdict import judge

        return judge(self.evidence, rule=self.experiment.decision)

    @property
    def finding(self) -> str:
        """What the comparison shows, in one or two sentences."""
        return self.verdict.finding

    @property
    def table(self) -> "pd.DataFrame":
        """The scores of each method over the sites, see ``score_table``."""
        return self.verdict.table

    @property
    def sites(self) -> "pd.DataFrame":
        """A row per site and method: its score and its gain over training alone, with the ends of their intervals."""
        return self.verdict.site_table()

    def recommend(self) -> "pd.DataFrame":
        """The method that each site should use, and the gain over training alone that it can expect.

        The federation runs one method, which the validation rows of all sites choose. Each site then joins it or trains
        alone, by the gain that it can expect.

        Returns:
            A row per site: ``use``, the method; ``advice``: ``join``, ``probably join``, ``no difference`` or ``stay
            alone``; ``probability``, that the site gains; ``expected``, ``expected_low`` and ``expected_high``, the
            gain to expect, from the test rows of all sites; ``gain``, ``low`` and ``high``, that on the site's own test
            rows, with its interval of level 0.95; ``test_rows``; ``gain_to_see``, ``further_rows`` and
            ``further_rarest``, the number of further test rows, and of the rarest class, that would show this gain
            with a probability of 80 %, where the advice is not certain. ``use`` and ``advice`` are None and the
            numbers nan at a site where training alone diverged, because there is no reference there.

        Raises:
            InputError: training alone is not among the methods, or the sites have no test rows and there is one seed.
        """
        return self.verdict.recommendations()

    def refit(self, method: str | None = None, *, rounds: int | None = None, folder: Path | str | None = None,
              progress: bool = True) -> "Refit":
        """Train the chosen method again on all rows of each site: training, validation and test rows.

        A site that was advised to train alone gets its own model, trained on all its rows; the others get their
        personal model of the chosen method, for which all sites train together. The encoding of a table is fitted to
        all rows. The number of rounds is that with the best validation score, as the mean over the seeds and the sites,
        weighted by their training rows. A method that chooses by validation rows keeps them for this choice.

        Nothing is measured: no row is left that the models have not seen. The scores of the run are those of models
        that were trained on fewer rows.

        Args:
            method: the method instead of the chosen one.
            rounds: number of rounds; default: by the validation scores.
            folder: the run folder of this comparison, into which the models are written. ``rv.load`` and ``resolvent
                predict`` then use them.
            progress: show progress on the terminal.

        Raises:
            InputError: no method was chosen and none is named, the method is differentially private, the run has no
                samples, or the table has been changed since.

        Example:
            >>> data, solver = rv.datasets.digits(parties=3), rv.SGD(0.1)
            >>> methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver)}
            >>> comparison = rv.compare(methods, rv.models.logistic(64, 10), data, rounds=2, progress=False)
            >>> refit = comparison.refit(progress=False)
            >>> refit.fitted("party 0").predict(data.party(0)[0][:2]).shape
            (2,)
        """
        from resolvent.study.refit import refit_comparison

        with progress_bars("rounds") if progress else contextlib.nullcontext(None) as report:
            return refit_comparison(self, method, rounds, folder=None if folder is None else Path(folder),
                                    progress=report)

    def calibrate(self, method: str | None = None, *, sites: Sequence[str] = (),
                  kind: 'CalibrationKind | Literal["auto"]' = "auto", positive: str | None = None,
                  cost_false_negative: float | None = None, cost_false_positive: float | None = None,
                  sensitivity: float | None = None, specificity: float | None = None) -> "Calibrations":
        """Calibrate the probabilities of a method's models on validation rows, and measure them on test rows.

        The kind is chosen for each site by cross-validated log loss among those for which the site has enough
        validation rows; sites with few rows are shrunk to the fit over all sites. With costs, a sensitivity or a
        specificity, each site also gets a threshold: the probability from which on the class ``positive`` is predicted.

        Args:
            method: name of the method; default: the one that the federation should run, or the only one.
            sites: names of the sites; default: all, and the shared model.
            kind: ``none``, ``temperature``, ``platt`` or ``isotonic``; ``auto`` chooses.
            positive: the class that the threshold is for.
            cost_false_negative: see ``Goal``, as the three other options of the threshold.
            cost_false_positive: see ``Goal``.
            sensitivity: see ``Goal``.
            specificity: see ``Goal``.

        Raises:
            InputError: the model is not a classifier with logits, or there is no such method, site or class.
        """
        from resolvent.study.calibrations import calibrate

        goal = goal_of(cost_false_negative, cost_false_positive, sensitivity, specificity)
        return calibrate(self.held_out_rows(method), sites=sites, kind=kind, positive=positive, goal=goal)

    def explain(self, method: str | None = None, *, sites: Sequence[str] = ()) -> "Explanations":
        """What the models of a method rest on: coefficients in the table's units, and permutation importance.

        The importance of a column is by how much the mean loss on a site's test rows grows if the column is exchanged
        between them, with an interval that is paired over the rows.

        Args:
            method: name of the method; default: the one that the federation should run, or the only one.
            sites: names of the sites; default: all, and the shared model.

        Raises:
            InputError: there is no such method or site, or the inputs are not columns.
        """
        from resolvent.study.explanations import explain_models

        return explain_models(self.held_out_rows(method), sites=sites)

    def held_out_rows(self, method: str | None = None) -> "HeldOutRows":
        """The models of a method with the validation and test rows of their sites, see ``calibrate`` and ``explain``.

        Args:
            method: name of the method; default: the one that the federation should run, or the only one.

        Raises:
            InputError: there is no such method, or there are no samples.
        """
        from resolvent.study.held_out_rows import rows_of_results

        choice = self.verdict.sites.choice
        return rows_of_results(self.results, method, None if choice is None else choice.method)

    def save(self, folder: Path | str, *, title: str = "", overwrite: bool = False) -> Path:
        """Write a run folder: models, metrics, summary and report, as ``resolvent run`` does.

        Args:
            folder: a folder that does not exist or is empty.
            title: heading of the report; default: the folder's name.
            overwrite: replace the content of the folder.

        Raises:
            InputError: the folder is in use.
        """
        from resolvent.study.runner import write_run

        return write_run(Path(folder), self, title=title, overwrite=overwrite)


def compare_file(file: ExperimentFile, experiment: Experiment | None = None, *, checkpoints: Path | None = None,
                 resume: bool = False, progress: ProgressOfMethod | None = None,
                 scheduler: SchedulerChoice = "auto", needs_rows: bool = True) -> Comparison:
    """Run every algorithm of an experiment file, see ``run_comparison``.

    Args:
        file: the checked experiment.
        experiment: its parts; default: they are built from the file.
        checkpoints: a folder for the state of each method, see ``simulate``.
        resume: continue from the checkpoints in that folder.
        progress: a function that is called with (label, rounds done, rounds in total).
        scheduler: how the work is distributed on the machine, see ``simulate``.
        needs_rows: whether the value of every test row is measured; without it there are no intervals.

    Raises:
        InputError: the parts of the experiment do not fit together.
    """
    with file.precision():
        return run_comparison(file.build() if experiment is None else experiment, checkpoints=checkpoints,
                              resume=resume, progress=progress, scheduler=scheduler, needs_rows=needs_rows)


def run_comparison(experiment: Experiment, *, data_of_seed: Callable[[int], FederatedData] | None = None,
                   checkpoints: Path | None = None, resume: bool = False, progress: ProgressOfMethod | None = None,
                   scheduler: SchedulerChoice = "auto", needs_rows: bool = True) -> Comparison:
    """Run every algorithm of an experiment with every seed.

    The first seed has the data as they are. With every further seed the training and validation samples of each party
    are drawn again among both, and the first model, the cohorts and the minibatches are drawn again.
    All seeds share their compiled programs.

    Args:
        experiment: what to compare.
        data_of_seed: the samples of each seed, if they are not the same samples with another split.
        checkpoints: a folder for the state of each method and seed, see ``simulate``.
        resume: continue from the checkpoints in that folder.
        progress: a function that is called with (label, rounds done, rounds in total).
        scheduler: how the work is distributed on the machine, see ``simulate``.
        needs_rows: whether the value of every test row is measured; without it there are no intervals.

    Raises:
        InputError: the parts of the experiment do not fit together.
    """
    subject = experiment.model if experiment.problem is None else experiment.problem
    assert isinstance(subject, Model | Problem)
    start = None if experiment.start is None else load_start(
        Path(experiment.start).expanduser(), subject if isinstance(subject, Model) else None,
        is_private=experiment.privacy is not None)
    seeds = tuple(range(experiment.seed, experiment.seed + experiment.seeds))
    first: dict[str, Result] = {}
    runs: dict[str, tuple[MethodRun, ...]] = dict.fromkeys(experiment.algorithms, ())
    rows: list[RowValues] = []
    for seed in seeds:
        samples = samples_of(experiment, seed, data_of_seed)
        results: dict[str, Result] = {}
        for number, (label, algorithm) in enumerate(experiment.algorithms.items()):
            folder = f"{number:02d}" if seed == experiment.seed else f"{number:02d}-seed-{seed}"
            title = label if len(seeds) == 1 else f"{label}, seed {seed}"
            result = simulate(
                algorithm, subject, samples.data, rounds=experiment.rounds, seed=seed,
                participation=experiment.participation, evaluate_every=experiment.evaluate_every,
                diagnostics=experiment.diagnostics, metrics=experiment.metrics or {}, clock=experiment.clock,
                name=label, resume=resume, scheduler=scheduler, start=start,
                on_evaluation=tuple((experiment.callbacks or {}).values()), privacy=experiment.privacy,
                checkpoint=None if checkpoints is None else checkpoints / folder,
                progress=(lambda done, total, title=title: progress(title, done, total)) if progress else False)  # type: ignore[misc]
            results[label] = _with_shared_samples(result, results)
            runs[label] += (MethodRun(result.metrics.assign(seed=seed), result.facts, result.refused, result.digest),)
        measured = _measure(experiment, results, samples) if needs_rows else None
        if measured is not None:
            rows.append(measured)
        first = first or results
    return Comparison(experiment, first, runs, seeds, RowValues.concatenate(rows) if rows else None,
                      next((m for m, a in experiment.algorithms.items() if isinstance(a, LocalTraining)), None))


def samples_of(experiment: Experiment, seed: int,
               data_of_seed: Callable[[int], FederatedData] | None = None) -> Samples:
    """The samples of a run with one seed; None for prices and problems, which have their own.

    Raises:
        InputError: the data are on the disk, in the order of their split.
    """
    data = experiment.data
    if not isinstance(data, FederatedData):
        return Samples(None)
    if seed == experiment.seed:
        return Samples(data)
    if data_of_seed is not None:
        return Samples(data_of_seed(seed))
    if not isinstance(data.x, np.ndarray):
        raise InputError("seeds: the data are on the disk, where their split is fixed: run one seed at a time, with "
                         "data that were written with another split")
    return Samples(*resplit(data, seed))


def _measure(experiment: Experiment, results: dict[str, Result], samples: Samples) -> RowValues | None:
    """The values of the test rows of one seed; of several processes, all must call it."""
    name, higher = decisive_score(experiment.metrics, experiment.decide_by, next(iter(results.values())).problem)
    with detect_lost_process():
        return measure_rows(results, Score(name, higher, (experiment.metrics or {}).get(name)), samples.rows)


def _with_shared_samples(result: Result, others: dict[str, Result]) -> Result:
    """The result with the samples of an earlier result, so that memory holds one copy, not one per method."""
    if result.storage is not None:
        return result
    return replace(result, problem=next((r.problem for r in others.values() if r.storage is None), result.problem))
