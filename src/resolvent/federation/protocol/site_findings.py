"""Findings about the sites' tables that the lead can see: from the reports on which the sites agree, and no others."""

import math
from collections.abc import Iterator, Mapping

from resolvent.errors import quote
from resolvent.federation.protocol.table_reports import ColumnReport, TableReport
from resolvent.tables.checks.finding import Finding
from resolvent.tables.checks.units import Spread, normal_spread, unit_findings


def compare_sites(reports: Mapping[str, TableReport]) -> Iterator[Finding]:
    """Columns whose mean differs between sites as by another unit, and classes that are absent at a site.

    Args:
        reports: the report of each site. Counts, means and deviations of fewer rows than a site's minimum count are not
            in it.
    """
    columns: dict[str, dict[str, Spread]] = {}
    for site, report in reports.items():
        for column in report.columns:
            if column.kind == "number" and column.count:
                columns.setdefault(column.name, {})[site] = _spread(column)
    yield from unit_findings(columns)
    for labels in zip(*(report.labels for report in reports.values()), strict=True):
        classes = sorted({name for label in labels for name in label.classes})
        for site, name in ((site, name) for site, label in zip(reports, labels, strict=True) for name in classes
                           if name not in label.classes):
                yield Finding("class absent", "warning", f"{quote(site)} has no row of class {quote(name)}",
                              "a model of this site alone cannot predict it", None, site, name)


def _spread(column: ColumnReport) -> Spread:
    return normal_spread(column.count, column.mean, math.sqrt(column.squares / column.count))
