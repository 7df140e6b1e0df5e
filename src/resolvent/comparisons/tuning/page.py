"""The page of a search: the trials, the chosen values, and a picture per method."""

from pathlib import Path
from typing import Any

from resolvent.comparisons.judgement.metrics import format_value, title_of
from resolvent.comparisons.pages import page_colours, svg_of, write_page
from resolvent.comparisons.tuning.searching import Tuned

_STRATEGIES = {"grid": "every combination of the values", "random": "candidates spread evenly over the values",
               "optuna": "candidates of Optuna"}


def write_tuning_page(path: Path, tuned: Tuned, title: str) -> None:
    """Write the page, one self-contained file."""
    name, best = tuned.criterion.name, tuned.best
    with page_colours():
        pictures = {label: svg_of(tuned.panels(label), f"{label}: score against each parameter")
                    for label in tuned.trials}
    write_page(
        path, "tuning", title=title, metric=title_of(name), split=tuned.criterion.split, search=tuned.search,
        strategy=_STRATEGIES[tuned.search.strategy], higher=tuned.criterion.higher_is_better,
        spent=tuned.rounds_spent, edges=tuned.edges, number=lambda value: format_value(value, name), setting=_setting,
        methods=[{"label": label, "best": best[label], "trials": _sorted(tuned, label),
                  "picture": pictures[label], "parameters": list(tuned.methods[label].space)}
                 for label in tuned.trials],
        parties=_parties(tuned) if tuned.search.per_site else [])


def _sorted(tuned: Tuned, label: str) -> list[Any]:
    """The trials from the best to the worst; stopped ones last."""
    return sorted(tuned.trials[label], key=lambda t: (not t.is_complete, tuned.criterion.loss(t.reading.score)))


def _parties(tuned: Tuned) -> list[dict[str, Any]]:
    return [{"party": party, "trials": {label: chosen[party] for label, chosen in tuned.best_of_parties.items()}}
            for party in tuned.parties]


def _setting(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
