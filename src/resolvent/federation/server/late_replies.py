"""Late replies that count: the rounds of an asynchronous algorithm between sites.

A round ends when the quorum has answered. A site that has not answered keeps its message: in later rounds the server
repeats the same bytes, with the version, the random key and the round in which it was first sent, and the reply enters
``Asynchronous`` in the round in which it arrives. The record says which message each reply has answered, so that a
simulation repeats the run. A site whose version the server has forgotten gets a new message, and its work is lost.
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm, Reply
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.asynchronous import Asynchronous, AsynchronousState
from resolvent.algorithms.combinators.combinator import contains
from resolvent.algorithms.participation import Full, Participation
from resolvent.algorithms.round import CollectedReplies, collect_replies
from resolvent.errors import InputError
from resolvent.federation.protocol.exchange import RoundRules
from resolvent.federation.protocol.protection import protects_parties
from resolvent.federation.protocol.server_messages import norm_of_reply
from resolvent.federation.protocol.stores import ServerRecord

__all__ = ["LateReplies"]


class LateReplies:
    """Says which messages are repeated, and how stale the work of each party is.

    Args:
        algorithm: the algorithm.
        participation: draws the cohorts.
        rules: without a quorum, no reply is late.

    Raises:
        InputError: the message to a site would change while it works.
    """

    def __init__(self, algorithm: Algorithm, participation: Participation, rules: RoundRules) -> None:
        self._algorithm = algorithm
        self._server = algorithm if isinstance(algorithm, Asynchronous) else None
        self._count = rules.quorum is not None and contains(algorithm, Asynchronous)
        if not self._count:
            return
        if self._server is None:
            raise InputError(f"{type(algorithm).__name__} around Asynchronous changes the message to a site while it "
                             "works, so that a late reply cannot count: put Asynchronous around it, or set no quorum")
        if not isinstance(participation, Full):
            raise InputError(f"late replies of an asynchronous server need participation Full, got "
                             f"{type(participation).__name__}: every site works all the time")

    def _staleness(self, record: ServerRecord, parties: Sequence[int]) -> NDArray[np.int32]:
        """The number of versions since the message to each of some parties."""
        state: AsynchronousState = record.state.extra
        lanes = np.asarray(state.version - state.started)
        staleness: NDArray[np.int32] = lanes[np.asarray(parties, int) % len(lanes)]
        return staleness

    def stale(self, record: ServerRecord) -> tuple[int, ...]:
        """The parties that get a new message instead of the one that they have not answered."""
        waiting = sorted(record.unanswered)
        if self._server is None or not waiting:
            return ()
        return tuple(np.array(waiting)[self._staleness(record, waiting) > self._server.max_staleness].tolist())

    def unanswered(self, record: ServerRecord, absent: tuple[int, ...]) -> dict[int, int]:
        """The round of the message that each absent party of the record's round has still to answer."""
        return {k: record.unanswered.get(k, record.round) for k in absent} if self._count else {}

    def collect(self, record: ServerRecord, values: dict[str, Reply], expected: Reply, cohort: Cohort,
                stale: tuple[int, ...]) -> CollectedReplies:
        """The replies of a phase by the name of their party; ``values`` is emptied.

        A stale party has a reply of zeros, of which ``Asynchronous`` uses nothing.
        """
        replies = {record.parties.index(name): values.pop(name) for name in [*values]}
        replies |= {k: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), expected) for k in stale}

        def norm_of(k: int, reply: Reply) -> Any:
            return norm_of_reply(self._algorithm, record.state, record.unanswered.get(k, record.round), k, reply,
                                 phase=record.phase)

        # The length of a party's update has no noise: reports, metrics and the model card must not have it.
        hides_norms = protects_parties(self._algorithm)
        collected = collect_replies(replies, expected, cohort, None if hides_norms else norm_of,
                                    self._algorithm.norm_multiple)
        return collected._replace(norms={k: norm for k, norm in collected.norms.items() if k not in stale})

    def facts(self, record: ServerRecord, alive: Sequence[int], refused: Collection[int],
              stale: tuple[int, ...]) -> tuple[dict[int, int], tuple[int, ...], float | None]:
        """The last fields of the ``PhaseReport``, before the server's step.

        Args:
            record: the record with which the phase began.
            alive: ids of the parties whose reply is in the step, and of the stale ones.
            refused: ids of the parties whose reply is refused.
            stale: ids of the stale parties.
        """
        mean = None if self._server is None or not alive else float(self._staleness(record, alive).mean())
        return {k: t for k, t in record.unanswered.items() if k in (*alive, *refused)}, stale, mean
