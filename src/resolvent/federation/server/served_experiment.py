"""The server's part of an experiment: the encoding of all rows, the rounds of every method, and the run folder.

When a run is continued, the table of a site must be unchanged. A site that joins later must fit the encoding of the run
and does not change it: the models would not fit another one.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric, choose_by_share
from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.judgement.site_judgement import SiteJudgement
from resolvent.comparisons.judgement.verdict import judge, refusals
from resolvent.comparisons.runs.compared_methods import MethodRun
from resolvent.comparisons.runs.record import DataRecord
from resolvent.comparisons.runs.summary import refused_replies
from resolvent.data.files.plain_values import read_plain
from resolvent.data.samples import split_sizes
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.events import Agreement, Event, PhaseReport
from resolvent.federation.protocol.exchange import Answers
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.judgement import join_judgements, read_judgement
from resolvent.federation.protocol.limits import one_split_note
from resolvent.federation.protocol.names import run_of_table
from resolvent.federation.protocol.plan import Part
from resolvent.federation.protocol.results import (
    SPLIT,
    TABLES,
    FederationRun,
    TrainedMethod,
    evidence_of_run,
    write_run_folder,
)
from resolvent.federation.protocol.row_weights import agree_weights
from resolvent.federation.protocol.schema import agree, conflicts_of_names, misfits
from resolvent.federation.protocol.score_sums import count_of_scores, mean_scores_of
from resolvent.federation.protocol.site_findings import compare_sites
from resolvent.federation.protocol.stores import ServerStore
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.table_sums import count_of_integers, pooled, pooled_from_integers
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.server.secure_phases import SecurePhases
from resolvent.federation.server.served_plan import Agreed, Known, Outcome, ServedPlan
from resolvent.problem.metrics.metric import name_metrics
from resolvent.problem.models.model import Model
from resolvent.simulator.record.metrics_table import MetricsTable
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.storage.tree_files import digest
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import read_encoding, to_plain, write_encoding
from resolvent.tables.table_options import TableOptions

if TYPE_CHECKING:
    import pandas as pd

_ALL = "all sites"


class AgreedRows(NamedTuple):
    """What the sites have agreed on for the rows of the whole table, or for those of a fold."""

    encoding: TableEncoding
    total: TableReport
    weights: Mapping[str, Mapping[str, float]]
    rows: Mapping[str, Mapping[str, int]]

    def for_site(self, site: str) -> dict[str, Any]:
        """The part of the message ``prepare``."""
        return {"encoding": to_plain(self.encoding), "weights": self.weights.get(site, self.weights.get(_ALL))}


class ServedExperiment(ServedPlan[FederatedExperiment]):
    """One experiment at the server.

    Attributes:
        sites: all sites of the run, also those that have left, in the order in which they joined.
        encoding: how rows become inputs.
        decisive: the metrics of the experiment, and the one that compares methods.
        total: the report on the rows of all sites with which the run began.
        notes: facts about the tables for the reader of the report.
        methods: the outcome of each method.
        sizes: site -> numbers of its training and test rows.
        folds: what the sites have agreed on in each fold; none with one split of the rows.
    """

    encoding: TableEncoding
    decisive: DecisiveMetric
    total: TableReport
    sites: tuple[str, ...]
    notes: tuple[str, ...]
    methods: dict[str, TrainedMethod]
    folds: tuple[AgreedRows, ...]

    @override
    def _agree(self, answers: Mapping[str, Mapping[str, Any]], known: Known | None) -> Agreed:
        """With secure sums, the sites report names and kinds, and the numbers of their tables are summed."""
        plan, is_secure = self.plan, self.plan.privacy is not None
        reports = self._read_reports(answers, TableReport)
        for site, report in reports.items():
            if len(report.labels) != len(plan.table.labels):
                raise InputError(f"{site}: the site reports {len(report.labels)} labels, and the experiment has "
                                 f"{len(plan.table.labels)}")
        before = {} if known is None else {site: read_plain(TableReport, r, site) for site, r in known.tables.items()}
        if known is None:
            if conflicts := conflicts_of_names(reports):
                raise InputError(f"the tables do not fit together: {'; '.join(conflicts)}")
            founders = self.job.sites
            if is_secure:
                self._begin_sums(answers)
            self.total = self._secure_total(0, reports) if is_secure else pooled([*reports.values()])
            encoding, misfit = agree(reports, plan.table, self.total)
            if encoding is None:
                raise InputError(f"the tables do not fit together: {'; '.join(misfit)}")
            write_encoding(self.folder / "encoding.json", encoding)
            self.encoding = encoding
        else:
            founders, self.total = tuple(known.founders), read_plain(TableReport, known.total, "the total")
            stored = read_encoding(self.folder / "encoding.json")
            assert isinstance(stored, TableEncoding)
            self.encoding = stored
            new = {site: report for site, report in reports.items() if site not in before}
            if conflicts := [line for site, report in new.items() for line in misfits(site, report, stored)]:
                raise InputError(f"a site that joins does not fit the run: {'; '.join(conflicts)}")
        self.folds, one_split = self._agree_on_folds(
            answers, reports, () if known is None else [read_plain(TableReport, r, "the total") for r in known.folds])
        tables = before | reports
        self.sites, self.decisive = tuple(tables), self._choose_metric()
        findings = [] if is_secure else [finding.line for finding in compare_sites(tables)]
        self.notes = ((f"Secure sums hide the numbers of rows of the sites: together they have "
                       f"{self.total.rows['train']} training rows and {self.total.rows['test']} test rows", *one_split)
                      if is_secure else (*one_split, *_notes(tables, plan.table), *findings))
        rows = {_ALL: self.total.rows} if is_secure else {site: report.rows for site, report in reports.items()}
        whole = AgreedRows(self.encoding, self.total, self._weights(tables, founders, self.total), rows)
        first, *folds = ([part.for_site(site) for site in self.job.sites] for part in (whole, *self.folds))
        return Agreed(
            {site: {**first[k], "decide_by": self.decisive.name, "folds": [of_sites[k] for of_sites in folds]}
             for k, site in enumerate(self.job.sites)},
            Known(founders, {site: report.plain() for site, report in tables.items()}, self.total.plain(),
                  [fold.total.plain() for fold in self.folds] if is_secure else []),
            {} if is_secure else rows,
            Agreement(len(self.encoding.features), {site: sum(counts.values()) for site, counts in rows.items()},
                      tuple(findings)))

    def _agree_on_folds(self, answers: Mapping[str, Mapping[str, Any]], whole: Mapping[str, TableReport],
                        known: Sequence[TableReport]) -> tuple[tuple[AgreedRows, ...], list[str]]:
        """The agreements on the folds; none, and why, if a site refuses them or its tables do not fit together.

        Args:
            whole: site -> its report on the whole table.
            known: with secure sums, the totals of the folds of a run that has begun.
        """
        if self.plan.folds == 1:
            return (), []
        reasons = [one_split_note(site, answer["against_folds"]) for site, answer in answers.items()
                   if answer.get("against_folds") is not None]
        if not reasons:
            try:
                if self.plan.privacy is None:
                    return tuple(self._agree_on_fold(fold, self._reports_of_fold(answers, fold, whole))
                                 for fold in range(self.plan.folds)), []
                totals = known or [self._secure_total(1 + fold, whole) for fold in range(self.plan.folds)]
                return tuple(self._agree_on_fold(fold, whole, total) for fold, total in enumerate(totals)), []
            except InputError as error:
                reasons = [f"The rows have one split instead of folds: {error}"]
        self.plan = self.plan.with_one_split()
        return (), reasons

    def _reports_of_fold(self, answers: Mapping[str, Mapping[str, Any]], fold: int,
                         whole: Mapping[str, TableReport]) -> dict[str, TableReport]:
        reports = self._read_reports({
            site: {"table": folds[fold]} if isinstance(folds := answer.get("folds"), list) and fold < len(folds) else {}
            for site, answer in answers.items()}, TableReport)
        for site, report in reports.items():
            if sum(report.rows.values()) != sum(whole[site].rows.values()):
                raise InputError(f"{site}: in fold {fold + 1} it reports another number of rows than before")
        return reports

    def _agree_on_fold(self, fold: int, reports: Mapping[str, TableReport],
                       total: TableReport | None = None) -> AgreedRows:
        is_secure, total = total is not None, pooled([*reports.values()]) if total is None else total
        if sum(total.rows.values()) != sum(self.total.rows.values()):
            raise InputError(f"in fold {fold + 1} the sites report another number of rows than before")
        encoding, misfit = agree(reports, self.plan.table, total)
        if encoding is None:
            raise InputError(f"in fold {fold + 1}, the tables do not fit together: {'; '.join(misfit)}")
        return AgreedRows(encoding, total, self._weights(reports, self.job.sites, total),
                          {} if is_secure else {site: report.rows for site, report in reports.items()})

    def _begin_sums(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        with ServerStore(self.folder / "sums") as store:
            self._sums(store).begin(run_of_table(self.job.run, self.job.plan),
                                    {site: answer.get("card") for site, answer in answers.items()}, Answers())

    def _sums(self, store: ServerStore) -> SecurePhases:
        """The secure sums outside of the rounds."""
        rules = SumRules.of_plan(self.plan.privacy)
        assert rules is not None
        return SecurePhases(self.transport, store, self.job.rules, rules.over_all)

    def _sum(self, phase: int, count: int) -> NDArray[np.unsignedinteger]:
        """A sum over all sites: phase 0 is of the tables, 1 to F of the folds, F + 1 of the scores over all folds."""
        with ServerStore(self.folder / "sums") as store:
            return self._sums(store).sum_once(run_of_table(self.job.run, self.job.plan), (0, phase), self.job.sites,
                                              count)

    def _secure_total(self, phase: int, reports: Mapping[str, TableReport]) -> TableReport:
        names = next(iter(reports.values()))
        return pooled_from_integers(self._sum(phase, count_of_integers(names)), names)

    def _choose_metric(self) -> DecisiveMetric:
        """The metric that compares methods, as in a simulation: it depends on the share of the most frequent class."""
        total, plan = self.total, self.plan
        counts = total.labels[0].classes if len(total.labels) == 1 else {}
        largest = max(counts, key=lambda name: counts[name], default="")
        share = counts[largest] / sum(counts.values()) if counts else 0.0
        return choose_by_share(share, largest, plan.model(self.encoding).loss.score_name, plan.metrics, plan.decide_by)

    def _weights(self, reports: Mapping[str, TableReport], founders: tuple[str, ...],
                 total: TableReport) -> dict[str, dict[str, float]]:
        """The factors of the weights of each site; with secure sums all sites have those of the pooled rows."""
        if not self.plan.has_weights:
            return {}
        if self.plan.privacy is not None:
            reports, founders = {_ALL: total}, (_ALL,)
        sums = {site: report.labels[0].weights or {} for site, report in reports.items()}
        rows = {site: report.rows["train"] for site, report in reports.items()}
        return agree_weights(sums, rows, founders, self.plan.class_weight)

    @override
    def _run_methods(self) -> None:
        plan = self.plan
        self.model, self.sizes = plan.model(self.encoding), dict[str, tuple[int, int]]()
        runs = [[self._method(label, part) for label in plan.labels] for part in plan.parts]
        self.methods = {label: TrainedMethod.of_parts([of_part[i] for of_part in runs])
                        for i, label in enumerate(plan.labels)}

    def _method(self, label: str, part: Part) -> TrainedMethod:
        names = name_metrics(self.decisive.metrics, self.model.loss.score_name)
        encoding, total, rows = (self.encoding, self.total, None) if part.fold is None else (
            (fold := self.folds[part.fold]).encoding, fold.total, fold.rows)
        model = self.plan.model(encoding)
        outcome = self._run_method(label, part, self.plan.algorithm(label), model.init, score=self.decisive.name,
                                   samples=total.rows["train"], metrics=tuple(names), rows=rows)
        record = outcome.result.record
        if self.plan.privacy is None:
            tests = record.split_sizes[record.splits.index(SPLIT)]
            self.sizes |= dict(zip(record.parties, zip(record.sizes, tests, strict=True), strict=True))
        return self._method_run(label, part, encoding, model, outcome)

    def _method_run(self, label: str, part: Part, encoding: TableEncoding, model: Model,
                    outcome: Outcome) -> TrainedMethod:
        import pandas as pd

        # The lead has no personal models: the tensors have no rows.
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        personal = jax.tree.map(lambda s: np.zeros((0, *s.shape), s.dtype), shapes)
        result = outcome.result
        refused: Counter[str] = Counter()
        for report in result.reports:
            if isinstance(report, PhaseReport):
                refused.update(result.record.parties[k] for k in report.refused)
        # A method that began after a site had joined or left has other ids than the run.
        ids = {k: self.sites.index(name) for k, name in enumerate(result.record.parties)}
        metrics = result.metrics.assign(**part.columns, party=result.metrics["party"].map(ids, na_action="ignore"))
        # As objects, because pandas derives no dtype from columns in which all values are missing.
        tables = [table.astype(object) for table in (metrics, _norms(label, part, result.reports, ids))]
        metrics = pd.concat(tables, ignore_index=True).astype({
            "round": metrics["round"].dtype, "party": "Int64", "value": float, **dict.fromkeys(part.columns, int)})
        models = SavedModels(label, self.plan.rounds_of(label), (), personal, result.shared, model, encoding,
                             digest(result.state))
        record = result.record
        return TrainedMethod(models, (MethodRun(metrics, digest(result.state), (outcome.seconds,), refused=refused,
                                                bytes=(record.bytes_down, record.bytes_up)),))

    @override
    def _write(self, results: Path, answers: Mapping[str, Mapping[str, Any]], warnings: list[str]) -> None:
        judgements, notes, plan = list[SiteJudgement](), list[str](), self.plan
        for site, answer in answers.items():
            done = answer.get("methods")
            missing = [label for label in plan.labels if isinstance(done, list) and label not in done]
            if missing and site not in self.without_models:
                notes.append(f"{site} joined the run after {', '.join(missing)}: it has no models of these methods")
            if answer.get("judgement") is None:
                if done != [] and plan.refit is None and plan.privacy is None:
                    notes.append(f"{site} does not let its scores out")
                continue
            try:
                judged = read_judgement(answer["judgement"], self.sites.index(site), site, plan.labels)
                rows = self._rows[site]
                # Every row is tested once in folds; other seeds can split the rows again.
                most = rows["test"] if plan.folds == len(plan.seeds) == 1 else sum(rows.values())
                if judged.test_rows > most:
                    raise InputError(f"its judgement is of {judged.test_rows} test rows, and it has reported {most}: "
                                     "the judgement does not count")
                judgements.append(judged)
            except InputError as error:
                warnings.append(f"{site}: {error}")
        means: dict[str, float | None] = {}
        if plan.privacy is not None and plan.folds > 1 and {*answers} == {*self.sites}:
            total = self._sum(plan.folds + 1, count_of_scores(plan.labels, [SPLIT], has_shared=False))
            means = {name.removeprefix("mean_"): value for name, _, value in mean_scores_of(
                total, plan.labels, [SPLIT])}
        write_run_folder(results, self._joined(judgements, means, notes, warnings))

    def _with_scores(self, label: str, method: TrainedMethod, judgements: Sequence[SiteJudgement],
                     means: Mapping[str, float | None]) -> TrainedMethod:
        """The method with the scores of the sites over all folds, or their mean; it has had none in the rounds."""
        import pandas as pd

        table, first, rounds = MetricsTable(label), method.runs[0], self.plan.rounds_of(label)
        for site in judgements:
            if label in site.scores:
                table.add(rounds, site.party, SPLIT, self.decisive.name, site.scores[label].value)
        if label in means:
            mean = means[label]
            table.add(rounds, None, SPLIT, f"mean_{self.decisive.name}", math.nan if mean is None else mean)
        scores = table.table().assign(**self.plan.parts[0].columns).astype(first.metrics.dtypes.to_dict())
        run = first._replace(metrics=pd.concat([first.metrics, scores], ignore_index=True))
        return replace(method, runs=(run, *method.runs[1:]))

    def _joined(self, judgements: list[SiteJudgement], means: Mapping[str, float | None], notes: list[str],
                warnings: list[str]) -> FederationRun:
        """The outcome of the run for the lead."""
        experiment, methods = self.plan, self.methods
        train, test = zip(*(self.sizes.get(site, (0, 0)) for site in self.sites), strict=True)
        if experiment.folds > 1:
            methods = {label: self._with_scores(label, method, judgements, means) for label, method in methods.items()}
            tested = {site.name: site.test_rows for site in judgements}
            test = tuple(tested.get(site, rows) for site, rows in zip(self.sites, test, strict=True))
        evidence = evidence_of_run(experiment, self.decisive, methods, self.model, dict(enumerate(self.sites)),
                                   train=train)
        sites = join_judgements(judgements, evidence.methods, evidence.alone, is_share=evidence.is_share)
        has_scores = bool(((evidence.metrics["metric"] == evidence.score) & (evidence.metrics["split"] == SPLIT)).any())
        verdict = judge(evidence if has_scores else replace(evidence, alone=None), sites, experiment.decision)
        if not has_scores:
            finding = "No site lets its scores out: each site can see its own."
            if experiment.privacy is not None:
                finding = _mean_finding(methods, evidence.score)
            if experiment.refit is not None:
                finding = "The methods were trained again on all rows; no row is left on which they could be measured."
            verdict = replace(verdict, finding=finding)
        note = [self.decisive.note] if self.decisive.note else []
        not_counted = [line for label, method in methods.items()
                       if (line := refusals(label, refused_replies(method.runs))) is not None]
        data = DataRecord(TABLES, [*self.sites], [*train], [*test], notes=[*note, *self.notes, *notes])
        return FederationRun(self.job.run, experiment, methods, verdict, data, [*not_counted, *warnings])


def _norms(label: str, part: Part, reports: Sequence[Event], ids: Mapping[int, int]) -> "pd.DataFrame":
    """The norm of each site's update by round, also of those that did not count; the longest of the phases."""
    table = MetricsTable(label)
    norms: dict[int, dict[int, float]] = {}
    for report in reports:
        if isinstance(report, PhaseReport):
            of_round = norms.setdefault(report.round + 1, {})
            for k, norm in report.norms.items():
                of_round[ids[k]] = max(of_round.get(ids[k], 0.0), math.inf if norm is None else norm)
    for rounds, of_round in norms.items():
        table.add(rounds, np.array(sorted(of_round), int), None, "update_norm",
                  np.array([of_round[k] for k in sorted(of_round)]))
    return table.table().assign(**part.columns)


def _notes(reports: Mapping[str, TableReport], settings: TableOptions) -> Iterator[str]:
    """A line for each site with levels that it does not name, or with other shares of rows than the experiment's."""
    for site, report in reports.items():
        rows = sum(report.rows.values())
        wish = split_sizes(rows, settings.validation, settings.test)
        if abs(wish[1] - report.rows["validation"]) + abs(wish[2] - report.rows["test"]) > rows / 50:
            yield (f"{site} decides its split: {report.rows['validation']} validation rows and {report.rows['test']} "
                   f"test rows, where the experiment asks for {wish[1]} and {wish[2]}")
        if hidden := [shorten(repr(column.name)) for column in report.columns if column.has_hidden]:
            yield (f"{site} has levels with fewer rows than its min_cell, in {', '.join(hidden)}: in training these "
                   "rows have no level")


def _mean_finding(methods: Mapping[str, TrainedMethod], score: str) -> str:
    """The mean scores of the methods after their last round, from secure sums."""
    means = []
    for label, method in methods.items():
        rows = method.metrics[(method.metrics["metric"] == f"mean_{score}") & (method.metrics["split"] == SPLIT)]
        if len(last := rows[rows["round"] == rows["round"].max()]):
            means.append(f"{label} {format_value(float(last['value'].mean()), score)}")
    if not means:
        return "No site lets its scores out, and their secure sum had no result: each site can see its own."
    return f"The mean {title_of(score)} over the sites is {', '.join(means)}. Secure sums hide that of each site."
