"""The events of a federated run on the command line: a progress bar, and a line for each irregularity."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from resolvent.cli.options import LABEL_WIDTH
from resolvent.simulator.record.progress import progress_bars


@contextmanager
def federation_observer() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that shows the events of a run: a progress bar of the rounds, and a line per irregularity."""
    from resolvent.cli import terminal
    from resolvent.comparisons.judgement.metrics import format_value, title_of
    from resolvent.federation.server.waits import wait_text

    with ExitStack() as stack:
        progress = stack.enter_context(progress_bars("rounds", width=LABEL_WIDTH))

        def observe(event: Mapping[str, Any]) -> None:
            kind, method = event.get("event"), str(event.get("method", ""))
            if kind == "agreed":
                rows = ", ".join(f"{site} {sum(counts.values())}" for site, counts in event["rows"].items())
                terminal.print_note(f"the sites agree on {event['features']} inputs; rows: {rows}")
                for line in event.get("findings", ()):
                    terminal.print_note(line)
            elif kind == "second session":
                terminal.print_note(f"the server has refused a second process that connects as {event['site']}, such "
                                    "as one with a copy of its kit: ask the site")
            elif kind == "revoked":
                terminal.print_note(f"the key of {event['site']} is revoked: from now on the run is without it")
            elif kind == "waiting":
                terminal.print_note(wait_text(event))
            elif kind == "start" and event["resumed"]:
                terminal.print_note(f"{method}: continues after round {event['resumed']}")
            elif kind == "members":
                for names, verb in ((event["joined"], "join"), (event["left"], "leave")):
                    if names:
                        terminal.print_note(f"{method}: from round {event['round']} on, {', '.join(names)} {verb}")
            elif kind == "round":
                progress(method, event["round"], event["rounds"])
                for line in _irregularities(event):
                    terminal.print_note(f"{method}, round {event['round']}: {line}")
            elif kind == "scores" and event.get("mean") is not None:
                terminal.print_note(f"{method}, round {event['round']}: mean {title_of(event['score'])} of the sites "
                                    f"{format_value(event['mean'], event['score'])}")

        yield observe


def _irregularities(event: Mapping[str, Any]) -> Iterator[str]:
    """A line for each refused, absent or late reply of a round, and for repeated requests."""
    for site, reason in event["refused"].items():
        yield f"the reply of {site} does not count: {reason}"
    for site, reason in event["absent"].items():
        yield f"no reply of {site}: {reason}"
    if event["late"]:
        yield f"replies to an earlier message arrived: {', '.join(event['late'])}"
    if event["attempts"] > 1:
        yield f"asked {event['attempts']} times; {len(event['counted'])} of {len(event['asked'])} sites answered"
