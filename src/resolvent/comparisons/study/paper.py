"""The folder of a study for a paper: figures, tables, a paragraph, and the settings as an appendix."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.study.tables import Mark, TableForm, table_frame, text_table
from resolvent.data.files.atomic_files import write_atomically, write_text
from resolvent.simulator.record.plots import print_context

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.comparisons.study.figures import Kind
    from resolvent.comparisons.study.readings import StudyReadings

__all__ = ["command_of", "write_paper"]

_ENDINGS: dict[TableForm, str] = {"latex": "tex", "markdown": "md", "html": "html"}
_FIGURES: dict["Kind", str] = {
    "curves": "The mean score over the sites against rounds; the band is one standard deviation over the seeds.",
    "traffic": "The mean score against the bytes that all sites receive and send.",
    "parties": "The scores of the sites after the last round, means over the seeds.",
    "gains": "The gain at each site over {reference}.",
    "differences": "Differences from {reference} with intervals of level 0.95; a filled point differs by Holm's test.",
    "ranks": "Mean ranks; a bar joins methods that Nemenyi's test of level 0.05 does not distinguish."}
_PERCENT = ("difference", "low", "high", "mean", "sd", "worst decile", "worst", "target", "area")


def write_paper(study: "StudyReadings", folder: Path, *, target: float | None = None, reference: str | None = None,
                command: str | None = None) -> Path:
    """Write the folder, see ``Study.paper``."""
    from resolvent.comparisons.study.figures import reference_of

    folder.mkdir(parents=True, exist_ok=True)
    evidences = {name: part.evidence for name, part in study.parts.items()}
    first = next(iter(evidences.values()))
    over = reference_of(first, reference)
    text = [f"# {', '.join(study.parts)}", "", study.paragraph(), "", "Made by", "",
            f"    {command or command_of(study, folder)}"]
    numbers = {"differences": study.differences(over), "pairs": study.differences(),
               "costs": study.costs(target), "fairness": study.fairness()}
    frame = table_frame(study.marked_scores())
    for form, ending in _ENDINGS.items():
        write_text(folder / f"scores.{ending}", str(study.table(form)))
    write_atomically(folder / "scores.csv", lambda path: _csv(frame, path))
    text += ["", "## Scores", "", str(study.table("markdown"))]
    for name, frame_of_name in numbers.items():
        write_atomically(folder / f"{name}.csv", lambda path, f=frame_of_name: _csv(f, path))  # type: ignore[misc]
        shown = _rounded(frame_of_name, {data: e.score for data, e in evidences.items()})
        caption = _CAPTIONS[name].format(reference=over)
        for form, ending in _ENDINGS.items():
            write_text(folder / f"{name}.{ending}", text_table(*shown, form, caption))
        if name != "pairs":
            text += [f"## {name.capitalize()}", "", text_table(*shown, "markdown", caption)]
    text += ["## Figures", ""]
    for kind, caption in _FIGURES.items():
        if kind == "ranks" and (len(study.parts) == 1 or len(study.ranks().mean) < 3):
            continue
        figure = study.plot(kind, reference=reference)
        with print_context():
            write_atomically(folder / f"{kind}.pdf", lambda path, f=figure: f.savefig(  # type: ignore[misc]
                path, format="pdf", metadata={"CreationDate": None}))
        text.append(f"- `{kind}.pdf`: {caption.format(reference=over)}")
    text += ["", "## Settings", "", *_settings(study)]
    write_text(folder / "paper.md", "\n".join(text) + "\n")
    return folder / "paper.md"


_CAPTIONS = {
    "differences": "Differences from {reference}; positive is better.",
    "pairs": "Differences of all pairs of methods; positive: the first method is better.",
    "costs": "What a method spends until the target; the median over the seeds.",
    "fairness": "The distribution of the scores over the sites; means over the seeds."}


def command_of(study: "StudyReadings", folder: Path) -> str:
    """The command that writes the folder again: from the run folders, or by the program that runs now."""
    sources = {name: part.source for name, part in study.parts.items()}
    if all(sources.values()):
        named = [f"{name}={','.join(folders)}" for name, folders in sources.items()]
        return shlex.join(["resolvent", "paper", *named, "--out", str(folder)])
    return shlex.join([Path(sys.executable).name, *(sys.orig_argv[1:] or ["-"])])


def _csv(frame: "pd.DataFrame", path: Path) -> None:
    frame.to_csv(path, index=False)


def _rounded(frame: "pd.DataFrame", scores: dict[str, str]) -> tuple[list[str], list[list[tuple[str, Mark]]]]:
    """The head and the rows of a table with rounded numbers: shares and their differences in percent."""
    columns = [str(c) for c in frame.columns if not (c == "data" and len(scores) == 1)]
    is_empty = {c for c in columns if frame[c].dtype.kind == "f" and frame[c].isna().all()}
    columns = [c for c in columns if c not in is_empty]
    rows: list[list[tuple[str, Mark]]] = []
    for row in frame.to_dict("records"):
        rows.append([(_text(row[c], c, scores[row["data"]]), "") for c in columns])
    return [title_of(c) for c in columns], rows


def _text(value: Any, column: str, score: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not np.isfinite(value):
        return "–" if np.isnan(value) else "not reached" if column != "mean" else "diverged"
    if column in _PERCENT and format_value(1.0, score).endswith("%"):
        return f"{100 * value:.1f}".replace("-", "−")
    if column == "bytes":
        return f"{value / 1e6:.3g} MB"
    if column in ("p", "holm", "bh"):
        return "<0.001" if value < 0.001 else f"{value:.3f}"
    text = f"{value:.3g}" if isinstance(value, float) else f"{value:,}"
    return text.replace("-", "−")


def _settings(study: "StudyReadings") -> list[str]:
    """The settings of each data set."""
    lines = []
    for name, part in study.parts.items():
        seeds = ", ".join(map(str, part.evidence.seeds))
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", part.settings)), default=0))
        lines += [f"### {name}", "", f"Seeds {seeds}; sites: {', '.join(map(str, _names(part.evidence.parties)))}.", "",
                  fence, part.settings.rstrip(), fence, ""]
    return lines


def _names(parties: Any) -> list[str]:
    names = list(parties.values()) if hasattr(parties, "values") else list(parties)
    return names if len(names) <= 30 else [*names[:30], f"and {len(names) - 30} more"]
