"""The settings of a search, as a file or a call states them."""

from dataclasses import dataclass
from typing import Literal

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError, alternatives, quote

__all__ = ["Search"]

_STRATEGIES = ("grid", "random", "optuna")
Values = list[bool | int | float | str] | dict[str, bool | float | str]

_DEFAULT_TRIALS = 16


@dataclass(frozen=True)
class Search(CheckedArguments):
    """A search of hyperparameters: what is varied, how candidates are drawn, and by what they are compared.

    Every method has the same budget, trials x rounds x seeds, in rounds.

    Attributes:
        over: for each label, or "*" for every label, the values of each parameter: a list, such as [0.01, 0.1, 1], or a
            range, such as {low: 0.001, high: 1, scale: log}, with whole: true for integers. Paths are relative to the
            algorithm, such as mu or solver.learning_rate.
        strategy: grid: every combination of the values, which must be lists; with fewer trials, combinations that are
            spread evenly, with every value equally often, or once more. random: drawn with one candidate
            in each of as many equal parts of a range as there are trials. optuna: drawn by a sampler of Optuna, which
            learns from earlier trials (extra optuna).
        trials: number of trials of each method; for optuna with a pruner, the number of full trials with the same total
            number of rounds. Default: 16; for a grid, all combinations.
        rounds: rounds of a full trial; default: those of the experiment.
        seeds: number of runs of each trial, with different minibatches and cohorts; its score is their mean.
        seed: seed of the drawn candidates.
        by: the metric on validation samples; default: the metric that compares the methods.
        per_site: each party also chooses a trial by its own validation samples.
        equal_budget: refuse a grid that has more combinations for one method than for another.
        sampler: for optuna: tpe, gp (Gaussian process), cmaes or random.
        pruner: for optuna: none, median, halving or hyperband; stops a trial that is worse than others at the same
            round.
        reduction: for the pruners halving and hyperband: the best 1/reduction of the trials continue, to reduction
            times as many rounds.
        trials_at_once: number of trials that run side by side in one compiled call. It is for accelerators, which the
            small models of one trial do not occupy. Trials differ in traced numbers only, or they run in different
            calls; results change by rounding. An interrupted search repeats the trials of the call.

    Raises:
        InputError: a number is too small, or ``over`` is empty.
    """

    over: dict[str, dict[str, Values]]
    strategy: str = "random"
    trials: int | None = None
    rounds: int | None = None
    seeds: int = 1
    seed: int = 0
    by: str | None = None
    per_site: bool = False
    equal_budget: bool = True
    sampler: Literal["tpe", "gp", "cmaes", "random"] = "tpe"
    pruner: Literal["none", "median", "halving", "hyperband"] = "none"
    reduction: int = 3
    trials_at_once: int = 1

    def __post_init__(self) -> None:
        if self.strategy == "halving":
            raise InputError("strategy: successive halving is a pruner of Optuna: write strategy: optuna and pruner: "
                             "halving, with the package of pip install 'resolvent[optuna]'")
        if self.strategy not in _STRATEGIES:
            raise InputError(f"strategy: there is no strategy {quote(self.strategy)}"
                             f"{alternatives(self.strategy, _STRATEGIES)}")
        for name, smallest in {"trials": 1, "rounds": 1, "seeds": 1, "seed": 0, "reduction": 2,
                               "trials_at_once": 1}.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise InputError(f"{name}={value} must be at least {smallest}")
        if self.trials_at_once > 1 and self.strategy == "optuna":
            raise InputError(f"trials_at_once={self.trials_at_once}: Optuna proposes a trial from the results of the "
                             "earlier ones, so they run one after the other: leave it out, or use another strategy")
        if not self.over:
            raise InputError("over: there is nothing to search: give the values of a parameter, such as "
                             "{FedProx: {mu: [0.01, 0.1, 1]}}")

    @property
    def trials_of_a_method(self) -> int:
        """The number of trials of each method, except for a grid without this setting."""
        return _DEFAULT_TRIALS if self.trials is None else self.trials
