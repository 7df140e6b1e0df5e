"""The privacy budget of a run, as a file or a call states it."""

from dataclasses import dataclass
from typing import Annotated

from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError
from resolvent.math.accounting import Accountant


@dataclass(frozen=True)
class PrivacyBudget(CheckedArguments):
    """The delta at which a run measures each party's epsilon, the largest epsilon that it may spend, and secure sums.

    With ``DPSGD``, epsilon is that of the records of a party; it grows with every round for which the party is asked to
    work. With ``PrivateParties``, epsilon is that of single parties; it is the same for all, and grows with every
    round. The metrics of the run then have ``epsilon`` of the split ``train``, for each party and evaluation. It is the
    epsilon of a real federation with these settings: a run's own noise is simulated and gives no protection.

    Attributes:
        delta: the delta, in (0, 1), usually below one over the number of samples of a party, or over that of parties.
        epsilon: the run stops before the first round that could make any party's epsilon larger than this; default:
            epsilon is only measured.
        accountant: ``pld`` (tight) or ``rdp`` (an upper bound, loose at large epsilon).
        secure_sums: whether the server of a federation learns the sums of the replies only. In an experiment file the
            replies of all methods are then integers (``FixedPointSums``), in a simulation too. Without ``delta``
            epsilon is not measured.
        min_sites: smallest number of sites of a secure sum.
        threshold: share of the asked sites, in [1/2, 1], that a secure sum must exceed. 1: every sum has all of them; a
            phase then has no steps after the replies, and waits for all sites.

    Raises:
        InputError: neither ``delta`` nor ``secure_sums`` is set, or a number is outside its range; when a run
            starts: ``delta`` is not set, the composition is not private, its participation
            is not accounted for, or the first round spends more than ``epsilon``.

    Example:
        >>> budget = rv.privacy.PrivacyBudget(delta=1e-4, epsilon=3)
        >>> result = rv.simulate(rv.fedavg(rv.solvers.DPSGD(0.1)), rv.models.logistic(64, 10),
        ...                      rv.datasets.digits(), rounds=1000, privacy=budget)  # doctest: +SKIP
        >>> result.scores("train", "epsilon").iloc[-1].max() <= 3  # doctest: +SKIP
        True
    """

    delta: Annotated[float | None, "(0, 1)"] = None
    epsilon: Annotated[float | None, "(0, inf)"] = None
    accountant: Accountant = "pld"
    secure_sums: bool = False
    min_sites: int = 3
    threshold: float = 2 / 3

    def __post_init__(self) -> None:
        if self.delta is None and (self.epsilon is not None or not self.secure_sums):
            raise InputError("PrivacyBudget: epsilon is measured at a delta: set delta, such as 1e-5; or secure_sums")
        if self.min_sites < 2 or not 0.5 <= self.threshold <= 1:
            raise InputError(f"PrivacyBudget(min_sites={self.min_sites}, threshold={self.threshold:g}): a secure sum "
                             "has at least 2 sites, and exceeds a share of the asked sites in [1/2, 1], or has all")
