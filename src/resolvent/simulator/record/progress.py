"""Progress bars on the terminal: the only module with their columns."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from resolvent.simulator.record.notebook_progress import is_notebook, notebook_progress

if TYPE_CHECKING:
    from typing import TextIO

    from rich.progress import ProgressColumn

Progress: TypeAlias = Callable[[int, int], None]


class LabelledProgress(Protocol):
    """A function that shows the progress of several tasks."""

    def __call__(self, label: str, done: int, total: int, *, unit: str = ...) -> None:
        """Show a task's progress; ``unit`` is what is counted, by default the same for all tasks."""


@contextlib.contextmanager
def progress_bar(progress: bool | Progress, name: str, rounds: int) -> Iterator[Progress]:
    """A function to call with (rounds done, rounds in total).

    Args:
        progress: whether to show a bar on standard error; or the caller's function, which is returned.
    """
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        with progress_bars("rounds", transient=True) as show:
            show(name, 0, rounds)
            yield lambda done, total: show(name, done, total)


@contextlib.contextmanager
def progress_bars(unit: str, *, width: int = 0, transient: bool = False) -> Iterator[LabelledProgress]:
    """A function to call with (label, done, total): a bar per label on standard error, added at its first call.

    It shows the time that has passed, and an estimate of the remaining time. In a notebook the bars are part of the
    output of the cell.

    Args:
        unit: what is counted, such as ``rounds``; a label may have another one. ``bytes`` are shown as sizes. An
            unknown total is 0.
    """
    if is_notebook():
        show_bar, end = notebook_progress(unit, transient=transient)
        try:
            yield show_bar
        finally:
            end()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    columns = _columns(width, sizes=unit == "bytes")
    console = Console(file=cast("TextIO", _Display(sys.stderr)))
    # A pipe gets what is printed to standard output while the bars are shown; a terminal shows it above them.
    bars = RichProgress(*columns, console=console, transient=transient, redirect_stdout=sys.stdout.isatty())
    tasks = dict[str, TaskID]()

    def show(label: str, done: int, total: int, *, unit: str = unit) -> None:
        bars.start()  # not earlier: without a bar, an empty line would be printed
        if label not in tasks:
            tasks[label] = bars.add_task(escape(label), total=total or None, unit=unit)
        bars.update(tasks[label], completed=done, total=total or None)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


class _Display:
    """A stream whose errors are ignored: a progress bar that cannot be shown does not end a run."""

    def __init__(self, stream: "TextIO") -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Show what was written if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _columns(width: int, *, sizes: bool) -> "list[ProgressColumn]":
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counts = [DownloadColumn()] if sizes else [MofNCompleteColumn(), TextColumn("{task.fields[unit]}")]
    return [TextColumn(f"{{task.description:>{width}}}" if width else "{task.description}"), BarColumn(), *counts,
            TimeElapsedColumn(), TimeRemainingColumn()]
