"""``check``: everything about the data of an experiment that a user should know before the first round."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resolvent.arguments import check_arguments
from resolvent.comparisons.experiment.binding import Bound
from resolvent.comparisons.experiment.checks import has_default_folds
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.judgement.decisive_metric import MAX_SHARE
from resolvent.comparisons.judgement.power_forecast import DIFFERING, POWER, smallest_gain
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.partition.folds import fold_sizes, folds_of_table
from resolvent.errors import InputError, alternatives, count_of, quote
from resolvent.tables.cells import check_is_frame
from resolvent.tables.checks.finding import Finding, in_order
from resolvent.tables.checks.label_checks import check_classes
from resolvent.tables.checks.table_check import check_frame, divided
from resolvent.tables.checks.table_view import TableColumn, TableView
from resolvent.tables.columns import excluding
from resolvent.tables.party_tables import table
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_options import FileOptions, TableOptions
from resolvent.tables.text_formats import NumberFormatError

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.comparisons.regression.regression_file import RegressionFile

_TEST = SPLITS.index("test")
_OF_FEATURES = ("constant", "constant at a site", "identifier", "leak")


class SiteRows(NamedTuple):
    """The rows of a site.

    Attributes:
        site: name of the site.
        rows: number of training, validation and test rows; with folds, of one fold, and of all folds together.
        smallest_gain: the smallest gain in accuracy (balanced accuracy, if one class has more than 80 % of the rows)
            that its test rows would show; None if they would show none, or for regression.
    """

    site: str
    rows: tuple[int, int, int]
    smallest_gain: float | None


@dataclass(frozen=True)
class DataCheck:
    """The outcome of a check.

    Attributes:
        findings: errors first, then warnings, then notes.
        sites: the rows of each site; empty if they are not known.
        folds: number of folds of a run; with more than one, every row is tested once.
    """

    findings: tuple[Finding, ...]
    sites: tuple[SiteRows, ...] = ()
    folds: int = 1

    @property
    def has_errors(self) -> bool:
        """Whether a run would refuse the data."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def title(self) -> str:
        """The numbers of findings, such as ``1 error, 2 warnings, 0 notes``."""
        counts = {name: sum(f.severity == name for f in self.findings) for name in ("error", "warning", "note")}
        return ", ".join(count_of(count, name) for name, count in counts.items())

    def record(self) -> dict[str, Any]:
        """Findings and sites as plain values."""
        return {"findings": [finding.record() for finding in self.findings],
                "sites": [site._asdict() | {"rows": dict(zip(SPLITS, site.rows, strict=True))} for site in self.sites],
                "folds": self.folds, "power": POWER, "differing": DIFFERING}


def check(source: "str | Path | pd.DataFrame", changes: Sequence[str] = (), **settings: Any) -> DataCheck:
    """Check the data of an experiment or a regression, or a table; all findings at once.

    Args:
        source: the file of an experiment or a regression, the name of a shipped experiment, or a data frame with a row
            per sample.
        changes: changes of the settings of the experiment, each ``key.path=value``.
        settings: for a data frame, those of `from_frame`: ``party``, ``label`` and the others.

    Returns:
        The findings, with ``severity``, ``column``, ``site``, ``value``, ``message`` and ``advice``; and the rows of
        each site with the smallest gain that its test rows would show.

    Raises:
        InputError: the file is wrong, its table cannot be read, or it has no samples.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"site": list("aabb"), "age": [30, 41, 52, None], "ill": ["no", "yes", "no", "yes"]})
        >>> checked = check(frame, party="site", label="ill")
        >>> [(finding.severity, finding.kind) for finding in checked.findings][0]
        ('error', 'missing')
    """
    if isinstance(source, str | Path):
        if settings:
            raise InputError(f"{', '.join(settings)}: the file has these settings: give them as changes, "
                             "such as changes=['data.missing=impute']")
        return check_source(str(source), changes)
    check_is_frame(source)
    known = [option.name for option in fields(TableOptions)]
    if unknown := next((name for name in settings if name not in known), None):
        raise InputError(f"check({unknown}=...) is not a setting of a table{alternatives(unknown, known)}")
    if "party" not in settings or "label" not in settings:
        raise InputError("a data frame needs party and label, the names of two columns: check(frame, party='hospital', "
                         "label='outcome')")
    check_arguments(TableOptions, (), settings, title="check")
    return check_table(source, TableOptions.of(settings))


def check_table(frame: "pd.DataFrame", settings: TableOptions, folds: int | None = None) -> DataCheck:
    """Check a table, see ``check_frame``.

    Args:
        folds: number of folds of a run; None: the default for a table.
    """
    view, findings = check_frame(frame, settings)
    return DataCheck(in_order(findings)) if view is None else _checked(view, findings, folds)


def _checked(view: TableView, findings: Sequence[Finding], folds: int | None) -> DataCheck:
    """The rows of the sites in a run, and the findings, without those about few test rows if every row is tested."""
    sites = _rows_of_sites(view)
    found = in_order([*findings, *_power_findings(view, sites)])
    if folds is None:
        folds = folds_of_table([sum(site.rows) for site in sites])
    if folds == 1:
        return DataCheck(found, sites)
    return DataCheck(tuple(f for f in found if f.kind not in ("few test rows", "power")), _rows_of_sites(view, folds),
                     folds)


def check_source(source: str, changes: Sequence[str] = ()) -> DataCheck:
    """Check the data of a file, or of a shipped experiment, with changes; see ``check``."""
    from resolvent.comparisons.regression.regression_file import RegressionFile  # a run needs no regressions

    if RegressionFile.is_in(source):
        return _check_regression(RegressionFile.load(source, changes))
    return check_file(ExperimentFile.load(source, changes))


def check_file(file: ExperimentFile) -> DataCheck:
    """Check the data of an experiment."""
    part, folds = file.bound.parts.get("data"), file.bound.values["folds"] or 1
    if isinstance(part, Bound) and part.function is table:
        return _check_table_file(part.values["table"], FileOptions.of(part.values),
                                 None if has_default_folds(file.bound) else folds)
    data = part.build() if isinstance(part, Bound) else None
    if not isinstance(data, FederatedData):
        raise InputError("the check is about samples with labels, and the experiment has prices or a problem")
    view = _view_of_data(data)
    return _checked(view, [*check_classes(view)], folds)


def _check_table_file(path: str, options: FileOptions, folds: int | None) -> DataCheck:
    """Check a file with a table; if its decimal mark is not clear, all other findings are those of decimal points."""
    def read(options: FileOptions) -> "pd.DataFrame":
        return read_table_file(path, options.format, (options.party, *options.labels), options.cells,
                               options.uses)[0]

    try:
        return check_table(read(options), options, folds)
    except NumberFormatError as error:
        problems = error.problems
    checked = check_table(read(replace(options, decimal=".")), options, folds)
    findings = [Finding("numbers", "error", *divided(problem), column) for column, problem in problems.items()]
    findings += [finding for finding in checked.findings if finding.column not in problems]
    return replace(checked, findings=in_order(findings))


def _check_regression(file: "RegressionFile") -> DataCheck:
    """Check the table of a regression, which leaves rows with missing values out, and has no test rows and no limit of
    levels for a column.
    """
    from resolvent.comparisons.regression.agreement import CLASS_FAMILIES
    from resolvent.comparisons.regression.formula import parse_formula
    from resolvent.comparisons.regression.regress import check_rows

    response = parse_formula(file.settings.formula).response
    refusal, is_number = "", file.settings.family not in ("auto", *CLASS_FAMILIES) or bool(response.event)
    try:
        model = next(file.read_tables()).model
        is_number = not model.classes
        check_rows(model, file.settings)
    except InputError as error:
        refusal = str(error)
    checked = _check_table_file(file.table, replace(file.options, task="regression" if is_number else "auto"), folds=1)
    other_uses = {*response.columns, *file.settings.columns}  # than those of a feature
    findings = [_of_regression(finding) for finding in checked.findings
                if finding.kind not in ("few test rows", "power", "no test rows")
                and not (finding.column in other_uses and finding.kind in _OF_FEATURES)]
    if refusal and not any(finding.severity == "error" for finding in findings):
        findings.append(Finding("regression", "error", *divided(refusal)))
    return replace(checked, findings=in_order(findings))


def _of_regression(finding: Finding) -> Finding:
    """A finding about a table as one about a regression."""
    from resolvent.comparisons.regression.rows import DATES_AS_NUMBERS

    name = finding.column
    advice = finding.advice if name is None else finding.advice.replace(
        excluding(name), f"leave {quote(name)} out of the formula")
    if finding.kind == "missing" and finding.severity == "error":
        return replace(finding, severity="note", advice="the regression leaves these rows out")
    if finding.kind == "dates":
        return replace(finding, advice=DATES_AS_NUMBERS)
    is_accepted = finding.kind in ("levels", "units")
    return replace(finding, severity="warning" if is_accepted else finding.severity, advice=advice)


def _view_of_data(data: FederatedData) -> TableView:
    """The labels, sites and splits of samples."""
    import pandas as pd

    sizes = np.stack([data.sizes(split) for split in SPLITS])
    site_of = np.repeat(np.tile(np.arange(len(data)), len(SPLITS)), sizes.ravel())
    split_of = np.repeat(np.arange(len(SPLITS)), sizes.sum(axis=1))
    label, is_classification = None, data.task == "classification"
    if is_classification and not data.vocabulary:
        y = np.concatenate([np.asarray(data.party(k, split)[1]) for split in SPLITS for k in range(len(data))])
        label = TableColumn("label", y.astype(np.int64), np.array(data.classes, object))
    return TableView(pd.RangeIndex(len(site_of)), tuple(data.parties), site_of, split_of, {}, label, is_classification)


def _rows_of_sites(view: TableView, folds: int = 1) -> tuple[SiteRows, ...]:
    names = view.label.values if view.label is not None and view.is_classification else [""]
    codes = np.zeros(len(view.site_of), np.int64) if len(names) == 1 or view.label is None else view.label.codes
    splits = np.stack([view.count(codes, len(names), view.split_of == s).sum(axis=1) for s in range(3)], axis=1)
    rows = view.count(codes, len(names))
    classes, test = rows.sum(axis=0), rows if folds > 1 else view.count(codes, len(names), view.split_of == _TEST)
    if folds > 1:
        splits = np.array([(*fold_sizes(int(of.sum()), folds, of[0], of[1])[:2], of.sum()) for of in splits])
    is_by_class = len(names) > 1 and classes.max() > MAX_SHARE * classes.sum()
    return tuple(SiteRows(site, (int(splits[k][0]), int(splits[k][1]), int(splits[k][2])), smallest_gain(
        test[k].tolist() if is_by_class else [int(test[k].sum())]) if view.is_classification else None)
        for k, site in enumerate(view.sites))


def _power_findings(view: TableView | None, sites: Sequence[SiteRows]) -> list[Finding]:
    """A note for each site whose test rows would show no plausible gain; an error if no site has any."""
    if len(sites) > 1 and not any(site.rows[_TEST] for site in sites):
        largest = max(sum(site.rows) for site in sites)
        return [Finding("no test rows", "error", f"none of the {len(sites)} sites has test rows, on which methods are "
                        f"compared; they have at most {largest} row{'' if largest == 1 else 's'} each",
                        "name a column with fewer values as the party, or set a larger share, such as test: 0.4",
                        value=largest)]
    if view is None or not view.is_classification:
        return []
    return [Finding("power", "note", f"{site.site!r} has {site.rows[2]} test rows, which would show no gain up to "
                    f"{100 * DIFFERING:g} points (with a probability of {POWER:.0%})", "folds: 5, which tests every "
                    "row once, or seeds: 5", site=site.site, value=site.rows[2])
            for site in sites if site.smallest_gain is None]
