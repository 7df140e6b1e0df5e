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
from resolvent.data.tables.encoding import TableEncoding
from resolvent.data.tables.encoding_files import read_encoding, to_plain, write_encoding
from resolvent.data.tables.table_settings import TableSettings
from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.requests import FederationRefusedError, ask_all, library_version, request_bytes
from resolvent.federation.protocol.row_weights import agree_weights
from resolvent.federation.protocol.schema import agree, misfits
from resolvent.federation.protocol.site_findings import compare_sites
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.transport import Transport

__all__ = ["RunAgreement", "agree_on_run", "ask_for_reports"]

_TABLES = "tables.json"


class RunAgreement(NamedTuple):
    """What the sites of a run have agreed on.

    Attributes:
        sites: all sites of the run, also those that have left, in the order in which they joined.
        encoding: how rows become inputs.
        decisive: the metrics of the experiment, and the one that compares methods.
        notes: facts about the tables for the reader of the report.
    """

    sites: tuple[str, ...]
    encoding: TableEncoding
    decisive: DecisiveMetric
    notes: tuple[str, ...] = ()


class _Tables(NamedTuple):
    """The reports of the tables of all sites that have taken part in a run.

    Attributes:
        founders: the sites with which the run began; their reports determine the encoding.
        reports: site -> its report, in the order in which the sites joined.
    """

    founders: tuple[str, ...]
    reports: dict[str, TableReport]

    @classmethod
    def read(cls, folder: Path) -> "_Tables | None":
        """The reports in a run's folder; None if the run has not begun."""
        path = folder / _TABLES
        if not path.is_file():
            return None
        content = json.loads(path.read_text("utf-8"))
        return cls(tuple(content["founders"]),
                   {site: TableReport.from_plain(report) for site, report in content["tables"].items()})

    def write(self, folder: Path) -> None:
        """Write the reports into a run's folder."""
        tables = {site: report.plain() for site, report in self.reports.items()}
        write_text(folder / _TABLES, json.dumps({"founders": self.founders, "tables": tables}))


def agree_on_run(job: FederationJob, experiment: FederatedExperiment, transport: Transport, folder: Path,
                 observe: Callable[[Mapping[str, Any]], None]) -> RunAgreement:
    """Ask the sites about their tables, agree, and let every site encode its rows.

    Raises:
        FederationRefusedError: a site refuses, the tables do not fit together, or a table has changed since the run
            began.
    """
    known = _Tables.read(folder)
    reports = {site: _read_report(site, table, experiment)
               for site, table in ask_for_reports(job, experiment, transport).items()}
    tables = _Tables(job.sites, {}) if known is None else known
    changed = [site for site in job.sites if site in tables.reports and tables.reports[site] != reports[site]]
    if changed:
        raise FederationRefusedError(f"the table of {', '.join(changed)} has changed since the run {job.run} began: "
                                     "start a new run with another --out")
    if known is None:
        encoding = _found_encoding(reports, experiment)
        folder.mkdir(parents=True, exist_ok=True)
        write_encoding(folder / "encoding.json", encoding)
    else:
        stored = read_encoding(folder / "encoding.json")
        assert isinstance(stored, TableEncoding)
        encoding = stored
        new = {site: reports[site] for site in job.sites if site not in tables.reports}
        if conflicts := [line for site, report in new.items() for line in misfits(site, report, encoding)]:
            raise FederationRefusedError(f"a site that joins does not fit the run: {'; '.join(conflicts)}")
    tables = tables._replace(reports=tables.reports | {site: reports[site] for site in job.sites})
    findings = [finding.line for finding in compare_sites(tables.reports)]
    observe({"event": "agreed", "features": len(encoding.features), "task": encoding.task, "findings": findings,
             "rows": {site: dict(report.rows) for site, report in reports.items()}})
    decisive = _choose_metric(experiment, encoding, tables)
    _prepare(job, experiment, transport, encoding, tables, decisive)
    tables.write(folder)  # last: a site that joins and refuses does not belong to the run
    return RunAgreement(tuple(tables.reports), encoding, decisive,
                        (*_notes(tables.reports, experiment.table), *findings))


def _notes(reports: Mapping[str, TableReport], settings: TableSettings) -> Iterator[str]:
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


def ask_for_reports(job: FederationJob, experiment: Plan, transport: Transport) -> dict[str, Any]:
    """Site -> its report on its table, as it has arrived.

    Raises:
        FederationRefusedError: a site refuses.
        FederationStoppedError: a site does not answer.
    """
    requests = {site: request_bytes("describe", run=job.run, party=job.numbered.index(site), experiment=job.experiment,
                                    version=library_version(), sites=list(job.sites), roster=list(job.roster),
                                    signature=job.signature, refit=experiment.refit,
                                    keeps_validation=experiment.keeps_validation) for site in job.sites}
    return {site: answer.get("table") for site, answer in ask_all(transport, requests, job.deadline).items()}


def _read_report(site: str, content: Any, experiment: FederatedExperiment) -> TableReport:
    try:
        report = TableReport.from_plain(content)
        if len(report.labels) != len(experiment.table.labels):
            raise InputError(f"the site reports {len(report.labels)} labels, and the experiment has "
                             f"{len(experiment.table.labels)}")
        return report
    except InputError as error:
        raise FederationRefusedError(f"{site}: {error}") from error


def _found_encoding(reports: Mapping[str, TableReport], experiment: FederatedExperiment) -> TableEncoding:
    encoding, conflicts = agree(reports, experiment.table)
    if encoding is None:
        raise FederationRefusedError(f"the tables do not fit together: {'; '.join(conflicts)}")
    return encoding


def _choose_metric(experiment: FederatedExperiment, encoding: TableEncoding, tables: _Tables) -> DecisiveMetric:
    """The metric that compares methods, as in a simulation: it depends on the share of the most frequent class."""
    counts: dict[str, int] = {}
    for site in () if encoding.more_labels else tables.founders:
        for name, count in tables.reports[site].label.classes.items():
            counts[name] = counts.get(name, 0) + count
    largest = max(counts, key=lambda name: counts[name], default="")
    share = counts[largest] / sum(counts.values()) if counts else 0.0
    return choose_by_share(share, largest, experiment.model(encoding).loss.score_name, experiment.metrics,
                           experiment.decide_by)


def _prepare(job: FederationJob, experiment: FederatedExperiment, transport: Transport, encoding: TableEncoding,
             tables: _Tables, decisive: DecisiveMetric) -> None:
    """Let every site encode its rows and get ready for the rounds."""
    weights: dict[str, dict[str, float]] = {}
    if experiment.has_weights:
        sums = {site: report.label.weights or {} for site, report in tables.reports.items()}
        rows = {site: report.rows["train"] for site, report in tables.reports.items()}
        try:
            weights = agree_weights(sums, rows, tables.founders, experiment.class_weight)
        except InputError as error:
            raise FederationRefusedError(str(error)) from error
    plain = to_plain(encoding)
    ask_all(transport, {site: request_bytes("prepare", run=job.run, plan=job.plan, encoding=plain,
                                            decide_by=decisive.name, weights=weights.get(site))
                        for site in job.sites}, job.deadline)
