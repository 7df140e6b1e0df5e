"""The strategies of a search, which decide the trials and their numbers of rounds."""

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
    """The number of trials of a method."""
    return len(_grid_points(search, space, label)) if search.strategy == "grid" else search.trials_of_a_method


def run_strategy(search: Search, candidates: Candidates, run: RunTrials) -> list[Trial]:
    """All trials of a method, in the order of their numbers."""
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
