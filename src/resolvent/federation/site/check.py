"""The check of a site before it takes part: its table, its limits, and everything that would leave the site."""

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from itertools import groupby
from pathlib import Path

from resolvent.comparisons.experiment.docstrings import help_of
from resolvent.errors import count_of, quote
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.files import Approval, SiteFile
from resolvent.federation.protocol.limits import LIMITS
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.secure.visibility import visibility
from resolvent.federation.site.dry_run import dry_run, read_plan
from resolvent.federation.site.read_rows import read_frame, site_cells
from resolvent.tables.checks.finding import Finding, in_order
from resolvent.tables.checks.table_check import check_frame
from resolvent.tables.table_options import TableOptions

__all__ = ["check_site"]


def check_site(file: SiteFile, name: str, experiment: Path | None, runs: Path | None = None) -> Iterator[str]:
    """Lines about a site's file or, with an experiment, about all that would leave the site.

    Args:
        runs: the folder of the site's runs, with the versions of its table and its journal; None: there are none.

    Raises:
        InputError: the table cannot be read, or does not fit the experiment or the limits.
    """
    yield f"site {name}: {file.table}"
    if experiment is None:
        yield from _file_lines(file)
    else:
        yield from _plan_lines(file, name, read_plan(file, experiment), runs)
    yield "Nothing has left the site."


def _file_lines(file: SiteFile) -> Iterator[str]:
    """Lines about the site's file: its table, its settings and its limits."""
    frame = read_frame(file)
    yield f"{len(frame)} rows, {len(frame.columns)} columns"
    names = {at_site: name for name, at_site in (file.columns or {}).items()}
    for column in frame.columns:
        other_name = f" ({names[column]} in the federation)" if column in names else ""
        yield f"  {column}{other_name}: {frame[column].dtype}, {int(frame[column].isna().sum())} missing"
    yield "The settings of this site:"
    meanings = help_of(SiteFile)
    yield from (f"  {item.name} {_shown(getattr(file, item.name))}: {meanings[item.name]}" for item in fields(SiteFile)
                if item.name not in ("limits", "folder"))
    yield (f"The limits of this site, * where they differ from the profile {file.profile}; each has the reason for it, "
           "which is what a change would cost:")
    changes = file.limits.changes(file.profile)
    yield from (f"  {name} {_shown(getattr(file.limits, name))}{'*' * (name in changes)}: {limit.meaning}. Reason: "
                f"{limit.why}" for name, limit in LIMITS.items())
    yield "With the lead's experiment file after the site's file, the command lists all that would leave the site."


def _plan_lines(file: SiteFile, name: str, plan: Plan, runs: Path | None) -> Iterator[str]:
    if isinstance(plan, FederatedExperiment):  # the rows of the others' columns are read for their own checks
        yield from _findings(file, name, plan.table)
    with dry_run(file, name, plan, runs) as dry:
        yield from dry.run.lines_before()
        if conflicts := dry.prepare():
            yield f"The rounds cannot be shown: {'; '.join(conflicts)}"
            return
        yield "The site would send in the rounds (with the levels, categories and classes of this site alone):"
        for message, departures in groupby(dry.run.preview(), key=lambda departure: departure.message):
            parts = [*departures]
            names = "; ".join(departure.name for departure in parts)
            yield f"  {message}, {sum(departure.bytes for departure in parts)} bytes: {names}"
        if (span := dry.run.span) is not None:
            allowed = file.limits.max_leverage if plan.privacy is None else file.limits.max_leverage_in_sums
            yield (f"With this plan, the answers about these rows have {span.rank} independent columns; the largest "
                   f"leverage of a row is {span.largest:.2f}, of the allowed {allowed:.2f}")
        yield "Who learns what of the replies in the rounds:"
        yield from (f"  {line}" for line in visibility(dry.run.methods, plan.privacy, plan.rounds_of,
                                                       min_sites=max(2, file.limits.min_sites)))
        yield from dry.run.lines_after()


def _findings(file: SiteFile, name: str, settings: TableOptions) -> Iterator[str]:
    """Everything about the site's table that the site should know: it is computed here and does not leave."""
    frame = read_frame(file, settings)
    frame = frame.rename(columns={local: common for common, local in (file.columns or {}).items()})
    exclude = [column for column in settings.exclude or [] if column in frame.columns]  # other sites can have more
    view, findings = check_frame(frame, replace(settings, exclude=exclude), site=name,
                                 cells=site_cells(file, settings))
    if view is not None and view.label is not None and view.is_classification:
        findings += [Finding("rare class", "error", f"the class {quote(name)} has {count_of(count, 'row')}, fewer "
                             f"than min_cell {file.limits.min_cell}", "leave its rows out, or lower min_cell in "
                             "site.yaml", settings.labels[0], value=int(count))
                     for name, count in zip(view.label.values, view.label.counts, strict=True)
                     if count < file.limits.min_cell]
    yield f"Findings about the table, which do not leave the site: {len(findings) or 'none'}"
    yield from (f"  {finding.line}" for finding in in_order(findings))


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Approval):
        value = {name: rule for name, rule in asdict(value).items() if rule}
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_shown(part)}' for name, part in value.items())}}}"
    return "/".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value) or "none"
