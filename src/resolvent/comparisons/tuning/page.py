"""The page of a search: the trials, the chosen values, and a picture per method."""

import io
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
from markupsafe import Markup

from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.tuning.searching import Tuned
from resolvent.data.files.atomic_files import write_text

__all__ = ["write_page"]

_STRATEGIES = {"grid": "every combination of the values", "random": "candidates spread evenly over the values",
               "halving": "successive halving of evenly spread candidates", "optuna": "candidates of Optuna"}


def write_page(path: Path, tuned: Tuned, title: str) -> None:
    """Write the page, one self-contained file."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True)
    template = environment.from_string((resources.files("resolvent.comparisons.tuning") / "page.html.jinja")
                                       .read_text("utf-8"))
    name, best = tuned.criterion.name, tuned.best
    write_text(path, template.render(
        title=title, metric=title_of(name), split=tuned.criterion.split, search=tuned.search,
        strategy=_STRATEGIES[tuned.search.strategy], higher=tuned.criterion.higher_is_better,
        spent=tuned.rounds_spent, number=lambda value: format_value(value, name), setting=_setting,
        methods=[{"label": label, "best": best[label], "trials": _sorted(tuned, label),
                  "picture": _picture(tuned, label), "parameters": list(tuned.methods[label].space)}
                 for label in tuned.trials],
        parties=_parties(tuned) if tuned.search.per_site else []))


def _sorted(tuned: Tuned, label: str) -> list[Any]:
    """The trials from the best to the worst; stopped ones last."""
    return sorted(tuned.trials[label], key=lambda t: (not t.is_complete, tuned.criterion.loss(t.reading.score)))


def _parties(tuned: Tuned) -> list[dict[str, Any]]:
    return [{"party": party, "trials": {label: chosen[party] for label, chosen in tuned.best_of_parties.items()}}
            for party in tuned.parties]


def _setting(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _picture(tuned: Tuned, label: str) -> Markup:
    """The picture of a method as SVG in the page's text colour."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        tuned.panels(label).savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg"):].replace("#000000", "currentColor")
    return Markup(svg.replace("<svg ", '<svg role="img" aria-label="Score against each parameter" ', 1))
