"""An experiment at a site: its table, the models after the rounds, and the site's own report on the methods."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
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
from resolvent.comparisons.judgement.row_values import (
    RowValues,
    baseline_name,
    measure_rows,
    predictions_of_models,
)
from resolvent.comparisons.judgement.site_judgement import plain_site
from resolvent.comparisons.judgement.verdict import judge
from resolvent.comparisons.runs.compared_methods import MethodRun
from resolvent.comparisons.runs.record import DataRecord
from resolvent.data.federated import FederatedData
from resolvent.data.files.atomic_files import write_text
from resolvent.data.partition.splits import Resplit, resplit
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.limits import limits_of_weights, one_split_note, scored_splits
from resolvent.federation.protocol.names import VERSION_FILE, refitted_run, run_of_table
from resolvent.federation.protocol.plan import Part
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, outgoing, refusing
from resolvent.federation.protocol.results import (
    SPLIT,
    TABLES,
    FederationRun,
    TrainedMethod,
    evidence_of_run,
    score_of,
    write_run_folder,
)
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.score_sums import integers_of_scores
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.table_sums import integers_of, names_only
from resolvent.federation.site.plan_run import PlanRun, SiteMethod, part_of
from resolvent.federation.site.regression_guard import check_curvatures
from resolvent.federation.site.scores import rounded_judgement, scores_of_model
from resolvent.federation.site.sum_party import SumParty, secure_site
from resolvent.federation.site.table import FoldOfTable, SiteTable, read_site_table
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import name_metrics
from resolvent.problem.models.model import LinearModel, Model
from resolvent.simulator.checkpoint.identity import fingerprint_of
from resolvent.simulator.record.metrics_table import MetricsTable
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.record.party_metrics import PartyMetrics
from resolvent.tables.drift import summarize
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import from_plain, to_plain, write_encoding


class _PartRows(NamedTuple):
    """The rows of the site in the run of one seed and fold, which splits them again.

    Attributes:
        rows: [total] the number of each sample with the first seed.
        is_repeated: [total] the samples that are tested in another fold; None without folds.
    """

    part: Part
    data: FederatedData
    problem: LearningProblem
    rows: NDArray[np.integer]
    is_repeated: NDArray[np.bool_] | None


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
        self._parts: list[_PartRows] = []
        self._folds: tuple[SiteTable, ...] = ()
        self._against_folds: dict[str, Any] | None = None
        self._metrics: PartyMetrics | None = None
        self._decisive = DecisiveMetric("", {}, "")

    @override
    def _algorithm(self, label: str) -> Algorithm:
        return self.plan.algorithm(label)

    @override
    def _check_limits(self) -> None:
        """Check the plan with its folds; if they are beyond the limits, without them."""
        if self.plan.folds > 1:
            try:
                with self._counting_refusals():
                    self._folds = tuple(read_site_table(
                        self._site, self.plan.table, self._name, self._number, folder=self._versions,
                        fold=FoldOfTable(number, self.plan.folds, self.plan.seed)) for number in range(self.plan.folds))
                    super()._check_limits()
            except Refusal as refusal:
                self._against_folds, self._folds = outgoing(refusal, self._name), ()
                self.plan = self.plan.with_one_split()
            else:
                return
        super()._check_limits()

    @override
    def _check_table(self) -> None:
        for table in self._tables:
            table.check_labels(self._journal, self._limits)

    @property
    def _tables(self) -> tuple[SiteTable, ...]:
        """The tables on whose training rows the methods are trained: that of the split, or those of the folds."""
        return self._folds or (self.table,)

    @override
    def _reported_columns(self) -> Mapping[str, NDArray[Any]]:
        """Each fold has a report of its own."""
        return self._answered_columns([self._agree_alone(table)[0] for table in self._folds])

    def _answered_columns(self, encodings: Sequence[TableEncoding]) -> dict[str, NDArray[Any]]:
        """Those of all tables, see ``SiteTable.answered_columns``."""
        of_tables = [table.answered_columns(encoding) for table, encoding in zip(
            self._tables, encodings, strict=True)] if encodings else []
        return {name: np.concatenate([columns[name] for columns in of_tables if name in columns], axis=1)
                for name in dict.fromkeys(name for columns in of_tables for name in columns)}

    @property
    @override
    def row_counts(self) -> dict[str, int]:
        return self.table.row_counts

    @property
    @override
    def training_rows(self) -> int:
        return self.table.training_rows

    @property
    @override
    def _tells_size(self) -> bool:
        return self.plan.privacy is None

    @override
    def report(self) -> TableReport:
        return self.table.report(with_weights=self.plan.has_weights)

    @override
    def describe(self) -> dict[str, Any]:
        """The report on the table; with secure sums, its names and kinds, and public keys."""
        plan, report = self.plan, self.report()
        if plan.privacy is None:
            folds = [table.report(with_weights=plan.has_weights).plain() for table in self._folds]
            return {"table": report.plain(), "folds": folds, "against_folds": self._against_folds}
        names = names_only(report, plan.table.levels or (), plan.table.labels)
        run, folder = run_of_table(self._folder.name, self._digest), self._folder / "sums"
        with refusing(RefusalCode.RANGE):
            tables = [integers_of(table.report(with_weights=plan.has_weights), names)
                      for table in (self.table, *self._folds)]
        limits = self._limits
        secure = secure_site(plan.privacy, self._membership, limits, run, folder, self._identity)
        assert secure is not None
        self.sums = SumParty(self._name, run, folder, secure, tables, limits, self._membership.sites)
        return {"table": names.plain(), "card": secure.card(), "against_folds": self._against_folds}

    def _agree_alone(self, table: SiteTable) -> tuple[TableEncoding, dict[str, float] | None]:
        """The encoding, and the factors of the weights, if this site were the only one."""
        report = table.report(with_weights=self.plan.has_weights)
        encoding, conflicts = agree({self._name: report}, self.plan.table)
        if encoding is None:
            raise InputError("; ".join(conflicts))
        # Equal factors of the weights of all classes: the others follow from the sums of all sites.
        return encoding, dict.fromkeys(report.labels[0].weights or {}, 1.0) if self.plan.has_weights else None

    @override
    def agree_alone(self) -> dict[str, Any]:
        first, *folds = [{"encoding": to_plain(encoding), "weights": weights}
                         for encoding, weights in map(self._agree_alone, (self.table, *self._folds))]
        return {**first, "decide_by": self.plan.decide_by, "folds": folds}

    @override
    def _methods_for(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[SiteMethod]]:
        decide_by, folds = content.get("decide_by"), content.get("folds") or []
        if not isinstance(decide_by, str | None) or not isinstance(folds, list):
            raise Refusal(RefusalCode.CONFLICT, "the message has no metric in decide_by, or no list of folds")
        if len(folds) not in (0, len(self._folds)):
            raise Refusal(RefusalCode.PLAN, f"the server asks for {len(folds)} folds")
        if not folds and self._folds:  # another site refuses them
            self.plan, self._folds = self.plan.with_one_split(), ()
        with refusing(RefusalCode.CONFLICT):
            whole = _agreement(content)
            agreed = [*map(_agreement, folds)] or [whole]
        if any(part[1] is not None for part in agreed) and not self.plan.has_weights:
            raise Refusal(RefusalCode.PLAN, "the server sends weights, which the plan does not have")
        self._folder.mkdir(parents=True, exist_ok=True)
        write_encoding(self._folder / "encoding.json", whole[0])
        write_text(self._folder / VERSION_FILE, json.dumps({"version": self.version}))
        self._encodings = [encoding for encoding, _ in agreed]
        models = [*map(self.plan.model, self._encodings)]
        encoded = [table.encode(*part) for table, part in zip(self._tables, agreed, strict=True)]
        for table, data in zip(self._tables, encoded, strict=True):
            if data.weights is not None and self.version is not None:
                self._limits = limits_of_weights(self._limits, data.weights[:table.training_rows])
        score = models[0].loss.score_name
        self._decisive = choose_by_share(0.0, "", score, self.plan.metrics, decide_by or score)
        named = name_metrics(self._decisive.metrics, score)
        self._metrics = PartyMetrics(named, models[0], encoded[0]) if named else None
        self._parts = [self._rows_of_part(part, models[part.fold or 0], self._tables[part.fold or 0],
                                          encoded[part.fold or 0]) for part in self.plan.parts]
        return {"score": score}, [
            SiteMethod(label, rows.part, self.plan.algorithm(label), rows.problem, self._metrics, self.table.secret,
                       partial(self._check_models, rows.problem)) for rows in self._parts for label in self.plan.labels]

    def _check_models(self, problem: LearningProblem, payload: Any) -> None:
        """Refuse a message with a linear model at which the gradients of all rows but a few are constant.

        An update of a linear model is X'c, with the slopes c of the rows' losses. See ``check_curvatures``.
        """
        model, rows = problem.model, np.arange(int(problem.sizes[0]))
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
        return (None if all(party.has_noise for party in self._parties)
                else self._answered_columns(self._encodings))

    def _rows_of_part(self, part: Part, model: Model, table: SiteTable, data: FederatedData) -> _PartRows:
        # A further split of the same rows would be another question about the table.
        has_own_split = self.version is not None or part.seed == self.plan.seed
        again = (Resplit(data, table.numbers) if has_own_split
                 else resplit(data, part.seed, first_party=self._number))
        return _PartRows(part, again.data, LearningProblem(model, again.data), again.rows, table.is_repeated)

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
        """The encoded rows of the site with the first seed and fold, after ``prepare``."""
        return self._parts[0].data

    @property
    def problem(self) -> LearningProblem:
        """The problem of the site alone with the first seed and fold, after ``prepare``."""
        return self._parts[0].problem

    @override
    def finish(self) -> dict[str, Any]:
        """Write the models and the site's own report; returns the judgement of the methods that are complete.

        Returns:
            ``methods``, their labels; ``judgement``, that of this site, or None if its scores do not leave it.
        """
        with self.plan.precision():
            models = self._read_models()
            labels = [label for label in self.plan.labels
                      if all((label, part) in models for part in self.plan.parts)]
            if not labels:
                return {"methods": [], "judgement": None}
            methods = {label: TrainedMethod.of_parts([self._method(label, rows, *models[label, rows.part])
                                                      for rows in self._parts]) for label in labels}
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
                or min(run.data.test or (0,)) < limits.min_cell):
            judged = None
        if judged is not None and limits.min_cell > 1:
            judged = rounded_judgement(judged, limits.min_cell, self.table.secret or b"",
                                       is_share=is_share(self._decisive.name))
        if self.sums is not None:
            if self.plan.folds > 1:  # without folds the server has had the sums of the scores in the rounds
                scores = {} if judged is None else {label: {SPLIT: ends.value} for label, ends in judged.scores.items()}
                self.sums.offer(self.plan.folds + 1, integers_of_scores([scores], self.plan.labels, [SPLIT]))
            judged = None
        return {"methods": labels, "judgement": None if judged is None else plain_site(judged)}

    def _read_models(self) -> dict[tuple[str, Part], tuple[Vector, Vector | None]]:
        """(label, seed and fold) -> the personal and the shared model after the last round."""
        keys = [(label, rows) for rows in self._parts for label in self.plan.labels]
        models = {(label, rows.part): store.read_models(jax.eval_shape(rows.problem.init, jax.random.key(0)))
                  for (label, rows), store in zip(keys, self._stores, strict=True)}
        return {key: pair for key, pair in models.items() if pair is not None}

    def _judged(self, methods: Mapping[str, TrainedMethod],
                models: Mapping[tuple[str, Part], tuple[Vector, Vector | None]]) -> FederationRun:
        """The site's own results: the methods are judged on its test rows, with folds on all of its rows."""
        first, experiment = self._parts[0], self.plan
        model = first.problem.model
        score = score_of(self._decisive, model.loss)
        predictions = [predictions_of_models(
            {label: models[label, rows.part][0] for label in methods},
            {label: shared for label in methods if (shared := models[label, rows.part][1]) is not None},
            rows.problem, rows.data, seed=rows.part.seed, party=self._number, rows=rows.rows,
            is_repeated=rows.is_repeated, is_centred=(
                experiment.folds > 1 and score.metric is not None and score.metric.reads_order_only))
                       for rows in self._parts]
        of_seeds = [[made for made in predictions if made is not None and made.seed == seed]
                    for seed in experiment.seeds]
        measured = [measure_rows(of_seed, score) for of_seed in of_seeds if of_seed]
        rows = RowValues.concatenate(measured) if measured else None
        baseline = baseline_name(first.data, dict(methods))
        of_party = {label: replace(method, runs=tuple(run._replace(metrics=run.metrics.assign(party=self._number))
                                                      for run in method.runs)) for label, method in methods.items()}
        evidence = evidence_of_run(experiment, self._decisive, of_party, model, {self._number: self._name}, rows,
                                   baseline if rows is not None and baseline in rows.values else None)
        train, test = ([int(first.data.sizes(split)[0])] for split in ("train", "test"))
        notes = [] if self._against_folds is None else [one_split_note(self._name, self._against_folds)]
        data = DataRecord(TABLES, [self._name], train, [self.table.rows] if self._folds else test,
                          fingerprint_of(replace(first.data, weights=None)), notes, self._number)
        return FederationRun(self._folder.name, experiment, methods, judge(evidence), data)

    def _method(self, label: str, rows: _PartRows, personal: Vector, shared: Vector | None) -> TrainedMethod:
        """The models of a method with one seed and fold, and their scores on the site's rows."""
        metrics, rounds = MetricsTable(label), self.plan.rounds_of(label)
        for prefix, model in (("", personal), ("global_", shared)):
            if model is not None:
                for name, by_split in scores_of_model(rows.problem, model, self._metrics).items():
                    for split, value in by_split.items():
                        metrics.add(rounds, 0, split, f"{prefix}{name}", np.nan if value is None else value)
        encoding = replace(self._encodings[rows.part.fold or 0], site_names=tuple((self._site.columns or {}).items()))
        models = SavedModels(label, rounds, (self._name,), jax.tree.map(lambda leaf: np.asarray(leaf)[None], personal),
                             shared, rows.problem.model, encoding, training=summarize(rows.data))
        return TrainedMethod(models, (MethodRun(metrics.table().assign(**rows.part.columns)),))

    @override
    def close(self) -> None:
        super().close()
        self._parts = []


def _agreement(content: Any) -> tuple[TableEncoding, dict[str, float] | None]:
    """The encoding of the rows and the factors of their weights, from a message of the server."""
    encoding, weights = from_plain(part_of(content, "encoding")), content.get("weights")
    if not isinstance(encoding, TableEncoding):
        raise InputError("the encoding is none of a table")
    if weights is None:
        return encoding, None
    numbers = weights.values() if isinstance(weights, dict) else ()
    if not numbers or not all(type(n) in (int, float) and math.isfinite(n) and n >= 0 for n in numbers):
        raise InputError("the message has weights that are not numbers, or are negative")
    return encoding, {str(name): float(weight) for name, weight in weights.items()}
