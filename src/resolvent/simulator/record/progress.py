"""Progress of a run: bars on a terminal, and an area with curves in a notebook."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show a task's progress."""


class Remaining:
    """The seconds that are left of tasks that run one after the other, by what was measured so far.

    .. code-block:: text

        left = sum over tasks of (units left) * (seconds of a unit)  +  (what is left of its start)

    A start is all compilation of a task, and what happens until its first units are reported: tracing and loading are
    part of it, so that one unit after 3 s is no speed. A task that has not begun is taken to start like the mean of
    those that have; one that is starting takes at least as long as it has. A unit of a task without a speed is
    taken to last as long as those of the others, the first one apart as soon as there is another: in a comparison it is
    training alone, which is unlike the others.
    """

    def __init__(self, unit: str = "rounds") -> None:
        self._unit = unit
        self._tasks: dict[str, _Task] = {}
        self._current: _Task | None = None
        self._last: tuple[float, float] | None = None

    def __contains__(self, label: str) -> bool:
        """Whether a task was reported."""
        return label in self._tasks

    def add(self, label: str, done: int, total: int) -> None:
        """Note that a task has reached ``done`` of ``total`` units."""
        now = time.monotonic(), _compile_seconds()
        last, self._last = self._last or now, now
        task = self._current = self._tasks.setdefault(label, _Task(done))
        compiling = now[1] - last[1]
        running = max(now[0] - last[0] - compiling, 0.0)
        if task.has_begun:
            task.seconds += running
            task.units += done - task.done
        else:
            task.start += running
            task.has_begun = done > task.done
        task.start += compiling
        task.done, task.total = done, total

    def text(self) -> str:
        """``about 20 s left``; ``about 20 s + rounds`` while the seconds of a round are unknown; or an empty text."""
        seconds, is_all = self.seconds()
        return f"about {duration_text(seconds)} {'left' if is_all else f'+ {self._unit}'}" if seconds else ""

    def seconds(self) -> tuple[float, bool]:
        """The seconds that are left now, and whether they are all: not if no task has measured the speed of a unit."""
        tasks = tuple(self._tasks.values())  # another thread draws the bars
        left = [task for task in tasks if task.done != task.total]
        if self._last is None or not left or not all(task.total for task in tasks):
            return 0.0, True
        current = self._current if self._current in left else left[0]
        waited = {id(current): time.monotonic() - self._last[0]}
        starts = {id(task): task.start + (0.0 if task.units else waited.get(id(task), 0.0)) for task in tasks}
        begun = [starts[id(task)] for task in tasks if task.has_begun] or [starts[id(current)]]
        mean_start = sum(begun) / len(begun)
        measured = [task for task in tasks if task.units]
        alike = measured[1:] or measured
        of_unit = sum(task.seconds for task in alike) / max(sum(task.units for task in alike), 1)
        seconds = 0.0
        for task in left:
            speed = task.seconds / task.units if task.units else of_unit
            of_units = (task.total - task.done) * speed
            if task.units:
                seconds += max(of_units - waited.get(id(task), 0.0), 0.0)
            else:
                seconds += of_units + (0.0 if task.has_begun else max(mean_start - starts[id(task)], 0.0))
        return seconds, bool(measured) or all(task.total == 1 for task in left)


@dataclass(eq=False)
class _Task:
    """What was measured of a task; ``seconds`` are those of ``units``, all after the first report of any."""

    done: int
    total: int = 0
    has_begun: bool = False
    units: int = 0
    start: float = 0.0
    seconds: float = 0.0


def _compile_seconds() -> float:
    stopwatch = sys.modules.get("resolvent.simulator.record.stopwatch")  # it imports JAX: absent in a download
    return 0.0 if stopwatch is None else float(stopwatch.compile_seconds())


def duration_text(seconds: float) -> str:
    """``8 s``, ``12 min``, ``3.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


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

    A bar shows the time that has passed; the bar that moves, how much is left of all of them. A label that is added
    with 0 is only announced: its bar appears at the second call. In a notebook the bars are part of the output of the
    cell.

    Args:
        unit: what is counted, such as ``rounds``; ``bytes`` are shown as sizes. A task of one unit has no count. An
            unknown total is 0.
    """
    remaining = Remaining(unit)
    if is_notebook():
        show_bar, end = notebook_progress(transient=transient)

        def show_in_cell(label: str, done: int, total: int) -> None:
            remaining.add(label, done, total)
            show_bar(label, done, total, unit, remaining.text())

        try:
            yield show_in_cell
        finally:
            end()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    columns = _columns(width, unit, remaining)
    console = Console(file=cast("TextIO", _Display(sys.stderr)))
    # A pipe gets what is printed to standard output while the bars are shown; a terminal shows it above them.
    bars = RichProgress(*columns, console=console, transient=transient, redirect_stdout=sys.stdout.isatty())
    tasks = dict[str, TaskID]()

    def show(label: str, done: int, total: int) -> None:
        bars.start()  # not earlier: without a bar, an empty line would be printed
        is_announced = label in remaining
        remaining.add(label, done, total)
        if label not in tasks and (is_announced or done):
            tasks[label] = bars.add_task(escape(label), total=total or None)
        for name, task in tasks.items():
            bars.update(task, moves=name == label)
        if label in tasks:
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


def _columns(width: int, unit: str, remaining: Remaining) -> "list[ProgressColumn]":
    from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_count(int(task.completed), int(task.total or 0), unit), "progress.download")

    class Left(ProgressColumn):
        """It is drawn again while a program compiles, when nothing is reported."""

        def render(self, task: Task) -> Text:
            return Text(remaining.text() if task.fields.get("moves") else "")

    return [TextColumn(f"{{task.description:>{width}}}" if width else "{task.description}"), BarColumn(12),
            DownloadColumn() if unit == "bytes" else Count(), TimeElapsedColumn(), Left()]


def _count(done: int, total: int, unit: str) -> str:
    return "" if total == 1 else f"{done:>{len(str(total))}}/{total or '?'} {unit}"


_WIDTH, _HEIGHT = 320, 90  # pixels of a curve


def is_notebook() -> bool:
    """Whether the program runs in a kernel that shows HTML, such as Jupyter's."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def notebook_progress(*, transient: bool) -> tuple[Callable[[str, int, int, str, str], None], Callable[[], None]]:
    """Two functions: one of (label, done, total, unit, time left) that shows a bar per label, and one that ends."""
    from IPython.display import HTML, display

    bars: dict[str, tuple[int, int, str]] = {}
    handles: list[Any] = []

    def show(moved: str, done: int, total: int, unit: str, left: str) -> None:
        bars[moved] = (done, total, unit)
        rows = "".join(
            f"<div style='font-family:monospace'>{escape(label)} <progress value='{done}' max='{max(total, 1)}'>"
            f"</progress> {escape(_count(done, total, unit))} {left if label == moved else ''}</div>"
            for label, (done, total, unit) in bars.items())
        if handles:
            handles[0].update(HTML(rows))
        else:
            handles.append(display(HTML(rows), display_id=True))

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
