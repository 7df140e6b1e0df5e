"""What a strategy of a search works with: the candidates of a method, and the function that runs trials."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from resolvent.comparisons.tuning.space import Point, Space
from resolvent.comparisons.tuning.trials import Reading

__all__ = ["Candidates", "RunTrials", "segments"]

_REPORTS = 5  # number of reports of a trial to a pruner


class RunTrials(Protocol):
    """Runs trials up to a number of rounds; a trial resumes at the end of an earlier call for it."""

    def __call__(self, trials: Mapping[int, Point], rounds: int) -> list[Reading]:
        """The reading of each trial after this number of rounds.

        Args:
            trials: number of a trial -> its point.
            rounds: number of rounds.
        """


class Candidates(NamedTuple):
    """The search space and the budget of one method.

    Attributes:
        label: label of the method.
        space: values of its parameters.
        rounds: rounds of a full trial.
        better: function of two scores, whether the first is better; NaN is worse than any number.
    """

    label: str
    space: Space
    rounds: int
    better: Callable[[float, float], bool]


def segments(rounds: int) -> list[int]:
    """The rounds after which a trial is reported to a pruner; equal parts, so that one program runs all of them."""
    part = max(1, rounds // _REPORTS)
    return [*range(part, rounds, part), rounds]
