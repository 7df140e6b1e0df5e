"""One run at a site: the experiment, the table, and after the agreement a party for each method and seed."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.algorithms.algorithm import Algorithm
from resolvent.comparisons.after.refit_folder import write_refit_of_site
from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric, choose_by_share
from resolvent.comparisons.judgement.row_values import RowValues, baseline_name, measure_models
from resolvent.comparisons.judgement.site_judgement import plain_site
from resolvent.comparisons.judgement.verdict import judge
from resolvent.comparisons.runs.compared_methods import MethodRun
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.folder_lock import RunningError
from resolvent.data.partition.splits import Resplit, resplit
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import (
    Asked,
    Usage,
    check_parts,
    limits_of_weights,
    reasons_to_refuse,
    refusal_of_limits,
    scored_splits,
)
from resolvent.federation.protocol.names import JOURNAL, PREPARED_FILE, VERSION_FILE, VERSIONS, refitted_run
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.protocol.requests import run_of_method, run_of_table
from resolvent.federation.protocol.results import (
    FederationRun,
    TrainedMethod,
    evidence_of_run,
    score_of,
    write_run_folder,
)
from resolvent.federation.protocol.stores import PartyStore
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.table_sums import integers_of, names_only
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.site.budgets import DELTA, has_private_work
from resolvent.federation.site.departures import Departure
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.leverage import LeverageError, Span
from resolvent.federation.site.party import Party
from resolvent.federation.site.planned_work import Membership, PlannedWork
from resolvent.federation.site.scores import round_scores, scores_of_model
from resolvent.federation.site.sum_party import SumParty, secure_site
from resolvent.federation.site.table import SiteTable, read_site_table
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import name_metrics
from resolvent.simulator.checkpoint.fingerprint import fingerprint_of
from resolvent.simulator.record.metrics_table import MetricsTable
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.record.party_metrics import PartyMetrics
from resolvent.tables.drift import summarize
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import to_plain, write_encoding

__all__ = ["PlanRun", "SiteRun", "open_store"]

_LOCK_SECONDS, _LOCK_PAUSE = 30.0, 0.1
_Plan = TypeVar("_Plan", bound=Plan)


class PlanRun(Generic[_Plan]):
    """One plan at a site: after the agreement of the sites there is a party for each method and seed.

    Attributes:
        experiment: the plan, bound with the parts that are installed at the site.
        span: the columns of everything that the site has answered about these rows, after ``prepare``; None if they
            are not counted.
    """

    def __init__(self, folder: Path, site: SiteFile, experiment: _Plan, membership: Membership, lead: str, plan: str,
                 identity: Identity | None) -> None:
        self.experiment, self._folder, self._site, self._membership = experiment, folder, site, membership
        self._lead, self._plan, self._identity = lead, plan, identity
        # The budgets belong to the rows; in a rehearsal, whose split is that of a simulation, to the file.
        self._ledger = Journal(folder.parent / JOURNAL, site.table, lead, plan, site.table)
        self._parties: list[Party] = []
        self._stores: list[PartyStore] = []
        self.span: Span | None = None

    def _count_columns(self, columns: Mapping[str, NDArray[Any]], version: int | None) -> None:
        """Count the columns of the plan with those of all earlier ones; nothing is stored if they are refused.

        Args:
            columns: name -> [rows, ...] values of all rows of the version; 0 for rows that are not used.
            version: number of the version of the table; None, in a rehearsal: its columns are not counted.
        """
        limits, in_a_sum = self._site.limits, self.experiment.privacy is not None
        name = "max_leverage_in_sums" if in_a_sum else "max_leverage"
        if version is None or getattr(limits, name) is None:
            return
        path = self._folder.parent / VERSIONS / f"columns-{version}.npy"
        rows = len(next(iter(columns.values())))
        try:
            self.span = Span.read(path, rows).extended(columns, getattr(limits, name), limits.max_parameters_per_row)
        except LeverageError as error:
            raise refusal_of_limits({name: str(error)}, limits, column=error.column) from error
        self.span.write(path)
        if self._ledger.latest("columns", run=self._folder.name, plan=self._plan) is None:
            self._ledger.append("columns", run=self._folder.name, rank=self.span.rank, leverage=self.span.largest)

    def _asked(self, needed: Usage) -> Asked:
        """What the plan asks of the site, whichever its methods are."""
        return Asked(sites=len(self._membership.sites), labels=tuple(self.experiment.table.labels),
                     in_a_sum=self.experiment.privacy is not None, needed=needed,
                     used=self._ledger.used(self._lead, without=self._plan))

    def preview(self) -> list[Departure]:
        """The arrays and numbers that would leave the site in the rounds, by name and size."""
        with self.experiment.precision():
            return [departure._replace(message=f"{label}: {departure.message}")
                    for label, party in zip(self.experiment.labels, self._parties, strict=False)  # of the first seed
                    for departure in party.preview()]

    def handle(self, number: int, message: bytes | memoryview) -> bytes:
        """Answer a message of the rounds of a method with a seed, see ``run_of_method``."""
        with self.experiment.precision():
            return self._parties[number].handle(message)

    @property
    def rows_digest(self) -> str:
        """The digest to which the budgets of the site's rows belong."""
        return self._ledger.rows

    @property
    def size(self) -> int:
        """Number of methods times number of seeds."""
        return len(self._parties)

    def close(self) -> None:
        """Close the stores, and drop the states of the parties from memory."""
        for store in self._stores:
            store.close()
        self._stores, self._parties = [], []


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
    """One run at a site: the experiment, the table, and after the agreement a party for each method.

    Attributes:
        sums: answers the messages of the secure sum of the table's numbers, after ``description``; None without one.
    """

    def __init__(self, folder: Path, site: SiteFile, experiment: FederatedExperiment, membership: Membership, *,
                 lead: str = "", plan: str = "", identity: Identity | None = None) -> None:
        """Read the table.

        Args:
            identity: the certificate of the site, for secure sums.
        """
        super().__init__(folder, site, experiment, membership, lead, plan, identity)
        self._name, self._party, self._limits = membership.name, membership.number, site.limits
        self.table: SiteTable = read_site_table(
            site, experiment.table, self._name, self._party,
            folder=None if experiment.is_rehearsal else folder.parent / VERSIONS,
            held_out=experiment.held_out(with_test=not site.limits.refit_with_test_rows))
        self._ledger.rows = self.table.account or site.table
        self._seeds: list[_SeedRows] = []
        self._metrics: PartyMetrics | None = None
        self._decisive = DecisiveMetric("", {}, "")
        self.sums: SumParty | None = None

    def check_limits(self) -> None:
        """Check the experiment against the site's limits, before anything about the table leaves the site.

        A party checks again, with what follows from the agreed encoding.

        Raises:
            Refusal: the site does not take part; the message has every reason.
        """
        needed, methods = [Usage(jobs=1)], []
        with self.experiment.precision():
            for label in self.experiment.labels:
                algorithm = self.experiment.algorithm(label)
                with refusing(RefusalCode.EXPERIMENT):
                    check_parts(algorithm, rehearsal=self.experiment.is_rehearsal)
                methods.append(Asked(method=self.experiment.file.preset_of(label), algorithm=algorithm,
                                     rounds=self.experiment.rounds_of(label), samples=self.table.training_rows))
                needed += [self._needed(label, algorithm, seed) for seed in self.experiment.seeds]
            limits = self._site.limits
            reasons = reasons_to_refuse(limits, self._asked(Usage(*map(sum, zip(*needed, strict=True)))), *methods)
        if reasons:
            raise refusal_of_limits(reasons, limits)
        self.table.check_labels(self._folder.parent / VERSIONS, limits)

    def _needed(self, label: str, algorithm: Algorithm, seed: int) -> Usage:
        """What a method with a seed asks for; its privacy loss depends on the model, which is not known yet."""
        rounds = self.experiment.rounds_of(label)
        evaluations = len(self._planned(label, algorithm, seed).evaluations) * self._site.limits.scores
        epsilon = 0.0 if has_private_work(algorithm) else math.inf
        return Usage(rounds, rounds * len(algorithm.phases), 0, evaluations, epsilon)

    def _planned(self, label: str, algorithm: Algorithm, seed: int) -> PlannedWork:
        """The messages of a method with a seed that the plan contains."""
        return PlannedWork(algorithm, self.experiment.participation(), self._membership, seed,
                           self.experiment.rounds_of(label), self.experiment.file.bound.values["evaluate_every"],
                           self.experiment.is_rehearsal)

    def report(self) -> TableReport:
        """The report on the table."""
        return self.table.report(with_weights=self.experiment.has_weights)

    def description(self) -> dict[str, Any]:
        """What leaves the site about its table: the report; with secure sums, its names and kinds, and public keys."""
        report = self.report()
        if self.experiment.privacy is None:
            return {"table": report.plain()}
        settings = self.experiment.table
        names = names_only(report, settings.levels or (), settings.labels)
        run, folder = run_of_table(self._folder.name, self._plan), self._folder / "sums"
        with refusing(RefusalCode.RANGE):
            integers = integers_of(report, names)
        limits = self._site.limits
        secure = secure_site(self.experiment.privacy, self._membership, limits, run, folder, self._identity)
        assert secure is not None
        self.sums = SumParty(self._name, run, folder, secure, integers, limits, self._membership.sites)
        return {"table": names.plain(), "card": self.sums.card()}

    def prepare(self, encoding: TableEncoding, decide_by: str | None = None,
                weights: Mapping[str, float] | None = None) -> str:
        """Encode the rows, and make a party for each method and seed; returns the name of the model's score.

        Args:
            decide_by: the metric that compares methods; None: the model's score.
            weights: class -> factor of the weights of its rows; None: rows have no weights.
        """
        if weights is not None and not self.experiment.has_weights:
            raise Refusal(RefusalCode.PLAN, "the server sends weights, which the plan does not have")
        content = json.dumps([to_plain(encoding), decide_by, weights], sort_keys=True)
        prepared = self._folder / PREPARED_FILE
        if prepared.is_file() and prepared.read_text("utf-8") != content:
            raise Refusal(RefusalCode.PLAN, "the site has been prepared for this run with another encoding, with other "
                          "weights or another metric: the same rows would be asked twice")
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_encoding(self._folder / "encoding.json", encoding)
        write_text(self._folder / VERSION_FILE, json.dumps({"version": self.table.version}))
        with self.experiment.precision():
            model, data = self.experiment.model(encoding), self.table.encode(encoding, weights)
            if data.weights is not None and self.table.version is not None:
                self._limits = limits_of_weights(self._site.limits, data.weights[:self.table.training_rows])
            score = model.loss.score_name
            self._decisive = choose_by_share(0.0, "", score, self.experiment.metrics, decide_by or score)
            named = name_metrics(self._decisive.metrics, score)
            self._metrics = PartyMetrics(named, model, data) if named else None
            for seed in self.experiment.seeds:
                # A further split of the same rows would be another question about the table.
                has_own_split = self.table.version is not None or seed == self.experiment.seed
                again = (Resplit(data, np.arange(data.total)) if has_own_split
                         else resplit(data, seed, first_party=self._party))
                self._seeds.append(_SeedRows(seed, again.data, LearningProblem(model, again.data), again.rows))
                for label in self.experiment.labels:
                    self._add_party(label, seed, self._seeds[-1].problem)
            try:
                self._count_epsilons()
                if not all(party.has_noise for party in self._parties):
                    self._count_columns(self.table.answered_columns(encoding), self.table.version)
            except Refusal:
                self.close()  # so that no message of the rounds is answered
                raise
        write_text(prepared, content)
        return score

    def _count_epsilons(self) -> None:
        """Write the privacy losses of the plan to the ledger, before anything of it leaves."""
        labels = [label for _ in self._seeds for label in self.experiment.labels]
        epsilons = [None if self.experiment.is_rehearsal else party.epsilon for party in self._parties]
        total = math.fsum(math.inf if epsilon is None else epsilon for epsilon in epsilons)
        if reasons := reasons_to_refuse(self._site.limits, self._asked(Usage(epsilon=total))):
            raise refusal_of_limits(reasons, self._site.limits)
        for number, (label, epsilon) in enumerate(zip(labels, epsilons, strict=True)):
            run = run_of_method(self._folder.name, number, self._plan)
            if epsilon is not None and self._ledger.latest("epsilon", run=run) is None:
                self._ledger.append("epsilon", run=run, method=label, epsilon=epsilon, delta=DELTA)

    def _add_party(self, label: str, seed: int, problem: LearningProblem) -> None:
        experiment, algorithm = self.experiment, self.experiment.algorithm(label)
        number = len(self._stores)
        self._stores.append(open_store(self._folder / "stores" / f"{number:02d}"))
        run = run_of_method(self._folder.name, number, self._plan)
        secure = secure_site(experiment.privacy, self._membership, self._site.limits, run, self._stores[-1].folder,
                             self._identity, algorithm)
        party = Party(algorithm, problem, self._stores[-1], rounds=experiment.rounds_of(label),
                      method=experiment.file.preset_of(label), name=self._name, limits=self._limits,
                      ledger=self._ledger, lead=self._lead, planned=self._planned(label, algorithm, seed),
                      rehearsal=experiment.is_rehearsal, metrics=self._metrics, secure=secure,
                      secret=self.table.secret)
        party.check()
        self._parties.append(party)

    @property
    def version(self) -> int | None:
        """Number of the version of the table; None if the split is that of a simulation."""
        return self.table.version

    @property
    def row_counts(self) -> dict[str, int]:
        """The number of rows of each split."""
        return dict(self.report().rows)

    @property
    def samples(self) -> FederatedData:
        """The encoded rows of the site with the first seed, after ``prepare``."""
        return self._seeds[0].data

    @property
    def problem(self) -> LearningProblem:
        """The problem of the site alone with the first seed, after ``prepare``."""
        return self._seeds[0].problem

    def finish(self) -> dict[str, Any]:
        """Write the models and the site's own report; returns the judgement of the methods that are complete.

        Returns:
            ``methods``, their labels; ``judgement``, that of this site, or None if its scores do not leave it.
        """
        with self.experiment.precision():
            models = self._read_models()
            labels = [label for label in self.experiment.labels
                      if all((label, of_seed.seed) in models for of_seed in self._seeds)]
            if not labels:
                return {"methods": [], "judgement": None}
            methods = {label: TrainedMethod.of_seeds([self._method(label, of_seed, *models[label, of_seed.seed])
                                              for of_seed in self._seeds]) for label in labels}
            if self.experiment.refit is not None:
                write_refit_of_site(self._folder.parent / str(refitted_run(self._folder.name)), self._name,
                                    {label: method.models for label, method in methods.items()},
                                    (self.table.training_rows, self.table.rows))
                return {"methods": labels, "judgement": None}
            run = self._judged(methods, models)
            write_run_folder(self._folder, run)
        judged = next(iter(run.verdict.sites.sites), None)
        limits, algorithms = self._site.limits, map(self.experiment.algorithm, labels)
        if (not all(scored_splits(limits, algorithm, ["test"]) for algorithm in algorithms)
                or min(run.test) < limits.min_cell or self.experiment.privacy is not None):
            judged = None  # with secure sums the server has the sums of the scores
        return {"methods": labels, "judgement": None if judged is None else
                round_scores(plain_site(judged), limits.score_digits)}

    def _read_models(self) -> dict[tuple[str, int], tuple[Vector, Vector | None]]:
        """(label, seed) -> the personal and the shared model after the last round."""
        like = jax.eval_shape(self._seeds[0].problem.init, jax.random.key(0))
        keys = [(label, of_seed.seed) for of_seed in self._seeds for label in self.experiment.labels]
        models = {key: store.read_models(like) for key, store in zip(keys, self._stores, strict=True)}
        return {key: pair for key, pair in models.items() if pair is not None}

    def _judged(self, methods: Mapping[str, TrainedMethod],
                models: Mapping[tuple[str, int], tuple[Vector, Vector | None]]) -> FederationRun:
        """The site's own results: the methods are judged on its test rows."""
        first, experiment = self._seeds[0], self.experiment
        loss = first.problem.model.loss
        score = score_of(self._decisive, loss)
        measured = [measure_models(
            {label: models[label, of_seed.seed][0] for label in methods},
            {label: shared for label in methods if (shared := models[label, of_seed.seed][1]) is not None},
            of_seed.problem, of_seed.data, score, seed=of_seed.seed, party=self._party, rows=of_seed.rows)
                    for of_seed in self._seeds]
        rows = RowValues.concatenate([part for part in measured if part is not None]) if measured[0] else None
        baseline = baseline_name(first.data, dict(methods))
        of_party = {label: replace(method, runs=tuple(run._replace(metrics=run.metrics.assign(party=self._party))
                                                      for run in method.runs)) for label, method in methods.items()}
        evidence = evidence_of_run(experiment, self._decisive, of_party, loss, {self._party: self._name}, rows,
                                   baseline if rows is not None and baseline in rows.values else None)
        sizes = {split: [int(first.data.sizes(split)[0])] for split in SPLITS}
        return FederationRun(experiment, (self._name,), sizes["train"], sizes["test"], methods, judge(evidence),
                             party=self._party, digest=fingerprint_of(replace(first.data, weights=None)),
                             name=self._folder.name)

    def _method(self, label: str, of_seed: "_SeedRows", personal: Vector, shared: Vector | None) -> TrainedMethod:
        """The models of a method with one seed, and their scores on the site's rows."""
        metrics, rounds = MetricsTable(label), self.experiment.rounds_of(label)
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


def open_store(folder: Path) -> PartyStore:
    """The store of a party. The process of an earlier job may have it: its engine ends it after some seconds."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return PartyStore(folder)
        except RunningError as error:
            if time.monotonic() > end:
                raise Refusal(RefusalCode.BUSY, str(error)) from error
        time.sleep(_LOCK_PAUSE)
