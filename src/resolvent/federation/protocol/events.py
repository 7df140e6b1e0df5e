"""What happens in a run of a federation: one object that the server logs, the lead is told, and people are shown.

A report is an event of the rounds of a method; the server's log stores it. The other events are those of the whole run.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError

SiteScores: TypeAlias = Mapping[str, Mapping[str, float | None]]
# What a site that has not answered is asked for, by the kind of the message: about the plan, and about a method.
_OF_PLAN = {"describe": "the description of the table", "prepare": "the encoding of the rows",
            "finish": "models and judgement"}
_OF_METHOD = {"start": "the start of {method}",
              "work": "the reply of {method}, round {round} of {planned}, phase {phase}",
              "evaluate": "the scores of {method} after round {round}", "finish": "storing the models of {method}"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that has happened in a run.

    A report says which parties by their ids. Its other fields are empty in the log of a method, which has them once.

    Attributes:
        method: title of the method, with its seed and its fold.
        planned: number of rounds that the method has in all.
        names: name of the party with each id.
    """

    method: str = ""
    planned: int = 0
    names: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Plain values, as the log and messages have them; ``read_event`` reads them."""
        return {"event": type(self).__name__, **asdict(self)}


Observer: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True)
class StartReport(Event):
    """All parties have answered once.

    Attributes:
        run: the run.
        parties: names of the parties.
        sizes: [N] number of training samples of each party.
        resumed: number of rounds that were done before; 0 for a new run.
    """

    run: str
    parties: tuple[str, ...]
    sizes: tuple[int, ...]
    resumed: int = 0


@dataclass(frozen=True)
class MembersReport(Event):
    """Parties have joined a run, or have left it.

    Attributes:
        round: number of the first round with these members, from 0.
        joined: names of the parties that join, or join again.
        left: names of the parties that are no longer asked.
        sizes: [N] number of training samples of each party of the run, also of those that have left.
    """

    round: int
    joined: tuple[str, ...]
    left: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class PhaseReport(Event):
    """A phase of a round has ended.

    Attributes:
        round: number of the round, from 0.
        phase: number of the phase, from 0.
        attempts: how often the messages were sent to parties that had not answered.
        asked: ids of the parties that were asked.
        counted: ids of the parties whose reply counted.
        refused: party id -> why its reply did not count, although it arrived in time.
        absent: party id -> why it has no reply.
        late: ids of parties whose reply to an earlier message arrived during the phase; it did not count.
        norms: party id -> norm of its update (``admission.update_norm``), also if it did not count; None if the norm is
            too large for a number.
        began: party id -> round of the message that it has answered, if it is an earlier one.
        stale: ids of parties whose message is of a version that the server has forgotten; they get a new one.
        staleness: mean number of versions since the message, over the replies that counted and the stale parties; None:
            the server is not asynchronous.
    """

    round: int
    phase: int
    attempts: int
    asked: tuple[int, ...]
    counted: tuple[int, ...]
    refused: Mapping[int, str]
    absent: Mapping[int, str]
    late: tuple[int, ...]
    norms: Mapping[int, float | None] = field(default_factory=dict)
    began: Mapping[int, int] = field(default_factory=dict)
    stale: tuple[int, ...] = ()
    staleness: float | None = None


@dataclass(frozen=True)
class EvaluationReport(Event):
    """The parties have computed the scores of their models.

    Attributes:
        round: number of rounds that were done.
        personal: party id -> name of a score -> split -> its value, for the party's personal model.
        shared: party id -> name of a score -> split -> its value, for the shared model.
        withheld: ids of the parties whose scores do not leave their site.
        absent: party id -> why it has no scores.
        means: name of a score, split, and its mean over the sites, see ``score_sums``: with secure sums, and for the
            lead; then there are no others.
    """

    round: int
    personal: Mapping[int, SiteScores]
    shared: Mapping[int, SiteScores]
    withheld: tuple[int, ...]
    absent: Mapping[int, str]
    means: tuple[tuple[str, str, float | None], ...] = ()

    def with_mean(self, score: str) -> "EvaluationReport":
        """The report without the scores of single sites, and with the mean of one score on the test rows alone."""
        of_sites = [scores.get(score, {}).get("test") for scores in self.personal.values()]
        values = [value for value in of_sites if value is not None]
        mean = float(np.mean(values)) if values else None
        return replace(self, personal={}, shared={}, means=((score, "test", mean),))


@dataclass(frozen=True)
class FinishReport(Event):
    """The run has ended.

    Attributes:
        rounds: number of rounds.
        stored: ids of the parties that have stored their models.
        absent: party id -> why it has not stored its models.
    """

    rounds: int
    stored: tuple[int, ...]
    absent: Mapping[int, str]


@dataclass(frozen=True)
class Agreement(Event):
    """The sites agree: the number of inputs, the rows of each site, and what the lead should know of the tables."""

    features: int
    rows: Mapping[str, int]
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal(Event):
    """A site has refused a message; ``code`` says why, see ``RefusalCode``."""

    site: str
    code: str


@dataclass(frozen=True)
class SecondSession(Event):
    """The server has refused a second process that connects as a site."""

    site: str


@dataclass(frozen=True)
class Revocation(Event):
    """The key of a site is revoked: from now on, nothing is sent to it."""

    site: str


@dataclass(frozen=True)
class Completion(Event):
    """The run is complete."""


@dataclass(frozen=True)
class Waiting(Event):
    """The run waits.

    Attributes:
        target: ``replies``, ``server``, ``sites``, ``job``, ``end``, ``results`` or ``connection``.
        missing: the sites for which it waits.
        asked: the sites that were asked for a reply.
        message: the kind of the message that they answer.
        round: the round of the message, from 1.
        phase: the phase of the message, from 1.
        state: the engine's name of the state of the job.
        is_queued: whether the server runs another job.
    """

    target: str
    missing: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    message: str = ""
    round: int = 0
    phase: int = 0
    state: str = ""
    is_queued: bool = False

    @property
    def text(self) -> str:
        """A line for people."""
        missing = ", ".join(self.missing)
        if self.target == "replies":
            request = (_OF_METHOD if self.method else _OF_PLAN).get(self.message, "a reply").format_map(vars(self))
            answered = len(self.asked) - len(self.missing)
            return f"waiting for {missing or 'the server'}: {request} ({answered} of {len(self.asked)} have answered)"
        if self.target == "job" and missing:
            return f"waiting for {missing}, without a sign for some time: stopped or cut off (the job is {self.state})"
        if self.target == "job" and self.is_queued:
            return f"waiting for the end of another run at the server, then this one begins (it is {self.state})"
        return {"sites": f"waiting for {missing} to connect: resolvent site start",
                "server": "waiting for the server, which computes",
                "job": f"waiting for the server to run the job ({self.state})",
                "end": "waiting for the end of the job",
                "results": "waiting for the results of the job",
                "connection": "waiting for the connection to the server"}[self.target]


_KINDS = {kind.__name__: kind for kind in Event.__subclasses__()}


def read_event(content: Mapping[str, Any]) -> Event:
    """The event of ``Event.plain``.

    Raises:
        InputError: it is of another version, or damaged.
    """
    kind = _KINDS.get(str(content.get("event")))
    if kind is None:
        raise InputError(f"an event of the run is of another version of resolvent ({content.get('event')}): install "
                         "the same version for the lead, the server and the sites")
    return read_plain(kind, content, f"an event of the run ({kind.__name__}) cannot be read")

