"""The folder of a study for a paper: figures, tables, a paragraph, and the settings as an appendix."""

import re
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resolvent.comparisons.judgement.divergence import collapses
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.judgement.wording import enumerate_names, format_gain
from resolvent.comparisons.study.differences import Unit, differences, unit_of
from resolvent.comparisons.study.parts import StudyPart
from resolvent.comparisons.study.ranks import Ranks
from resolvent.comparisons.study.scores import scores_by_round
from resolvent.comparisons.study.tables import CAPTIONS, MarkedScore, marked_scores, number_texts, score_text
from resolvent.comparisons.text_tables import TableForm, text_table
from resolvent.data.files.atomic_files import write_atomically, write_text
from resolvent.errors import count_of
from resolvent.predict.intervals import LEVEL, Interval
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


_TESTS = {"rows": "a bootstrap of the test rows of each site, paired by row and seed",
          "seeds": "Student's test, paired by seed", "parties": "Student's test, paired by party"}


def paragraph(evidences: Mapping[str, Evidence], ranks: Ranks | None, by: Unit | None = None) -> str:
    """Sentences about the methods, the data sets, the test, the best methods, and the ranks over several data sets."""
    methods = list(dict.fromkeys(m for evidence in evidences.values() for m in evidence.methods))
    first = next(iter(evidences.values()))
    units = list(dict.fromkeys(unit_of(e) if by is None else by for e in evidences.values()))
    text = [f"We compare {enumerate_names(methods)} on {enumerate_names([_data_text(*e) for e in evidences.items()])}, "
            f"with {count_of(len(first.seeds), 'seed')}.",
            f"Scores are means over the sites after the last round{_spread_text(evidences)}; methods are compared by "
            f"{enumerate_names([_TESTS[unit] for unit in units])}, with Holm's correction at level {1 - LEVEL:.2f}."]
    text += [_best_text(data, evidence, by) for data, evidence in evidences.items()]
    if ranks is not None:
        text.append(_rank_text(ranks))
    return " ".join(text)


def _data_text(name: str, evidence: Evidence) -> str:
    rounds = int(scores_by_round(evidence)["round"].max())
    rows = "" if evidence.train is None else f", {sum(evidence.train):,} training rows"
    return f"{name} ({count_of(len(evidence.parties), 'site')}{rows}, {count_of(rounds, 'round')})"


def _spread_text(evidences: Mapping[str, Evidence]) -> str:
    has_seeds = any(len(e.seeds) > 1 for e in evidences.values())
    return " ± one standard deviation over the seeds" if has_seeds else ""


def _best_text(data: str, evidence: Evidence, by: Unit | None) -> str:
    """The best method on a data set, those that are not distinguished from it, and its gain over the others."""
    scores = marked_scores(evidence, by)
    finite = [m for m in scores if np.isfinite(scores[m].mean)]
    if not finite:
        return f"On {data}, all methods diverged."
    reasons = collapses(evidence)
    failed = "".join(f" {method} collapsed: {reason}." for method, reason in reasons.items())
    finite = [m for m in finite if m not in reasons]
    if not finite:
        return f"On {data}, no method is best.{failed}"
    best = (max if evidence.higher_is_better else min)(finite, key=lambda m: scores[m].mean)
    text = f"On {data}, {best} has the best mean {title_of(evidence.score)}, {_with_unit(evidence, scores[best])}"
    equal = [m for m in scores if scores[m].mark == "best" and m != best]
    others = [m for m in finite if scores[m].mark != "best"]
    if equal:
        text += f"; {enumerate_names(equal)} {'is' if len(equal) == 1 else 'are'} not distinguishable from it"
    if not others:
        return f"{text}.{failed}"
    runner_up = (max if evidence.higher_is_better else min)(others, key=lambda m: scores[m].mean)
    table = differences(evidence, runner_up, by)
    row = table[table["method"] == best].iloc[0]
    gain = format_gain(Interval(row["difference"], row["low"], row["high"]), evidence.score)
    if len(others) == 1:
        return f"{text}; it is better than {runner_up} by {gain}.{failed}"
    return (f"{text}; it is better than {enumerate_names(others)}, and its gain over {runner_up}, the best of these, "
            f"is {gain}.{failed}")


def _with_unit(evidence: Evidence, score: MarkedScore) -> str:
    text = score_text(score, evidence.score)
    return f"{text} %" if format_value(1.0, evidence.score).endswith("%") else text


def _rank_text(ranks: Ranks) -> str:
    names = [f"{method} {rank:.2f}" for method, rank in ranks.mean.items()]
    text = f"Over {count_of(ranks.blocks, 'data set')}, the mean ranks are {enumerate_names(names)}"
    if np.isnan(ranks.critical_difference):
        return f"{text}."
    spread = float(ranks.mean.iloc[-1] - ranks.mean.iloc[0])
    friedman = "" if np.isnan(ranks.p_value) else f" (Friedman's test: p = {ranks.p_value:.2g})"
    if spread <= ranks.critical_difference:
        return (f"{text}{friedman}; so few data sets distinguish no two methods by their ranks, which would have to "
                f"differ by {ranks.critical_difference:.2f}.")
    return f"{text}{friedman}; ranks that differ by more than {ranks.critical_difference:.2f} are distinguished."
