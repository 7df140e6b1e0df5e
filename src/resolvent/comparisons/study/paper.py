"""The folder of a study for a paper: figures, tables, a paragraph, and the settings as an appendix."""

import re
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resolvent.comparisons.study.number_texts import CAPTIONS, number_texts
from resolvent.comparisons.study.parts import StudyPart
from resolvent.comparisons.text_tables import TableForm, text_table
from resolvent.data.files.atomic_files import write_atomically, write_text
from resolvent.simulator.record.plots import print_context

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.comparisons.study.figures import Kind

_ENDINGS: dict[TableForm, str] = {"latex": "tex", "markdown": "md", "html": "html"}
_FIGURES: dict["Kind", str] = {
    "curves": "The mean score over the sites against rounds; the band is one standard deviation over the seeds.",
    "traffic": "The mean score against the bytes that all sites receive and send.",
    "parties": "The scores of the sites after the last round, means over the seeds.",
    "gains": "The gain at each site over {reference}.",
    "differences": "Differences from {reference} with intervals of level 0.95; a filled point differs by Holm's test.",
    "ranks": "Mean ranks; a bar joins methods that Nemenyi's test of level 0.05 does not distinguish."}


class Paper(NamedTuple):
    """What is written for a paper.

    Attributes:
        parts: the comparison on each data set.
        paragraph: what the study shows.
        reference: the method that gains and differences are over.
        command: the command that makes the files again; None: see ``command_of``.
        score_texts: the same in each language.
    """

    parts: Mapping[str, StudyPart]
    paragraph: str
    reference: str
    command: str | None
    scores: "pd.DataFrame"
    score_texts: Mapping["TableForm", str]
    numbers: "Mapping[str, pd.DataFrame]"
    figures: "Mapping[Kind, Figure]"


def write_paper(folder: Path, paper: Paper) -> Path:
    """Write the folder, see ``Study.paper``; returns the path of its page."""
    folder.mkdir(parents=True, exist_ok=True)
    text = [f"# {', '.join(paper.parts)}", "", paper.paragraph, "", "Made by", "",
            f"    {paper.command or command_of(paper.parts, folder)}", "", "## Scores", ""]
    _write_table(folder, "scores", paper.scores, paper.score_texts)
    text.append(paper.score_texts["markdown"])
    scores = {name: part.evidence.score for name, part in paper.parts.items()}
    for name, frame in paper.numbers.items():
        head, rows = number_texts(frame, scores)
        caption = CAPTIONS[name].format(reference=paper.reference)
        texts = {form: text_table(head, rows, form, caption) for form in _ENDINGS}
        _write_table(folder, name, frame, texts)
        if name != "pairs":
            text += [f"## {name.capitalize()}", "", texts["markdown"]]
    text += ["## Figures", ""]
    for kind, figure in paper.figures.items():
        with print_context():
            write_atomically(folder / f"{kind}.pdf", partial(figure.savefig, format="pdf",
                                                             metadata={"CreationDate": None}))
        text.append(f"- `{kind}.pdf`: {_FIGURES[kind].format(reference=paper.reference)}")
    text += ["", "## Settings", "", *_settings(paper.parts)]
    write_text(folder / "paper.md", "\n".join(text) + "\n")
    return folder / "paper.md"


def _write_table(folder: Path, name: str, frame: "pd.DataFrame", texts: Mapping["TableForm", str]) -> None:
    """Write a table in each language, and its numbers without rounding."""
    write_atomically(folder / f"{name}.csv", partial(frame.to_csv, index=False))
    for form, ending in _ENDINGS.items():
        write_text(folder / f"{name}.{ending}", texts[form])


def command_of(parts: Mapping[str, StudyPart], folder: Path) -> str:
    """The command that writes the folder again: from the run folders, or by the program that runs now."""
    sources = {name: part.source for name, part in parts.items()}
    if all(sources.values()):
        named = [f"{name}={','.join(folders)}" for name, folders in sources.items()]
        return shlex.join(["resolvent", "compare", *named, "--paper", str(folder)])
    return shlex.join([Path(sys.executable).name, *(sys.orig_argv[1:] or ["-"])])


def _settings(parts: Mapping[str, StudyPart]) -> list[str]:
    lines = []
    for name, part in parts.items():
        seeds = ", ".join(map(str, part.evidence.seeds))
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", part.settings)), default=0))
        lines += [f"### {name}", "", f"Seeds {seeds}; sites: {', '.join(map(str, _names(part.evidence.parties)))}.", "",
                  fence, part.settings.rstrip(), fence, ""]
    return lines


def _names(parties: Any) -> list[str]:
    names = list(parties.values()) if hasattr(parties, "values") else list(parties)
    return names if len(names) <= 30 else [*names[:30], f"and {len(names) - 30} more"]
