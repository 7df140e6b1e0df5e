"""A federation in one process: every message is encoded and decoded, and each party has its own rows and folder.

The coordinator, the parties, the wire format and the stores are those of a real federation; only the transport is a
function call instead of a network.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.deploy.coordinator import Coordinator, FederationResult
from resolvent.deploy.limits import Limits
from resolvent.deploy.party import Party
from resolvent.deploy.reports import Report
from resolvent.deploy.stores import PartyStore, ServerStore
from resolvent.deploy.transport import PartyHandler, Transport
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.oracle import Oracle
from resolvent.problem.problem import Problem

__all__ = ["InProcess", "OneParty", "problem_of_party", "run_in_process"]


class InProcess(Transport):
    """A transport that calls the parties' handlers, one after the other.

    Args:
        handlers: name of a site -> function that answers its messages, such as ``Party.handle``.
    """

    def __init__(self, handlers: Mapping[str, PartyHandler]) -> None:
        self.parties = tuple(handlers)
        self.handlers = dict(handlers)

    @override
    def broadcast(self, messages: Mapping[str, bytes], *, deadline: float | None, quorum: int,
                  grace: float) -> dict[str, bytes]:
        return {name: self.handlers[name](message) for name, message in messages.items()}

    @override
    def late_replies(self) -> list[tuple[str, bytes]]:
        return []


class OneParty(Problem):
    """The problem of one party of another problem, for problems whose samples are not rows.

    Attributes:
        inner: the problem of all parties.
        number: the party's id in ``inner``.
    """

    inner: Problem
    number: Int[Array, ""]

    def __init__(self, inner: Problem, number: Int[Array, ""]) -> None:
        self.inner, self.number = inner, number
        self.sizes = inner.sizes[number][None]
        self.splits, self.score_name, self.higher_is_better = inner.splits, inner.score_name, inner.higher_is_better

    @override
    def init(self, key: Array) -> Vector:
        return self.inner.init(key)

    @override
    def oracle(self, k: Int[Array, ""]) -> Oracle:
        return self.inner.oracle(self.number)

    @override
    def at(self, t: Int[Array, ""]) -> "OneParty":
        return OneParty(self.inner.at(t), self.number)

    @override
    def split_sizes(self, split: int) -> Int[Array, " 1"]:
        return self.inner.split_sizes(split)[self.number][None]

    @override
    def evaluate_party(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> tuple[Array, Array]:
        return self.inner.evaluate_party(w, self.number, split)

    @override
    def report(self, w: Vector, k: Int[Array, ""], split: Int[Array, ""]) -> dict[str, Array]:
        return self.inner.report(w, self.number, split)


def problem_of_party(problem: Problem, k: int, rows: int | None = None) -> Problem:
    """The problem of party k alone. That of a ``LearningProblem`` holds only the party's rows.

    Args:
        problem: the problem of all parties.
        k: the party's id.
        rows: number of rows; the party's rows are padded with zeros to this number. If it is the same for all parties,
            they share a compiled program. Default: the party's number of rows.
    """
    if not isinstance(problem, LearningProblem):
        return OneParty(problem, jnp.array(k))
    offset, length = np.asarray(problem.offset)[:, k], np.asarray(problem.length)[:, k]
    index = np.concatenate([np.arange(first, first + n) for first, n in zip(offset, length, strict=True)])
    count = max(len(index), 1) if rows is None else rows
    x, y = (np.zeros((count, *a.shape[1:]), a.dtype) for a in (problem.x, problem.y))
    x[:len(index)], y[:len(index)] = np.asarray(problem.x)[index], np.asarray(problem.y)[index]
    first_rows = (np.cumsum(length) - length).astype(length.dtype)[:, None]
    sizes = np.asarray(problem.sizes)[k:k + 1]
    alone: LearningProblem = eqx.tree_at(
        lambda p: (p.x, p.y, p.offset, p.length, p.sizes), problem,
        jax.tree.map(jnp.asarray, (x, y, first_rows, length[:, None], sizes)))
    return alone


def run_in_process(algorithm: Algorithm, problem: Problem, *, rounds: int, folder: Path | str | None = None,
                   names: tuple[str, ...] | None = None, limits: Limits | None = None,
                   observe: Callable[[Report], None] | None = None, **settings: Any) -> FederationResult:
    """Run a federation in this process, with a party for each party of a problem.

    Args:
        algorithm: the algorithm.
        problem: the problem of all parties; each party gets its own rows only.
        rounds: number of rounds.
        folder: folder of the stores, ``server`` and one for each party; default: a temporary one. A run that is stored
            in it is resumed.
        names: names of the parties; default: ``party 0``, ``party 1``, ...
        limits: what each site allows.
        observe: a function that is called with each report.
        settings: further arguments of ``Coordinator``: ``seed``, ``participation``, ``evaluate_every``, ``rules``,
            ``method``, ``lost_state``.

    Raises:
        FederationStoppedError: too few parties have answered.
        InputError: the arguments do not fit together.

    Example:
        >>> problem = rv.problems.QuadraticProblem.least_squares(np.ones((2, 4, 3)), np.ones((2, 4)))
        >>> result = run_in_process(rv.fedavg(rv.solvers.GD(0.1)), problem, rounds=2)
        >>> result.shared.shape
        (3,)
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_in_process(algorithm, problem, rounds=rounds, folder=temporary, names=names, limits=limits,
                                  observe=observe, **settings)
    names = names or tuple(f"party {k}" for k in range(problem.parties))
    rows = _most_rows(problem)
    stores = [PartyStore(Path(folder) / name) for name in names]
    try:
        parties = {name: Party(algorithm, problem_of_party(problem, k, rows), store, rounds=rounds, name=name,
                               method=settings.get("method", "algorithm"), limits=limits, rehearsal=True)
                   for k, (name, store) in enumerate(zip(names, stores, strict=True))}
        with ServerStore(Path(folder) / "server") as store:
            transport = InProcess({name: party.handle for name, party in parties.items()})
            coordinator = Coordinator(algorithm, problem, transport, store, rounds=rounds, rehearsal=True, **settings)
            return coordinator.run(observe)
    finally:
        for store_of_party in stores:
            store_of_party.close()


def _most_rows(problem: Problem) -> int | None:
    return int(np.asarray(problem.length).sum(axis=0).max()) if isinstance(problem, LearningProblem) else None
