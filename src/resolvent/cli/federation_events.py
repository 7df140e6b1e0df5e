"""The events of a federated run on the command line: a progress bar, and a line for each irregularity."""

from collections.abc import Iterator
from contextlib import contextmanager

from resolvent.cli.options import LABEL_WIDTH
from resolvent.federation.protocol import events
from resolvent.simulator.record.progress import progress_bars


@contextmanager
def federation_observer() -> Iterator[events.Observer]:
    """A function that shows the events of a run: a progress bar of the rounds, and a line per irregularity."""
    from resolvent.cli import terminal

    with progress_bars("rounds", width=LABEL_WIDTH) as progress:
        def observe(event: events.Event) -> None:
            if isinstance(event, events.PhaseReport):
                progress(event.method, event.round + 1, event.planned)
            for line in _lines(event):
                terminal.print_note(line)

        yield observe


def _lines(event: events.Event) -> Iterator[str]:
    """What people read about an event; nothing about a round in which all is as planned."""
    from resolvent.comparisons.judgement.metrics import format_value, title_of

    match event:
        case events.Agreement():
            rows = ", ".join(f"{site} {count}" for site, count in event.rows.items())
            yield f"the sites agree on {event.features} inputs; rows: {rows}"
            yield from event.findings
        case events.SecondSession():
            yield (f"the server has refused a second process that connects as {event.site}, such as one with a copy of "
                   "its kit: ask the site")
        case events.Revocation():
            yield f"the key of {event.site} is revoked: from now on the run is without it"
        case events.Waiting():
            yield event.text
        case events.StartReport(resumed=resumed) if resumed:
            yield f"{event.method}: continues after round {resumed}"
        case events.MembersReport():
            for names, verb in ((event.joined, "join"), (event.left, "leave")):
                if names:
                    yield f"{event.method}: from round {event.round + 1} on, {', '.join(names)} {verb}"
        case events.PhaseReport():
            start = f"{event.method}, round {event.round + 1}:"
            for k, reason in event.refused.items():
                yield f"{start} the reply of {event.names[k]} does not count: {reason}"
            for k, reason in event.absent.items():
                yield f"{start} no reply of {event.names[k]}: {reason}"
            if event.late:
                late = ", ".join(event.names[k] for k in event.late)
                yield f"{start} replies to an earlier message arrived: {late}"
            if event.attempts > 1:
                counts = f"{len(event.counted)} of {len(event.asked)}"
                yield f"{start} asked {event.attempts} times; {counts} sites answered"
        case events.EvaluationReport():
            for score, _, mean in event.means:
                if mean is not None:
                    yield (f"{event.method}, round {event.round}: mean {title_of(score)} of the sites "
                           f"{format_value(mean, score)}")

