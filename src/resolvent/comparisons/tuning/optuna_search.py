"""Trials that Optuna proposes from the results of earlier trials."""

import math
from typing import Any

from resolvent.comparisons.tuning.settings import Search
from resolvent.comparisons.tuning.space import Choices, Point, Space
from resolvent.comparisons.tuning.trials import Candidates, Reading, RunTrials, Trial, segments
from resolvent.errors import InputError


def run_optuna(search: Search, candidates: Candidates, run: RunTrials) -> list[Trial]:
    """Trials of one method until the budget in rounds is spent; rounds that a pruner saves are used for further trials.

    The sampler has a new seed for each trial, so that a resumed search proposes the same points.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("strategy: optuna needs the package optuna: install it with pip install 'resolvent[optuna]', "
                         "or use the strategy random") from error

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It minimizes. Hyperband draws from the study's name, which would otherwise be another one at each call.
    study = optuna.create_study(study_name=candidates.label, pruner=_pruner(optuna, search, candidates.rounds))
    ends = segments(candidates.rounds) if search.pruner != "none" else [candidates.rounds]
    budget, spent, trials = search.trials_of_a_method * candidates.rounds, 0, list[Trial]()
    while spent + candidates.rounds <= budget:
        number = len(trials) + 1
        study.sampler = _sampler(optuna, search, 1000 * search.seed + number)
        proposal = study.ask(_distributions(optuna, candidates.space))
        point = _point(proposal.params, candidates.space)
        reading, rounds = Reading(math.nan, {}, {}), 0
        for rounds in ends:
            reading = run({number: point}, rounds)[0]
            if not math.isfinite(reading.score):
                break
            proposal.report(candidates.loss(reading.score), rounds)
            if rounds < candidates.rounds and proposal.should_prune():
                break
        is_complete = rounds == candidates.rounds
        states = optuna.trial.TrialState
        state = (states.FAIL if not math.isfinite(reading.score) else
                 states.COMPLETE if is_complete else states.PRUNED)
        study.tell(proposal, candidates.loss(reading.score) if state == states.COMPLETE else None, state=state)
        trials.append(Trial(candidates.label, number, point, rounds, rounds * search.seeds, reading, is_complete))
        spent += rounds
    return trials


def _sampler(optuna: Any, search: Search, seed: int) -> Any:
    samplers = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler", "random": "RandomSampler"}
    try:
        return getattr(optuna.samplers, samplers[search.sampler])(seed=seed)
    except ImportError as error:  # Optuna itself needs neither cmaes nor torch
        raise InputError(f"sampler: Optuna's {search.sampler} needs another package ({error}): install it, or use the "
                         "sampler tpe") from error


def _pruner(optuna: Any, search: Search, rounds: int) -> Any:
    pruners = {"none": optuna.pruners.NopPruner, "median": optuna.pruners.MedianPruner,
               "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(reduction_factor=search.reduction),
               "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=rounds,
                                                                   reduction_factor=search.reduction)}
    return pruners[search.pruner]()


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    """The space as Optuna's distributions; choices are numbered, because Optuna stores texts and numbers only."""
    distributions: dict[str, Any] = {}
    for name, values in space.items():
        if isinstance(values, Choices):
            distributions[name] = optuna.distributions.CategoricalDistribution(tuple(range(len(values.values))))
        elif values.is_whole:
            distributions[name] = optuna.distributions.IntDistribution(int(values.low), int(values.high),
                                                                       log=values.is_log)
        else:
            distributions[name] = optuna.distributions.FloatDistribution(values.low, values.high, log=values.is_log)
    return distributions


def _point(params: dict[str, Any], space: Space) -> Point:
    return {name: values.values[params[name]] if isinstance(values, Choices) else params[name]
            for name, values in space.items()}
