"""``compare``: several methods on one federation, from a program."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Full
from resolvent.arguments import with_options
from resolvent.comparisons.experiment.checks import check_labels, check_test_samples
from resolvent.comparisons.experiment.experiment_file import ComparisonOptions, Experiment
from resolvent.comparisons.judgement.decisive_metric import choose_decisive_metric
from resolvent.comparisons.runs.compared_methods import ProgressOfMethod
from resolvent.comparisons.runs.comparison import Comparison
from resolvent.comparisons.runs.comparison_runs import ignore, run_comparison
from resolvent.data.federated import FederatedData
from resolvent.data.partition.folds import default_folds
from resolvent.errors import InputError, quote, shorten
from resolvent.problem.metrics.metric import name_metrics
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem
from resolvent.problem.solvers.solver import SGD
from resolvent.simulator.record.progress import progress_bars
from resolvent.simulator.task import Task

_SOLVER = SGD(0.1)  # an experiment needs a solver for algorithms without one; those of a program have their own


@dataclass(frozen=True, kw_only=True)
class _Comparing(ComparisonOptions):
    """What ``compare`` gets beside the algorithms.

    Attributes:
        model: a model for ``data``, or a ``Problem`` that needs no data.
        data: the parties' samples; or a function from a seed to the samples, which must have the same shapes.
        out: a folder for models, metrics, summary and report; it is complete when the function returns. Without it
            nothing is written; ``Comparison.save`` writes it later.
        resume: continue an interrupted run in ``out``: every method and seed continues from its own checkpoint.
        overwrite: replace the content of ``out``.
        progress: show progress on the terminal; or a function that is called with (label, rounds done, rounds in
            total) over all seeds and folds.
    """

    model: Model | Problem = field(kw_only=False)
    data: FederatedData | Callable[[int], FederatedData] | None = field(default=None, kw_only=False)
    out: Path | str | None = None
    resume: bool = False
    overwrite: bool = False
    progress: bool | ProgressOfMethod = True


@with_options(_Comparing)
def compare(algorithms: Mapping[str, Algorithm], options: _Comparing) -> Comparison:
    """Compare methods with the same random numbers, and judge them at every site.

    It is `resolvent run` for a program: with the same parts, the numbers, the finding, the decisions and the run folder
    are those of an experiment file.

    Args:
        algorithms: label -> algorithm. Include ``rv.careful_local(solver)``: without it no comparison with training
            alone is possible. ``rv.local(solver)`` in its place is marked as untuned.

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
    for name in ("seeds", "folds", "rounds"):
        value = getattr(options, name)
        if value is not None and not 1 <= value < 2**31:
            raise InputError(f"{name}: {quote(value)} must be at least 1 and less than 2^31")
    data, out, progress = options.data, options.out, options.progress
    if options.resume and out is None:
        raise InputError("resume: there is no folder to continue from: give out=")
    samples = data(options.seed) if callable(data) else data
    folds = options.folds
    if folds is None:
        folds = default_folds(samples) if options.start is None else 1
    task = Task.from_arguments(options.model, samples)
    extra, decide_by, decisive = name_metrics(options.metrics or ()), options.decide_by, None
    if task.model is not None and samples is not None:
        check_test_samples(samples)
        decisive = choose_decisive_metric(samples, task.model, extra, decide_by)
        extra, decide_by = decisive.metrics, decisive.name
        samples = samples.with_notes(decisive.note) if decisive.note else samples
    elif extra or decide_by is not None:
        raise InputError("metrics and decide_by need labels, which a problem does not have: leave them out")
    given = {option.name: getattr(options, option.name) for option in fields(ComparisonOptions)}
    experiment = Experiment(**given | {
        "data": samples, "model": task.model, "problem": task.problem, "solver": _SOLVER,
        "algorithms": dict(algorithms), "participation": options.participation or Full(), "folds": folds,
        "metrics": extra or None, "decide_by": decide_by, "decisive": decisive})
    data_of_seed = _same_shapes(data, samples) if callable(data) and samples is not None else None
    bars = progress_bars("rounds") if progress is True else contextlib.nullcontext(progress or None)
    notify = partial(print, file=sys.stderr) if progress is True else ignore
    with bars as report:
        if out is None:
            return Comparison.of(run_comparison(experiment, data_of_seed=data_of_seed, progress=report, notify=notify))
        from resolvent.comparisons.runs.runner import run_program

        return Comparison.of(run_program(
            experiment, Path(out), title=options.title, data_of_seed=data_of_seed, resume=options.resume,
            overwrite=options.overwrite, progress=report, notify=notify))


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
