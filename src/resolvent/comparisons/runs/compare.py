"""``compare``: several methods on one federation, from a program."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation import Full, Participation
from resolvent.arguments import checked
from resolvent.comparisons.experiment.checks import check_labels, check_test_samples
from resolvent.comparisons.experiment.experiment_file import Experiment
from resolvent.comparisons.judgement.advice import DecisionRule
from resolvent.comparisons.judgement.decisive_metric import choose_decisive_metric
from resolvent.comparisons.runs.compared_methods import ProgressOfMethod
from resolvent.comparisons.runs.comparison import Comparison
from resolvent.comparisons.runs.comparison_runs import Execution, ignore, run_comparison
from resolvent.data.federated import FederatedData
from resolvent.data.partition.folds import default_folds
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError, quote, shorten
from resolvent.problem.metrics.metric import Metric, name_metrics
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.problem.solvers import SGD
from resolvent.simulator.engine.schedulers import SchedulerChoice
from resolvent.simulator.placement import MemoryChoice
from resolvent.simulator.record.events import OnEvaluation, as_callbacks
from resolvent.simulator.record.progress import progress_bars
from resolvent.simulator.record.systems import VirtualClock
from resolvent.simulator.task import Task

_SOLVER = SGD(0.1)  # an experiment needs a solver for algorithms without one; those of a program have their own


@checked
def compare(
    algorithms: Mapping[str, Algorithm],
    model: Model | Problem,
    data: FederatedData | Callable[[int], FederatedData] | None = None,
    *,
    rounds: int,
    seeds: int = 1,
    folds: int | None = None,
    seed: int = 0,
    start: Any = None,
    participation: Participation | None = None,
    evaluate_every: int | None = None,
    diagnostics: Sequence[str] = (),
    metrics: Sequence[Metric] | Mapping[str, Metric] = (),
    decide_by: str | None = None,
    clock: VirtualClock | None = None,
    privacy: PrivacyBudget | None = None,
    decision: DecisionRule | None = None,
    scheduler: SchedulerChoice = "auto",
    memory: MemoryChoice = "auto",
    evaluate_parties: int | None = None,
    on_evaluation: OnEvaluation | Sequence[OnEvaluation] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    title: str = "",
    progress: bool | ProgressOfMethod = True,
) -> Comparison:
    """Compare methods with the same random numbers, and judge them at every site.

    It is `resolvent run` for a program: with the same parts, the numbers, the finding, the decisions and the run folder
    are those of an experiment file.

    Args:
        algorithms: label -> algorithm. Include ``rv.careful_local(solver)``: without it no comparison with training
            alone is possible. ``rv.local(solver)`` in its place is marked as untuned.
        model: a model for ``data``, or a ``Problem`` that needs no data.
        data: the parties' samples; or a function from a seed to the samples, which must have the same shapes.
        rounds: number of rounds.
        seeds: number of seeds, counted up from ``seed``. With every further seed the first model, the cohorts and the
            minibatches are drawn again, and each party's samples that are no test samples are split again into training
            and validation samples of the same numbers. All seeds share their compiled programs.
        folds: number of folds; 1: one split. Each row of a site is tested once, by a model that is trained without the
            rows of its fold; every seed has other folds. A table is encoded again in each. It takes as many runs as
            there are folds. Default: 5 for a table with fewer than 20,000 rows, without ``start``; otherwise 1.
        seed: the first seed. Its run has the data as they are.
        start: a trained model with which every run begins, see ``simulate``.
        participation: which parties take part in a round; default: all, weighted by size.
        evaluate_every: rounds between evaluations, see ``simulate``.
        diagnostics: what is measured in addition to losses and scores, see ``simulate``.
        metrics: further metrics of ``rv.metrics``, or a name for each.
        decide_by: the metric by which sites are advised; default: the log loss or the squared error, with the score of
            the model beside it (of numbers the RMSE), or the balanced accuracy if one class has more than 80 % of the
            samples.
        clock: virtual clock of the seconds and the bytes of each round.
        privacy: measure each party's epsilon in every run, and stop a run before one exceeds a limit, see ``simulate``.
            All methods must be differentially private.
        decision: how a site weighs gains and losses; default: a loss counts twice.
        scheduler: how the work is distributed on the machine, see ``simulate``.
        memory: where the parties' data and states are, see ``simulate``.
        evaluate_parties: number of parties whose models are evaluated during the runs, see ``simulate``: curves and
            mean scores are over these. The decisions and their intervals read the test rows of all parties.
        on_evaluation: a function, or several, that is called after every evaluation of every run, see ``simulate``.
        out: a folder for models, metrics, summary and report; it is complete when the function returns. Without it
            nothing is written; ``Comparison.save`` writes it later.
        resume: continue an interrupted run in ``out``: every method and seed continues from its own checkpoint.
        overwrite: replace the content of ``out``.
        title: heading of the report.
        progress: show progress on the terminal; or a function that is called with (label, rounds done, rounds in
            total) over all seeds and folds.

    Raises:
        InputError: the arguments do not fit together, no party has test samples, or the folder is in use.

    Example:
        >>> data, solver = rv.datasets.digits(parties=3), rv.SGD(0.1)
        >>> methods = {"alone": rv.careful_local(solver), "FedAvg": rv.fedavg(solver)}
        >>> comparison = rv.compare(methods, rv.models.logistic(64, 10), data, rounds=2, progress=False)
        >>> comparison.recommend()["site"].tolist()
        ['party 0', 'party 1', 'party 2']
    """
    if not algorithms:
        raise InputError("algorithms: there is none to compare: give a mapping from labels to algorithms")
    check_labels(algorithms)
    for name, value in {"seeds": seeds, "folds": folds, "rounds": rounds}.items():
        if value is not None and not 1 <= value < 2**31:
            raise InputError(f"{name}: {quote(value)} must be at least 1 and less than 2^31")
    if resume and out is None:
        raise InputError("resume: there is no folder to continue from: give out=")
    samples = data(seed) if callable(data) else data
    if folds is None:
        folds = default_folds(samples) if start is None else 1
    task = Task.from_arguments(model, samples)
    extra, decisive = name_metrics(metrics), None
    if task.model is not None and samples is not None:
        check_test_samples(samples)
        decisive = choose_decisive_metric(samples, task.model, extra, decide_by)
        extra, decide_by = decisive.metrics, decisive.name
        samples = samples.with_notes(decisive.note) if decisive.note else samples
    elif extra or decide_by is not None:
        raise InputError("metrics and decide_by need labels, which a problem does not have: leave them out")
    experiment = Experiment(
        data=samples, model=task.model, problem=task.problem, solver=_SOLVER, algorithms=dict(algorithms),
        participation=Full() if participation is None else participation, rounds=rounds, seed=seed, seeds=seeds,
        folds=folds, evaluate_every=evaluate_every,
        diagnostics=tuple(diagnostics),  # type: ignore[arg-type]
        clock=clock, metrics=extra or None,
        decide_by=decide_by, decisive=decisive, title=title, privacy=privacy, decision=decision, start=start,
        callbacks={str(i): f for i, f in enumerate(as_callbacks(on_evaluation))})  # type: ignore[misc]
    data_of_seed = _same_shapes(data, samples) if callable(data) and samples is not None else None
    bars = progress_bars("rounds") if progress is True else contextlib.nullcontext(progress or None)
    execution = Execution(scheduler, memory, evaluate_parties)
    notify = partial(print, file=sys.stderr) if progress is True else ignore
    with bars as report:
        if out is None:
            return Comparison.of(run_comparison(experiment, data_of_seed=data_of_seed, progress=report,
                                                execution=execution, notify=notify))
        from resolvent.comparisons.runs.runner import run_program

        return Comparison.of(run_program(
            experiment, Path(out), title=title, data_of_seed=data_of_seed, resume=resume, overwrite=overwrite,
            progress=report, execution=execution, notify=notify))


def _same_shapes(function: Callable[[int], FederatedData], first: FederatedData) -> Callable[[int], FederatedData]:
    """The function, with a check that its data fit those of the first seed."""
    def checked_data(seed: int) -> FederatedData:
        data = function(seed)
        same = (tuple(data.parties) == tuple(first.parties) and data.input_shape == first.input_shape
                and data.classes == first.classes and data.task == first.task)
        if not same:
            raise InputError(f"data: with seed {seed} the parties, the shape of the inputs or the classes differ from "
                             f"those of the first seed, {shorten(', '.join(map(str, first.parties)))}: return data of "
                             "the same sites")
        return data

    return checked_data
