"""The check of a site before it takes part: its table, its limits, and everything that would leave the site."""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from resolvent.comparisons.experiment.own_parts import limit_own_parts
from resolvent.data.checks.finding import Finding, count_of, in_order, text_of
from resolvent.data.checks.table_check import check_frame
from resolvent.data.tables.table_files import read_table_file
from resolvent.data.tables.table_settings import TableSettings
from resolvent.data.tables.text_formats import TextFormat
from resolvent.federation.protocol.experiment import FederatedExperiment, experiment_of_file
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import WHY
from resolvent.federation.protocol.names import LEDGER, VERSIONS
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.site.site_run import SiteRun

__all__ = ["check_site"]


def check_site(file: SiteFile, name: str, experiment: Path | None, runs: Path | None = None) -> Iterator[str]:
    """Lines about a site's table and, with an experiment, about all that would leave the site.

    Args:
        file: the site's file.
        name: name of the site.
        experiment: the lead's experiment file.
        runs: the folder of the site's runs, with the versions of its table and its ledger; None: there are none.

    Raises:
        InputError: the table cannot be read, or does not fit the experiment or the limits.
    """
    yield f"site {name}: {file.table}"
    if experiment is None:
        yield from _table_lines(file)
    else:
        yield from _experiment_lines(file, name, _read_experiment(file, experiment), runs)
    yield "The limits of this site; each has the reason for it, which is what a change would cost:"
    yield from (f"  {name} {_limit(getattr(file.limits, name))}: {why}" for name, why in WHY.items())
    yield "Nothing has left the site."


def _table_lines(file: SiteFile) -> Iterator[str]:
    text = TextFormat(file.separator, file.decimal, file.encoding)  # type: ignore[arg-type]
    frame, _ = read_table_file(file.table, text, (), (), lambda column: True)
    yield f"{len(frame)} rows, {len(frame.columns)} columns"
    names = {at_site: name for name, at_site in (file.columns or {}).items()}
    for column in frame.columns:
        other_name = f" ({names[column]} in the federation)" if column in names else ""
        yield f"  {column}{other_name}: {frame[column].dtype}, {int(frame[column].isna().sum())} missing"
    yield "With --experiment FILE.yaml, the command lists everything that would leave the site."


def _experiment_lines(file: SiteFile, name: str, experiment: FederatedExperiment, runs: Path | None) -> Iterator[str]:
    yield from _findings(file, name, experiment.table)
    with tempfile.TemporaryDirectory() as folder:
        _copy_memory(runs, Path(folder))
        run = SiteRun(Path(folder) / "check", file, name, experiment, 0)
        run.check_limits(file.limits.min_sites)  # the number of sites is known when the run begins
        report = TableReport.from_plain(run.report())
        yield ", ".join(f"{count} {'training' if split == 'train' else split} rows"
                        for split, count in report.rows.items())
        yield "The site would send before the rounds, about each column:"
        for column in report.columns:
            if column.kind == "text":
                levels = column.levels or {}
                rarer = (f"; rarer levels than min_cell {file.limits.min_cell} are not named and not used"
                         if column.has_hidden else "")
                yield f"  {column.name}: the names of {len(levels)} levels with their numbers of rows{rarer}"
            else:
                yield f"  {column.name}: kind, number of values, mean and sum of squared deviations"
        known = len(report.label.classes)
        classes = f"{known} classes with their numbers of rows" if known else "its kind"
        yield f"  {experiment.table.label} (the label): {classes}"
        if experiment.has_weights:
            yield "  the sum of the weights of the training rows of each class"
        encoding, conflicts = agree({name: report}, experiment.table)
        if encoding is None:
            yield f"The rounds cannot be shown: {'; '.join(conflicts)}"
            return
        run.prepare(encoding, experiment.decide_by, _unit_weights(report) if experiment.has_weights else None)
        try:
            yield "The site would send in the rounds (with the categories and classes of this site alone):"
            for message, departures in groupby(run.preview(), key=lambda departure: departure.message):
                parts = [*departures]
                names = "; ".join(departure.name for departure in parts)
                yield f"  {message}, {sum(departure.bytes for departure in parts)} bytes: {names}"
            if file.limits.scores:
                yield ("The site would send at the end: for each method the score on the test rows and the gain over "
                       "training alone, each with an interval; and the method that the site should use")
        finally:
            run.close()


def _copy_memory(runs: Path | None, folder: Path) -> None:
    """Copy the versions of the table and the ledger: a check changes neither."""
    if runs is None:
        return
    if (runs / VERSIONS).is_dir():
        shutil.copytree(runs / VERSIONS, folder / VERSIONS)
    if (runs / LEDGER).is_file():
        shutil.copyfile(runs / LEDGER, folder / LEDGER)


def _findings(file: SiteFile, name: str, settings: TableSettings) -> Iterator[str]:
    """Everything about the site's table that the site should know: it is computed here and does not leave."""
    columns = file.columns or {}
    label = columns.get(settings.label, settings.label)
    text = TextFormat(file.separator, file.decimal, file.encoding)  # type: ignore[arg-type]
    frame, _ = read_table_file(file.table, text, (label,), (), lambda column: True)
    frame = frame.rename(columns={local: common for common, local in columns.items()})
    exclude = [column for column in settings.exclude or [] if column in frame.columns]  # other sites can have more
    view, findings = check_frame(frame, settings._replace(exclude=exclude), site=name)
    if view is not None and view.label is not None and view.is_classification:
        findings += [Finding("rare class", "error", f"the class {text_of(name)} has {count_of(count, 'row')}, fewer "
                             f"than min_cell {file.limits.min_cell}", "leave its rows out, or lower min_cell in "
                             "site.yaml", settings.label, value=int(count))
                     for name, count in zip(view.label.values, view.label.counts, strict=True)
                     if count < file.limits.min_cell]
    yield f"Findings about the table, which do not leave the site: {len(findings) or 'none'}"
    yield from (f"  {finding.line}" for finding in in_order(findings))


def _unit_weights(report: TableReport) -> dict[str, float]:
    """Equal factors of the weights of all classes: the others follow from the sums of all sites."""
    return dict.fromkeys(report.label.weights or {}, 1.0)


def _read_experiment(file: SiteFile, path: Path) -> FederatedExperiment:
    """The lead's experiment. The site allows its own models only, as in the federation."""
    with limit_own_parts(file.models, file.folder):
        return experiment_of_file(str(path))


def _limit(value: object) -> str:
    if value is None:
        return "any"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "/".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
