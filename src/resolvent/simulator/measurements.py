"""What a run measures: scores of every party's model, diagnostics, seconds and bytes."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms import keys
from resolvent.algorithms.cohort import check_ids
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.metrics.metric import HELD_OUT
from resolvent.problem.problem import PartyScores, Problem, SolvedProblem
from resolvent.simulator.engine.evaluate import evaluate_models, evaluate_split, personal_models
from resolvent.simulator.plan import Plan
from resolvent.simulator.record.metrics_table import MetricsTable
from resolvent.simulator.record.stopwatch import Stopwatch, stopwatch
from resolvent.simulator.record.systems import MessageBytes
from resolvent.simulator.states import Chunk, RoundRecord
from resolvent.simulator.storage.storage import EvaluationView, Storage
from resolvent.xla.shapes import shapes_of

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.differential_privacy.ledger import PrivacyLedger
    from resolvent.simulator.record.cross_fit import Half


class Measurements:
    """The metrics of one run, and its seconds and bytes.

    Args:
        storage: the data and the states of the parties.
        message: bytes of a party's messages in a round.

    Attributes:
        stop_reason: why the run ended before its last round; None if it did not.
    """

    stop_reason: str | None = None

    def __init__(self, plan: Plan, storage: Storage, message: MessageBytes) -> None:
        problem = storage.problem
        self._algorithm, self._evaluation, self._storage, self._problem, self._message = (
            plan.algorithm, plan.evaluation, storage, problem, message)
        self._shares = plan.training_participation.shares(problem.sizes) if isinstance(problem, SolvedProblem) else None
        self._parties = len(plan.task.training_sizes)
        self._participation = type(plan.training_participation).__name__
        self._table = MetricsTable(plan.name)
        self._seconds = {"compile": 0.0, "rounds": 0.0, "evaluation": 0.0}
        self._seconds_per_round: list[float] = []
        self._cpu_per_round: list[float] = []
        self._restored_cpu_seconds = 0.0
        self._bytes = {"down": 0, "up": 0}
        self._ledger = None if plan.privacy is None else _ledger_of(plan, plan.privacy)
        self._index = plan.evaluation.parties
        # Samples that parties read while they train are training samples: no scores of them are validation scores.
        trained_on = {"validation"} if plan.description.trains_on_held_out else set()
        self._is_scored = {split: (plan.task.split_sizes(split)[self._index] > 0) & (split not in trained_on)
                           for split in problem.splits}
        # The parties of a subset under local ids, for functions of all parties of a problem.
        self._parties_problem = problem.local()
        self._uses_shared_model = plan.description.uses_shared_model
        self._uses_held_out = plan.description.uses_held_out

    def metrics(self) -> "pd.DataFrame":
        """All metrics so far, see ``MetricsTable``."""
        return self._table.table()

    def facts(self) -> dict[str, Any]:
        """Seconds and bytes so far."""
        stopped = {} if self.stop_reason is None else {"stopped": self.stop_reason}
        private = {} if self._ledger is None else {"private_rounds": self._ledger.rounds.tolist(),
                                                   "privacy": self._ledger.account.facts(),
                                                   "noise": "simulated noise"}
        return {"seconds_per_round": self._seconds_per_round, "cpu_per_round": self._cpu_per_round,
                "restored_cpu_seconds": self._restored_cpu_seconds, "seconds": self._seconds, "bytes": self._bytes,
                "evaluated_parties": len(self._index), **stopped,
                **private}

    def restore(self, metrics: "pd.DataFrame", facts: dict[str, Any], rounds: int) -> None:
        """Continue from the measurements of an earlier part of the run, which had this number of rounds."""
        self._table.restore(metrics)
        self._seconds, self._bytes, self.stop_reason = facts["seconds"], facts["bytes"], facts.get("stopped")
        self._seconds_per_round, self._cpu_per_round = facts["seconds_per_round"], facts["cpu_per_round"]
        every = self._evaluation.every
        self._restored_cpu_seconds = sum(mean * min(every, rounds - i * every)
                                         for i, mean in enumerate(self._cpu_per_round))
        if self._ledger is not None:
            if "private_rounds" not in facts:
                raise InputError("privacy: the run began without privacy=, so that the rounds of its parties were not "
                                 "counted: run it again")
            self._ledger.rounds[:] = facts["private_rounds"]

    def evaluate(self, rounds: int) -> None:
        """Evaluate the personal models and the shared model on every split, after this number of rounds."""
        with stopwatch() as watch:
            self._evaluate(self._storage.evaluated_parties(), rounds)
            if self._ledger is not None:
                self._table.add(rounds, self._index, "train", "epsilon", self._ledger.epsilons()[self._index])
        self._add_seconds(watch, "evaluation")

    def _evaluate(self, views: list[EvaluationView], rounds: int) -> None:
        algorithm, state = self._algorithm, views[0].state
        shared = algorithm.server_model(state.server)
        if not self._uses_shared_model:
            models = [self._models_of_view(v, v.problem) for v in views]
            scores = [evaluate_models(v.problem, of_view, v.parties) for v, of_view in zip(views, models, strict=True)]
            halves: list[tuple[Half, ...]] = []
            if self._uses_held_out:
                from resolvent.simulator.record.cross_fit import cross_fit, cross_fitted_scores  # few methods choose

                halves = [cross_fit(v.problem, partial(self._models_of_view, v)) for v in views]
                scores = [cross_fitted_scores(v.problem, of_view, of_halves, v.parties)
                          for v, of_view, of_halves in zip(views, scores, halves, strict=True)]
            self._collect_scores(("",), views, scores, rounds)
            self._measure_metrics(("",), views, models, rounds, halves)
        if shared is not None:
            prefixes = ("", "global_") if self._uses_shared_model else ("global_",)
            shared_models = [algorithm.server_model(v.state.server) for v in views]
            scores = [v.problem.evaluate_shared(of_view, np.asarray(v.parties))
                      for v, of_view in zip(views, shared_models, strict=True)]
            self._collect_scores(prefixes, views, scores, rounds)
            self._measure_metrics(prefixes, views, [tree.stack(of_view, 1) for of_view in shared_models], rounds)
            self._evaluate_gap(shared, rounds)
            self._measure_dissimilarity(shared, rounds)
        if rounds == 0:
            self._measure_heterogeneity()

    def _models_of_view(self, view: EvaluationView, problem: Problem) -> Vector:
        """The personal models of the evaluated parties, leaves [m, ...], on the samples of a problem with them."""
        models: Vector = personal_models(self._algorithm, problem, view.state, view.parties)
        return models

    def _collect_scores(self, prefixes: tuple[str, ...], views: list[EvaluationView], scores: list[PartyScores],
                        rounds: int) -> None:
        """Add the scores of all evaluated parties under names with these prefixes: the loss and the score first."""
        parties, positions = self._index, [v.positions for v in views]
        names = dict.fromkeys(("loss", self._problem.score_name, *scores[0]))
        by_name = {name: self._storage.collect(positions, [part[name] for part in scores], len(parties))
                   for name in names}
        for prefix in prefixes:
            for number, (split, mask) in enumerate(self._is_scored.items()):
                for name, values in by_name.items():
                    self._table.add(rounds, parties[mask], split, prefix + name, values[mask, number])

    def _measure_metrics(self, prefixes: tuple[str, ...], views: list[EvaluationView], models: list[Vector],
                         rounds: int, halves: "Sequence[tuple[Half, ...]]" = ()) -> None:
        """Add the metrics in addition to the score. A party whose labels do not define a metric has no row of it.

        Args:
            models: models of each view, leaves [m, ...]: a model for each party, or [1, ...]: one model for all.
            halves: for each view both halves of the validation samples, if parties choose by them.
        """
        if (metrics := self._evaluation.metrics) is None:
            return
        measured = []
        for view, of_view, of_halves in zip(views, models, halves or [()] * len(views), strict=True):
            count, parties = jax.tree.leaves(of_view)[0].shape[0], np.asarray(view.parties)
            choice = np.minimum(np.arange(len(parties)), count - 1)
            measured.append(metrics.measure(view.problem, of_view, choice, parties, of_halves))
        positions, size = [v.positions for v in views], len(self._index)
        values = self._storage.collect(positions, [part.values for part in measured], size)
        is_defined = self._storage.collect(positions, [part.is_defined.astype(np.int32) for part in measured], size) > 0
        for prefix in prefixes:
            for number, split in enumerate(HELD_OUT):
                for i, name in enumerate(metrics.metrics):
                    mask = is_defined[:, number, i] & self._is_scored[split]
                    self._table.add(rounds, self._index[mask], split, prefix + name, values[mask, number, i])
        if rounds == 0:
            scored = [split for split in HELD_OUT if self._is_scored[split].any()]
            at = [HELD_OUT.index(split) for split in scored]
            for i, name in enumerate(metrics.metrics):
                if scored and not is_defined[:, at, i].any():
                    warnings.warn(f"{self._table.method}: the metric {name} is defined at no party, because of the "
                                  f"labels of its {' and '.join(scored)} samples, such as one class: give the parties "
                                  "more of these samples, or leave the metric out", stacklevel=7)

    def _evaluate_gap(self, shared: Vector, rounds: int) -> None:
        if isinstance(self._problem, SolvedProblem) and rounds == 0:  # the rounds record it themselves
            assert self._shares is not None
            self._table.add(0, None, None, "gap", self._problem.gap(shared, self._shares))

    def _measure_dissimilarity(self, shared: Vector, rounds: int) -> None:
        if "dissimilarity" in self._evaluation.diagnostics:
            from resolvent.simulator.record.diagnostics import dissimilarity  # few runs measure it

            measured = dissimilarity(self._parties_problem, shared)
            self._table.add(rounds, None, "train", "dissimilarity", measured.b)
            self._table.add(rounds, None, "train", "gradient_variance", measured.gradient_variance)

    def _measure_heterogeneity(self) -> None:
        """H at the minimiser of the average loss, with the norm of the gradient, which says how exact it is."""
        if "heterogeneity" in self._evaluation.diagnostics:
            from resolvent.problem.solvers.lbfgs import pooled_optimum  # few runs measure it
            from resolvent.simulator.record.diagnostics import dissimilarity

            optimum, norm, _ = pooled_optimum(self._parties_problem, self._problem.init(keys.root_key(0)))
            heterogeneity = dissimilarity(self._parties_problem, optimum).heterogeneity
            self._table.add(0, None, "train", "heterogeneity", heterogeneity)
            self._table.add(0, None, "train", "heterogeneity_gradient", norm)

    def measure_line(self, chunk: Chunk, rounds: int) -> None:
        """The loss on the line from each party's model to the new shared model, and of the shared model before."""
        shared_model, record, train = self._algorithm.server_model, chunk.snapshot.record, jnp.array(0)
        if shared_model(chunk.state.server) is None or "line" not in self._evaluation.diagnostics:
            return
        from resolvent.simulator.record.diagnostics import LINE_POINTS, loss_along_line  # few runs measure it

        with stopwatch() as watch:
            views, counted = self._storage.last_cohort(chunk), np.asarray(record.counted)
            positions, size = [v.positions for v in views], len(counted)
            losses = self._storage.collect(positions, [
                loss_along_line(v.problem, v.models, shared_model(v.server), v.parties, train) for v in views], size)
            previous = self._storage.collect(positions, [
                evaluate_split(v.problem, tree.stack(shared_model(v.server_before), 1), np.zeros_like(v.parties),
                               v.parties, train)[0] for v in views], size)
            parties = np.asarray(record.index)[counted]
            self._table.add(rounds, parties, "train", "line_previous", previous[counted])
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
        check_ids(record.index, parties=self._parties, owner=self._participation, start=start)
        numbers = np.arange(start + 1, start + rounds + 1)
        self._add_communication(record, numbers)
        if self._ledger is not None:
            self._ledger.add(record.index, record.invited)
            self.stop_reason = self._ledger.reason_to_stop
        at, _ = np.nonzero(record.counted)
        for metric, values in record.party.items():
            if metric in self._evaluation.diagnostics:  # the clock needs steps, even if they are no diagnostic
                self._table.add(numbers[at], record.index[record.counted], "train", metric, values[record.counted])
        for metric, values in record.server.items():
            self._table.add(numbers, None, None, metric, values)

    def last_private_round(self, done: int, rounds: int) -> int:
        """The number of rounds, at most ``rounds``, up to which the privacy budget lasts after ``done`` rounds."""
        left = None if self._ledger is None else self._ledger.rounds_left
        return rounds if left is None else min(rounds, done + left)

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


def _ledger_of(plan: Plan, privacy: PrivacyBudget) -> "PrivacyLedger":
    """What the parties spend of their budgets."""
    from resolvent.differential_privacy.ledger import PrivacyLedger  # few runs have a budget

    return PrivacyLedger(privacy, plan.algorithm, shapes_of(plan.task.init, keys.key_shape()), plan.task.sizes,
                         plan.participation, plan.spent)
