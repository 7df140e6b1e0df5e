"""``rv.tune``: the hyperparameters of an algorithm, chosen on validation samples."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.judgement.decisive_metric import choose_decisive_metric
from resolvent.comparisons.judgement.metrics import GAP
from resolvent.comparisons.tuning.searching import (
    Criterion,
    ProgressOfSearch,
    Subject,
    TunableMethod,
    Tuned,
    run_search,
)
from resolvent.comparisons.tuning.settings import Search
from resolvent.comparisons.tuning.space import space_of
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, alternatives, quote
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.simulator.checkpoint.identity import describe, digest_of_code
from resolvent.simulator.record.progress import progress_bars
from resolvent.simulator.run_options import OF_A_TRIAL

Make = Callable[..., Algorithm]
Over = Mapping[str, Sequence[Any] | Mapping[str, Any]]
_LABEL = "run"


def tune(
    make: Make | Mapping[str, Make],
    over: Over | Mapping[str, Over],
    model: Model | Problem,
    data: FederatedData | None = None,
    *,
    rounds: int,
    strategy: Literal["grid", "random", "optuna"] = "random",
    trials: int | None = None,
    seeds: int = 1,
    seed: int = 0,
    by: str | None = None,
    per_site: bool = False,
    sampler: Literal["tpe", "gp", "cmaes", "random"] = "tpe",
    pruner: Literal["none", "median", "halving", "hyperband"] = "none",
    reduction: int = 3,
    equal_budget: bool = True,
    trials_at_once: int = 1,
    folder: Path | str | None = None,
    jobs: int = 1,
    progress: bool | ProgressOfSearch | None = None,
    **options: Any,
) -> Tuned:
    """Choose the hyperparameters of one or several algorithms by their results on validation samples.

    Every candidate is run for the same number of rounds, unless the strategy stops it early. Its score is the mean over
    the parties of the metric on their validation samples, weighted by their numbers of validation samples. Every method
    has the same budget, trials x rounds x seeds. Learning rates and other floating-point numbers are traced: trials
    that differ only in them share a compiled program. Test samples have no influence. A warning names each chosen value
    that lies at the edge of the values that were tried.

    Args:
        make: function from the parameters, by name, to the algorithm; or a mapping from labels to such functions.
        over: the values of each parameter: a list, or a range such as ``{"low": 0.001, "high": 1, "scale": "log"}``.
            With several methods, a mapping from labels to these.
        model: a model for ``data``, or a problem.
        data: the parties' samples.
        rounds: rounds of a full trial.
        strategy: ``grid``, ``random`` or ``optuna``.
        trials: number of trials of each method; default: 16, or all combinations of a grid.
        seeds: number of runs of each trial with different minibatches and cohorts.
        seed: seed of the drawn candidates.
        by: a metric; default: the one that compares methods, see ``decide_by`` of experiments. With a problem whose
            optimum is known, the optimality gap.
        per_site: whether each party also chooses a trial by its own validation samples; ``Tuned.best_of_parties`` has
            the choices.
        sampler: for optuna: ``tpe``, ``gp`` (Gaussian process), ``cmaes`` or ``random``.
        pruner: for optuna: ``none``, ``median``, ``halving`` or ``hyperband``; stops a trial that is worse than others
            at the same round.
        reduction: for the pruners halving and hyperband: the best 1/reduction of the trials continue, to reduction
            times as many rounds.
        equal_budget: refuse a grid that has more combinations for one method than for another.
        trials_at_once: number of trials that run side by side in one compiled call, see ``Search``; for accelerators.
        folder: stores finished trials; the same call with the same folder resumes an interrupted search.
        jobs: number of trials of a method at the same time, in threads; for small models, which leave cores idle.
        progress: show progress on the terminal; or a function that is called with (label, rounds done, rounds in
            total).
        options: settings of ``simulate`` that all runs have: participation, start, clock, scheduler, memory,
            evaluate_parties.

    Returns:
        The trials, and for each method the best ones.

    Raises:
        InputError: the arguments do not fit together, a candidate cannot be built, or no party has validation samples.

    Example:
        >>> problem = rv.problems.least_squares(parties=3, features=2)
        >>> tuned = rv.tune(lambda rate: rv.fedavg(rv.solvers.GD(rate, steps=1)), {"rate": [1e-5, 1e-4, 1e-3]}, problem,
        ...                 rounds=5, strategy="grid")
        >>> len(tuned.table), sorted(tuned.point)
        (3, ['rate'])
    """
    for name in options:
        if name not in OF_A_TRIAL:
            raise InputError(f"tune({name}=...) is not a setting of its runs{alternatives(name, OF_A_TRIAL)}")
    makes: Mapping[str, Make] = make if isinstance(make, Mapping) else {_LABEL: make}
    spaces: Mapping[str, Any] = over if isinstance(make, Mapping) else {_LABEL: over}
    if missing := [label for label in makes if label not in spaces and "*" not in spaces]:
        raise InputError(f"over: there are no values for {quote(missing[0])}: give a mapping from labels to parameters")
    plain = {label: {name: _plain(values) for name, values in space.items()} for label, space in spaces.items()}
    search = Search(plain, strategy=strategy, trials=trials, seeds=seeds, seed=seed, by=by, per_site=per_site,
                    reduction=reduction, sampler=sampler, pruner=pruner, equal_budget=equal_budget,
                    trials_at_once=trials_at_once)
    methods = {label: TunableMethod(space_of(search.over, label), lambda point, f=f: f(**point))  # type: ignore[misc]
               for label, f in makes.items()}
    parties = tuple(data.parties) if data is not None else tuple(
        f"party {k}" for k in range(model.parties if isinstance(model, Problem) else 0))
    subject = (search, rounds, data, model, options, digest_of_code((makes, model, options)))
    identity = hashlib.sha256("".join(describe(subject)).encode()).hexdigest()
    bars = progress_bars("rounds") if progress is True else contextlib.nullcontext(progress or None)
    with bars as report:
        return run_search(search, methods, Subject(model, data, options, parties), criterion_of(model, data, by),
                          rounds=rounds, folder=None if folder is None else Path(folder), identity=identity, jobs=jobs,
                          progress=report)


def criterion_of(model: Model | Problem, data: FederatedData | None, by: str | None,
                 metrics: Mapping[str, Any] | None = None) -> Criterion:
    """The metric by which the trials of a search are compared.

    Args:
        by: the name of a metric, or None for the one that compares methods.
        metrics: further metrics that ``by`` can name.
    """
    if isinstance(model, SolvedProblem):
        return Criterion(GAP, False, {}, "train")
    if isinstance(model, Problem):
        split = "validation" if "validation" in model.splits else model.splits[-1]
        name = by or model.score_name
        return Criterion(name, model.higher_is_better and name != "loss", {}, split)
    if data is None:
        raise InputError(f"the model {type(model).__name__} needs data=: FederatedData, such as rv.datasets.digits()")
    if not data.sizes("validation").any():
        raise InputError("no party has validation samples, by which trials are compared: set a share for validation in "
                         "the data")
    choice = choose_decisive_metric(data, model, metrics or {}, by)
    used = {name: metric for name, metric in choice.metrics.items() if name == choice.name}
    higher = used[choice.name].higher_is_better if used else choice.name != "loss" and model.loss.higher_is_better
    return Criterion(choice.name, higher, used, "validation")


def _plain(values: Any) -> Any:
    """Values as plain Python lists and mappings, as in a file."""
    if isinstance(values, Mapping):
        return dict(values)
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise InputError(f"over: {quote(values)} is neither a list nor a range of values")
    return [v.item() if hasattr(v, "item") else v for v in values]
