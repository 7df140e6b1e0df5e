"""What a run measures on its way: scores of every party's model, diagnostics, seconds and bytes.

Metrics are one long table: method, round, party (or none), split (or none), metric, value.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from resolvent.algorithms.algorithm import Algorithm
from resolvent.math import tree
from resolvent.math.codecs import wire_bits
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.simulate import evaluate as ev
from resolvent.simulate.clock import Stopwatch, stopwatch
from resolvent.simulate.engine import Chunk, Federation, Snapshot
from resolvent.simulate.systems import VirtualClock

__all__ = ["PER_ROUND", "Diagnostic", "Measurements", "message_bytes"]

Diagnostic = Literal["model_change", "inexactness", "steps", "dissimilarity", "line", "heterogeneity"]
PER_ROUND = frozenset({"model_change", "inexactness", "steps"})
LINE_POINTS = 11


def message_bytes(algorithm: Algorithm, problem: Problem, state: Federation) -> tuple[int, int]:
    """Bytes that one party receives and sends in a round, over all phases: leaves as they are, wires by their bits."""
    def of_round(server: Any, row: Any, k: Array) -> tuple[list[Any], list[Any]]:
        sent, replied = [], []
        for phase in algorithm.phases:
            message = phase.message(server, k)
            sent.append(message)
            replied.append(phase.party(row, message, problem.oracle(k), jax.random.key(0), jnp.ones(()))[1])
        return sent, replied

    shapes = jax.eval_shape(of_round, state.server, tree.rows(state.parties, 0), jnp.array(0))
    down, up = (-(-wire_bits(part) // 8) for part in shapes)
    return down, up


class Measurements:
    """Collects the metrics of one run."""

    def __init__(self, algorithm: Algorithm, problem: Problem, diagnostics: tuple[str, ...], name: str,
                 shares: Float[Array, " N"], clock: VirtualClock | None = None) -> None:
        self.algorithm, self.problem, self.diagnostics, self.name = algorithm, problem, diagnostics, name
        self.shares, self.clock = shares, clock
        self.frames: list[pd.DataFrame] = []
        self.seconds_per_round: list[float] = []
        self.seconds = {"compile": 0.0, "rounds": 0.0, "evaluation": 0.0}
        self.bytes = {"down": 0, "up": 0}
        self.everyone = jnp.arange(problem.parties)

    def metrics(self) -> pd.DataFrame:
        """All metrics so far."""
        self.frames = [pd.concat(self.frames, ignore_index=True)]
        return self.frames[0]

    def facts(self) -> dict[str, Any]:
        """Seconds and bytes so far."""
        return {"seconds_per_round": self.seconds_per_round, "seconds": self.seconds, "bytes": self.bytes}

    def restore(self, metrics: pd.DataFrame, facts: dict[str, Any]) -> None:
        """Go on from what an earlier part of the run measured."""
        self.frames = [metrics]
        self.seconds_per_round, self.seconds, self.bytes = (
            facts["seconds_per_round"], facts["seconds"], facts["bytes"])

    def add(self, round_: Any, party: Any, split: str | None, metric: str, value: Any) -> None:
        """Add rows; scalars are repeated along arrays."""
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
        parties = [None] * len(values) if party is None else np.broadcast_to(party, values.shape)
        self.frames.append(pd.DataFrame({
            "method": self.name,
            "round": np.broadcast_to(np.asarray(round_, dtype=np.int64), values.shape),
            "party": pd.array(parties, "Int64"),
            "split": pd.array([split] * len(values), "string"),
            "metric": metric,
            "value": values,
        }))

    def evaluate(self, state: Federation, done: int, snapshot: Snapshot | None = None) -> None:
        """Every party's deployed model and the shared model on every split; with a snapshot, the line between them."""
        with stopwatch() as watch:
            models = ev.deployed(self.algorithm, self.problem, state, self.everyone)
            self._scores("", models, self.everyone, done)
            shared = self.algorithm.server_model(state.server)
            if shared is not None:
                self._scores("global_", tree.stack(shared, 1), jnp.zeros_like(self.everyone), done)
                if isinstance(self.problem, SolvedProblem) and done == 0:  # later rounds are recorded as they run
                    self.add(0, None, None, "gap", self.problem.gap(shared, self.shares))
                if "dissimilarity" in self.diagnostics:
                    found = ev.dissimilarity(self.problem, shared)
                    self.add(done, None, "train", "dissimilarity", found.b)
                    self.add(done, None, "train", "gradient_variance", found.gradient_variance)
                if "line" in self.diagnostics and snapshot is not None:
                    self._line(shared, snapshot, done)
            if "heterogeneity" in self.diagnostics and done == 0:
                self._heterogeneity()
        self.seconds["evaluation"] += watch.run
        self.seconds["compile"] += watch.compile

    def _scores(self, prefix: str, models: Any, which: Array, done: int) -> None:
        for number, split in enumerate(self.problem.splits):
            loss, score = ev.evaluate(self.problem, models, which, self.everyone, jnp.array(number))
            for metric, values in (("loss", loss), (self.problem.score_name, score)):
                has = np.asarray(self.problem.split_sizes(number)) > 0
                self.add(done, np.flatnonzero(has), split, prefix + metric, np.asarray(values)[has])

    def _line(self, shared: Any, snapshot: Snapshot, done: int) -> None:
        """Loss along the line from each party's model to the new shared one, and at the shared model before."""
        index = snapshot.record.index
        here = np.asarray(snapshot.record.alive)
        train = jnp.array(0)
        losses = np.asarray(ev.line(self.problem, snapshot.local, shared, index, train, points=LINE_POINTS))
        before = self.algorithm.server_model(snapshot.server_before)
        previous, _ = ev.evaluate(self.problem, tree.stack(before, 1), jnp.zeros_like(index), index, train)
        self.add(done, np.asarray(index)[here], "train", "line_previous", np.asarray(previous)[here])
        for i, s in enumerate(np.linspace(0, 1, LINE_POINTS)):
            self.add(done, np.asarray(index)[here], "train", f"line_{s:.1f}", losses[here, i])

    def _heterogeneity(self) -> None:
        """H at the minimiser of the average loss, with the gradient norm that says how well it was found."""
        w, size, _ = ev.pooled_optimum(self.problem, self.problem.init(jax.random.key(0)))
        self.add(0, None, "train", "heterogeneity", ev.dissimilarity(self.problem, w).heterogeneity)
        self.add(0, None, "train", "heterogeneity_gradient", size)

    def add_chunk(self, chunk: Chunk, start: int, count: int, watch: Stopwatch, down: int, up: int) -> None:
        """The per-round records, seconds and bytes of a chunk."""
        self.seconds["compile"] += watch.compile
        self.seconds["rounds"] += watch.run
        self.seconds_per_round.append(watch.run / count)
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
                record.index, came, steps, down + up, self.problem.parties))
            self.add(rounds, None, None, "bytes_down", down * record.invited.sum(axis=1))
            self.add(rounds, None, None, "bytes_up", up * came.sum(axis=1))
        at, _ = np.nonzero(record.alive)
        for metric, values in record.party.items():
            if metric not in self.diagnostics:
                continue  # recorded for the clock
            self.add(rounds[at], record.index[record.alive], "train", metric, values[record.alive])
        for metric, values in record.server.items():
            self.add(rounds, None, None, metric, values)

