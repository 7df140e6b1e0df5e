"""The table of algorithms: each preset with its source and the properties that ``traits`` computes.

Only the source comes from the docstring; all other columns follow from the code. A new preset needs no entry here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.centre_from_sums import CentreFromSums
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.traits import Amount, is_personal, is_robust, traffic_of
from resolvent.comparisons.experiment.binding import bind, parameters
from resolvent.comparisons.experiment.docstrings import first_line, references
from resolvent.comparisons.experiment.registry import listings
from resolvent.errors import InputError
from resolvent.problem.solvers import GD

CAPTION = ("keeps: what a party stores between rounds; down, up: what it receives and replies in a round, in all "
           "exchanges; all in models, at the preset's defaults. personal: the parties use different models. robust: "
           "one party cannot move the shared model arbitrarily far. sums: whether the server needs sums of the replies "
           "only, so that secure sums are possible: yes, no, or in the form of CentreFromSums.")

# No column depends on the solver, and this one takes the least time to trace.
_SOLVER = GD(0.1)


@dataclass(frozen=True)
class Entry:
    """One preset's row.

    Attributes:
        title: the first line of its docstring.
        source: the paper and the equation.
        keeps: what a party stores between rounds.
        down: what a party receives in a round, over all phases.
        up: what it replies.
        phases: number of exchanges in a round.
        personal: whether the parties use different models.
        robust: whether one party cannot move the shared model arbitrarily far.
        sums: whether the server needs sums of the replies only: ``yes``, ``no``, or ``CentreFromSums``.
        parts: the components that it was built with, where it has no default, by parameter.
    """

    name: str
    title: str
    source: str
    keeps: Amount
    down: Amount
    up: Amount
    phases: int
    personal: bool
    robust: bool
    sums: str
    parts: Mapping[str, str]

    def record(self) -> dict[str, Any]:
        """The entry as values that JSON can hold."""
        return asdict(self)


@cache
def catalogue() -> tuple[Entry, ...]:
    """All presets at their defaults, in the order in which they are listed."""
    return tuple(_entry(name, preset) for name, preset in listings()["algorithms"].items())


def table(entries: Sequence[Entry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows of the printed table."""
    def answer(value: bool, parts: Mapping[str, str]) -> str:
        return ", ".join(["yes" if value else "no", *(f"with {part}" for part in parts.values())])

    head = ("algorithm", "keeps", "down", "up", "personal", "robust", "sums", "source")
    return head, [(e.name, str(e.keeps), str(e.down), str(e.up), answer(e.personal, {}), answer(e.robust, e.parts),
                   e.sums, e.source) for e in entries]


def _entry(name: str, preset: Callable[..., Algorithm]) -> Entry:
    algorithm, parts = _built(name, preset)
    traffic = traffic_of(algorithm)
    return Entry(
        name=name, title=first_line(preset), source=references(preset)[0].rstrip("."),
        keeps=traffic.stored, down=traffic.down, up=traffic.up, phases=len(algorithm.phases),
        personal=is_personal(algorithm), robust=is_robust(algorithm), sums=_sums(algorithm), parts=parts)


def _sums(algorithm: Algorithm) -> str:
    """Whether the replies can be summed as integers, perhaps those of its robust centre computed from sums."""
    for title, make in (("yes", FixedPointSums), ("CentreFromSums", lambda a: FixedPointSums(CentreFromSums(a)))):
        with suppress(InputError):
            traffic_of(make(algorithm))
            return title
    return "no"


def _built(name: str, preset: Callable[..., Algorithm]) -> tuple[Algorithm, dict[str, str]]:
    """The preset at its defaults, and the typical parts that it was built with where it has no default."""
    supplied = frozenset({"solver"})
    parts = {key: str(p.component.registry.typical) for key, p in parameters(preset).items()
             if p.component and p.is_required and key not in supplied}
    return bind(preset, parts, path=name, supplied=supplied).build(solver=_SOLVER), parts
