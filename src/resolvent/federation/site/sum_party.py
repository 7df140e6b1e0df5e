"""A site's part in secure sums outside of the rounds: numbers of its table, and its scores over all folds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.files.atomic_files import write_text
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.differential_privacy.parties import noise_parties
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, answer_message
from resolvent.federation.protocol.stores import StoredAnswers
from resolvent.federation.protocol.wire import Message
from resolvent.federation.secure.answers import SUM_KINDS
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.secure.site import SecureSite
from resolvent.federation.site.planned_work import Membership
from resolvent.simulator.storage.tree_files import digest

_NUMBERS = "numbers.sha256"


class SumParty:
    """Answers the messages of secure sums of integers over all sites of the plan, and those that come before.

    Args:
        tables: for each phase from 0 on, [n] integers about the table of the site, modulo 2^64.
        limits: what the site allows.
        sites: all sites of the run.
    """

    def __init__(self, name: str, run: str, folder: Path, secure: SecureSite, tables: Sequence[NDArray[np.uint64]],
                 limits: Limits, sites: Sequence[str]) -> None:
        self._sites = sites
        self.name, self.run, self._limits = name, run, limits
        self._sums, self._answers = secure, StoredAnswers(folder)
        self._integers = dict(enumerate(tables))
        path, numbers = folder / _NUMBERS, digest(list(tables))
        if path.is_file() and path.read_text("utf-8") != numbers:
            raise Refusal(RefusalCode.CHANGED, "the table has changed since the run began: start a new run")
        write_text(path, numbers)

    def offer(self, phase: int, integers: NDArray[np.uint64]) -> None:
        """Answer a message of this phase with further integers."""
        self._integers[phase] = integers

    def handle(self, data: bytes | memoryview) -> bytes:
        """Answer a message, see ``answer_message``."""
        return answer_message(data, self.name, self._limits.max_bytes, self._answer)

    def _answer(self, message: Message) -> bytes:
        if message.kind in SUM_KINDS:
            return message.answer(SUM_KINDS[message.kind], self.name, self._sums.answer(message))
        if message.kind != "sum" or message.round != 0 or message.phase not in self._integers:
            raise Refusal(RefusalCode.PLAN, f"the plan has no message '{message.kind}' here")
        kind = f"sum-{message.phase}"
        if (stored := self._answers.find(kind, message)) is not None:
            return stored
        self._sums.check(message, self._sites)
        facts, arrays = self._sums.hide(message, self._integers[message.phase])
        sent = message.answer("reply", self.name, facts, arrays)
        return self._answers.write(kind, message, sent)


def secure_site(privacy: PrivacyBudget | None, membership: Membership, limits: Limits, run: str, folder: Path,
                identity: Identity, algorithm: Algorithm | None = None) -> SecureSite | None:
    """The site in the secure sums of a run in its messages; None if the server sees its replies.

    Args:
        algorithm: that of the rounds; if the sites add its noise, the site takes part in sums with enough of it only.
            None: sums outside of the rounds, which are over all sites.
    """
    rules = SumRules.of_plan(privacy, min_sites=max(2, limits.min_sites, noise_parties(algorithm)))
    if rules is None:
        return None
    if algorithm is None:
        rules = rules.over_all
    return SecureSite(membership.name, run, folder, identity, rules, membership.sites)
