"""One exchange: messages are sent until enough parties have answered, and every answer is checked.

The messages about a plan, before and after its rounds, and those of the rounds of its methods are sent alike.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from resolvent.errors import InputError, check_range
from resolvent.federation.protocol.limits import read_refusal
from resolvent.federation.protocol.refusals import REPEATABLE, RefusalCode
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.protocol.wire import (
    MAX_BYTES,
    EncodedMessage,
    Message,
    WireError,
    checked_kind,
    decode,
    messages_to,
)


class FederationStoppedError(RuntimeError):
    """Too few parties have answered. The run is stored; starting it again resumes it."""


class FederationRefusedError(InputError):
    """A site does not take part, or the sites do not agree; nothing has been trained."""


@dataclass(frozen=True)
class RoundRules:
    """How long the server waits for replies, and how many it needs.

    Attributes:
        quorum: number of parties that must answer in a phase; fewer if fewer are asked. None: all that are asked, as in
            a simulation.
        grace: seconds for which the server waits for further replies after the quorum.
        deadline: longest wait in seconds; None: no limit.
        retries: how often a phase is repeated if fewer parties than the quorum have answered; then the run stops.
        pause: seconds before a phase is repeated.
        max_bytes: largest number of bytes of a reply that the server reads.

    Raises:
        InputError: a number is out of range.
    """

    quorum: int | None = None
    grace: float = 0.0
    deadline: float | None = None
    retries: int = 3
    pause: float = 0.0
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        check_range(self, "[1, inf)", quorum=self.quorum, max_bytes=self.max_bytes)
        check_range(self, "[0, inf)", grace=self.grace, deadline=self.deadline, retries=self.retries, pause=self.pause)
        if self.deadline is None and self.quorum is not None and math.isinf(self.grace):
            raise InputError("RoundRules(grace=inf, deadline=None) waits for all parties forever: set a deadline")

    @property
    def no_answer(self) -> str:
        """Why a site has no answer if nothing else is known."""
        late = "" if self.deadline is None else f", or took longer than {self.deadline:.0f} s"
        return f"no answer: the site failed{late}; its log says which"


@dataclass
class Answers:
    """The answers of an exchange.

    Attributes:
        values: party -> what was read from its answer.
        absent: party -> why it has no valid answer.
        codes: party -> code of its refusal (``RefusalCode``); the others that are absent have not answered, or not with
            a valid message.
        late: parties whose answer to an earlier message arrived during the exchange.
        lost: parties that have lost their state and have not started again.
        attempts: how often messages were sent.
        bytes_down: bytes of the messages.
        bytes_up: bytes of the answers.
    """

    values: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    codes: dict[str, RefusalCode | None] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    attempts: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


def exchange(transport: Transport, messages: dict[str, EncodedMessage], kind: str, read: Callable[[Message], Any],
             rules: RoundRules,
             recover: Callable[[str], EncodedMessage | None] = lambda party: None) -> Answers:
    """Send a message to each party until the quorum has answered, or no retry is left.

    Every attempt sends the same bytes, so that a party that has done the work sends its stored reply.

    Args:
        messages: party -> message. A message is removed when its party has answered, so that its memory is free.
        kind: that of the answers.
        read: reads an answer; it raises ``WireError`` if the answer cannot be used.
        recover: a function that is called with the name of a party that has lost its state; it returns the message
            that the party gets instead, or None without one. It is called in every attempt.
    """
    answers = Answers(absent=dict.fromkeys(messages, rules.no_answer))
    sent = {party: message.head.identity for party, message in messages.items()}
    retries, quorum = rules.retries, len(messages) if rules.quorum is None else min(rules.quorum, len(messages))
    while messages and len(answers.values) < quorum and answers.attempts <= retries:
        if answers.attempts:
            time.sleep(rules.pause)
        answers.attempts += 1
        _attempt(transport, messages, sent, kind, read, rules, quorum, answers)
        for party in answers.lost:
            if party not in messages and (message := recover(party)) is not None:
                sent[party], messages[party] = message.head.identity, message
                retries += 1  # the party has not had the chance to answer
        answers.lost = [party for party in answers.lost if party not in messages]
    return answers


def ask_about_plan(transport: Transport, kind: str, run: str, contents: Mapping[str, Mapping[str, Any]],
                   rules: RoundRules) -> Answers:
    """Send a message about the plan of a run to every site, and wait for all; the values are what the sites answer.

    A site that does not answer does not stop a run with a quorum, so that it is asked only once.

    Args:
        contents: site -> plain values.
    """
    messages = messages_to({site: {"content": content} for site, content in contents.items()}, kind, run)
    return exchange(transport, messages, "answer", lambda message: message.fact("content", dict),
                    replace(rules, quorum=None, retries=rules.retries if rules.quorum is None else 0))


def _attempt(transport: Transport, messages: dict[str, EncodedMessage], sent: Mapping[str, str], kind: str,
             read: Callable[[Message], Any], rules: RoundRules, quorum: int, answers: Answers) -> None:
    """Send the messages once and read the answers.

    A transport counts every reply for its quorum. If a refusal or a damaged reply was among them, the other parties get
    the time that is left: a site with a full disk answers at once, and must not shorten the work of the others.
    """
    waiting, deadline, lost = [*messages], rules.deadline, len(answers.lost)
    end = math.inf if deadline is None else time.monotonic() + deadline
    while True:
        answers.bytes_down += sum(messages[party].size for party in waiting)
        needed = min(max(quorum - len(answers.values), 1), len(waiting))
        received = transport.broadcast({party: messages[party] for party in waiting}, deadline=deadline, quorum=needed,
                                       grace=rules.grace)
        if len(received) < len(waiting):
            answers.absent |= {party: reason for party, reason in transport.reasons().items() if party in messages}
        _read_all([*transport.late_replies(), *received.items()], sent, kind, read, rules.max_bytes, answers, messages)
        waiting = [party for party in waiting if party in messages and party not in received]
        left = end - time.monotonic()
        is_over = len(received) < needed or not waiting or left <= 0
        if is_over or len(answers.values) >= quorum or len(answers.lost) > lost:
            return
        deadline = None if deadline is None else left


def _read_all(replies: Iterable[tuple[str, bytes | memoryview]], sent: Mapping[str, str], kind: str,
              read: Callable[[Message], Any], limit: int, answers: Answers,
              pending: dict[str, EncodedMessage]) -> None:
    for party, data in replies:
        if party not in sent or party in answers.values:
            answers.late += [party]
            continue
        answers.bytes_up += len(data) if isinstance(data, bytes | memoryview) else 0
        try:
            message = decode(data, limit)
            if message.facts.get("answers") != sent[party]:
                answers.late += [party]
                continue
            if message.facts.get("party") != party:
                raise WireError("the answer is of another party")
            if message.kind == "refusal":
                _read_refusal(party, message, answers, pending)
                continue
            answers.values[party] = read(checked_kind(message, kind))
        except WireError as error:
            answers.absent[party] = str(error)
            continue
        answers.absent.pop(party, None)
        pending.pop(party, None)


def _read_refusal(party: str, message: Message, answers: Answers, pending: dict[str, EncodedMessage]) -> None:
    code, answers.absent[party] = read_refusal(message.facts)
    answers.codes[party] = code
    if code == RefusalCode.LOST_STATE:
        answers.lost += [party]
    if code not in REPEATABLE:
        pending.pop(party, None)
