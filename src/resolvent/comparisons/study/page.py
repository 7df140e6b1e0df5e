"""The page of a study: the paragraph, the tables and the figures, with links to the reports of the data sets."""

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from resolvent.comparisons.pages import page_colours, svg_of, write_page
from resolvent.comparisons.study.figures import Kind
from resolvent.comparisons.study.number_texts import CAPTIONS, number_texts
from resolvent.comparisons.study.study import Study
from resolvent.comparisons.text_tables import text_table

_FIGURES: dict[Kind, str] = {"curves": "Learning curves", "differences": "Differences from the reference",
                             "parties": "Scores of the sites", "traffic": "Scores against bytes"}


def write_study_page(path: Path, title: str, study: Study, reports: Mapping[str, str]) -> None:
    """Write the page, one self-contained file.

    Args:
        reports: name of a data set -> the folder with its report, next to the page.
    """
    scores = {name: part.evidence.score for name, part in study.parts.items()}
    tables = {"differences": study.differences(), "costs": study.costs(), "fairness": study.fairness()}
    captions = CAPTIONS | {"differences": CAPTIONS["pairs"]}
    with page_colours():
        figures = {heading: svg_of(study.plot(kind), heading) for kind, heading in _FIGURES.items()}
        if study.has_ranks:
            figures["Ranks over the data sets"] = svg_of(study.plot("ranks"), "Ranks over the data sets")
    write_page(
        path, "study", title=title, paragraph=study.paragraph(), reports=reports, figures=figures,
        scores=Markup(str(study.table("html"))),
        tables={name: Markup(text_table(*number_texts(frame, scores), "html", captions[name]))
                for name, frame in tables.items()})
