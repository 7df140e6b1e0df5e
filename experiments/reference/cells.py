"""The cells: a method is tuned on validation samples and runs with every seed, without and with malicious parties."""

import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import resolvent as rv
from experiments.reference.methods import TRIALS, Method
from experiments.reference.problems import MALICIOUS, Problem
from experiments.reference.rows import SEEDS, Layer, Row
from resolvent.errors import InputError
from resolvent.metrics import higher_is_better
from resolvent.statistics import worst_decile

EVALUATIONS = 10
ATTACK = rv.attacks.SignFlip(scale=5.0)


class Budget:
    """How much of the table's work is done: all of it, or the quick form's part.

    Attributes:
        is_quick: two seeds, a tenth of the rounds, and the first and the last trial of every method.
    """

    def __init__(self, is_quick: bool = False) -> None:
        self.is_quick = is_quick
        self.seeds, self.trials = (2, 2) if is_quick else (SEEDS, TRIALS)

    def rounds(self, problem: Problem) -> int:
        """Rounds of a run."""
        return max(2, problem.rounds // 10) if self.is_quick else problem.rounds

    def space(self, method: Method) -> dict[str, list[float]]:
        """The values of the parameters that are tried."""
        space = method.space()
        if self.is_quick:
            space = {name: values[:1] for name, values in space.items()} | {"learning_rate": [0.1, 0.4]}
        return space


def cell(problem: Problem, layer: Layer, method: Method, data: Any, honest: Row | None, budget: Budget) -> Row:
    """The row of a method on a problem.

    Args:
        data: the data of the problem, or the problem with a known optimum.
        honest: in the attacked layer, the row of the same method without malicious parties, which has the setting.
    """
    empty = Row(problem=problem.name, layer=layer, method=method.name, outcome="refused", score=problem.score,
                personal=method.goal == "personal", trials=budget.trials, rounds=budget.rounds(problem),
                jax=jax.__version__)
    if problem.is_solved and method.goal == "personal":
        return empty.model_copy(update={"reason": "gives no shared model, whose distance from the optimum is measured"})
    if problem.is_solved and layer == "attacked":
        return empty.model_copy(update={"reason": "the known optimum is that of all parties, malicious ones included"})
    if method.needs_features and problem.features is None:
        return empty.model_copy(update={"reason": "needs a hidden layer, which the model of the problem lacks"})
    if honest is not None and honest.outcome != "measured":
        return empty.model_copy(update={"outcome": honest.outcome, "reason": honest.reason})
    began = time.process_time()
    try:
        setting = _tuned(problem, method, data, budget) if honest is None else honest.setting
        algorithm = method.algorithm(problem, **setting)
        if layer == "attacked":
            algorithm = rv.attacked(algorithm, ATTACK, parties=malicious(len(data)))
        runs = [_run(problem, algorithm, data, seed, budget) for seed in range(budget.seeds)]
    except InputError as error:  # the library's own sentence says why a method does not apply
        outcome = "diverged" if "diverged" in str(error) else "refused"
        return empty.model_copy(update={"outcome": outcome, "reason": str(error)})
    parties = () if problem.is_solved else _honest_parties(len(data), layer)
    return Row(**{**empty.model_dump(), "outcome": "measured", "setting": setting, **_figures(runs, problem, parties),
                  "cost": round(time.process_time() - began, 1)})


def malicious(parties: int) -> tuple[int, ...]:
    """The numbers of the malicious parties: every fifth one."""
    return tuple(range(MALICIOUS - 1, parties, MALICIOUS))


def _honest_parties(parties: int, layer: Layer) -> Sequence[int]:
    left_out = malicious(parties) if layer == "attacked" else ()
    return [k for k in range(parties) if k not in left_out]


def _model_and_data(problem: Problem, data: Any) -> tuple[Any, Any]:
    return (data, None) if problem.model is None else (problem.model(data), data)


def _tuned(problem: Problem, method: Method, data: Any, budget: Budget) -> dict[str, float]:
    """The setting with the best score on validation samples, or the smallest gap."""
    model, samples = _model_and_data(problem, data)
    with warnings.catch_warnings():  # the grid is the same for all, whichever value is the best
        warnings.simplefilter("ignore", UserWarning)
        tuned = rv.tune(lambda **point: method.algorithm(problem, **point), budget.space(method), model, samples,
                        rounds=budget.rounds(problem), strategy="grid", participation=problem.participation,
                        by=None if problem.is_solved else problem.score)
    return dict(tuned.point)


def _run(problem: Problem, algorithm: rv.Algorithm, data: Any, seed: int, budget: Budget) -> rv.Result:
    model, samples = _model_and_data(problem, data)
    rounds = budget.rounds(problem)
    with warnings.catch_warnings():  # a robust aggregator in a small cohort, a method whose replies are all refused
        warnings.simplefilter("ignore", UserWarning)
        return rv.simulate(algorithm, model, samples, rounds=rounds, seed=seed, participation=problem.participation,
                           evaluate_every=max(1, rounds // EVALUATIONS), progress=False)


def _figures(runs: Sequence[rv.Result], problem: Problem, parties: Sequence[int]) -> dict[str, Any]:
    """The numbers of a row."""
    every = max(1, runs[0].rounds // EVALUATIONS)
    evaluated = [*range(0, runs[0].rounds, every), runs[0].rounds]
    tables = [_scores(run, problem, parties, evaluated) for run in runs]  # of each seed [evaluation, party]
    last = np.array([table[-1] for table in tables])
    seconds = [np.sum(run.facts["cpu_per_round"]) * run.rounds / len(run.facts["cpu_per_round"]) for run in runs[1:]]
    figures: dict[str, Any] = {"means": last.mean(axis=1), "curve": np.mean(tables, axis=0).mean(axis=1)}
    if parties:
        higher = higher_is_better(problem.score)
        figures |= {"worst": [worst_decile(scores, higher_is_better=higher) if np.isfinite(scores).all() else np.nan
                              for scores in last],
                    "parties": last.mean(axis=0)}
    return {"evaluated": evaluated, "seconds": round(float(np.mean(seconds)), 3),
            "bytes": round(float(np.mean([sum(run.facts["bytes"].values()) / run.rounds for run in runs]))),
            **{name: [round(float(v), 4) if np.isfinite(v) else None for v in values]
               for name, values in figures.items()}}


def _scores(run: rv.Result, problem: Problem, parties: Sequence[int],
            evaluated: Sequence[int]) -> np.ndarray[Any, Any]:
    """[evaluation, party] test scores; of a known optimum, the digits of the gap, in one column."""
    if problem.is_solved:
        gaps = run.metrics[run.metrics["metric"] == "gap"].set_index("round")["value"]  # of every round
        relevant = np.maximum(gaps.loc[[*evaluated]].to_numpy(float), 1e-7)  # what is below is rounding
        return np.asarray(-np.log10(relevant))[:, None]
    return run.scores("test").to_numpy(float)[:, list(parties)]
