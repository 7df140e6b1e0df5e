"""The command that checks the data of an experiment."""

import sys
from collections import Counter
from json import dumps
from typing import TYPE_CHECKING

from resolvent.cli.exit_codes import FAILURE
from resolvent.cli.options import Changes, Source

if TYPE_CHECKING:
    from resolvent.data.checks.finding import Finding

__all__ = ["check", "shorten_groups"]

_MAX_ALIKE = 4  # findings of one kind about one column


def check(experiment: Source, *, set: Changes = (), json: bool = False) -> None:
    """Check the data of an experiment before the first round; prints all findings at once.

    Try `resolvent check mine.yaml`.

    An error is something for which `resolvent run` would refuse the data: missing values, dates, too many levels. A
    warning is something that makes results wrong or misleading: another unit at one site, the same row in training and
    test, a column that gives the label away. Each finding names column, site and value, and what to write in the file
    instead. The smallest gain is the one that the test rows of a site would show with a probability of 80 %, if
    exactly one of two models is right in 20 % of the rows.

    The exit code is 1 if there is an error, and 0 if there are only warnings and notes.

    Args:
        experiment: name of an experiment (see `resolvent list`) or a YAML file.
        set: change settings, such as data.missing=impute.
        json: print all findings as JSON instead of tables.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.experiment.data_check import check_file
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile

    checked = check_file(ExperimentFile.load(experiment, [change for group in set for change in group]))
    if json:
        sys.stdout.write(dumps(checked.record(), indent=2) + "\n")
    else:
        if checked.sites:
            terminal.print_table(terminal.rows_table(checked.sites))
        shown, more = shorten_groups(checked.findings)
        if shown:
            terminal.print_table(terminal.findings_table(shown), is_wide=True)
        terminal.print_line(f"{checked.title}{f' ({more} are not shown: --json)' if more else ''}")
    if checked.has_errors:
        sys.exit(FAILURE)


def shorten_groups(findings: "tuple[Finding, ...]") -> "tuple[list[Finding], int]":
    """The first findings of each kind about each column, and the number of the others."""
    counts: Counter[tuple[str, str | None]] = Counter()
    shown = []
    for finding in findings:
        counts[finding.kind, finding.column] += 1
        if counts[finding.kind, finding.column] <= _MAX_ALIKE:
            shown.append(finding)
    return shown, len(findings) - len(shown)
