"""Which methods have converged, whether a baseline is the bound that it claims to be, and exact solves of few rows.

A method has converged if its training loss hardly changes any more. With L_r the mean over the training rows of the
loss after round r, over the evaluations of the last quarter of the rounds, at least three,

.. code-block:: text

    c = (max L_r - min L_r) / (L_0 - min over all rounds of L_r) <= 0.02

for every seed. For a problem whose optimum is known, L_r is the optimality gap. It says that more rounds would change
little, not that the point is a minimiser: FedAvg with several local steps converges to another point. Where the step
size falls to zero over the rounds, it says that this training has ended; twice as many rounds may end elsewhere.

If the loss still falls after R rounds, R ceil(c / 0.02) rounds are to be tried, at most 10 R: where the loss approaches
its limit like 1/r, as that of gradient methods on convex problems does, the fall in the last quarter of r rounds is
proportional to 1/r. A loss that rises or fluctuates needs a smaller learning rate, and more rounds do not help.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.combinators.combinator import innermost
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import GAP, run_columns
from resolvent.comparisons.judgement.wording import STILL_CHANGES, enumerate_names
from resolvent.errors import count_of
from resolvent.problem.solvers.lbfgs import LBFGS

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROUNDS = 10  # times as many as the run had
_BETTER = 1e-3  # by more than this share of its loss, another method is better than a bound
_ROUNDING = 1e-6  # of the loss: smaller changes are those of 32-bit numbers
_LAST_SHARE, _MIN_EVALUATIONS = 0.25, 3
_SPLIT = "train"

Values = NDArray[np.float64]


class Convergence(NamedTuple):
    """Whether the training of a method has converged.

    Attributes:
        has_converged: None with too few evaluations, or without its training loss.
        rounds: the number of rounds to try; None if it has converged or more rounds would not help.
    """

    has_converged: bool | None
    rounds: int | None = None


def convergence_of_methods(evidence: Evidence) -> dict[str, Convergence]:
    """The convergence of each method: of its worst seed."""
    return {method: _of_all_seeds([convergence(of_seed.index.tolist(), of_seed.tolist())
                                   for of_seed in _training_losses(evidence, method, "loss")])
            for method in evidence.methods}


def _of_all_seeds(seeds: Sequence[Convergence]) -> Convergence:
    answers = [seed.has_converged for seed in seeds]
    rounds = [seed.rounds for seed in seeds if seed.rounds is not None]
    return Convergence(None if not answers or None in answers else all(answers), max(rounds, default=None))


def convergence(rounds: Sequence[int], losses: Sequence[float]) -> Convergence:
    """Whether a training has converged, and how many rounds to try.

    Args:
        rounds: the rounds of the evaluations, from that of the first model on.
        losses: the training loss at each of them.

    Example:
        >>> convergence([0, 4, 6, 8], [3.0, 1.0, 1.0, 1.0])
        Convergence(has_converged=True, rounds=None)
        >>> convergence([0, 4, 6, 8], [3.0, 1.4, 1.2, 1.1])
        Convergence(has_converged=False, rounds=64)
    """
    at, values = np.asarray(rounds, dtype=float), np.asarray(losses, dtype=float)
    if len(values) <= _MIN_EVALUATIONS:  # the first evaluation is that of the first model
        return Convergence(None)
    if not np.isfinite(values).all():
        return Convergence(has_converged=False)
    first = at[-1] - _LAST_SHARE * (at[-1] - at[0])
    last = values[min(int(np.searchsorted(at, first)), len(values) - _MIN_EVALUATIONS):]
    change, smallest = float(np.ptp(last)), float(values.min())
    limit = STILL_CHANGES * float(values[0] - smallest)
    if change <= limit + _ROUNDING * abs(smallest):
        return Convergence(has_converged=True)
    if last[0] - last[-1] <= limit:
        return Convergence(has_converged=False)
    return Convergence(False, int(at[-1]) * min(math.ceil(change / limit), _MOST_ROUNDS))


def _training_losses(evidence: Evidence, method: str, name: str) -> "list[pd.Series]":
    """The mean training loss by round, of each seed; the gap if the optimum is known."""
    metrics = evidence.metrics[evidence.metrics["method"] == method]
    gaps = metrics[metrics["metric"] == GAP]
    rows = gaps if len(gaps) else metrics[(metrics["metric"] == name) & (metrics["split"] == _SPLIT)]
    series = []
    for _, of_seed in rows.groupby(run_columns(rows)) if run_columns(rows) else [(0, rows)]:
        if len(gaps):
            series.append(of_seed.set_index("round")["value"].sort_index())
            continue
        table = of_seed.groupby(["round", "party"])["value"].mean().unstack("party").dropna(axis=1, how="all")
        weights = np.array([1.0 if evidence.train is None else evidence.train[int(party)] for party in table.columns])
        if weights.sum() > 0:
            series.append(table @ (weights / weights.sum()))
    return series


def bound_warnings(evidence: Evidence, algorithms: Mapping[str, Any]) -> list[str]:
    """A sentence for each method on pooled data that another method's shared model shows to be no bound.

    A model that is trained on the pooled rows minimises their mean loss. If the shared model of another method has a
    smaller mean training loss, then the pooled training has stopped early, or its steps are too noisy.

    Args:
        algorithms: label -> algorithm.
    """
    last = {method: float(np.mean([of_seed.iloc[-1] for of_seed in losses])) for method in evidence.methods
            if (losses := _training_losses(evidence, method, "global_loss"))}
    warnings = []
    for method in last:
        if not algorithms[method].pools_data or not np.isfinite(last[method]):
            continue
        better = [other for other, loss in last.items() if not algorithms[other].pools_data
                  and loss < last[method] - _BETTER * abs(last[method])]
        if better:
            best = min(better, key=last.__getitem__)
            warnings.append(f"{method} is no upper bound in this run: its mean training loss is {last[method]:.4g}, "
                            f"and that of the shared model of {best} is {last[best]:.4g}, because the training on the "
                            "pooled rows has not converged. Use a solver that converges, such as LBFGS, or more "
                            "rounds.")
    return warnings


def exact_solve_warning(method: str, algorithm: Any, parties: Sequence[str], train: Sequence[int],
                        parameters: int) -> str | None:
    """One sentence if exact solutions are averaged of parties with fewer training rows than the model has parameters.

    The exact minimisers of so few rows fit them without error, and are far from each other: their mean can be worse
    than every one of them. A proximal term, which keeps the parties together, is not warned of.

    Args:
        train: number of training rows of each party.
    """
    if algorithm.pools_data or not any(map(_averages_exact_solves, jax.tree.leaves(
            algorithm, is_leaf=_averages_exact_solves))):
        return None
    few = [name for name, rows in zip(parties, train, strict=True) if 0 < rows < parameters]
    if not few:
        return None
    return (f"{method}: {enumerate_names(few, 5)} {'has' if len(few) == 1 else 'have'} fewer training "
            f"rows than the model has parameters ({count_of(parameters, 'parameter')}), and LBFGS solves exactly: such "
            "models fit their rows without error and are far from each other, and so is their mean. Use SGD with few "
            "epochs, fedprox, or a model with l2.")


def is_training_alone(algorithm: Any) -> bool:
    """Whether every party trains on its own rows only."""
    return isinstance(innermost(algorithm), LocalTraining)


def is_bound(algorithm: Any) -> bool:
    """Whether the methods of a federation lie between it and another one: training alone, or on pooled rows."""
    return is_training_alone(algorithm) or algorithm.pools_data


def is_untuned(algorithm: Any) -> bool:
    """Whether an algorithm is training alone with the solver's settings as they are."""
    core = innermost(algorithm)
    return isinstance(core, LocalTraining) and core.ridge is None and not core.stops_early


def _averages_exact_solves(part: Any) -> bool:
    """Whether an algorithm aggregates the minimisers of the parties' own problems, without a proximal term."""
    return (isinstance(part, ModelAggregation) and isinstance(part.solver, LBFGS) and float(np.max(part.mu)) == 0)
