"""The results folder: a JSON file and an SVG for each reproduction, and one page with all claims and verdicts.

Each JSON file has the SHA-256 of its content, so that a damaged one is refused and never drawn.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from experiments.claims import (
    NOT_DECIDED,
    VERDICTS,
    deciding_choices,
    is_borderline,
    readings_that_hold,
    thresholds,
)
from experiments.pictures import draw
from experiments.schema import Setting
from resolvent.errors import count_of
from resolvent.files import read_sealed, seal, write_text

_MAX_LINE = 110  # characters of JSON that are written on one line
_MAX_NUMBERS = 6  # numbers of a reading that the page lists
_MAX_HEADLINE = 9  # numbers of a claim that the table of the most important numbers lists

RESULTS = Path(__file__).parent / "results"  # the committed ones
COLUMNS_OF_COUNTS = ("paper", "holds", "in part", "does not hold", "not decided", "ours")

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
    """The records of all JSON files in a results folder, by path."""
    return {path: read_record(path) for path in sorted(folder.glob("*.json"))}


def redraw(folder: Path, name: str | None = None) -> list[Path]:
    """Draw pictures again from their JSON files, and write the page; nothing runs.

    Args:
        name: the reproduction, in all settings; default: all.

    Returns:
        The pictures.
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
    records = shown_records(folder)
    stated = {stem: stated_claims(record) for stem, record in records.items()}
    lines = ["# The papers' claims and our results", ""]
    if headlines := [_of_headline(stem, claim, records[stem]) for stem, claims in stated.items() for claim in claims
                     if claim.headline]:
        lines += ["## The papers' most important numbers", "", "| number | ours | verdict | figure |",
                  "|---|---|---|---|", *headlines, ""]
    if changed := [f"- [{stem}](#{stem}): {claim.says}: **{claim.outcome}**. Before: {claim.changed}"
                   for stem, claims in stated.items() for claim in claims if claim.changed]:
        lines += ["## Verdicts that changed", "", *changed, ""]
    lines += ["## All claims", "",
              "Written by `python -m experiments NAME` from the JSON files in this folder; every verdict is computed. "
              "A claim *holds* if it does in every seed, for every method that it names and in every reading, and "
              "holds *in part* if it does for some of them; the numbers show which. Where a paper leaves a choice "
              "open, every combination of its options is a reading, and the verdict names the choices that *decide* "
              "it. A claim about an effect has a least effect: 1 %, or half a point of accuracy, if it states no "
              "other. A verdict is *borderline* if numbers within one standard deviation over the seeds of their "
              "thresholds could change it, and *not decided* if the claim is about runs that have converged, and "
              "these have not. A claim is *ours* if the paper does not make it. Our numbers are means ± standard "
              "deviations over the seeds. Of a reproduction with results in several settings, the largest is shown. "
              "The number of a claim about an interval above 0 is the lower end of the interval. Times are CPU times.",
              "", "| figure | claims that hold | in part | that do not | not decided |", "|---|---:|---:|---:|---:|"]
    for stem, claims in stated.items():
        counts = [str(sum(claim.verdict == verdict for claim in claims)) for verdict in (*VERDICTS, NOT_DECIDED)]
        lines.append(f"| [{stem}](#{stem}) | {' | '.join(counts)} |")
    for stem, r in records.items():
        lines += ["", f"## {stem}", "", f"{r['title']}. {r['paper']}, {r['figure']}; {r['setting']}, "
                  f"{count_of(r['seeds'], 'seed')}, {r['device']}: `{r['command']}`, {cpu_time(r)}.", "",
                  f"![{r['title']}]({stem}.svg)", ""]
        for claim in stated[stem]:
            lines += [f"- **{claim.outcome}**: {claim.says} ({claim.source})", *_of_readings(claim)]
        lines += ["", "Notes:", "", *notes(r)]
    return "\n".join(lines).rstrip() + "\n"


def shown_records(folder: Path) -> dict[str, Record]:
    """The records that the page shows, by file name without the ending: of each reproduction the largest setting."""
    settings = get_args(Setting)
    largest: dict[str, tuple[str, Record]] = {}
    for path, record in read_records(folder).items():
        known = largest.setdefault(record["name"], (path.stem, record))[1]
        if settings.index(record["setting"]) < settings.index(known["setting"]):
            largest[record["name"]] = (path.stem, record)
    return dict(sorted(largest.values(), key=lambda pair: pair[0]))


def counts_table(records: Iterable[Record]) -> str:
    """The number of claims with each verdict, one row for each paper, as a table of Markdown."""
    lines = [COLUMNS_OF_COUNTS, ("---", *["---:"] * (len(COLUMNS_OF_COUNTS) - 1)), *verdict_counts(records)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def verdict_counts(records: Iterable[Record]) -> list[tuple[str, int, int, int, int, int]]:
    """For each paper, the number of its own claims by verdict, and the number of claims that are ours.

    The columns are those of ``COLUMNS_OF_COUNTS``; the last row has the sums.
    """
    counts: dict[str, list[int]] = {}
    for record in records:
        of_paper = counts.setdefault(record["paper"], [0] * (len(VERDICTS) + 2))
        for claim in record["claims"]:
            of_paper[-1 if claim.get("ours") else (*VERDICTS, NOT_DECIDED).index(claim["verdict"])] += 1
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    return [(paper, *numbers) for paper, numbers in [*sorted(counts.items()), ("all", total)]]


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


class ClaimNumber(NamedTuple):
    """A number that contributes to the verdict on a claim.

    Attributes:
        name: the panel and the methods.
        mean: mean over the seeds, infinite if a run diverged.
        std: standard deviation over the seeds; None for one seed or where it is not finite.
        parts: name of a number from which it is computed -> its mean over the seeds.
    """

    name: str
    mean: float
    std: float | None
    as_claimed: int
    seeds: int
    parts: Mapping[str, float]

    @property
    def value(self) -> str:
        """The mean and the standard deviation."""
        return _number(self.mean) + ("" if self.std is None else f" ± {self.std:.3g}")

    @property
    def comment(self) -> str:
        """Its parts, and in how many seeds it is as claimed where that is not all of them."""
        parts = "; ".join(f"{name} {_number(mean)}" for name, mean in self.parts.items())
        failed = "" if self.as_claimed == self.seeds else f" (as claimed in {self.as_claimed} of {self.seeds} seeds)"
        return (f" ({parts})" if parts else "") + failed


class StatedReading(NamedTuple):
    """The numbers of a claim in one reading of the paper.

    Attributes:
        choices: the options that the reading stands for; empty if there is one reading.
        thresholds: the numbers with which these are compared; empty if curves are compared with each other.
        verdict: one of ``VERDICTS``.
    """

    choices: str
    numbers: list[ClaimNumber]
    thresholds: list[float]
    verdict: str = VERDICTS[0]


class StatedClaim(NamedTuple):
    """A claim with its verdict, for a reader.

    Attributes:
        source: whose it is, with the paper's number.
        verdict: one of ``VERDICTS``, or ``NOT_DECIDED``.
        details: whether it is borderline, in how many readings the claim holds, and what decides it.
        headline: the name of the claim among the paper's most important numbers, if it is one.
        changed: the verdict of an earlier version and the reason of the change, if there is one.
    """

    says: str
    source: str
    verdict: str
    details: str
    readings: list[StatedReading]
    headline: str = ""
    changed: str = ""

    @property
    def outcome(self) -> str:
        """The verdict with its details."""
        return self.verdict + (f" ({self.details})" if self.details else "")


def stated_claims(record: Record) -> list[StatedClaim]:
    """The claims of a record with their verdicts and the numbers that contribute to these."""
    return [StatedClaim(
        claim["says"],
        "our claim" if claim["ours"] else f"the paper: {claim['paper']}" if claim["paper"] else "the paper, in words",
        claim["verdict"], _details(claim, record["seeds"]),
        [StatedReading(", ".join(reading["choices"].values()), [
            ClaimNumber(item["name"], math.inf if item["mean"] is None else item["mean"],
                        None if record["seeds"] == 1 else item["std"], item["holds"], record["seeds"],
                        {name: _mean(values) for name, values in item.get("parts", {}).items()})
            for item in reading["items"]], thresholds(reading["rule"], reading["args"]), reading["verdict"])
         for reading in claim["readings"]], claim["headline"], claim["changed"]) for claim in record["claims"]]


def _details(claim: Record, seeds: int) -> str:
    parts = ["borderline"] if seeds > 1 and is_borderline(claim, seeds) else []
    if len(claim["readings"]) > 1:
        deciding = deciding_choices(claim)
        parts.append(f"{readings_that_hold(claim)} of {len(claim['readings'])} readings"
                     f"{'; decided by: ' if deciding else ''}{', '.join(deciding)}")
    return ", ".join(parts)


def _of_headline(stem: str, claim: StatedClaim, record: Record) -> str:
    """A most important number as a row of a table."""
    lines = [line.removeprefix("    - ") for line in _of_readings(claim)]
    numbers = "<br>".join(lines if len(lines) <= _MAX_HEADLINE else _by_verdict(claim.readings))
    cells = (f"{claim.headline} ({claim.source})", numbers, claim.outcome,
             f"[{stem}](#{stem}), {record['setting']}, {count_of(record['seeds'], 'seed')}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _by_verdict(readings: Sequence[StatedReading]) -> list[str]:
    """For each verdict the readings that have it, and the range of their numbers."""
    of_verdict: dict[str, list[StatedReading]] = {}
    for reading in readings:
        of_verdict.setdefault(reading.verdict, []).append(reading)
    lines = []
    for verdict, group in sorted(of_verdict.items(), key=lambda pair: VERDICTS.index(pair[0])):
        means = [number.mean for reading in group for number in reading.numbers]
        choices = f" (*{'*; *'.join(r.choices for r in group)}*)" if len(group) <= _MAX_NUMBERS else ""
        lines.append(f"{verdict} in {len(group)} of {len(readings)} readings{choices}: {_number(min(means))} to "
                     f"{_number(max(means))}")
    return lines


def _of_readings(claim: StatedClaim) -> list[str]:
    """The numbers of each reading as lines of Markdown."""
    lines = []
    for reading in claim.readings:
        prefix = f"*{reading.choices}*: " if reading.choices else ""
        lines += [f"    - {prefix}{text}".replace("\n", " ") for text in _texts(reading.numbers)]
    return lines


def cpu_time(record: Record) -> str:
    """The CPU time of a reproduction; its wall time, if the record is too old to have a CPU time."""
    return f"{record.get('cpu_seconds', record['seconds']):.0f} s"


def _texts(numbers: Sequence[ClaimNumber]) -> list[str]:
    """The numbers of a reading; if there are many, their range and the first that are not as claimed."""
    failed = [number for number in numbers if number.as_claimed < number.seeds]
    is_short = len(numbers) <= _MAX_NUMBERS
    texts = [f"{number.name}: {number.value}{number.comment}" for number in (numbers if is_short else failed)]
    if is_short:
        return texts
    means = [number.mean for number in numbers]
    texts.insert(0, f"{len(numbers) - len(failed)} of {len(numbers)} as claimed, {_number(min(means))} to "
                    f"{_number(max(means))}{', but not:' if failed else ''}")
    more = len(failed) - _MAX_NUMBERS
    return [*texts[:_MAX_NUMBERS + 1], *([f"{more} more"] if more > 0 else [])]


def _number(value: float) -> str:
    return f"{value:.3g}".replace("inf", "∞")


def _mean(values: Sequence[float | None]) -> float:
    return math.inf if None in values else math.fsum(v for v in values if v is not None) / len(values)


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

