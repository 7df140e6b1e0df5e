"""What a run measures: scores of every party's model, diagnostics, seconds and bytes."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from resolvent.algorithms import keys
from resolvent.algorithms.round import uses_shared_model
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.subset import PartySubset
from resolvent.simulate.diagnostics import LINE_POINTS, dissimilarity, loss_along_line, pooled_optimum
from resolvent.simulate.evaluate import evaluate_models, evaluate_split, personal_models
from resolvent.simulate.messages import MessageBytes
from resolvent.simulate.metrics_table import MetricsTable
from resolvent.simulate.plan import Plan
from resolvent.simulate.states import Chunk, Federation, RoundRecord
from resolvent.simulate.stopwatch import Stopwatch, stopwatch

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Measurements"]


class Measurements:
    """The metrics of one run, and its seconds and bytes."""

    def __init__(self, plan: Plan, problem: Problem, message: MessageBytes) -> None:
        """Prepare.

        Args:
            plan: the plan of the run.
            problem: the problem on which models are evaluated.
            message: bytes of a party's messages in a round.
        """
        self._algorithm, self._evaluation, self._problem, self._message = (
            plan.algorithm, plan.evaluation, problem, message)
        self._shares = plan.training_participation.shares(problem.sizes) if isinstance(problem, SolvedProblem) else None
        self._table = MetricsTable(plan.name)
        self._seconds = {"compile": 0.0, "rounds": 0.0, "evaluation": 0.0}
        self._seconds_per_round: list[float] = []
        self._cpu_per_round: list[float] = []
        self._bytes = {"down": 0, "up": 0}
        self._index = jnp.asarray(plan.evaluation.parties)
        rows = np.asarray(problem.row(self._index))
        self._has_samples = [np.asarray(problem.split_sizes(i))[rows] > 0 for i in range(len(problem.splits))]
        # The parties of a subset under local ids, for functions of all parties of a problem.
        self._parties_problem = problem.inner if isinstance(problem, PartySubset) else problem
        self._uses_shared_model: bool | None = None

    def metrics(self) -> "pd.DataFrame":
        """All metrics so far, see ``MetricsTable``."""
        return self._table.table()

    def facts(self) -> dict[str, Any]:
        """Seconds and bytes so far."""
        return {"seconds_per_round": self._seconds_per_round, "cpu_per_round": self._cpu_per_round,
                "seconds": self._seconds, "bytes": self._bytes, "evaluated_parties": len(self._index)}

    def restore(self, metrics: "pd.DataFrame", facts: dict[str, Any]) -> None:
        """Continue from the measurements of an earlier part of the run."""
        self._table.restore(metrics)
        self._seconds, self._bytes = facts["seconds"], facts["bytes"]
        self._seconds_per_round, self._cpu_per_round = facts["seconds_per_round"], facts["cpu_per_round"]

    def evaluate(self, state: Federation, rounds: int) -> None:
        """Evaluate the personal models and the shared model on every split, after this number of rounds."""
        with stopwatch() as watch:
            self._evaluate(state, rounds)
        self._add_seconds(watch, "evaluation")

    def _evaluate(self, state: Federation, rounds: int) -> None:
        shared = self._algorithm.server_model(state.server)
        if self._uses_shared_model is None:
            self._uses_shared_model = uses_shared_model(
                self._algorithm, state.server, jax.eval_shape(lambda x: tree.rows(x, 0), state.parties),
                jax.eval_shape(self._problem.oracle, jnp.array(0)))
        if not self._uses_shared_model:
            models = personal_models(self._algorithm, self._problem, state, self._index)
            scores = evaluate_models(self._problem, models, self._index)
            self._add_scores(("",), scores.loss, scores.score, rounds)
        if shared is not None:
            prefixes = ("", "global_") if self._uses_shared_model else ("global_",)
            loss, score = self._problem.evaluate_shared(shared, np.asarray(self._index))
            self._add_scores(prefixes, loss, score, rounds)
            self._evaluate_gap(shared, rounds)
            self._measure_dissimilarity(shared, rounds)
        if rounds == 0:
            self._measure_heterogeneity()

    def _add_scores(self, prefixes: tuple[str, ...], loss: ArrayLike, score: ArrayLike, rounds: int) -> None:
        """Add losses and scores, [M, splits] each, under names with these prefixes."""
        loss, score, parties = np.asarray(loss), np.asarray(score), np.asarray(self._index)
        for prefix in prefixes:
            for number, (split, mask) in enumerate(zip(self._problem.splits, self._has_samples, strict=True)):
                for metric, values in (("loss", loss), (self._problem.score_name, score)):
                    self._table.add(rounds, parties[mask], split, prefix + metric, values[mask, number])

    def _evaluate_gap(self, shared: Vector, rounds: int) -> None:
        if isinstance(self._problem, SolvedProblem) and rounds == 0:  # the rounds record it themselves
            assert self._shares is not None
            self._table.add(0, None, None, "gap", self._problem.gap(shared, self._shares))

    def _measure_dissimilarity(self, shared: Vector, rounds: int) -> None:
        if "dissimilarity" in self._evaluation.diagnostics:
            measured = dissimilarity(self._parties_problem, shared)
            self._table.add(rounds, None, "train", "dissimilarity", measured.b)
            self._table.add(rounds, None, "train", "gradient_variance", measured.gradient_variance)

    def _measure_heterogeneity(self) -> None:
        """H at the minimiser of the average loss, with the norm of the gradient, which says how exact it is."""
        if "heterogeneity" in self._evaluation.diagnostics:
            optimum = pooled_optimum(self._parties_problem, self._problem.init(keys.root_key(0)))
            heterogeneity = dissimilarity(self._parties_problem, optimum.w).heterogeneity
            self._table.add(0, None, "train", "heterogeneity", heterogeneity)
            self._table.add(0, None, "train", "heterogeneity_gradient", optimum.gradient_norm)

    def measure_line(self, chunk: Chunk, rounds: int, problem: Problem) -> None:
        """The loss on the line from each party's model to the new shared model, and of the shared model before.

        Args:
            chunk: the chunk that ends with the aggregation.
            rounds: number of rounds so far.
            problem: a problem with at least the parties of the aggregation.
        """
        snapshot, shared = chunk.snapshot, self._algorithm.server_model(chunk.state.server)
        if shared is None or "line" not in self._evaluation.diagnostics:
            return
        with stopwatch() as watch:
            index, counted = snapshot.record.index, np.asarray(snapshot.record.counted)
            train = jnp.array(0)
            losses = np.asarray(loss_along_line(problem, snapshot.models, shared, index, train))
            before = tree.stack(self._algorithm.server_model(snapshot.server_before), 1)
            previous, _ = evaluate_split(problem, before, jnp.zeros_like(index), index, train)
            parties = np.asarray(index)[counted]
            self._table.add(rounds, parties, "train", "line_previous", np.asarray(previous)[counted])
            for i, s in enumerate(np.linspace(0, 1, LINE_POINTS)):
                self._table.add(rounds, parties, "train", f"line_{s:.1f}", losses[counted, i])
        self._add_seconds(watch, "evaluation")

    def add_chunk(self, chunk: Chunk, start: int, rounds: int, watch: Stopwatch) -> None:
        """Add the records, seconds and bytes of the rounds start, ..., start+rounds-1."""
        self._add_seconds(watch, "rounds")
        earlier = start % self._evaluation.every  # rounds since the last evaluation
        for means, seconds in ((self._seconds_per_round, watch.run), (self._cpu_per_round, watch.cpu)):
            before = means.pop() * earlier if earlier else 0.0
            means.append((before + seconds) / (earlier + rounds))
        record: RoundRecord = jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], chunk.record)
        numbers = np.arange(start + 1, start + rounds + 1)
        self._add_communication(record, numbers)
        at, _ = np.nonzero(record.counted)
        for metric, values in record.party.items():
            if metric in self._evaluation.diagnostics:  # the clock needs steps, even if they are no diagnostic
                self._table.add(numbers[at], record.index[record.counted], "train", metric, values[record.counted])
        for metric, values in record.server.items():
            self._table.add(numbers, None, None, metric, values)

    def _add_communication(self, record: RoundRecord, numbers: np.ndarray[Any, Any]) -> None:
        """Replies, refused replies, bytes, and the seconds of the virtual clock, by round."""
        down, up = self._message
        arrived = record.counted | record.refused
        self._bytes["down"] += down * int(record.invited.sum())
        self._bytes["up"] += up * int(arrived.sum())
        self._table.add(numbers, None, None, "replies", record.counted.sum(axis=1))
        at, _ = np.nonzero(record.refused)
        self._table.add(numbers[at], record.index[record.refused], None, "refused", np.ones(len(at)))
        if (clock := self._evaluation.clock) is not None:
            seconds = clock.seconds(np.asarray(record.index), np.asarray(arrived), np.asarray(record.party["steps"]),
                                    down + up)
            self._table.add(numbers, None, None, "simulated_seconds", seconds)
            self._table.add(numbers, None, None, "bytes_down", down * record.invited.sum(axis=1))
            self._table.add(numbers, None, None, "bytes_up", up * arrived.sum(axis=1))

    def _add_seconds(self, watch: Stopwatch, kind: str) -> None:
        self._seconds[kind] += watch.run
        self._seconds["compile"] += watch.compile
