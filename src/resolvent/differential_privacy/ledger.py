"""The privacy ledger of a run: each party's epsilon at every evaluation, and a stop before one exceeds a limit."""

from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import layers
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.participation.rules import Participation
from resolvent.differential_privacy.account import PrivacyAccount
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.differential_privacy.composition import check_private_records
from resolvent.differential_privacy.parties import party_rate, private_parties, unknown_noise
from resolvent.errors import InputError
from resolvent.math.accounting import Releases, gaussian_epsilon, steps_within
from resolvent.math.tree import Vector


class PrivacyLedger:
    """What the parties of one run have spent so far.

    Args:
        budget: the budget.
        algorithm: the algorithm of the run.
        w0: a model, or its shapes.
        sizes: [N] numbers of training samples of the parties.
        participation: participation of the run.
        earlier: what the parties released before, in the run from whose model this one starts.

    Attributes:
        rounds: [N] number of rounds of this run that count for each party.

    Raises:
        InputError: see ``PrivacyBudget``.

    Example:
        >>> ledger = rv.privacy.PrivacyLedger(budget, algorithm, w0, sizes, participation)  # doctest: +SKIP
        >>> ledger.rounds_left  # doctest: +SKIP
    """

    def __init__(self, budget: PrivacyBudget, algorithm: Algorithm, w0: Vector, sizes: ArrayLike,
                 participation: Participation, earlier: PrivacyAccount | None = None) -> None:
        if budget.delta is None:
            raise InputError("privacy: a run measures epsilon at a delta, which is not set: set delta, such as 1e-5. "
                             "For the integers of secure sums use FixedPointSums around the algorithm")
        self._budget, self._delta, samples = budget, budget.delta, np.asarray(sizes)
        self._earlier = [()] * len(samples) if earlier is None else list(earlier.of_parties)
        self.rounds = np.zeros(len(samples), np.int64)
        if algorithm.pools_data:
            raise InputError("privacy: pooled samples belong to no party, so that no party's epsilon is defined: leave "
                             "privacy out, or use a federated method")
        self._protects_parties = any(isinstance(layer, PrivateParties) for layer in layers(algorithm))
        if self._protects_parties:
            private = private_parties(algorithm)
            self._multiplier, self._steps = unknown_noise(private, 1), 1
            self._rates = np.full(len(samples), party_rate(private, participation, len(samples)))
        else:
            work = check_private_records(algorithm, w0)
            self._multiplier, self._steps = work.noise_multiplier, work.steps
            self._rates = np.minimum(1.0, work.solver.batch_size / samples)
        if earlier is not None and earlier.unit != self._unit:
            raise InputError(f"privacy: the run to start from protects {earlier.unit} and this one {self._unit}, which "
                             "cannot be added: protect the same in both")
        if self.rounds_left == 0:
            first = max(self._epsilon(*setting, 1) for setting in {*self._settings})
            before = "" if earlier is None else ", together with the run to start from"
            raise InputError(f"privacy: epsilon={budget.epsilon:g} is less than the first round spends{before}, "
                             f"{first:.3g}: give a larger epsilon, or more noise, fewer steps or smaller batches")

    def add(self, index: Int[Array, "R C"], invited: Bool[Array, "R C"]) -> None:
        """Add rounds.

        Args:
            index: ids of the parties of each cohort.
            invited: which of them were asked to work.
        """
        if self._protects_parties:
            self.rounds += len(index)
        else:
            np.add.at(self.rounds, np.asarray(index)[np.asarray(invited)], 1)

    def epsilons(self) -> Float[np.ndarray, " N"]:
        """[N] each party's epsilon so far, with that of the run from whose model this one starts."""
        states = [(*setting, rounds) for setting, rounds in zip(self._settings, self.rounds.tolist(), strict=True)]
        spent = {state: self._epsilon(*state) for state in {*states}}
        return np.array([spent[state] for state in states])

    @property
    def account(self) -> PrivacyAccount:
        """What the parties have released so far."""
        return PrivacyAccount(self._unit, tuple(
            (*earlier, Releases(self._multiplier, rate, rounds * self._steps)) if rounds else earlier
            for (rate, earlier), rounds in zip(self._settings, self.rounds.tolist(), strict=True)))

    @property
    def rounds_left(self) -> int | None:
        """The number of rounds that can follow before any party could exceed the budget; None without a limit."""
        if self._budget.epsilon is None:
            return None
        if any(self._earlier):
            return max(0, min(self._limit(*setting) - rounds for setting, rounds in zip(
                self._settings, self.rounds.tolist(), strict=True)))
        # The samples of the smallest party are drawn most often: no other party has fewer rounds.
        left = self._fewest_rounds - int(self.rounds.max())
        if left > 0:
            return left
        at_limit = self.rounds >= self._fewest_rounds
        at_most = [self._limit(rate, ()) - rounds for rate, rounds in zip(
            self._rates[at_limit].tolist(), self.rounds[at_limit].tolist(), strict=True)]
        return max(0, min(at_most, default=0))

    @property
    def reason_to_stop(self) -> str | None:
        """Why no further round is possible; None if one is."""
        if self.rounds_left != 0:
            return None
        spent = f"epsilon = {self.epsilons().max():.4g} with simulated noise"
        return f"{spent}, and one more round could exceed {self._budget.epsilon:g}"

    @cached_property
    def _fewest_rounds(self) -> int:
        return self._limit(float(self._rates.max()), ())

    @property
    def _unit(self) -> Literal["records", "parties"]:
        return "parties" if self._protects_parties else "records"

    @cached_property
    def _settings(self) -> list[tuple[float, tuple[Releases, ...]]]:
        """[N] each party's rate, and what it released before this run."""
        return [*zip(self._rates.tolist(), self._earlier, strict=True)]

    def _limit(self, rate: float, earlier: tuple[Releases, ...]) -> int:
        """The largest number of rounds within the budget."""
        assert self._budget.epsilon is not None
        return _steps_within(self._budget.epsilon, self._multiplier, rate, self._delta,
                             self._budget.accountant, earlier) // self._steps

    def _epsilon(self, rate: float, earlier: tuple[Releases, ...], rounds: int) -> float:
        return _gaussian_epsilon(self._multiplier, rate, rounds * self._steps, self._delta,
                                 self._budget.accountant, earlier)


_gaussian_epsilon = lru_cache(maxsize=1024)(gaussian_epsilon)
_steps_within = lru_cache(maxsize=1024)(steps_within)
