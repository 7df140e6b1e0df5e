"""The commands that show something and train nothing: check, show, compare and report."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from resolvent.cli.exit_codes import FAILURE
from resolvent.cli.options import Changes, OptionalNumber, OptionalText, Run, Source, flat
from resolvent.cli.output import print_json

if TYPE_CHECKING:
    from resolvent.tables.checks.finding import Finding

__all__ = ["check", "compare", "paper", "report", "shorten_groups", "show"]

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

    checked = check_file(ExperimentFile.load(experiment, flat(set)))
    if json:
        print_json(checked.record())
    else:
        if checked.sites:
            terminal.print_table(terminal.rows_table(checked.sites))
        shown, more = shorten_groups(checked.findings)
        if shown:
            terminal.print_table(terminal.findings_table(shown), is_wide=True)
        terminal.print_line(f"{checked.title}{f' ({more} not shown: --json)' if more else ''}")
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


def show(experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE.yaml|RUN")], *,
         set: Changes = (), json: bool = False) -> None:
    """Print an experiment as YAML with every default and its explanation, ready to edit; or the outcome of a run.

    Try `resolvent show digits > mine.yaml`, and `resolvent show runs/mine` after a run.

    Args:
        experiment: name of an experiment, a YAML file, or a run folder.
        set: change settings of an experiment first, such as model.name=mlp.
        json: print the summary of a run as JSON.
    """
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.errors import InputError

    folder = Path(experiment)
    if not folder.is_dir():
        if json:
            raise InputError(f"--json is for the outcome of a run, and there is no folder {experiment}")
        sys.stdout.write(ExperimentFile.load(experiment, flat(set)).to_yaml())
        return
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.summary import read_summary

    if set:
        raise InputError("--set changes an experiment, not a run: leave it out")
    summary = read_summary(folder)
    if json:
        print_json(summary)
    else:
        terminal.print_summary(summary)


def compare(runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(
                metavar="RUN RUN ...", help_behavior_hint="(required)")], *,
            json: bool = False) -> None:
    """Compare the methods of several runs on the same test rows, as if they had been one run.

    Try `resolvent compare runs/mine runs/mine-2`.

    The runs must have the same data, split, seed and number of seeds, so that differences are paired. A method that
    several runs have with the same result is shown once. Training alone of the first run that has it is the reference.

    Args:
        runs: at least two run folders, which `resolvent run` or rv.compare wrote.
        json: print JSON instead of tables.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.saved_runs import compare_runs

    summary = compare_runs(runs)
    if json:
        print_json(summary)
    else:
        terminal.print_summary(summary)


def report(folder: Run) -> None:
    """Draw the report of a run folder again.

    Args:
        folder: a run folder.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.runs.report import write_report

    terminal.print_path("Report", write_report(folder))


def paper(runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(
              metavar="[NAME=]RUN[,RUN] ...", help_behavior_hint="(required)")], *,
          out: Path = Path("paper"), target: OptionalNumber = None, reference: OptionalText = None) -> None:
    """Write figures, tables and a paragraph for a paper from run folders.

    Try `resolvent paper runs/mine --out figures`, and `resolvent paper digits=runs/a wine=runs/b` for two data sets.

    Figures are PDF files as wide as a column or a page; tables are LaTeX, Markdown, HTML and CSV. The best and the
    second best methods are marked by a test. Nothing is trained.

    Args:
        runs: the run folder of each data set, with a name for it; or the folder of a study. Several folders of one data
            set, such as those of a colleague, are separated by commas: they must have the same test rows.
        out: the folder of the files.
        target: the score for which rounds, bytes and seconds are counted; default: the worst last score of a run.
        reference: the method that gains are over; default: training alone, or the first method.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.study.study_file import study_of_folders
    from resolvent.errors import InputError

    if not runs:
        raise InputError("name at least one run folder, such as runs/mine")
    study = study_of_folders(runs)
    page = study.paper(out, target=target, reference=reference)
    terminal.print_line(study.paragraph())
    terminal.print_path("Paper", page)
