"""The commands that show something and train nothing: check, show and compare."""

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from resolvent.cli.exit_codes import FAILURE
from resolvent.cli.options import Changes, Format, OptionalPath, Source, chosen, flat
from resolvent.cli.output import print_json

if TYPE_CHECKING:
    from resolvent.tables.checks.finding import Finding

__all__ = ["check", "compare", "shorten_groups", "show"]

_MAX_ALIKE = 4  # findings of one kind about one column


def check(experiment: Source, *, set: Changes = (), format: Format = "text") -> None:
    """Check the data of an experiment or a regression before the first round.

    resolvent check mine.yaml
    resolvent check mine.yaml --set data.missing=impute

    An error is something for which `resolvent run` or `resolvent regress` would refuse the data: missing values, dates,
    too many levels. A warning is something that makes results wrong or misleading: another unit at one site, the same
    row in training and test, a column that gives the label away. Each finding names column, site and value, and what to
    write in the file instead. The smallest gain is the one that the test rows of a site would show with a probability
    of 80 %, if exactly one of two models is right in 20 % of the rows.

    The exit code is 1 if there is an error, and 0 if there are only warnings and notes.

    Args:
        experiment: name of an experiment (see `resolvent list`), or the YAML file of an experiment or a regression.
        set: change settings, such as data.missing=impute.
        format: text, or json for all findings.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.experiment.data_check import check_source

    checked = check_source(experiment, flat(set))
    if format == "json":
        print_json(checked.record())
    else:
        if checked.sites:
            terminal.print_table(terminal.rows_table(checked.sites, checked.folds))
        shown, more = shorten_groups(checked.findings)
        if shown:
            terminal.print_table(terminal.findings_table(shown), is_wide=True)
        terminal.print_line(f"{checked.title}{f' ({more} not shown: --format json)' if more else ''}")
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
         set: Changes = (), format: Format = "text", redraw: bool = False) -> None:
    """Print an experiment as YAML with every default and its explanation, ready to edit; or the outcome of a run.

    resolvent show digits > mine.yaml
    resolvent show runs/mine

    Args:
        experiment: name of an experiment, a YAML file, or a run folder.
        set: change settings of an experiment first, such as model.name=mlp.
        format: text, or json for the summary of a run.
        redraw: draw the report of the run folder again.
    """
    from resolvent.errors import InputError

    folder = Path(experiment)
    if not folder.is_dir():
        from resolvent.comparisons.experiment.experiment_file import ExperimentFile

        if format == "json" or redraw:
            raise InputError(f"--{'redraw' if redraw else 'format json'} is for the outcome of a run, and there is no "
                             f"folder {experiment}")
        sys.stdout.write(ExperimentFile.load(experiment, flat(set)).to_yaml())
        return
    from resolvent.cli import outcomes, terminal
    from resolvent.comparisons.runs.record import read_record

    if set:
        raise InputError("--set changes an experiment, not a run: leave it out")
    if redraw:
        from resolvent.comparisons.runs.report import redraw_report

        terminal.print_path("Report", redraw_report(folder, anyway=True))
        return
    record = read_record(folder)
    if format == "json":
        print_json(record.plain())
    else:
        outcomes.print_record(record)


def compare(runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(
                metavar="[NAME=]RUN[,RUN] ...", help_behavior_hint="(required)")], *,
            paper: OptionalPath = None, set: Changes = (), format: Format = "text") -> None:
    """Compare the methods of several runs on the same test rows, or write figures and tables for a paper.

    resolvent compare runs/mine runs/mine-2
    resolvent compare digits=runs/a wine=runs/b --paper figures

    Runs that are compared have the same data, split and seeds, so that differences are paired. With --paper each name
    is a data set; figures are PDF files, tables LaTeX, Markdown, HTML and CSV. Nothing is trained.

    Args:
        runs: run folders. With --paper: the run folder of each data set, with a name for it, or the folder of a study.
            Several folders of one data set, such as those of a colleague, are separated by commas.
        paper: the folder for figures, tables and a paragraph.
        set: for --paper: target=90 is the score for which rounds, bytes and seconds are counted, as tables print it
            (default: the best score that two methods reach); reference=FedAvg is the method that gains are over
            (default: training alone, or the first method).
        format: text or json.
    """
    from resolvent.cli import outcomes, terminal
    from resolvent.errors import InputError

    if not runs:
        raise InputError("name at least one run folder, such as runs/mine")
    if paper is None:
        from resolvent.comparisons.runs.saved_runs import compare_runs

        if set:
            raise InputError("--set is for --paper")
        record = compare_runs([Path(run) for run in runs])
        if format == "json":
            print_json(record.plain())
        else:
            outcomes.print_outcome(record, next_command=f"resolvent compare {shlex.quote(','.join(runs))} "
                                                        "--paper figures")
        return
    from resolvent.comparisons.study.study_file import study_of_folders

    study = study_of_folders(runs)
    page = study.paper(paper, **chosen(set, {"target": float, "reference": str}))
    terminal.print_line(study.paragraph())
    terminal.print_path("Paper", page)
