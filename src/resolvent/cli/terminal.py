"""Output on the terminal: lines and tables."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unicodedata import category

import numpy as np
import rich.box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table
from typing_extensions import override

from resolvent.comparisons.judgement.metrics import GAP, columns_of, format_value, title_of
from resolvent.comparisons.judgement.site_judgement import number_of
from resolvent.comparisons.judgement.wording import advice_of, folds_text, format_points, format_signed, reason_text
from resolvent.comparisons.runs.first_screen import FirstScreen, first_screen
from resolvent.comparisons.runs.record import RunRecord
from resolvent.errors import count_of

if TYPE_CHECKING:  # a command that shows a run loads none of these
    from resolvent.comparisons.experiment.data_check import SiteRows
    from resolvent.comparisons.runs.later_sections import Records
    from resolvent.data.files.fetch import FileStatus
    from resolvent.predict.evaluation import Evaluation
    from resolvent.tables.checks.finding import Finding

_PIPE_WIDTH = 1000  # columns of a table that no terminal limits
_MAX_SITES = 40
_WIDTH, _MAX_LINES, _FEWEST_SITES, _TABLE_LINES = 80, 25, 7, 8  # of an outcome
_PLOT, _LEFT, _NUMBERS = 40, 22, 21  # columns of the plot of gains, of names, and of a gain with the advice
_MAX_NAMED, _MAX_REASONS = 10, 12
_NAME_WIDTH = 8  # smallest width of a column of texts
_COMPARED = ("better", "level", "worse")
_COLOURS = {"whole": "green", "damaged": "red", "error": "red", "warning": "yellow"}


class _Console(Console):
    """A console that prints above progress bars and leaves a broken pipe to the command line.

    While bars are shown, rich replaces ``sys.stderr`` and ``sys.stdout`` by streams that print above them. Other
    consoles of rich write past these streams, into the bars.
    """

    @property
    @override
    def file(self) -> IO[str]:
        return self._file or (sys.stderr if self.stderr else sys.stdout)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    @override
    def on_broken_pipe(self) -> None:
        raise


def visible(text: str) -> str:
    r"""A text whose control characters a terminal shows and does not obey; lines and tabulators stay.

    >>> visible("ward" + chr(27) + "[2J")
    'ward\\x1b[2J'
    """
    return "".join(f"\\x{ord(c):02x}" if category(c) == "Cc" and c not in "\n\t" else c for c in text)


def escape(text: str) -> str:
    """A text for a table: ``visible``, and no part of it is markup."""
    return escape_markup(visible(text))


def print_line(text: str) -> None:
    """Print text as it is, wrapped to the terminal."""
    _Console().print(visible(text), highlight=False, markup=False)


def print_path(title: str, path: Path) -> None:
    """Print ``title: path`` on one line."""
    _Console().print(visible(f"{title}: {path}" if title else str(path)), highlight=False, markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a message about the progress of a command to standard error."""
    _Console(stderr=True, soft_wrap=True).print(visible(text), highlight=False, markup=False)


def print_table(table: Table, *, is_wide: bool = False, soft_wrap: bool = False) -> None:
    """Print a table; a wide one is folded on a terminal only, so that programs can read it line by line."""
    width = None if sys.stdout.isatty() or not is_wide else _PIPE_WIDTH
    _Console(width=width, soft_wrap=soft_wrap).print(table)


def text_table(title: str, lines: Mapping[str, str]) -> Table:
    """Names with one line of text each."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for name, line in lines.items():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(line))
    return table


def algorithm_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The table of algorithms, with text that is not read as markup."""
    table = _framed("algorithms", caption, ())
    for name in head:
        table.add_column(name, overflow="fold", no_wrap=name in ("algorithm", "keeps", "up", "personal"))
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def file_table(files: "Sequence[FileStatus]") -> Table:
    """The state of each file of the data sets."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for file in files:
        colour = _COLOURS.get(file.state, "dim")
        table.add_row(f"[bold]{file.data_set}[/bold]", f"[{colour}]{file.state}[/{colour}]", escape(file.path.name),
                      escape(file.detail))
    return table


def score_table(record: RunRecord) -> Table:
    """The scores of a run's methods."""
    score, parties = record.score, len(record.data.parties)
    has_baseline = record.alone is not None
    if score == GAP:
        title = f"optimality gap f(w) - f* of the shared model of {parties} parties"
        caption: str | None = "rounds to: until the gap is at most this share of the first one"
    else:
        title = f"test {title_of(score)} over {parties} parties; global: of the shared model"
        caption = "better, level, worse: parties in comparison with training alone" if has_baseline else None
        if caption and record.level:
            caption += "; level: not distinguishable"
    columns = columns_of(score)
    heads = ["\n".join(column.rsplit(" ", 1)) for column in columns]
    table = _framed(title, caption, ["method"], [*heads, *(_COMPARED if has_baseline else ())])
    for label, final in record.score_rows().items():
        cells = [missing or "-" if (value := final[column]) is None else format_value(value, score)
                 for column, missing in columns.items()]
        if has_baseline:
            cells += ["" if label == record.alone else str(final[column]) for column in _COMPARED]
        table.add_row(escape(record.marked(label)), *cells)
    return table


def print_record(record: RunRecord) -> None:
    """Print all of a comparison: what it says first, the advice to each site with the reasons, and the scores."""
    screen = first_screen(record)
    for line in [*_head(screen), *(line for warning in _warning_lines(screen.warnings) for line in warning)]:
        print_line(line)
    if record.federation is not None and screen.sites:
        print_table(advice_table(record, record.federation.about))
        for line in reason_lines(record, record.federation.about):
            print_line(line)
    if _has_scores(record):
        print_table(score_table(record))


def _has_scores(record: RunRecord) -> bool:
    """Whether there is a table of scores: secure sums hide those of single sites, and gaps have no mean."""
    return any(method.final.get("mean", 0) is not None for method in record.methods.values())


def print_outcome(record: RunRecord, report: Path | None = None, *, next_command: str = "") -> None:
    """Print what a comparison says first, in at most 25 lines of 80 columns, if no path or label is very long.

    Args:
        next_command: what the user may call next.
    """
    screen = first_screen(record)
    lines = _head(screen)
    end = [f"Next: {next_command}"] if next_command else []
    rest = _MAX_LINES - len(lines) - len(end) - (report is not None)
    lines += _fitting(_warning_lines(screen.warnings), rest - (_FEWEST_SITES if screen.sites else 0))
    rest = _MAX_LINES - len(lines) - len(end) - (report is not None)
    if screen.sites:
        lines += forest_lines(screen, rest)
    for line in lines:
        print_line(line)
    if not screen.sites and _has_scores(record) and len(record.score_rows()) <= rest - _TABLE_LINES:
        print_table(score_table(record))
    if report is not None:
        print_path("Report", report)
    for line in end:
        _Console().print(visible(line), highlight=False, markup=False, soft_wrap=True)


def _head(screen: FirstScreen) -> list[str]:
    """Facts, counts, headline and mean scores."""
    counts = " · ".join(f"{number} {answer}" for answer, number in screen.counts.items())
    texts = [screen.facts, counts and f"Sites: {counts}", screen.headline, screen.scores if screen.sites else ""]
    return [line for text in texts for line in textwrap.wrap(text, _WIDTH)]


def _warning_lines(warnings: Sequence[str]) -> list[list[str]]:
    """The lines of each numbered warning."""
    return [textwrap.wrap(f"{number}. {text}", _WIDTH, subsequent_indent="   ")
            for number, text in enumerate(warnings, 1)]


def _fitting(warnings: Sequence[list[str]], most: int) -> list[str]:
    """The lines of the first warnings that have room; the others are counted."""
    lines = list[str]()
    for number, wrapped in enumerate(warnings):
        if len(lines) + len(wrapped) + (number + 1 < len(warnings)) > most:
            return [*lines, f"and {count_of(len(warnings) - number, 'more warning')}"]
        lines += wrapped
    return lines


def forest_lines(screen: FirstScreen, most: int) -> list[str]:
    """A plot of the sites' gains, sorted, in at most so many lines: first those that should not join."""
    order = sorted(screen.sites, key=lambda pair: (pair.advice.answer == "join", pair.advice.expected.value))
    shown = set(map(id, order if len(order) <= most - 2 else order[:max(most - 2, 1)]))
    sites = [pair for pair in screen.sites if id(pair) in shown]
    low, high = screen.limits
    left = min(max(len(visible(pair.site.name)) for pair in sites), _LEFT)
    plot = min(_PLOT, _WIDTH - _NUMBERS - left)

    def column(points: float) -> int:
        return round((plot - 1) * min(max((points - low) / (high - low or 1.0), 0.0), 1.0))

    lines = [f"{'':{left}}{'gain':>8} {format_points(low):<{plot // 2}}{format_points(high):>{plot - plot // 2}}"]
    for site, advice in sites:
        row = [" "] * plot
        ends = [100 * end for end in advice.expected[1:]]
        if all(map(isfinite, ends)):
            row[column(ends[0]):column(ends[1]) + 1] = "─" * (column(ends[1]) + 1 - column(ends[0]))
        row[column(0.0)] = "│"
        for mark, value in (("○", advice.own.value), ("●", advice.expected.value)):
            if isfinite(value):
                row[column(100 * value)] = mark
        name = textwrap.shorten(visible(site.name), left, placeholder="…") or visible(site.name)[:left]
        lines.append(f"{name:{left}}{format_points(100 * advice.expected.value):>8} {''.join(row)} "
                     f"{advice_of(advice)}")
    more = f"; {len(sites)} of {len(screen.sites)} sites" if len(sites) < len(screen.sites) else ""
    return [*lines, f"● expected gain in {screen.unit}, ○ by the site's own rows{more}"]


def advice_table(record: RunRecord, about: str) -> Table:
    """The advice to each site; with more than 40 sites, those that should not join and those with the largest gains."""
    sites = [(site, site.advice) for site in record.sites if site.advice is not None]
    chosen = sorted(sites, key=lambda pair: (pair[1].answer == "join", -np.nan_to_num(pair[1].expected.value)))
    chosen = sites if len(sites) <= _MAX_SITES else chosen[:_MAX_SITES]
    more = f"; {_MAX_SITES} of {len(sites)} sites, first those that should not join" if len(sites) > _MAX_SITES else ""
    score = record.score
    points = f"points of {title_of(score)}" if record.decides else "points of skill"
    role = "decides" if record.decides else "does not decide"
    tuned = {label: method.tuned for label, method in record.methods.items()}
    folds = f"{folds_text(record.folds, len(record.seeds), tuned)} ".lstrip()
    table = _framed(f"What each site should do{more}", f"{escape(folds)}Gains over training alone in {points}, with "
                    f"the interval of level {record.level or 0:.0%}: expected, by the rows of all sites, and by own "
                    f"rows. {title_of(score)}: the gain of {escape(about)} on own rows, which {role}. Unclear: stay "
                    "alone until it is clear", ["site", "advice"],
                    ["expected\ngain", "interval", "own\nrows", title_of(score), "test\nrows"])
    for site, advice in chosen:
        value, low, high = (100 * end for end in advice.expected)
        ends = ", ".join(map(format_points, (low, high))) if low < high else ""
        table.add_row(escape(site.name), advice_of(advice), format_points(value), ends,
                      format_points(100 * advice.own.value), format_signed(site.gains[about].value, score, unit=False),
                      f"{site.test_rows}{' (few)' if site.has_few_rows else ''}")
    return table


def reason_lines(record: RunRecord, about: str) -> list[str]:
    """Why sites should not join, and what would settle it: a line for each reason, with its sites."""
    reasons: dict[str, list[str]] = {}
    for site in record.advised:
        if site.advice is not None and site.advice.answer != "join":
            reasons.setdefault(reason_text(site, about), []).append(site.name)
    lines = [f"  {', '.join(names[:_MAX_NAMED])}{', ...' if len(names) > _MAX_NAMED else ''}: {reason}"
             for reason, names in [*reasons.items()][:_MAX_REASONS]]
    return ["Why not join:", *lines] if lines else []


def evaluation_table(evaluation: "Evaluation") -> Table:
    """The scores of a model on rows with known labels."""
    table = _framed(f"{evaluation['rows']} rows with labels", "interval: level 95 %, of an accuracy Wilson's, of an "
                    "area under the ROC curve with DeLong's variance, otherwise by resampled rows",
                    ["score"], ["value", "interval"])
    for name, (value, low, high) in evaluation.intervals.items():
        ends = f"{format_value(low, name)} to {format_value(high, name)}" if isfinite(low) else ""
        table.add_row(escape(title_of(name)), format_value(value, name) if isfinite(value) else "not defined", ends)
    return table


def rows_table(sites: "Sequence[SiteRows]") -> Table:
    """The rows of each site, and the smallest gain that its test rows would show; of more than 40 sites the first."""
    more = f"; the first {_MAX_SITES} of {len(sites)}" if len(sites) > _MAX_SITES else ""
    table = _framed(f"Rows of the sites{more}", None, ["site"],
                    ["training", "validation", "test", "smallest gain\nto be seen"])
    for site in sites[:_MAX_SITES]:
        gain = "-" if site.smallest_gain is None else f"{100 * site.smallest_gain:.0f} points"
        table.add_row(escape(site.site), *map(str, site.rows), gain)
    return table


def findings_table(findings: "Sequence[Finding]") -> Table:
    """Findings about data, with advice to each."""
    table = _framed("Findings", None, ["", "finding", "what to do"])
    for finding in findings:
        table.add_row(f"[{_COLOURS.get(finding.severity, 'dim')}]{finding.severity}[/]", escape(finding.message),
                      escape(finding.advice))
    return table


def calibration_tables(records: "Records") -> list[Table]:
    """The calibration of each site with its effect on test rows, and the thresholds if there are any."""
    from resolvent.comparisons.runs.later_sections import calibration_row

    table = _framed("Calibration, measured on test rows", "rows: validation rows of the site (and of other sites) to "
                    "which it was fitted; log loss on its test rows; better by: before minus after, with its "
                    "interval of level 95 %", ["site", "calibration"], ["rows", "log loss", "better by"])
    for name, record in records.items():
        row = calibration_row(name, record)
        table.add_row(escape(row["site"]), escape(row["title"]), row["rows"], row["cells"][0]["text"],
                      row["cells"][0]["gain"])
    thresholds = {name: record["threshold"] for name, record in records.items() if record["threshold"]}
    return [table, *([_threshold_table(thresholds)] if thresholds else [])]


def _threshold_table(thresholds: "Records") -> Table:
    from resolvent.comparisons.runs.later_sections import threshold_row

    first = next(iter(thresholds.values()))
    positive, goal = first["threshold"]["positive"], first["text"].partition("(")[2].rstrip(")")
    has_cost = first.get("cost") is not None
    table = _framed(escape(f"From which probability on {positive} is predicted: {goal}"),
                    "reached on test rows, with intervals of level 95 %"
                    + ("; cost per row: of the most probable class, and with the threshold" if has_cost else ""),
                    ["site"], ["from", "sensitivity", "specificity", *(["cost per row"] if has_cost else [])])
    for name, record in thresholds.items():
        row = threshold_row(name, record)
        shares = [f"{share['text']} {share['interval']}" for share in row["shares"]] or ["", ""]
        table.add_row(escape(row["site"]), row["value"], *shares, *([row["cost"]] if has_cost else []))
    return table


def explanation_table(records: "Records") -> Table:
    """The importance of every column at every site; columns whose interval excludes zero at no site are pale."""
    from resolvent.comparisons.after.held_out_rows import SHARED

    names = list(records)
    table = _framed("By how much the mean loss on test rows grows if a column is exchanged between the rows",
                    "*: the interval (95 %) excludes zero; ↑ ↓: larger or smaller than at the other sites, beyond the "
                    "intervals of all sites and columns", ["column"], [escape(name or SHARED) for name in names])
    columns = list(next(iter(records.values()))["importance"])
    means = {column: float(np.nan_to_num(np.array([number_of(records[name]["importance"][column][0])
                                                    for name in names])).mean()) for column in columns}
    for column in sorted(columns, key=lambda c: -means[c]):
        table.add_row(escape(column), *(_importance(records[name], column) for name in names))
    return table


def _importance(record: Mapping[str, Any], column: str) -> str:
    value, low, high = (number_of(end) for end in record["importance"][column])
    mark = {1: "↑", -1: "↓", 0: ""}[record["differs"].get(column, 0)]
    return "-" if not isfinite(value) else f"{mark}{value:.4f}{'*' if low > 0 or high < 0 else ' '}"


def _framed(title: str, caption: str | None, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """An empty table with a line below its head: columns of texts, which are folded, and columns of numbers."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left",
                  box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in texts:
        table.add_column(column, overflow="fold", min_width=_NAME_WIDTH)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table
