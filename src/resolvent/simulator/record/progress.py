"""Progress of a run: bars on a terminal, and an area with curves in a notebook."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    from typing import TextIO

    import numpy as np
    import pandas as pd
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


_WIDTH, _HEIGHT = 320, 90  # pixels of a curve


def is_notebook() -> bool:
    """Whether the program runs in a kernel that shows HTML, such as Jupyter's."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def notebook_progress(unit: str, *, transient: bool) -> tuple[Callable[..., None], Callable[[], None]]:
    """Two functions: one of (label, done, total) that shows a bar per label, and one that ends the display."""
    from IPython.display import HTML, display

    bars: dict[str, tuple[int, int, str]] = {}
    begins: dict[str, tuple[float, int]] = {}
    handles: list[Any] = []

    def remaining(label: str) -> str:
        begin, first = begins[label]
        done, total, _ = bars[label]
        if done <= first or done >= total:
            return ""
        return f", about {(time.monotonic() - begin) / (done - first) * (total - done):.0f} s remain"

    def draw() -> None:
        rows = "".join(
            f"<div style='font-family:monospace'>{escape(label)} <progress value='{done}' max='{max(total, 1)}'>"
            f"</progress> {done}/{total or '?'} {escape(unit)}{remaining(label)}</div>"
            for label, (done, total, unit) in bars.items())
        if handles:
            handles[0].update(HTML(rows))
        else:
            handles.append(display(HTML(rows), display_id=True))

    def show(label: str, done: int, total: int, *, unit: str = unit) -> None:
        bars[label] = (done, total, unit)
        begins.setdefault(label, (time.monotonic(), done))
        draw()

    def end() -> None:
        if transient and handles:
            handles[0].update(HTML(""))

    return show, end


@contextlib.contextmanager
def live_curve(name: str) -> "Iterator[Callable[[pd.DataFrame, str], None] | None]":
    """A function that shows the curve of a run's score in a notebook, from its metrics; None elsewhere.

    The curve is the mean over the parties on validation samples, or on those of another split. It is removed at the
    end: ``Result.plot`` has it.
    """
    if not is_notebook():
        yield None
        return
    from IPython.display import HTML, display

    from resolvent.simulator.record.metrics_table import means_by

    handles: list[Any] = []

    def draw(metrics: "pd.DataFrame", score: str) -> None:
        rows = metrics[metrics["metric"] == score]
        splits = set(rows["split"].dropna())
        split = next((split for split in ("validation", "test", "train") if split in splits), None)
        if split is None:
            return
        mean = means_by(rows[rows["split"] == split], "round").dropna()
        content = HTML(curve_html(mean.index.to_numpy(float), mean.to_numpy(float), f"{name}: {split} {score}"))
        if handles:
            handles[0].update(content)
        else:
            handles.append(display(content, display_id=True))

    yield draw
    if handles:
        handles[0].update(HTML(""))


def curve_html(rounds: "np.ndarray[Any, Any]", values: "np.ndarray[Any, Any]", title: str) -> str:
    """A curve as SVG with its title and the last value; empty without two finite values."""
    import numpy as np

    rounds, values = (part[np.isfinite(values)] for part in (rounds, values))
    if len(values) < 2:
        return ""
    x = 4 + (_WIDTH - 8) * (rounds - rounds[0]) / np.ptp(rounds)
    y = _HEIGHT - 4 - (_HEIGHT - 8) * (values - values.min()) / (np.ptp(values) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (f"<div style='font-family:monospace'>{escape(title.replace('_', ' '))} {values[-1]:.4g} "
            f"(between {values.min():.4g} and {values.max():.4g})</div>"
            f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='{escape(title)}'>"
            f"<polyline points='{points}' fill='none' stroke='#0072B2' stroke-width='1.5'/></svg>")
