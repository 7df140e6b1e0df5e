"""What a run, an evaluation or a calibration says on the terminal."""

import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from resolvent.cli.terminal import MAX_SITES, escape, framed, print_line, print_path, print_table, visible
from resolvent.comparisons.judgement.metrics import GAP, columns_of, format_value, title_of
from resolvent.comparisons.judgement.site_judgement import number_of
from resolvent.comparisons.judgement.wording import advice_of, folds_text, format_points, format_signed, reason_text
from resolvent.comparisons.runs.first_screen import FirstScreen, first_screen
from resolvent.comparisons.runs.record import RunRecord
from resolvent.errors import count_of

if TYPE_CHECKING:
    from resolvent.comparisons.runs.later_sections import Records
    from resolvent.predict.evaluation import Evaluation

_WIDTH, _MAX_LINES, _FEWEST_SITES, _TABLE_LINES = 80, 25, 7, 8  # of an outcome
_PLOT, _LEFT, _NUMBERS = 40, 22, 21  # columns of the plot of gains, of names, and of a gain with the advice
_MAX_NAMED, _MAX_REASONS = 10, 12
_COMPARED = ("better", "level", "worse")


def score_table(record: RunRecord) -> Table:
    """The scores of a run's methods."""
    score, parties = record.score, len(record.data.parties)
    has_baseline = record.alone is not None
    if score == GAP:
        title = f"optimality gap f(w) - f* of the shared model of {parties} parties"
        caption: str | None = "rounds to: until the gap is at most this share of the first one"
    else:
        title = f"test {title_of(score)} at {count_of(parties, 'site')}; global: of the shared model"
        caption = "p10: a tenth of the sites are worse. better, level, worse: sites compared with training alone" if (
            has_baseline) else None
        if caption and record.level:
            caption += ", level: no difference can be told"
    columns = columns_of(score)
    heads = ["\n".join(column.rsplit(" ", 1)) for column in columns]
    table = framed(title, caption, ["method"], [*heads, *(_COMPARED if has_baseline else ())])
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
    """Whether there is a table of scores: secure sums hide the scores of single sites, and gaps have no mean."""
    return any(method.final.get("mean", 0) is not None for method in record.methods.values())


def print_outcome(record: RunRecord, report: Path | None = None, *, next_command: str = "") -> None:
    """Print what a comparison says first, in at most 25 lines of 80 columns, if no path or label is very long.

    Args:
        next_command: what the user may call next.
    """
    screen = first_screen(record)
    lines = _head(screen)
    ends = (report is not None) + bool(next_command)
    rest = _MAX_LINES - len(lines) - ends
    lines += _fitting(_warning_lines(screen.warnings), rest - (_FEWEST_SITES if screen.sites else 0))
    rest = _MAX_LINES - len(lines) - ends
    if screen.sites:
        lines += forest_lines(screen, rest)
    for line in lines:
        print_line(line)
    if not screen.sites and _has_scores(record) and len(record.score_rows()) <= rest - _TABLE_LINES:
        print_table(score_table(record))
    if report is not None:
        print_path("Report", report)
    if next_command:
        print_path("Next", next_command)


def _head(screen: FirstScreen) -> list[str]:
    """Facts, counts, headline and mean scores."""
    counts = " · ".join(f"{number} {answer}" for answer, number in screen.counts.items())
    facts = " · ".join(fact.replace(" ", "\xa0") for fact in screen.facts.split(" · "))  # a fact stays on its line
    texts = [facts, counts and f"Sites: {counts}", screen.headline, screen.scores if screen.sites else ""]
    return [line.replace("\xa0", " ") for text in texts for line in textwrap.wrap(text, _WIDTH)]


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
    note = [screen.note] if screen.note else []
    most -= len(note)
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
                row[column(100 * value)] = "◀" if 100 * value < low else "▶" if 100 * value > high else mark
        name = textwrap.shorten(visible(site.name), left, placeholder="…") or visible(site.name)[:left]
        lines.append(f"{name:{left}}{format_points(100 * advice.expected.value):>8} {''.join(row)} "
                     f"{advice_of(advice)}")
    more = f"; {len(sites)} of {len(screen.sites)} sites" if len(sites) < len(screen.sites) else ""
    return [*lines, f"● expected gain in {screen.unit}, ○ by the site's own rows{more}", *note]


def advice_table(record: RunRecord, about: str) -> Table:
    """The advice to each site; with more than 40 sites, those that should not join and those with the largest gains."""
    sites = [(site, site.advice) for site in record.sites if site.advice is not None]
    chosen = sorted(sites, key=lambda pair: (pair[1].answer == "join", -np.nan_to_num(pair[1].expected.value)))
    chosen = sites if len(sites) <= MAX_SITES else chosen[:MAX_SITES]
    more = f"; {MAX_SITES} of {len(sites)} sites, first those that should not join" if len(sites) > MAX_SITES else ""
    score = record.score
    points = f"points of {title_of(score)}" if record.decides else "points of skill"
    role = "decides" if record.decides else "does not decide"
    tuned = {label: method.tuned for label, method in record.methods.items()}
    folds = f"{folds_text(record.folds, len(record.seeds), tuned)} ".lstrip()
    table = framed(f"What each site should do{more}", f"{escape(folds)}Gains over training alone, in {points}. "
                   f"expected: by the rows of all sites, with the interval of level {record.level or 0:.0%}. own rows: "
                   f"by the site's own. {title_of(score)}: the gain of {escape(about)} on own rows, which {role}. "
                   "unclear: stay alone until it is clear", ["site", "advice"],
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
    table = framed(f"{evaluation['rows']} rows with labels", "95 % intervals: Wilson's for accuracy, with DeLong's "
                   "variance for the area under the ROC curve, otherwise by a bootstrap of the rows",
                   ["score"], ["value", "interval"])
    for name, (value, low, high) in evaluation.intervals.items():
        ends = f"{format_value(low, name)} to {format_value(high, name)}" if isfinite(low) else ""
        table.add_row(escape(title_of(name)), format_value(value, name) if isfinite(value) else "not defined", ends)
    return table


def calibration_tables(records: "Records") -> list[Table]:
    """The calibration of each site with its effect on test rows, and the thresholds if there are any."""
    from resolvent.comparisons.runs.later_sections import calibration_row

    table = framed("Calibration, measured on test rows", "rows: validation rows of the site (and of other sites) to "
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
    table = framed(escape(f"From which probability on {positive} is predicted: {goal}"),
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
    table = framed("By how much the mean loss on test rows grows if a column is exchanged between the rows",
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
