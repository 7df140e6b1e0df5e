"""The server's side of the secure sum of one phase: it adds masked replies, and removes the masks of the sum."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.federation.protocol.wire import Message
from resolvent.federation.secure.primitives import add_stream, combine_shares, commitment, verify_signature
from resolvent.federation.secure.rules import Position, SumRules, list_content
from resolvent.federation.secure.site import pair_sign

__all__ = ["SecureSum", "VoidSumError"]


class VoidSumError(RuntimeError):
    """The masks of a sum cannot be removed, because sites stay away: the phase has no effect."""


class SecureSum:
    """The sum of one phase. Until ``unmask`` the server has nothing but uniform integers.

    Args:
        asked: the asked sites, in the order of the alphabet.
        rules: of how many sites a sum must consist.
        cards: site -> its public keys.

    Attributes:
        listed: the sites whose replies are in the sum.
        shares: listed site -> other site -> sealed share.
        signatures: listed site -> its valid signature of the list.
        total: [n] the sum of the masked replies; None before the first.
        sent: the digest of what the sites were sent, as they state it; empty before the first reply.
    """

    def __init__(self, run: str, position: Position, asked: list[str], rules: SumRules,
                 cards: Mapping[str, Mapping[str, Any]]) -> None:
        self.position, self.asked = position, asked
        self.listed: list[str] = []
        self.shares: dict[str, dict[str, str]] = {}
        self.signatures: dict[str, str] = {}
        self.total: NDArray[np.unsignedinteger] | None = None
        self.sent = ""
        self.run, self._rules, self._cards = run, rules, cards
        self._commitments: dict[str, str] = {}

    def add(self, site: str, masked: NDArray[np.unsignedinteger], shares: Mapping[str, str], committed: str,
            sent: str) -> None:
        """Add a masked reply. With another ``sent`` than the others' its common masks would not cancel."""
        assert sent == (self.sent or sent)
        self.sent = sent
        if self.total is None:
            self.total = masked.copy()
        else:
            np.add(self.total, masked, out=self.total)
        self.listed = sorted([*self.listed, site])
        self.shares[site], self._commitments[site] = dict(shares), committed

    @property
    def has_enough_sites(self) -> bool:
        """Whether the sites can accept the list."""
        return len(self.listed) >= self._rules.smallest(len(self.asked))

    @property
    def needs_all(self) -> bool:
        """Whether the masks cancel in the sum of all asked sites, so that sites are asked nothing more."""
        return self._rules.needs_all(len(self.asked))

    @property
    def has_enough_signatures(self) -> bool:
        """Whether sites can reveal."""
        return len(self.signatures) >= self._rules.smallest(len(self.asked))

    def accept_signature(self, site: str, signature: Any) -> bool:
        """Store a site's signature of the list; returns whether it is valid."""
        content = list_content(self.run, self.position, self.sent, self.asked, self.listed)
        is_valid = verify_signature(self._cards[site]["signing"], content, signature)
        if is_valid:
            self.signatures[site] = signature
        return is_valid

    def shares_for(self, site: str) -> dict[str, str]:
        """The sealed shares that a site is sent when it is asked to reveal."""
        return {owner: sealed[site] for owner, sealed in self.shares.items() if site in sealed}

    def unmask(self, revealed: Mapping[str, Mapping[str, Any]]) -> NDArray[np.unsignedinteger]:
        """The sum of the listed replies.

        Args:
            revealed: site -> what ``SecureSite.reveal`` returned, as it has arrived.
        """
        assert self.total is not None
        total = self.total.copy()
        if self.needs_all:
            return total
        for site in self.listed:
            add_stream(total, self._own_seed(site, revealed), -1)
        for site in self.listed:
            for other in self.asked:
                if other not in self.listed:
                    add_stream(total, _seed(revealed, site, other), -pair_sign(site, other))
        return total

    def _own_seed(self, site: str, revealed: Mapping[str, Mapping[str, Any]]) -> bytes:
        """A site's seed: the one that it revealed, or the one that the shares of others give."""
        seed = _bytes(revealed.get(site, {}).get("own"))
        if seed is not None and commitment(seed, self.run, self.position) == self._commitments[site]:
            return seed
        others = [name for name in self.asked if name != site]
        shares = {position: share for position, name in enumerate(others)
                  if (share := _bytes(_part(revealed, name, "shares").get(site))) is not None}
        needed = self._rules.needed(len(self.asked))
        if len(shares) >= needed:
            seed = combine_shares(dict([*shares.items()][:needed]))
            if commitment(seed, self.run, self.position) == self._commitments[site]:
                return seed
        raise VoidSumError(f"{site} has left after its reply, and {len(shares)} of {needed} shares of its mask arrived")

    def message(self) -> Message:
        """The sum as it is stored."""
        assert self.total is not None
        return Message("sum", self.run, *self.position, {
            "asked": self.asked, "listed": self.listed, "shares": self.shares, "commitments": self._commitments,
            "signatures": self.signatures, "sent": self.sent}, {"total": self.total})

    @classmethod
    def from_message(cls, message: Message, rules: SumRules, cards: Mapping[str, Mapping[str, Any]]) -> "SecureSum":
        """The sum that ``message`` has stored."""
        stored = cls(message.run, (message.round, message.phase), message.fact("asked", list), rules, cards)
        stored.listed, stored.shares = message.fact("listed", list), message.fact("shares", dict)
        stored.signatures, stored._commitments = message.fact("signatures", dict), message.fact("commitments", dict)
        stored.total, stored.sent = np.array(message.arrays["total"]), message.fact("sent", str)
        return stored


def _part(revealed: Mapping[str, Mapping[str, Any]], site: str, name: str) -> Mapping[str, Any]:
    part = revealed.get(site, {}).get(name)
    return part if isinstance(part, Mapping) else {}


def _seed(revealed: Mapping[str, Mapping[str, Any]], site: str, other: str) -> bytes:
    """The seed of the common mask of a listed site with one that is not listed."""
    seed = _bytes(_part(revealed, site, "seeds").get(other))
    if seed is None:
        raise VoidSumError(f"{site} has left after its reply, and its common mask with {other} is not known")
    return seed


def _bytes(value: Any) -> bytes | None:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        return None
