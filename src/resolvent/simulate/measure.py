"""What a run measures on its way: scores of every party's model, diagnostics, seconds and bytes.

Metrics are one long table: method, round, party (or none), split (or none), metric, value.
"""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.math import tree
from resolvent.math.codecs import wire_bits
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.subset import PartySubset
from resolvent.simulate import evaluate as ev
from resolvent.simulate.clock import Stopwatch, stopwatch
from resolvent.simulate.engine import Chunk, Federation, Snapshot
from resolvent.simulate.systems import VirtualClock

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PER_ROUND", "Diagnostic", "Measurements", "message_bytes"]

Diagnostic = Literal["model_change", "inexactness", "steps", "dissimilarity", "line", "heterogeneity"]
PER_ROUND = frozenset({"model_change", "inexactness", "steps"})
LINE_POINTS = 11


def message_bytes(algorithm: Algorithm, problem: Problem, state: Federation) -> tuple[int, int]:
    """Bytes that one party receives and sends in a round, over all phases: leaves as they are, wires by their bits."""
    shapes = _messages.eval_shape(  # type: ignore[no-untyped-call]
        algorithm, problem, state.server, tree.rows(state.parties, 0), jnp.array(0))
    down, up = (-(-wire_bits(part) // 8) for part in shapes)
    return down, up


@jax.jit  # never run: the trace is kept, so that a second run does not trace the party's work once more
def _messages(algorithm: Algorithm, problem: Problem, server: Any, row: Any, k: Array) -> tuple[list[Any], list[Any]]:
    """Everything that one party receives and sends in a round."""
    sent, replied = [], []
    for phase in algorithm.phases:
        message = phase.message(server, k)
        sent.append(message)
        replied.append(phase.party(row, message, problem.oracle(k), jax.random.key(0), jnp.ones(()))[1])
    return sent, replied


class Rows(NamedTuple):
    """Metrics that are not yet in the table: of one kind, and as many as there are values."""

    round: NDArray[np.int64]
    party: NDArray[np.int64] | None
    split: str | None
    metric: str
    value: NDArray[np.float64]


class Measurements:
    """Collects the metrics of one run."""

    def __init__(self, algorithm: Algorithm, problem: Problem, diagnostics: tuple[str, ...], name: str,
                 shares: Float[Array, " N"], clock: VirtualClock | None, evaluated: NDArray[np.int32],
                 parties: int) -> None:
        self.algorithm, self.problem, self.diagnostics, self.name = algorithm, problem, diagnostics, name
        self.shares, self.clock = shares, clock
        self.table: pd.DataFrame | None = None
        self.rows: list[Rows] = []
        self.seconds_per_round: list[float] = []
        self.cpu_per_round: list[float] = []
        self.seconds = {"compile": 0.0, "rounds": 0.0, "evaluation": 0.0}
        self.bytes = {"down": 0, "up": 0}
        self.evaluated, self.parties = jnp.asarray(evaluated), parties
        self.places = np.asarray(problem.row(self.evaluated))
        self.whole = problem.inner if isinstance(problem, PartySubset) else problem  # the parties in their own order
        self.holders = [np.asarray(problem.split_sizes(i))[self.places] > 0 for i in range(len(problem.splits))]
        self.alike: bool | None = None

    def metrics(self) -> "pd.DataFrame":
        """All metrics so far."""
        import pandas as pd  # not before it is needed: it takes long

        if self.rows:
            new = _table(self.name, self.rows)
            self.table = new if self.table is None else pd.concat([self.table, new], ignore_index=True)
            self.rows = []
        assert self.table is not None
        return self.table

    def facts(self) -> dict[str, Any]:
        """Seconds and bytes so far."""
        return {"seconds_per_round": self.seconds_per_round, "cpu_per_round": self.cpu_per_round,
                "seconds": self.seconds, "bytes": self.bytes, "evaluated_parties": len(self.evaluated)}

    def restore(self, metrics: "pd.DataFrame", facts: dict[str, Any]) -> None:
        """Go on from what an earlier part of the run measured."""
        self.table, self.rows = metrics, []
        self.seconds_per_round, self.seconds, self.bytes = (
            facts["seconds_per_round"], facts["seconds"], facts["bytes"])
        self.cpu_per_round = facts["cpu_per_round"]

    def add(self, round_: Any, party: Any, split: str | None, metric: str, value: Any) -> None:
        """Add rows; scalars are repeated along arrays."""
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
        parties = None if party is None else np.broadcast_to(np.asarray(party, dtype=np.int64), values.shape)
        rounds = np.broadcast_to(np.asarray(round_, dtype=np.int64), values.shape)
        self.rows.append(Rows(rounds, parties, split, metric, values))

    def evaluate(self, state: Federation, done: int, snapshot: Snapshot | None = None,
                 cohort: Problem | None = None) -> None:
        """The parties' deployed models and the shared model on every split; with a snapshot, the line between them.

        Args:
            state: the state now.
            done: how many rounds are done.
            snapshot: the last aggregation.
            cohort: a problem that has the parties of that aggregation.
        """
        with stopwatch() as watch:
            shared = self.algorithm.server_model(state.server)
            if self.alike is None:
                self.alike = ev.uses_shared_model(self.algorithm, self.problem, state)
            if not self.alike:
                models = ev.deployed(self.algorithm, self.problem, state, self.evaluated)
                loss, score = ev.evaluate_splits(self.problem, models, self.evaluated)
                self._scores(("",), loss, score, done)
            if shared is not None:
                prefixes = ("", "global_") if self.alike else ("global_",)
                loss, score = self.problem.evaluate_shared(shared, np.asarray(self.evaluated))
                self._scores(prefixes, loss, score, done)
                if isinstance(self.problem, SolvedProblem) and done == 0:  # later rounds are recorded as they run
                    self.add(0, None, None, "gap", self.problem.gap(shared, self.shares))
                if "dissimilarity" in self.diagnostics:
                    found = ev.dissimilarity(self.whole, shared)
                    self.add(done, None, "train", "dissimilarity", found.b)
                    self.add(done, None, "train", "gradient_variance", found.gradient_variance)
                if "line" in self.diagnostics and snapshot is not None and cohort is not None:
                    self._line(shared, snapshot, done, cohort)
            if "heterogeneity" in self.diagnostics and done == 0:
                self._heterogeneity()
        self.seconds["evaluation"] += watch.run
        self.seconds["compile"] += watch.compile

    def _scores(self, prefixes: tuple[str, ...], loss: Any, score: Any, done: int) -> None:
        """Rows of losses and scores, [M, splits] each, under the names that begin so."""
        loss, score, parties = np.asarray(loss), np.asarray(score), np.asarray(self.evaluated)
        for prefix in prefixes:
            for number, (split, has) in enumerate(zip(self.problem.splits, self.holders, strict=True)):
                for metric, values in (("loss", loss), (self.problem.score_name, score)):
                    self.add(done, parties[has], split, prefix + metric, values[has, number])

    def _line(self, shared: Any, snapshot: Snapshot, done: int, problem: Problem) -> None:
        """Loss along the line from each party's model to the new shared one, and at the shared model before."""
        index = snapshot.record.index
        here = np.asarray(snapshot.record.alive)
        train = jnp.array(0)
        losses = np.asarray(ev.line(problem, snapshot.local, shared, index, train, points=LINE_POINTS))
        before = self.algorithm.server_model(snapshot.server_before)
        previous, _ = ev.evaluate(problem, tree.stack(before, 1), jnp.zeros_like(index), index, train)
        self.add(done, np.asarray(index)[here], "train", "line_previous", np.asarray(previous)[here])
        for i, s in enumerate(np.linspace(0, 1, LINE_POINTS)):
            self.add(done, np.asarray(index)[here], "train", f"line_{s:.1f}", losses[here, i])

    def _heterogeneity(self) -> None:
        """H at the minimiser of the average loss, with the gradient norm that says how well it was found."""
        w, size, _ = ev.pooled_optimum(self.whole, self.problem.init(jax.random.key(0)))
        self.add(0, None, "train", "heterogeneity", ev.dissimilarity(self.whole, w).heterogeneity)
        self.add(0, None, "train", "heterogeneity_gradient", size)

    def add_chunk(self, chunk: Chunk, start: int, count: int, watch: Stopwatch, down: int, up: int) -> None:
        """The per-round records, seconds and bytes of a chunk."""
        self.seconds["compile"] += watch.compile
        self.seconds["rounds"] += watch.run
        self.seconds_per_round.append(watch.run / count)
        self.cpu_per_round.append(watch.cpu / count)
        record = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], chunk.record)
        self.bytes["down"] += down * int(record.invited.sum())
        came = record.alive | record.refused
        self.bytes["up"] += up * int(came.sum())
        rounds = np.arange(start + 1, start + count + 1)
        self.add(rounds, None, None, "replies", record.alive.sum(axis=1))
        at, _ = np.nonzero(record.refused)
        self.add(rounds[at], record.index[record.refused], None, "refused", np.ones(len(at)))
        if self.clock is not None:
            steps = record.party["steps"]
            self.add(rounds, None, None, "simulated_seconds", self.clock.seconds(
                record.index, came, steps, down + up))
            self.add(rounds, None, None, "bytes_down", down * record.invited.sum(axis=1))
            self.add(rounds, None, None, "bytes_up", up * came.sum(axis=1))
        at, _ = np.nonzero(record.alive)
        for metric, values in record.party.items():
            if metric not in self.diagnostics:
                continue  # recorded for the clock
            self.add(rounds[at], record.index[record.alive], "train", metric, values[record.alive])
        for metric, values in record.server.items():
            self.add(rounds, None, None, metric, values)


def _table(name: str, rows: list[Rows]) -> "pd.DataFrame":
    """The rows as a table."""
    import pandas as pd

    lengths = [len(r.value) for r in rows]

    def repeated(values: list[str | None]) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype=object), lengths)

    nobody = np.repeat([r.party is None for r in rows], lengths)
    party = np.concatenate([np.zeros(n, np.int64) if r.party is None else r.party
                            for r, n in zip(rows, lengths, strict=True)])
    return pd.DataFrame({
        "method": name,
        "round": np.concatenate([r.round for r in rows]),
        "party": pd.arrays.IntegerArray(party, nobody),
        "split": pd.array(repeated([r.split for r in rows]), "string"),
        "metric": repeated([r.metric for r in rows]),
        "value": np.concatenate([r.value for r in rows]),
    })
