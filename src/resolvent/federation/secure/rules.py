"""What every site requires of a secure sum, whatever the server says: how many sites it has, and what is signed."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError, shorten

__all__ = ["Position", "Sent", "SumRules", "card_content", "context_of", "list_content", "names_of"]

Position = tuple[int, int]
"""(round, phase) of a sum."""


class Sent(NamedTuple):
    """What a site was sent for a sum, as digests.

    Attributes:
        payload: of what it computes its reply from; the same in every round in which the server sends the same.
        shared: of all that the sites of the sum have in common in the message. The common masks are derived from it.
    """

    payload: str
    shared: str

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SumRules:
    """Of how many sites a sum consists.

    With ``threshold`` 1/2 two lists of sites cannot both have enough signatures if all sites are honest; with 2/3 also
    if fewer than a third of them help the server. With 1 all asked sites are in every sum: no mask is ever revealed.

    Attributes:
        min_sites: smallest number of sites of a sum.
        threshold: share of the asked sites, in [1/2, 1], that must be exceeded, or reached if it is 1: by a sum, by the
            signatures of its list and by the shares that recover a mask.
    """

    min_sites: int = 3
    threshold: float = 2 / 3

    def __post_init__(self) -> None:
        if self.min_sites < 2:
            raise InputError(f"SumRules(min_sites={self.min_sites}): a sum of one site is its reply: use at least 2")
        if not 0.5 <= self.threshold <= 1:
            raise InputError(f"SumRules(threshold={self.threshold}) must lie in [1/2, 1]: below, the server can "
                             "have two different sums of one phase")

    @classmethod
    def of_plan(cls, privacy: PrivacyBudget | None, *, min_sites: int = 2) -> "SumRules | None":
        """The rules of a plan; None without secure sums.

        Args:
            min_sites: a number of sites below which this participant has no sum, whatever the plan says.
        """
        return None if privacy is None else cls(max(privacy.min_sites, min_sites), privacy.threshold)

    @property
    def over_all(self) -> "SumRules":
        """The rules of sums about tables: over all sites, because several sums of one table would differ by a site."""
        return replace(self, threshold=1.0)

    def needed(self, asked: int) -> int:
        """t, the number of signatures and of shares when this number of sites is asked."""
        return min(asked, math.floor(self.threshold * asked + _ROUNDING) + 1)

    def needs_all(self, asked: int) -> bool:
        """Whether all of the asked sites are in a sum. The masks that they have in common cancel then, and suffice."""
        return self.needed(asked) == asked

    def smallest(self, asked: int) -> int:
        """The smallest number of sites of a sum when this number is asked."""
        return max(self.min_sites, self.needed(asked))


def names_of(value: Any, title: str) -> list[str]:
    """Names of sites as they have arrived: different texts, in the order of the alphabet."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{title} are no names of sites: {shorten(repr(value))}")
    if value != sorted(set(value)):
        raise InputError(f"{title} are not in order, or a site is twice: {shorten(repr(value))}")
    return value


def context_of(run: str, position: Position, *names: str) -> str:
    """To which run, sum and sites a sealed share belongs."""
    return json.dumps([run, *position, *names])


def card_content(run: str, site: str, exchange: str, signing: str) -> bytes:
    """What a site signs with its certificate: its public keys for one run. The run's name has the plan's digest."""
    return json.dumps({"run": run, "site": site, "exchange": exchange, "signing": signing}, sort_keys=True).encode()


def list_content(run: str, position: Position, shared: str, asked: Sequence[str], listed: Sequence[str]) -> bytes:
    """What a site signs with its key of the run: what it was sent, and which of the asked sites are in the sum."""
    return json.dumps({"run": run, "position": position, "sent": shared, "asked": list(asked), "listed": list(listed)},
                      sort_keys=True).encode()
