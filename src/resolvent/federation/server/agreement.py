"""What the sites of a run agree on before the rounds: encoding, weights of rows, and the metric that compares methods.

The server stores the report of every site's table. When a run is continued, the table of a site must be unchanged. A
site that joins later must fit the encoding of the run and does not change it: the models would not fit another one.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from resolvent.comparisons.judgement.decisive_metric import DecisiveMetric, choose_by_share
from resolvent.data.files.atomic_files import write_text
from resolvent.data.samples import split_sizes
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.exchange import Answers
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.requests import (
    FederationRefusedError,
    ask_all,
    library_version,
    request_bytes,
    run_of_table,
)
from resolvent.federation.protocol.row_weights import agree_weights
from resolvent.federation.protocol.schema import agree, conflicts_of_names, misfits
from resolvent.federation.protocol.site_findings import compare_sites
from resolvent.federation.protocol.stores import ServerStore
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.table_sums import count_of_integers, pooled, pooled_from_integers
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.server.secure_phases import SecurePhases
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import read_encoding, to_plain, write_encoding
from resolvent.tables.table_options import TableOptions

_TABLES, _ALL = "tables.json", "all sites"


class RunAgreement(NamedTuple):
    """What the sites of a run have agreed on.

    Attributes:
        sites: all sites of the run, also those that have left, in the order in which they joined.
        encoding: how rows become inputs.
        decisive: the metrics of the experiment, and the one that compares methods.
        rows: number of rows of each split at all sites with which the run began.
        notes: facts about the tables for the reader of the report.
    """

    sites: tuple[str, ...]
    encoding: TableEncoding
    decisive: DecisiveMetric
    rows: Mapping[str, int]
    notes: tuple[str, ...] = ()


class _Tables(NamedTuple):
    """The reports of the tables of all sites that have taken part in a run.

    Attributes:
        founders: the sites with which the run began; their reports determine the encoding.
        reports: site -> its report, in the order in which the sites joined; with secure sums, names and kinds only.
    """

    founders: tuple[str, ...]
    reports: dict[str, TableReport]
    total: TableReport

    @classmethod
    def read(cls, folder: Path) -> "_Tables | None":
        """The reports in a run's folder; None if the run has not begun."""
        path = folder / _TABLES
        if not path.is_file():
            return None
        content = json.loads(path.read_text("utf-8"))
        reports = {site: TableReport.from_plain(report) for site, report in content["tables"].items()}
        total = content.get("total")
        return cls(tuple(content["founders"]), reports, TableReport.from_plain(total) if total is not None else
                   pooled([reports[site] for site in content["founders"]]))

    def write(self, folder: Path) -> None:
        """Write the reports into a run's folder."""
        tables = {site: report.plain() for site, report in self.reports.items()}
        write_text(folder / _TABLES, json.dumps({"founders": self.founders, "tables": tables,
                                                 "total": self.total.plain()}))


def agree_on_run(job: FederationJob, experiment: FederatedExperiment, transport: Transport, folder: Path,
                 observe: Callable[[Mapping[str, Any]], None]) -> RunAgreement:
    """Ask the sites about their tables, agree, and let every site encode its rows.

    With secure sums, the sites report names and kinds, and the numbers of their tables are summed.

    Raises:
        FederationStoppedError: a site does not answer.
    """
    known, is_secure = _Tables.read(folder), experiment.privacy is not None
    answers = ask_for_reports(job, experiment, transport)
    reports = {site: _read_report(site, answer.get("table"), experiment) for site, answer in answers.items()}
    if known is not None:
        changed = [site for site in job.sites if site in known.reports and known.reports[site] != reports[site]]
        if changed:
            raise FederationRefusedError(f"the table of {', '.join(changed)} has changed since the run {job.run} "
                                         "began: start a new run with another --out")
        if is_secure and {*job.sites} != {*known.founders}:
            raise FederationRefusedError("the sites of a run with secure sums cannot change: each has accepted the "
                                         "others' keys. Continue with the same sites, or start a new run")
        stored = read_encoding(folder / "encoding.json")
        assert isinstance(stored, TableEncoding)
        encoding = stored
        new = {site: reports[site] for site in job.sites if site not in known.reports}
        if conflicts := [line for site, report in new.items() for line in misfits(site, report, encoding)]:
            raise FederationRefusedError(f"a site that joins does not fit the run: {'; '.join(conflicts)}")
        tables = known._replace(reports=known.reports | reports)
    else:
        if conflicts := conflicts_of_names(reports):
            raise FederationRefusedError(f"the tables do not fit together: {'; '.join(conflicts)}")
        folder.mkdir(parents=True, exist_ok=True)
        total = _secure_total(job, experiment, transport, folder, answers, reports) if is_secure else pooled(
            [*reports.values()])
        tables = _Tables(job.sites, reports, total)
        encoding = _found_encoding(tables, experiment)
        write_encoding(folder / "encoding.json", encoding)
    findings = [] if is_secure else [finding.line for finding in compare_sites(tables.reports)]
    rows = {_ALL: tables.total.rows} if is_secure else {site: report.rows for site, report in reports.items()}
    observe({"event": "agreed", "features": len(encoding.features), "task": encoding.task, "findings": findings,
             "rows": {site: dict(counts) for site, counts in rows.items()}})
    decisive = _choose_metric(experiment, encoding, tables.total)
    _prepare(job, experiment, transport, encoding, tables, decisive)
    tables.write(folder)  # last: a site that joins and refuses does not belong to the run
    notes = ((f"Secure sums hide the numbers of rows of the sites: together they have {tables.total.rows['train']} "
              f"training rows and {tables.total.rows['test']} test rows",) if is_secure else
             (*_notes(tables.reports, experiment.table), *findings))
    return RunAgreement(tuple(tables.reports), encoding, decisive, tables.total.rows, notes)


def _secure_total(job: FederationJob, experiment: FederatedExperiment, transport: Transport, folder: Path,
                  answers: Mapping[str, Mapping[str, Any]], reports: Mapping[str, TableReport]) -> TableReport:
    rules = SumRules.of_plan(experiment.privacy)
    assert rules is not None
    run, names = run_of_table(job.run, job.plan), next(iter(reports.values()))
    with ServerStore(folder / "sums") as store:
        sums = SecurePhases(transport, store, job.rules, rules)
        sums.begin(run, {site: answer.get("card") for site, answer in answers.items()}, Answers())
        return pooled_from_integers(sums.sum_once(run, (0, 0), job.sites, count_of_integers(names)), names)


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


def ask_for_reports(job: FederationJob, experiment: Plan, transport: Transport) -> dict[str, dict[str, Any]]:
    """Site -> its answer about its table, as it has arrived: the report under ``table``.

    Raises:
        FederationRefusedError: a site refuses.
        FederationStoppedError: a site does not answer.
    """
    requests = {site: request_bytes("describe", run=job.run, party=job.numbered.index(site), experiment=job.experiment,
                                    version=library_version(), sites=list(job.sites), roster=list(job.roster),
                                    signature=job.signature, refit=experiment.refit,
                                    keeps_validation=experiment.keeps_validation) for site in job.sites}
    return ask_all(transport, requests, job.deadline)


def _read_report(site: str, content: Any, experiment: FederatedExperiment) -> TableReport:
    try:
        report = TableReport.from_plain(content)
        if len(report.labels) != len(experiment.table.labels):
            raise InputError(f"the site reports {len(report.labels)} labels, and the experiment has "
                             f"{len(experiment.table.labels)}")
        return report
    except InputError as error:
        raise FederationRefusedError(f"{site}: {error}") from error


def _found_encoding(tables: _Tables, experiment: FederatedExperiment) -> TableEncoding:
    encoding, conflicts = agree(tables.reports, experiment.table, tables.total)
    if encoding is None:
        raise FederationRefusedError(f"the tables do not fit together: {'; '.join(conflicts)}")
    return encoding


def _choose_metric(experiment: FederatedExperiment, encoding: TableEncoding, total: TableReport) -> DecisiveMetric:
    """The metric that compares methods, as in a simulation: it depends on the share of the most frequent class."""
    counts = total.labels[0].classes if len(total.labels) == 1 else {}
    largest = max(counts, key=lambda name: counts[name], default="")
    share = counts[largest] / sum(counts.values()) if counts else 0.0
    return choose_by_share(share, largest, experiment.model(encoding).loss.score_name, experiment.metrics,
                           experiment.decide_by)


def _prepare(job: FederationJob, experiment: FederatedExperiment, transport: Transport, encoding: TableEncoding,
             tables: _Tables, decisive: DecisiveMetric) -> None:
    """Let every site encode its rows and get ready for the rounds."""
    weights: dict[str, dict[str, float]] = {}
    if experiment.has_weights:
        # With secure sums all sites have the weights of the pooled rows.
        reports = tables.reports if experiment.privacy is None else {_ALL: tables.total}
        sums = {site: report.labels[0].weights or {} for site, report in reports.items()}
        rows = {site: report.rows["train"] for site, report in reports.items()}
        founders = tables.founders if experiment.privacy is None else (_ALL,)
        try:
            weights = agree_weights(sums, rows, founders, experiment.class_weight)
        except InputError as error:
            raise FederationRefusedError(str(error)) from error
    plain = to_plain(encoding)
    ask_all(transport, {site: request_bytes("prepare", run=job.run, plan=job.plan, encoding=plain,
                                            decide_by=decisive.name, weights=weights.get(site, weights.get(_ALL)))
                        for site in job.sites}, job.deadline)
