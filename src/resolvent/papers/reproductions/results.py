"""The results folder: a JSON file and an SVG for each reproduction, and one page with all claims and verdicts.

Each JSON file has the SHA-256 of its content, so that a damaged one is refused and never drawn.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.digests import read_sealed, seal
from resolvent.errors import count_of
from resolvent.papers.reproductions.claims import NOT_DECIDED, is_borderline
from resolvent.papers.reproductions.pictures import draw
from resolvent.papers.reproductions.schema import Setting

__all__ = ["claims_table", "cpu_time", "notes", "page", "read_record", "read_records", "redraw", "shown_records",
           "write_page", "write_results"]

_CELLS = {"holds": "holds", "holds in part": "**in part**", "does not hold": "**does not hold**",
          NOT_DECIDED: "not decided"}
_MAX_LINE = 110  # characters of JSON that are written on one line
_MAX_ITEMS = 6  # numbers of a claim that the page lists

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
    records = shown_records(folder).items()
    lines = ["# The papers' claims and our results", "",
             "Written by `resolvent reproduce NAME` from the JSON files in this folder; every verdict is computed. A "
             "claim *holds* if it does in every seed and for every method that it names, and holds *in part* if it "
             "does for some of them; the numbers show which. It is *borderline* if numbers within one standard "
             "deviation over the seeds of their thresholds could change the verdict, and *not decided* if the claim is "
             "about runs that have converged, and these have not. The second column has the paper's number, *in "
             "words* if the paper states the claim without a number, and *ours* if the claim is ours. Of a "
             "reproduction with results in several settings, the largest is shown. The number of a claim about an "
             "interval above 0 is the lower end of the interval. Times are CPU times.", "",
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
    return [(_cell(claim["says"]), "ours" if claim.get("ours") else _cell(claim["paper"]) or "in words",
             _numbers(claim, record["seeds"]), _verdict(claim, record["seeds"])) for claim in record["claims"]]


def _verdict(claim: Record, seeds: int) -> str:
    return _CELLS[claim["verdict"]] + (" (borderline)" if seeds > 1 and is_borderline(claim, seeds) else "")


def cpu_time(record: Record) -> str:
    """The CPU time of a reproduction; its wall time, if the record is too old to have a CPU time."""
    return f"{record.get('cpu_seconds', record['seconds']):.0f} s"


def _numbers(claim: Record, seeds: int) -> str:
    """The numbers of a claim; if there are many, their range and the first that are not as claimed."""
    def text(item: Record) -> str:
        failed = "" if item["holds"] == seeds else f" (as claimed in {item['holds']} of {seeds} seeds)"
        mean, std = ("∞" if v is None else f"{v:.3g}" for v in (item["mean"], item["std"]))
        return f"{_cell(item['name'])}: {mean}{'' if seeds == 1 or item['std'] is None else f' ± {std}'}{failed}"

    items = claim["items"]
    if len(items) <= _MAX_ITEMS:
        return "; ".join(map(text, items))
    means = [math.inf if item["mean"] is None else item["mean"] for item in items]
    failed = [item for item in items if item["holds"] < seeds]
    listed = "; ".join(map(text, failed[:_MAX_ITEMS]))
    more = f"; and {len(failed) - _MAX_ITEMS} more" if len(failed) > _MAX_ITEMS else ""
    return (f"{len(items) - len(failed)} of {len(items)} as claimed, {min(means):.3g} to {max(means):.3g}"
            f"{'. Not as claimed: ' if failed else ''}{listed}{more}").replace("inf", "∞")


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
