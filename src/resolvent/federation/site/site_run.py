"""An experiment at a site: its table, the models after the rounds, and the site's own report on the methods."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.after.refit_folder import write_refit_of_site
from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric, choose_by_share
from resolvent.comparisons.judgement.metrics import is_share
from resolvent.comparisons.judgement.row_values import RowValues, baseline_name, measure_models
from resolvent.comparisons.judgement.site_judgement import plain_site
from resolvent.comparisons.judgement.verdict import judge
from resolvent.comparisons.runs.compared_methods import MethodRun
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.atomic_files import write_text
from resolvent.data.partition.splits import Resplit, resplit
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.limits import limits_of_weights, scored_splits
from resolvent.federation.protocol.names import VERSION_FILE, refitted_run, run_of_table
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.protocol.results import (
    FederationRun,
    TrainedMethod,
    evidence_of_run,
    score_of,
    write_run_folder,
)
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.table_sums import integers_of, names_only
from resolvent.federation.site.plan_run import PlanRun, SiteMethod, part_of
from resolvent.federation.site.regression_guard import check_curvatures
from resolvent.federation.site.scores import rounded_judgement, scores_of_model
from resolvent.federation.site.sum_party import SumParty, secure_site
from resolvent.federation.site.table import SiteTable, read_site_table
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import name_metrics
from resolvent.problem.models.model import LinearModel, Model
from resolvent.simulator.checkpoint.identity import fingerprint_of
from resolvent.simulator.record.metrics_table import MetricsTable, PartyMetrics
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.tables.drift import summarize
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import from_plain, to_plain, write_encoding


class _SeedRows(NamedTuple):
    """The rows of the site in the run of one seed, which splits them again.

    Attributes:
        rows: [total] the number of each sample with the first seed.
    """

    seed: int
    data: FederatedData
    problem: LearningProblem
    rows: NDArray[np.integer]


class SiteRun(PlanRun[FederatedExperiment]):
    """One experiment at a site: its table, the models after the rounds, and the site's own report on the methods.

    The secure sum before the rounds, if there is one, has the numbers of the table.
    """

    @override
    def _read_table(self) -> None:
        plan, limits = self.plan, self._limits
        self._name, self._number = self._membership.name, self._membership.number
        self.table: SiteTable = read_site_table(
            self._site, plan.table, self._name, self._number, folder=self._versions,
            held_out=plan.held_out(with_test=not limits.refit_with_test_rows))
        self.version, self._journal.rows = self.table.version, self.table.account or self._site.table
        self._seeds: list[_SeedRows] = []
        self._metrics: PartyMetrics | None = None
        self._decisive = DecisiveMetric("", {}, "")

    @override
    def _algorithm(self, label: str) -> Algorithm:
        return self.plan.algorithm(label)

    @override
    def _check_table(self) -> None:
        self.table.check_labels(self._journal, self._limits)

    @property
    @override
    def row_counts(self) -> dict[str, int]:
        return self.table.row_counts

    @property
    @override
    def training_rows(self) -> int:
        return self.table.training_rows

    @override
    def report(self) -> TableReport:
        return self.table.report(with_weights=self.plan.has_weights)

    @override
    def describe(self) -> dict[str, Any]:
        """The report on the table; with secure sums, its names and kinds, and public keys."""
        report = self.report()
        if self.plan.privacy is None:
            return {"table": report.plain()}
        settings = self.plan.table
        names = names_only(report, settings.levels or (), settings.labels)
        run, folder = run_of_table(self._folder.name, self._digest), self._folder / "sums"
        with refusing(RefusalCode.RANGE):
            integers = integers_of(report, names)
        limits = self._limits
        secure = secure_site(self.plan.privacy, self._membership, limits, run, folder, self._identity)
        assert secure is not None
        self.sums = SumParty(self._name, run, folder, secure, integers, limits, self._membership.sites)
        return {"table": names.plain(), "card": self.sums.card()}

    @override
    def agree_alone(self) -> dict[str, Any]:
        report = self.report()
        encoding, conflicts = agree({self._name: report}, self.plan.table)
        if encoding is None:
            raise InputError("; ".join(conflicts))
        # Equal factors of the weights of all classes: the others follow from the sums of all sites.
        weights = dict.fromkeys(report.labels[0].weights or {}, 1.0) if self.plan.has_weights else None
        return {"encoding": to_plain(encoding), "decide_by": self.plan.decide_by, "weights": weights}

    @override
    def _methods_for(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[SiteMethod]]:
        with refusing(RefusalCode.CONFLICT):
            encoding = from_plain(part_of(content, "encoding"))
            decide_by, weights = _choices(content)
        if not isinstance(encoding, TableEncoding):
            raise Refusal(RefusalCode.CONFLICT, "the encoding is none of a table")
        self._encoding = encoding
        if weights is not None and not self.plan.has_weights:
            raise Refusal(RefusalCode.PLAN, "the server sends weights, which the plan does not have")
        self._folder.mkdir(parents=True, exist_ok=True)
        write_encoding(self._folder / "encoding.json", encoding)
        write_text(self._folder / VERSION_FILE, json.dumps({"version": self.version}))
        model, data = self.plan.model(encoding), self.table.encode(encoding, weights)
        if data.weights is not None and self.version is not None:
            self._limits = limits_of_weights(self._limits, data.weights[:self.table.training_rows])
        score = model.loss.score_name
        self._decisive = choose_by_share(0.0, "", score, self.plan.metrics, decide_by or score)
        named = name_metrics(self._decisive.metrics, score)
        self._metrics = PartyMetrics(named, model, data) if named else None
        self._seeds = [self._rows_of_seed(seed, model, data) for seed in self.plan.seeds]
        return {"score": score}, [
            SiteMethod(label, of_seed.seed, self.plan.algorithm(label), of_seed.problem, self._metrics,
                       self.table.secret, partial(self._check_models, of_seed.problem))
            for of_seed in self._seeds for label in self.plan.labels]

    def _check_models(self, problem: LearningProblem, payload: Any) -> None:
        """Refuse a message with a linear model at which the gradients of all rows but a few are constant.

        An update of a linear model is X'c, with the slopes c of the rows' losses. See ``check_curvatures``.
        """
        model, rows = problem.model, np.arange(self.table.training_rows)
        if not isinstance(model, LinearModel) or model.loss.needs_batch or self._limits.min_cell == 1:
            return
        like = jax.eval_shape(model.init, jax.random.key(0))

        def is_model(part: Any) -> bool:
            same: bool = jax.tree.structure(part) == jax.tree.structure(like)  # type: ignore[operator]
            return same and all(np.shape(leaf) == known.shape for leaf, known in zip(
                *map(jax.tree.leaves, (part, like)), strict=True))

        for part in filter(is_model, jax.tree.leaves(payload, is_leaf=is_model)):
            check_curvatures(problem.curvatures(part, rows), self._limits)

    @override
    def _columns_to_count(self) -> Mapping[str, NDArray[Any]] | None:
        return None if all(party.has_noise for party in self._parties) else self.table.answered_columns(self._encoding)

    def _rows_of_seed(self, seed: int, model: Model, data: FederatedData) -> _SeedRows:
        # A further split of the same rows would be another question about the table.
        has_own_split = self.version is not None or seed == self.plan.seed
        again = (Resplit(data, np.arange(data.total)) if has_own_split
                 else resplit(data, seed, first_party=self._number))
        return _SeedRows(seed, again.data, LearningProblem(model, again.data), again.rows)

    @override
    def lines_before(self) -> Iterator[str]:
        report = self.report()
        yield ", ".join(f"{count} {'training' if split == 'train' else split} rows"
                        for split, count in report.rows.items())
        yield "The site would send before the rounds, about each column:"
        for column in report.columns:
            if column.kind == "text":
                levels = column.levels or {}
                rarer = (f"; rarer levels than min_cell {self._limits.min_cell} are not named and not used"
                         if column.has_hidden else "")
                yield f"  {column.name}: the names of {len(levels)} levels with their numbers of rows{rarer}"
            else:
                yield f"  {column.name}: kind, number of values, mean and sum of squared deviations"
        for name, label in zip(self.plan.table.labels, report.labels, strict=True):
            known = len(label.classes)
            yield f"  {name} (the label): {f'{known} classes with their numbers of rows' if known else 'its kind'}"
        if self.plan.has_weights:
            yield "  the sum of the weights of the training rows of each class"

    @override
    def lines_after(self) -> Iterator[str]:
        if self._limits.scores:
            yield ("The site would send at the end: for each method the score on the test rows and the gain over "
                   "training alone, each with an interval; and the method that the site should use")

    @property
    def samples(self) -> FederatedData:
        """The encoded rows of the site with the first seed, after ``prepare``."""
        return self._seeds[0].data

    @property
    def problem(self) -> LearningProblem:
        """The problem of the site alone with the first seed, after ``prepare``."""
        return self._seeds[0].problem

    @override
    def finish(self) -> dict[str, Any]:
        """Write the models and the site's own report; returns the judgement of the methods that are complete.

        Returns:
            ``methods``, their labels; ``judgement``, that of this site, or None if its scores do not leave it.
        """
        with self.plan.precision():
            models = self._read_models()
            labels = [label for label in self.plan.labels
                      if all((label, of_seed.seed) in models for of_seed in self._seeds)]
            if not labels:
                return {"methods": [], "judgement": None}
            methods = {label: TrainedMethod.of_seeds([self._method(label, of_seed, *models[label, of_seed.seed])
                                              for of_seed in self._seeds]) for label in labels}
            if self.plan.refit is not None:
                write_refit_of_site(self._folder.parent / str(refitted_run(self._folder.name)), self._name,
                                    {label: method.models for label, method in methods.items()},
                                    (self.table.training_rows, self.table.rows))
                return {"methods": labels, "judgement": None}
            run = self._judged(methods, models)
            write_run_folder(self._folder, run)
        judged = next(iter(run.verdict.sites.sites), None)
        limits, algorithms = self._limits, map(self.plan.algorithm, labels)
        if (not all(scored_splits(limits, algorithm, ["test"]) for algorithm in algorithms)
                or min(run.test) < limits.min_cell or self.plan.privacy is not None):
            judged = None  # with secure sums the server has the sums of the scores
        if judged is not None and limits.min_cell > 1:
            judged = rounded_judgement(judged, limits.min_cell, self.table.secret or b"",
                                       is_share=is_share(self._decisive.name))
        return {"methods": labels, "judgement": None if judged is None else plain_site(judged)}

    def _read_models(self) -> dict[tuple[str, int], tuple[Vector, Vector | None]]:
        """(label, seed) -> the personal and the shared model after the last round."""
        like = jax.eval_shape(self._seeds[0].problem.init, jax.random.key(0))
        keys = [(label, of_seed.seed) for of_seed in self._seeds for label in self.plan.labels]
        models = {key: store.read_models(like) for key, store in zip(keys, self._stores, strict=True)}
        return {key: pair for key, pair in models.items() if pair is not None}

    def _judged(self, methods: Mapping[str, TrainedMethod],
                models: Mapping[tuple[str, int], tuple[Vector, Vector | None]]) -> FederationRun:
        """The site's own results: the methods are judged on its test rows."""
        first, experiment = self._seeds[0], self.plan
        loss = first.problem.model.loss
        score = score_of(self._decisive, loss)
        measured = [measure_models(
            {label: models[label, of_seed.seed][0] for label in methods},
            {label: shared for label in methods if (shared := models[label, of_seed.seed][1]) is not None},
            of_seed.problem, of_seed.data, score, seed=of_seed.seed, party=self._number, rows=of_seed.rows)
                    for of_seed in self._seeds]
        rows = RowValues.concatenate([part for part in measured if part is not None]) if measured[0] else None
        baseline = baseline_name(first.data, dict(methods))
        of_party = {label: replace(method, runs=tuple(run._replace(metrics=run.metrics.assign(party=self._number))
                                                      for run in method.runs)) for label, method in methods.items()}
        evidence = evidence_of_run(experiment, self._decisive, of_party, loss, {self._number: self._name}, rows,
                                   baseline if rows is not None and baseline in rows.values else None)
        sizes = {split: [int(first.data.sizes(split)[0])] for split in SPLITS}
        return FederationRun(experiment, (self._name,), sizes["train"], sizes["test"], methods, judge(evidence),
                             party=self._number, digest=fingerprint_of(replace(first.data, weights=None)),
                             name=self._folder.name)

    def _method(self, label: str, of_seed: "_SeedRows", personal: Vector, shared: Vector | None) -> TrainedMethod:
        """The models of a method with one seed, and their scores on the site's rows."""
        metrics, rounds = MetricsTable(label), self.plan.rounds_of(label)
        for prefix, model in (("", personal), ("global_", shared)):
            if model is not None:
                for name, by_split in scores_of_model(of_seed.problem, model, self._metrics).items():
                    for split, value in by_split.items():
                        metrics.add(rounds, 0, split, f"{prefix}{name}", np.nan if value is None else value)
        models = SavedModels(label, rounds, (self._name,), jax.tree.map(lambda leaf: np.asarray(leaf)[None], personal),
                             shared, of_seed.problem.model, of_seed.data.encoding,
                             training=summarize(of_seed.data))
        return TrainedMethod(models, (MethodRun(metrics.table().assign(seed=of_seed.seed)),))

    @override
    def close(self) -> None:
        super().close()
        self._seeds = []



def _choices(content: Mapping[str, Any]) -> tuple[str | None, dict[str, float] | None]:
    """The metric that compares methods and the factors of the weights, from a message of the server."""
    decide_by, weights = content.get("decide_by"), content.get("weights")
    if not isinstance(decide_by, str | None):
        raise InputError("the message names no metric in decide_by")
    if weights is None:
        return decide_by, None
    numbers = weights.values() if isinstance(weights, dict) else ()
    if not numbers or not all(type(n) in (int, float) and math.isfinite(n) and n >= 0 for n in numbers):
        raise InputError("the message has weights that are not numbers, or are negative")
    return decide_by, {str(name): float(weight) for name, weight in weights.items()}
