"""Progress on the terminal."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

__all__ = ["Progress", "bar"]

Progress = Callable[[int, int], None]


@contextlib.contextmanager
def bar(progress: bool | Progress, name: str, rounds: int) -> Iterator[Progress]:
    """A function to report (rounds done, rounds in all) to: a bar on standard error, the caller's own, or nothing."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
                   TimeElapsedColumn(), TimeRemainingColumn())
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(name, total=rounds)
            yield lambda done, total: shown.update(task, completed=done)
