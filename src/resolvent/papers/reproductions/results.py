"""The results folder: a JSON file and an SVG for each reproduction, and one page with all claims and verdicts.

Each JSON file has the SHA-256 of its content, so that a damaged one is refused and never drawn.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.digests import read_sealed, seal
from resolvent.errors import count_of
from resolvent.papers.reproductions.claims import NOT_DECIDED, deciding_choices, is_borderline, readings_that_hold
from resolvent.papers.reproductions.pictures import draw
from resolvent.papers.reproductions.schema import Setting

__all__ = ["CHANGED_COLUMNS", "HEADLINE_COLUMNS", "changed_verdicts", "claims_table", "cpu_time", "headlines", "notes",
           "page", "read_record", "read_records", "redraw", "shown_records", "write_page", "write_results"]

_CELLS = {"holds": "holds", "holds in part": "**in part**", "does not hold": "**does not hold**",
          NOT_DECIDED: "not decided"}
_MAX_LINE = 110  # characters of JSON that are written on one line
_MAX_ITEMS = 6  # numbers of a reading that the page lists
HEADLINE_COLUMNS = ("number", "the paper's", "ours", "readings in which it holds", "scale", "seeds", "figure")
CHANGED_COLUMNS = ("figure", "claim", "verdict", "before, and why it changed")

Record = Mapping[str, Any]


def write_results(record: Record, folder: Path) -> Path:
    """Write ``NAME.json`` and ``NAME.svg`` (``NAME-quick`` in the quick setting), and the page of all results.

    The page shows the largest setting that there is of each reproduction.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = record["name"] + ("" if record["setting"] == "paper scale" else f"-{record['setting']}")
    path = folder / f"{stem}.json"
    write_text(path, _json(seal(record)))
    draw(record, path.with_suffix(".svg"))
    write_page(folder)
    return path


def read_record(path: Path) -> Record:
    """The record of a reproduction.

    Raises:
        InputError: the file is damaged, or is not a record; the message names it.
    """
    return read_sealed(path, "run the reproduction again, or use another results folder")


def read_records(folder: Path) -> dict[Path, Record]:
    """The records of all JSON files in a results folder, by path.

    Raises:
        InputError: as ``read_record``.
    """
    return {path: read_record(path) for path in sorted(folder.glob("*.json"))}


def redraw(folder: Path, name: str | None = None) -> list[Path]:
    """Draw pictures again from their JSON files, and write the page; nothing runs.

    Args:
        folder: the results folder.
        name: the reproduction, in all settings; default: all.

    Returns:
        The pictures.

    Raises:
        InputError: a JSON file is damaged.
    """
    paths = [path for path in sorted(folder.glob("*.json"))
             if name in (None, path.stem, path.stem.removesuffix("-quick"), path.stem.removesuffix("-middle"))]
    for path in paths:
        draw(read_record(path), path.with_suffix(".svg"))
    if paths:
        write_page(folder)
    return [path.with_suffix(".svg") for path in paths]


def write_page(folder: Path) -> None:
    """Write the page of all results in a folder, ``README.md``."""
    write_text(folder / "README.md", page(folder))


def page(folder: Path) -> str:
    """The page of a results folder, from its JSON files alone."""
    shown = shown_records(folder)
    records = shown.items()
    heads = (("## The papers' most important numbers", HEADLINE_COLUMNS, headlines(shown)),
             ("## Verdicts that changed", CHANGED_COLUMNS, changed_verdicts(shown)))
    tables = [line for title, columns, rows in heads if rows for line in (
        title, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|",
        *(f"| {' | '.join(row)} |" for row in rows), "")]
    lines = ["# The papers' claims and our results", "", *tables, "## All claims", "",
             "Written by `resolvent reproduce NAME` from the JSON files in this folder; every verdict is computed. A "
             "claim *holds* if it does in every seed, for every method that it names and in every reading, and holds "
             "*in part* if it does for some of them; the numbers show which. Where a paper leaves a choice open, "
             "every combination of its options is a reading, and the verdict names the choices that *decide* it. A "
             "claim about an effect has a least effect: 1 %, or half a point of accuracy, if it states no other. A "
             "verdict is *borderline* if numbers within one standard deviation over the seeds of their thresholds "
             "could change it, and *not decided* if the claim is about runs that have converged, and these have not. "
             "The second column has the paper's number, *in words* if the paper states the claim without a number, "
             "and *ours* if the claim is ours. Of a reproduction with results in several settings, the largest is "
             "shown. The number of a claim about an interval above 0 is the lower end of the interval. Times are CPU "
             "times.", "",
             "| claim | paper | our numbers: mean ± standard deviation over seeds | verdict | command | time |",
             "|---|---|---|---|---|---|"]
    for _, r in records:
        for says, *cells in claims_table(r):
            row = (f"{says} ({r['figure']})", *cells, f"`{r['command']}`", cpu_time(r))
            lines.append(f"| {' | '.join(row)} |")
    for stem, r in records:
        lines += ["", f"## {stem}", "", f"{r['title']}. {r['paper']}, {r['figure']}; {r['setting']}, "
                  f"{count_of(r['seeds'], 'seed')}, {r['device']}.", "",
                  f"![{r['title']}]({stem}.svg)", "", *notes(r)]
    return "\n".join(lines).rstrip() + "\n"


def shown_records(folder: Path) -> dict[str, Record]:
    """The records that the page shows, by file name without the ending: of each reproduction the largest setting.

    Raises:
        InputError: a JSON file is damaged.
    """
    settings = get_args(Setting)
    largest: dict[str, tuple[str, Record]] = {}
    for path, record in read_records(folder).items():
        known = largest.setdefault(record["name"], (path.stem, record))[1]
        if settings.index(record["setting"]) < settings.index(known["setting"]):
            largest[record["name"]] = (path.stem, record)
    return dict(sorted(largest.values(), key=lambda pair: pair[0]))


def notes(record: Record) -> list[str]:
    """The notes for the reader, one line of Markdown each; the last ones are the choices of a search."""
    lines = [f"- {note}" for note in record["notes"]]
    for panel, methods in record.get("search", {}).items():
        chosen = "; ".join(f"{label}: {', '.join(f'{k} = {_value(v)}' for k, v in outcome['chosen'].items())} "
                           f"(of {len(outcome['tried'])})" for label, outcome in methods.items())
        lines.append(f"- Chosen by search, {panel}: {chosen}.")
    return lines


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def claims_table(record: Record) -> list[tuple[str, str, str, str]]:
    """For each claim, as Markdown: the statement, whose it is, our numbers, the verdict.

    The second cell is the paper's number, ``in words`` if the paper has none, or ``ours`` if the claim is ours.
    """
    return [(_cell(claim["says"]), _whose(claim), _numbers_of_readings(claim, record["seeds"]),
             _verdict(claim, record["seeds"])) for claim in record["claims"]]


def headlines(records: Mapping[str, Record]) -> list[tuple[str, ...]]:
    """A row for each of the papers' most important numbers, as Markdown, with the columns ``HEADLINE_COLUMNS``.

    Args:
        records: the records by name, see ``shown_records``.
    """
    return [(_cell(claim["headline"]), _whose(claim), _numbers_of_readings(claim, record["seeds"]),
             _in_readings(claim) or _verdict(claim, record["seeds"]), record["setting"], str(record["seeds"]), name)
            for name, record in records.items() for claim in record["claims"] if claim["headline"]]


def changed_verdicts(records: Mapping[str, Record]) -> list[tuple[str, ...]]:
    """A row for each verdict that differs from that of an earlier version, with the columns ``CHANGED_COLUMNS``.

    Args:
        records: the records by name, see ``shown_records``.
    """
    return [(name, _cell(claim["says"]), _verdict(claim, record["seeds"]), _cell(claim["changed"]))
            for name, record in records.items() for claim in record["claims"] if claim["changed"]]


def _whose(claim: Record) -> str:
    return "ours" if claim["ours"] else _cell(claim["paper"]) or "in words"


def _verdict(claim: Record, seeds: int) -> str:
    borderline = " (borderline)" if seeds > 1 and is_borderline(claim, seeds) else ""
    return f"{_CELLS[claim['verdict']]}{borderline}{_in_readings(claim, ': ')}"


def _in_readings(claim: Record, prefix: str = "") -> str:
    """In how many readings a claim holds, and the choices that decide it; empty if it has one reading."""
    if len(claim["readings"]) == 1:
        return ""
    deciding = deciding_choices(claim)
    return (f"{prefix}{readings_that_hold(claim)} of {len(claim['readings'])} readings"
            f"{'; decided by: ' if deciding else ''}{', '.join(deciding)}")


def cpu_time(record: Record) -> str:
    """The CPU time of a reproduction; its wall time, if the record is too old to have a CPU time."""
    return f"{record.get('cpu_seconds', record['seconds']):.0f} s"


def _numbers_of_readings(claim: Record, seeds: int) -> str:
    """The numbers of each reading, with the options that it stands for if there are several."""
    return "<br>".join((f"*{_cell(', '.join(reading['choices'].values()))}*: " if reading["choices"] else "")
                       + _numbers(reading["items"], seeds) for reading in claim["readings"])


def _numbers(items: Sequence[Record], seeds: int) -> str:
    """The numbers of a reading; if there are many, their range and the first that are not as claimed."""
    def text(item: Record) -> str:
        failed = "" if item["holds"] == seeds else f" (as claimed in {item['holds']} of {seeds} seeds)"
        mean, std = ("∞" if v is None else f"{v:.3g}" for v in (item["mean"], item["std"]))
        parts = "; ".join(f"{_cell(name)} {_mean(values)}" for name, values in item.get("parts", {}).items())
        return (f"{_cell(item['name'])}: {mean}{'' if seeds == 1 or item['std'] is None else f' ± {std}'}"
                f"{f' ({parts})' if parts else ''}{failed}")

    if len(items) <= _MAX_ITEMS:
        return "; ".join(map(text, items))
    means = [math.inf if item["mean"] is None else item["mean"] for item in items]
    failed = [item for item in items if item["holds"] < seeds]
    listed = "; ".join(map(text, failed[:_MAX_ITEMS]))
    more = f"; and {len(failed) - _MAX_ITEMS} more" if len(failed) > _MAX_ITEMS else ""
    return (f"{len(items) - len(failed)} of {len(items)} as claimed, {min(means):.3g} to {max(means):.3g}"
            f"{'. Not as claimed: ' if failed else ''}{listed}{more}").replace("inf", "∞")


def _mean(values: Sequence[float | None]) -> str:
    return "∞" if None in values else f"{math.fsum(v for v in values if v is not None) / len(values):.3g}"


def _json(record: Record) -> str:
    """Indented JSON; short values and lists of numbers are on one line."""
    def text(value: Any, depth: int) -> str:
        plain = json.dumps(value, allow_nan=False, ensure_ascii=False)
        is_nested = isinstance(value, list) and any(isinstance(v, dict | list | str) for v in value)
        if len(plain) <= _MAX_LINE or not (isinstance(value, Mapping) or is_nested):
            return plain
        begin, end = "\n" + " " * (depth + 1), "\n" + " " * depth
        if isinstance(value, Mapping):
            parts = [f"{json.dumps(k, ensure_ascii=False)}: {text(v, depth + 1)}" for k, v in value.items()]
            return f"{{{begin}{f',{begin}'.join(parts)}{end}}}"
        return f"[{begin}{f',{begin}'.join(text(v, depth + 1) for v in value)}{end}]"

    return text(record, 0) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
