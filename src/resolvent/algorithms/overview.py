"""What an algorithm keeps, sends and is, for a notebook."""

from resolvent.algorithms.exchange import AlgorithmFunctions
from resolvent.algorithms.traits import is_personal, is_robust, traffic_of
from resolvent.data.tables.html_tables import html_facts
from resolvent.errors import shorten

__all__ = ["overview_html"]


def overview_html(algorithm: AlgorithmFunctions) -> str:
    """A table of the traffic, the memory and the properties of an algorithm, computed from its functions."""
    facts: dict[str, object] = {"settings": repr(algorithm)}
    try:
        traffic = traffic_of(algorithm)
        facts |= {"a party stores (models)": traffic.stored, "a party receives in a round (models)": traffic.down,
                  "a party sends in a round (models)": traffic.up, "phases of a round": len(algorithm.phases),
                  "parties have models of their own": _yes_or_no(is_personal(algorithm)),
                  "one reply cannot move the aggregate arbitrarily far": _yes_or_no(is_robust(algorithm)),
                  "work of stragglers": {"drop": "dropped", "keep": "kept"}[algorithm.straggler_policy]}
    except (TypeError, ValueError, KeyError) as error:  # an algorithm for models of another structure than the example
        facts["traffic and memory"] = f"not computed, for a model with the layers body and head: {shorten(error)}"
    return html_facts(type(algorithm).__name__, facts)


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
