"""Lets the parties that have lost their state start again in a phase of a round."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from resolvent.federation.protocol.server_messages import Ready
from resolvent.federation.protocol.stores import ServerRecord, ServerStore

__all__ = ["LOST", "Recovery"]

LOST = "it has lost its state"
_Value = TypeVar("_Value")


class Recovery:
    """The parties of a phase that have lost their state.

    A party that does not answer the start is asked again in the next round. A party that may not start again, or has
    other rows, is no longer asked until the server starts again: its folder can have been put back.

    Args:
        start: lets a party start again: id of the party -> its answer, or None without one. None if a party that has
            lost its state may not start again.
        has_party_states: whether the algorithm has party states.

    Attributes:
        record: the record, in which the replies of the parties that have started again are forgotten.
        reasons: name of a party that has not started again -> why.
    """

    def __init__(self, record: ServerRecord, store: ServerStore, start: Callable[[int], Ready | None] | None, *,
                 has_party_states: bool) -> None:
        self.record, self.reasons = record, dict[str, str]()
        self._store, self._start, self._has_party_states = store, start, has_party_states

    def restart(self, k: int) -> bool:
        """Restart party k; returns whether it has started again."""
        name = self.record.parties[k]
        if self._start is None:
            return self._exclude(k, f"{LOST}: put its folder back, or let it restart (--lost-state restart)")
        ready = self._start(k)
        if ready is None:
            self.reasons[name] = f"{LOST}, and has not answered the start: it is asked again in the next round"
            return False
        if ready.samples != self.record.sizes[k]:
            return self._exclude(k, f"{LOST}, and has {ready.samples} training samples instead of "
                                    f"{self.record.sizes[k]}")
        restarted = {*self.record.restarted, k} if self._has_party_states else {*self.record.restarted}
        self.record = self.record._replace(
            counted=_without(k, self.record.counted), refused=_without(k, self.record.refused),
            unanswered=_without(k, self.record.unanswered), restarted=tuple(sorted(restarted)))
        self._store.write(self.record)  # first: a party that has answered a phase refuses another message for it
        return True

    def _exclude(self, k: int, reason: str) -> bool:
        self.reasons[self.record.parties[k]] = reason
        self.record = self.record._replace(excluded=tuple(sorted({*self.record.excluded, k})))
        return False


def _without(k: int, of_parties: Mapping[int, _Value]) -> dict[int, _Value]:
    return {party: value for party, value in of_parties.items() if party != k}
