"""The page of the papers' figures: a card for each picture, and under each picture a card for each claim.

A claim's card has its sentence, its verdict, and the numbers that contribute to this, drawn on a common scale.
"""

import html
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from hooks import RESULTS, escaped

if TYPE_CHECKING:
    from experiments.results import Record, StatedClaim, StatedReading

MARK = "<!-- the papers' figures -->"
SHOWN = 3  # numbers of a claim that are shown without a click
LOGARITHMIC = 50  # ratio of the largest number to the smallest positive one from which the scale is logarithmic


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by the figures."""
    return markdown.replace(MARK, figures()) if MARK in markdown else markdown


def figures() -> str:
    """Cards of all pictures that lead to their sections, and the sections by paper."""
    from experiments.results import read_records

    def paper_of(item: "tuple[str, Record]") -> str:
        return str(item[1]["paper"])

    records = {path.stem: record for path, record in read_records(RESULTS).items()}
    by_paper = {paper: dict(group) for paper, group in groupby(sorted(records.items(), key=paper_of), key=paper_of)}
    lines = ["## The papers' most important numbers", "", '<div class="claims">', *headlines(records), "</div>", "",
             "## All figures", ""]
    for paper, of_paper in by_paper.items():
        lines += [f"**{escaped(paper)}**", "", '<div class="grid recipes" markdown>', ""]
        for stem, record in of_paper.items():
            text = f"{escaped(record['figure'])}<br>{stem}: {counts_text(record)}"
            lines += [f"[![](results/{stem}.svg){{ loading=lazy }} <span>{text}</span>](#{stem}){{ .card }}", ""]
        lines += ["</div>", ""]
    for paper, of_paper in by_paper.items():
        lines += ["", f"## {paper}"]
        for stem, record in of_paper.items():
            lines += ["", *figure(stem, record)]
    return "\n".join(lines)


def headlines(records: "dict[str, Record]") -> Iterator[str]:
    """A card for each of the papers' most important numbers, with a link to its figure."""
    from experiments.results import shown_records, stated_claims

    for stem in shown_records(RESULTS):
        for claim in stated_claims(records[stem]):
            if claim.headline:
                text = card(claim._replace(says=claim.headline))
                yield text.replace("</section>", f'<p><a href="#{stem}">{stem}</a></p></section>')


def counts_text(record: "Record") -> str:
    """How many claims have each verdict, such as ``3 hold, 1 in part``."""
    from experiments.claims import NOT_DECIDED, VERDICTS

    verdicts = [claim["verdict"] for claim in record["claims"]]
    words = zip((*VERDICTS, NOT_DECIDED), ("hold", "in part", "do not", "not decided"), strict=True)
    return ", ".join(f"{number} {word}" for verdict, word in words if (number := verdicts.count(verdict)))


def figure(stem: str, record: "Record") -> list[str]:
    """One picture, its claims and its notes, as lines of Markdown."""
    from experiments.results import cpu_time, notes, stated_claims

    seeds = f"{record['seeds']} seed{'s' if record['seeds'] > 1 else ''}"
    picture = f"results/{stem}.svg"
    return [f"### {stem}", "", f"{escaped(record['title'])}. {record['figure']}; {record['setting']}, {seeds}: "
            f"`{record['command']}`, {cpu_time(record)}.", "",
            f"[![{escaped(record['title'])}]({picture}){{ loading=lazy }}]({picture})", "",
            '<div class="claims">', *(card(claim) for claim in stated_claims(record)), "</div>", "", *notes(record)]


def card(claim: "StatedClaim") -> str:
    """A claim as HTML, without a blank line, so that Markdown leaves it as it is."""
    details = f", {html.escape(claim.details)}" if claim.details else ""
    items = [item for reading in claim.readings for item in strips(reading)]
    parts = [f'<section class="claim {claim.verdict.replace(" ", "-")}">', f'<p class="verdict"><strong>{claim.verdict}'
             f"{details}</strong> <span>{html.escape(claim.source)}</span></p>", f"<p>{html.escape(claim.says)}</p>",
             f"<ul>{''.join(items[:SHOWN])}</ul>"]
    if rest := items[SHOWN:]:
        numbers = [number for reading in claim.readings for number in reading.numbers]
        as_claimed = sum(number.as_claimed == number.seeds for number in numbers)
        parts.append(f"<details><summary>{len(rest)} more numbers; {as_claimed} of {len(items)} as claimed in every "
                     f"seed</summary><ul>{''.join(rest)}</ul></details>")
    return "\n".join([*parts, "</section>"])


def strips(reading: "StatedReading") -> Iterator[str]:
    """Each number with a line: a dot at the mean, a bar of one standard deviation to each side, the thresholds."""
    ends = [*reading.thresholds, *(number.mean + sign * (number.std or 0) for number in reading.numbers
                                   for sign in (-1, 0, 1))]
    position = scale([end for end in ends if math.isfinite(end)])
    limits = "".join(f'<i class="threshold" style="left:{position(limit):.1f}%"></i>' for limit in reading.thresholds)
    prefix = f"<em>{html.escape(reading.choices)}</em>: " if reading.choices else ""
    for number in reading.numbers:
        state = "all" if number.as_claimed == number.seeds else "some" if number.as_claimed else "none"
        low, centre, high = (position(number.mean + sign * (number.std or 0)) for sign in (-1, 0, 1))
        yield (f'<li class="{state}">{prefix}{html.escape(number.name)}: <b>{number.value}</b>'
               f'{html.escape(number.comment)}<span class="strip" aria-hidden="true">{limits}'
               f'<i class="spread" style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
               f'<i class="mean" style="left:{centre:.1f}%"></i></span></li>')


def scale(values: Sequence[float]) -> Any:
    """A function from a number to percent of the width: logarithmic for positive numbers of different magnitudes."""
    smallest, largest = (min(values), max(values)) if values else (0.0, 1.0)
    transform = math.log if smallest > 0 and largest / smallest > LOGARITHMIC else float
    low, high = transform(smallest), transform(largest)

    def position(value: float) -> float:
        clipped = min(max(value, smallest), largest)
        return 50.0 if high == low else 2 + 96 * (transform(clipped) - low) / (high - low)

    return position
