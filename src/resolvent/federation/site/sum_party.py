"""A site's part in secure sums outside of the rounds: numbers of its table, on which the sites agree."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.data.files.atomic_files import write_text
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.differential_privacy.parties import noise_parties
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import Message
from resolvent.federation.secure.answers import SUM_KINDS, SecureAnswers
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.secure.site import SecureSite
from resolvent.federation.site.answering import StoredAnswers, answer_message, encode_answer
from resolvent.federation.site.planned_work import Membership
from resolvent.simulator.storage.tree_files import digest

_NUMBERS = "numbers.sha256"


class SumParty:
    """Answers the messages of one secure sum of integers, and those that come before and after it.

    Args:
        integers: [n] the integers of the site, modulo 2^64.
        limits: what the site allows.
        sites: all sites of the run.
    """

    def __init__(self, name: str, run: str, folder: Path, secure: SecureSite, integers: NDArray[np.uint64],
                 limits: Limits, sites: Sequence[str]) -> None:
        self._sites = sites
        self.name, self.run, self._limits = name, run, limits
        self._sums, self._integers, self._answers = SecureAnswers(secure), integers, StoredAnswers(folder)
        path, numbers = folder / _NUMBERS, digest(integers)
        if path.is_file() and path.read_text("utf-8") != numbers:
            raise Refusal(RefusalCode.CHANGED, "the table has changed since the run began: start a new run")
        write_text(path, numbers)

    def card(self) -> dict[str, Any]:
        """The site's public keys."""
        return self._sums.card()

    def handle(self, data: bytes | memoryview) -> bytes:
        """Answer a message, see ``answer_message``."""
        return answer_message(data, self.name, self._limits.max_bytes, self._answer)

    def _answer(self, message: Message, identity: str) -> bytes:
        if message.kind in SUM_KINDS:
            return encode_answer(SUM_KINDS[message.kind], self.name, message, identity, self._sums.answer(message))
        if message.kind != "sum" or (message.round, message.phase) != (0, 0):
            raise Refusal(RefusalCode.PLAN, f"the plan has no message '{message.kind}' here")
        if (stored := self._answers.find("reply", 0, identity)) is not None:
            return stored
        self._sums.check(message, self._sites)
        facts, arrays = self._sums.hide(message, self._integers)
        sent = encode_answer("reply", self.name, message, identity, facts, arrays)
        return self._answers.write("reply", 0, identity, sent)


def secure_site(privacy: PrivacyBudget | None, membership: Membership, limits: Limits, run: str, folder: Path,
                identity: Identity, algorithm: Algorithm | None = None) -> SecureSite | None:
    """The site in the secure sums of a run in its messages; None if the server sees its replies.

    If the sites add the noise of the algorithm, the site takes part in sums with enough of it only.
    """
    rules = SumRules.of_plan(privacy, min_sites=max(2, limits.min_sites, noise_parties(algorithm)))
    if rules is None:
        return None
    return SecureSite(membership.name, run, folder, identity, rules, membership.sites)
