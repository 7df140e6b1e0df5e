"""The strategies of a search, which decide the trials and their numbers of rounds."""

from collections.abc import Sequence
from typing import NamedTuple

from resolvent.comparisons.tuning.optuna_search import run_optuna
from resolvent.comparisons.tuning.settings import Search
from resolvent.comparisons.tuning.space import Point, Space, draw_combinations, draw_points
from resolvent.comparisons.tuning.trials import Candidates, RunTrials, Trial
from resolvent.errors import InputError

_MAX_TRIALS = 10_000  # of a grid without a number of trials: all of its combinations


def check_budgets(search: Search, spaces: dict[str, Space]) -> None:
    """Refuse grids that would try more candidates of one method than of another."""
    if search.strategy != "grid" or not search.equal_budget:
        return
    counts = {label: count_trials(search, space, label) for label, space in spaces.items()}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{label} {count}" for label, count in counts.items())
        raise InputError(f"strategy: the methods would have different budgets ({numbers} trials), and more trials are "
                         f"an advantage: set trials: {min(counts.values())}, which draws as many from each grid, or "
                         "equal_budget: false")


def count_trials(search: Search, space: Space, label: str) -> int:
    """The number of trials of a method; of successive halving, the number of full trials with the same rounds."""
    return len(_grid_points(search, space, label)) if search.strategy == "grid" else search.trials_of_a_method


def run_strategy(search: Search, candidates: Candidates, run: RunTrials) -> list[Trial]:
    """All trials of a method, in the order of their numbers."""
    if search.strategy == "halving":
        return _run_halving(search, candidates, run)
    if search.strategy == "optuna":
        return run_optuna(search, candidates, run)
    points = (_grid_points(search, candidates.space, candidates.label) if search.strategy == "grid"
              else draw_points(candidates.space, search.seed, search.trials_of_a_method))
    rounds = candidates.rounds
    trials = dict(enumerate(points, start=1))
    return [Trial(candidates.label, number, trials[number], rounds, rounds * search.seeds, reading, True)
            for number, reading in zip(trials, run(trials, rounds), strict=True)]


def _grid_points(search: Search, space: Space, label: str) -> list[Point]:
    return draw_combinations(space, search.seed, _MAX_TRIALS if search.trials is None else search.trials,
                             f"over.{label}")


class Rung(NamedTuple):
    """A step of successive halving.

    Attributes:
        rounds: rounds of each trial at its end.
    """

    trials: int
    rounds: int


def halving_rungs(rounds: int, budget: int, reduction: int) -> list[Rung]:
    """The rungs of successive halving whose cost is as large as possible, but at most the budget.

    Rung i runs n / reduction^i trials to rounds / reduction^(s - i) rounds, continuing those of the rung before it. The
    number of rungs s + 1 is at most 3, so that a trial is not judged by too few rounds.

    >>> halving_rungs(27, 4 * 27, 3)
    [Rung(trials=17, rounds=3), Rung(trials=5, rounds=9), Rung(trials=1, rounds=27)]

    Args:
        reduction: factor between the numbers of trials of two rungs, at least 2.
    """
    best = [Rung(max(1, budget // rounds), rounds)]
    for steps in (1, 2):
        ends = [max(1, round(rounds / reduction**(steps - i))) for i in range(steps + 1)]
        if len(set(ends)) < len(ends):
            break
        count = reduction**steps
        if _cost(_rungs(count, ends, reduction)) > budget:
            break
        while _cost(_rungs(count + 1, ends, reduction)) <= budget:
            count += 1
        best = _rungs(count, ends, reduction)
    return best


def _rungs(count: int, ends: Sequence[int], reduction: int) -> list[Rung]:
    return [Rung(max(1, count // reduction**i), end) for i, end in enumerate(ends)]


def _cost(rungs: Sequence[Rung]) -> int:
    starts = [0, *(rung.rounds for rung in rungs[:-1])]
    return sum(rung.trials * (rung.rounds - start) for rung, start in zip(rungs, starts, strict=True))


def _run_halving(search: Search, candidates: Candidates, run: RunTrials) -> list[Trial]:
    rungs = halving_rungs(candidates.rounds, search.trials_of_a_method * candidates.rounds, search.reduction)
    points = draw_points(candidates.space, search.seed, rungs[0].trials)
    trials: dict[int, Trial] = {}
    remaining = list(range(1, len(points) + 1))
    for i, rung in enumerate(rungs):
        readings = run({number: points[number - 1] for number in remaining}, rung.rounds)
        for number, reading in zip(remaining, readings, strict=True):
            trials[number] = Trial(candidates.label, number, points[number - 1], rung.rounds,
                                   rung.rounds * search.seeds, reading, i == len(rungs) - 1)
        if i < len(rungs) - 1:
            losses = {number: candidates.loss(trials[number].reading.score) for number in remaining}
            remaining = sorted(sorted(remaining, key=losses.__getitem__)[:rungs[i + 1].trials])
    return [trials[number] for number in sorted(trials)]
