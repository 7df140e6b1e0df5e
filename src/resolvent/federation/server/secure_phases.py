"""The server's part of secure sums in the rounds: cards, masked replies, the list with its signatures, and the sum.

The sum of the masked replies is stored with the list before the list is sent, so that a server that is started again
continues with the same list.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums, IntegerReply
from resolvent.algorithms.round import CollectedReplies, summed_replies
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.exchange import Answers, FederationStoppedError, RoundRules, exchange
from resolvent.federation.protocol.refusals import reasons_of_sites
from resolvent.federation.protocol.stores import ServerRecord, ServerStore
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.protocol.wire import Message, WireError, messages_to
from resolvent.federation.secure.answers import MASKED, SUM_KINDS, reply_of_integers
from resolvent.federation.secure.rules import Position, SumRules
from resolvent.federation.secure.server import SecureSum, VoidSumError
from resolvent.simulator.storage.tree_files import digest

__all__ = ["MaskedReply", "SecurePhases", "check_summed", "read_masked"]

_CARDS, _SUM, _VOID = "cards.json", "sum.record", "void.json"


class MaskedReply(NamedTuple):
    """A masked reply as it has arrived.

    Attributes:
        integers: [n] uniform integers.
        shares: other site -> sealed share.
        commitment: a digest of the seed of the site's own mask.
        sent: the digest of what the site was sent.
    """

    integers: NDArray[np.unsignedinteger]
    shares: Mapping[str, str]
    commitment: str
    sent: str


class SecurePhases:
    """The secure sums of one run at the server.

    Args:
        transport: sends messages to the sites.
        rules: of how many sites a sum must consist.
    """

    def __init__(self, transport: Transport, store: ServerStore, rounds: RoundRules, rules: SumRules) -> None:
        self._transport, self._store, self._rounds, self._rules = transport, store, rounds, rules
        self._asked: list[str] = []

    def begin(self, run: str, cards: Mapping[str, Any], answers: Answers) -> None:
        """Let every site accept the cards of all sites; they are stored. ``answers`` gets the bytes."""
        messages = messages_to({name: {"cards": dict(cards)} for name in cards}, "roster", run)
        accepted = exchange(self._transport, messages, SUM_KINDS["roster"], _facts_of,
                            replace(self._rounds, quorum=None))
        answers.bytes_down += accepted.bytes_down
        answers.bytes_up += accepted.bytes_up
        if accepted.absent:
            raise FederationStoppedError(reasons_of_sites(accepted.absent))
        write_text(self._store.folder / _CARDS, json.dumps(cards))

    def ask(self, names: list[str], quorum: int) -> tuple[int, RoundRules]:
        """The sites of the next sum are asked: how many must reply, and how long the server waits.

        Args:
            quorum: the number of replies that the run needs in any case.
        """
        self._asked, needed = sorted(names), max(quorum, self._rules.smallest(len(names)))
        return needed, replace(self._rounds, quorum=None if self._rounds.quorum is None else needed)

    def sum_once(self, run: str, position: Position, names: Sequence[str], count: int) -> NDArray[np.unsignedinteger]:
        """The sum of integers of 64 bits that every site has for a message ``sum``; again, it is the same."""
        self._rounds = rules = replace(self._rounds, quorum=None)
        self._asked, answers = sorted(names), Answers()
        if self.stored(position) is None:
            messages = messages_to({name: {"asked": self._asked} for name in names}, "sum", run, *position)
            answers = exchange(self._transport, messages, "reply", partial(read_masked, count=count, words=2), rules)
            if answers.absent:
                raise FederationStoppedError(reasons_of_sites(answers.absent))
        total = self.total(run, position, "", answers)[1]
        assert total is not None  # otherwise a run that needs all sites has stopped
        return total

    def stored(self, position: Position) -> SecureSum | None:
        """The sum of a phase whose list was stored before an interruption."""
        message = self._store.read_file(_SUM)
        if message is None or (message.round, message.phase) != position:
            return None
        return SecureSum.from_message(message, self._rules, self._cards)

    def collect(self, record: ServerRecord, answers: Answers, expected: IntegerReply, cohort: Cohort,
                samples: int | None) -> CollectedReplies:
        """The sum of the masked replies of a phase, see ``total``.

        Args:
            samples: the number of samples of all sites; None: sites have equal shares.
        """
        listed, total = self.total(record.run, (record.round, record.phase + 1), digest(record.state), answers)
        reply = None if total is None else reply_of_integers(total, expected)
        collected = summed_replies(reply, expected, cohort, [record.parties.index(name) for name in listed])
        if total is None:
            return collected
        weight, most = int(total[-1]), len(listed) if samples is None else samples  # the last integer is the weight
        if weight > most or (weight < most and (samples is None or len(listed) == len(record.parties))):
            raise FederationStoppedError(
                f"round {record.round + 1}: {', '.join(listed)} give their replies a weight of {weight} together, and "
                f"before the rounds they have agreed on {most}: one of them claims another number of rows")
        if samples is None:
            return collected
        alive = collected.replies.alive
        share = weight / samples / max(1, int(alive.sum()))
        return collected._replace(replies=replace(
            collected.replies, shares=jnp.where(alive, share, 0).astype(collected.replies.shares.dtype)))

    def total(self, run: str, position: Position, content: str, answers: Answers, *,
              may_stop: bool = True) -> tuple[list[str], NDArray[np.unsignedinteger] | None]:
        """The listed sites, and the sum of their masked integers or of those that were stored before an interruption.

        Args:
            content: what identifies what the sites were sent: the same content in a later round has the same sites.
            answers: the masked replies, which are removed from it; it gets the bytes of the exchanges, and why a sum
                has no effect.
            may_stop: whether a run that needs all sites stops without the sum; otherwise the sum is None.
        """
        total = self.stored(position)
        if total is None:
            total = SecureSum(run, position, self._asked, self._rules, self._cards)
            for name in _of_one_message(self._summed(position[1], content, answers), answers):
                reply: MaskedReply = answers.values.pop(name)
                total.add(name, *reply)
            if total.has_enough_sites:
                self._store.write_file(_SUM, total.message())
        try:
            return total.listed, self._unmask(total, answers)
        except VoidSumError as error:
            self._void(str(error), total, answers, may_stop)
            if total.has_enough_signatures:
                void = {"phase": position[1], "state": content, "listed": total.listed}
                write_text(self._store.folder / _VOID, json.dumps(void))
            return total.listed, None

    def _summed(self, phase: int, content: str, answers: Answers) -> list[str]:
        """The sites whose replies are summed: if a sum of replies to the same message had no result, the same ones."""
        path, names = self._store.folder / _VOID, sorted(answers.values)
        if not path.is_file():
            return names
        void = json.loads(path.read_text("utf-8"))
        if (void["phase"], void["state"]) != (phase, content):
            return names
        missing = [name for name in void["listed"] if name not in names]
        reason = f"its reply does not count: the same message is summed again only over {', '.join(void['listed'])}"
        answers.absent |= dict.fromkeys([name for name in names if missing or name not in void["listed"]], reason)
        return [] if missing else list(void["listed"])

    def _unmask(self, total: SecureSum, answers: Answers) -> NDArray[np.unsignedinteger]:
        listed, needed = total.listed, self._rules.smallest(len(total.asked))
        if not total.has_enough_sites:
            raise VoidSumError(f"the sum needs {needed} sites, and {len(listed)} have replied")
        if total.needs_all:
            return total.unmask({})
        signed = self._ask("list", total, lambda name: {"listed": listed}, answers, needed)
        for name, facts in signed.items():
            total.accept_signature(name, facts.get("signature"))
        if not total.has_enough_signatures:
            raise VoidSumError(f"{len(total.signatures)} of {', '.join(listed)} have signed the list")
        signatures = dict(sorted(total.signatures.items()))  # the bytes do not depend on the order of the replies
        return total.unmask(self._ask("reveal", total, lambda name: {
            "listed": listed, "signatures": signatures, "shares": total.shares_for(name)}, answers, len(listed)))

    def _ask(self, kind: str, total: SecureSum, facts: Callable[[str], dict[str, Any]], answers: Answers,
             quorum: int) -> dict[str, dict[str, Any]]:
        rounds = self._rounds
        if rounds.quorum is not None:
            is_timed = rounds.deadline is not None or not math.isinf(rounds.grace)
            rounds = replace(rounds, quorum=quorum, retries=0 if is_timed else rounds.retries)
        messages = messages_to({name: facts(name) for name in total.listed if name in self._transport.parties}, kind,
                               total.run, *total.position)
        received = exchange(self._transport, messages, SUM_KINDS[kind], _facts_of, rounds)
        answers.bytes_down += received.bytes_down
        answers.bytes_up += received.bytes_up
        answers.absent |= {name: f"step '{kind}' of the secure sum: {why}" for name, why in received.absent.items()}
        return received.values

    def _void(self, reason: str, total: SecureSum, answers: Answers, may_stop: bool) -> None:
        """A phase without effect; without a quorum the run stops instead, and continues with the same list."""
        if self._rounds.quorum is None and may_stop:
            details = reasons_of_sites(answers.absent)
            raise FederationStoppedError(f"the secure sum has no result: {reason}. {details}. Everything is stored in "
                                         f"{self._store.folder}: start the run again to continue")
        answers.absent |= dict.fromkeys(total.listed, reason)

    @property
    def _cards(self) -> Mapping[str, Mapping[str, Any]]:
        cards: Mapping[str, Mapping[str, Any]] = json.loads((self._store.folder / _CARDS).read_text("utf-8"))
        return cards


def _of_one_message(names: list[str], answers: Answers) -> list[str]:
    """The sites whose replies are to the same message: the masks of others do not cancel, so that they do not count."""
    sent = {name: answers.values[name].sent for name in names}
    (common, _), = Counter(sent.values()).most_common(1) or [("", 0)]
    answers.absent |= {name: "it has answered another message than the others: a secure sum has one message for all "
                             "sites" for name in names if sent[name] != common}
    return [name for name in names if sent[name] == common]


def check_summed(algorithm: Algorithm, samples: int | None) -> int | None:
    """Check that replies can be summed; returns the number of samples of all sites if they weigh replies."""
    if not isinstance(algorithm, FixedPointSums):
        raise InputError(f"secure sums need integers, and the replies of {type(algorithm).__name__} are none: use "
                         "rv.combinators.FixedPointSums(...)")
    if algorithm.weighting == "uniform":
        return None
    if samples is None:
        raise InputError("secure sums hide the sites' numbers of samples, by which FixedPointSums(weighting='size') "
                         "weighs replies: give the number of samples of all sites")
    return samples


def read_masked(message: Message, count: int, words: int) -> MaskedReply:
    """Read an answer with masked integers.

    Args:
        words: words of 32 bits of an integer.
    """
    integers, shares = message.arrays.get(MASKED), message.fact("shares", dict)
    if len(message.arrays) != 1 or integers is None or integers.shape != (count,) or integers.dtype != f"<u{4 * words}":
        raise WireError(f"the masked reply is not {count} integers of {32 * words} bits")
    if not all(isinstance(value, str) for value in shares.values()):
        raise WireError("the sealed shares are not valid")
    return MaskedReply(integers, shares, message.fact("commitment", str), message.fact("sent", str))


def _facts_of(message: Message) -> dict[str, Any]:
    return dict(message.facts)
