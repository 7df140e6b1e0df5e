"""Progress in a notebook: one line of HTML that is replaced."""

import sys
from collections.abc import Callable
from html import escape
from typing import Any

__all__ = ["is_notebook", "notebook_progress"]


def is_notebook() -> bool:
    """Whether the program runs in a kernel that shows HTML, such as Jupyter's."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def notebook_progress(unit: str, *, transient: bool) -> tuple[Callable[..., None], Callable[[], None]]:
    """Two functions: one of (label, done, total) that shows a bar per label, and one that ends the display.

    Args:
        unit: what is counted.
        transient: remove the bars at the end.
    """
    from IPython.display import HTML, display

    bars: dict[str, tuple[int, int, str]] = {}
    handles: list[Any] = []

    def draw() -> None:
        rows = "".join(
            f"<div style='font-family:monospace'>{escape(label)} <progress value='{done}' max='{max(total, 1)}'>"
            f"</progress> {done}/{total or '?'} {escape(unit)}</div>" for label, (done, total, unit) in bars.items())
        if handles:
            handles[0].update(HTML(rows))
        else:
            handles.append(display(HTML(rows), display_id=True))

    def show(label: str, done: int, total: int, *, unit: str = unit) -> None:
        bars[label] = (done, total, unit)
        draw()

    def end() -> None:
        if transient and handles:
            handles[0].update(HTML(""))

    return show, end
