"""HTML pages: the templates of the package, and figures as SVG within a page."""

import hashlib
import html
import io
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from resolvent.comparisons.page_text import page_text
from resolvent.data.files.atomic_files import write_text
from resolvent.simulator.record.plots import style

_PADDING = 1 / 24  # inches around a picture: three points, as in a constrained layout
INK = "#123456"  # placeholder of the page's text colour until the SVG is written


def write_page(path: Path, template: str, **values: Any) -> None:
    """Write a page, one self-contained file."""
    write_text(path, page_text(template, **values))


class Section(NamedTuple):
    """A part of a page, in this order; what is empty is left out, and so is a title without anything below it.

    Attributes:
        points: the sentences of a list.
        tables: in HTML.
    """

    title: str = ""
    sentences: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: str = ""
    pictures: Sequence[Markup] = ()


def write_sections(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write a page of sections; titles and sentences are escaped."""
    write_page(path, "sections", title=title,
               sections=[section._replace(tables=Markup(section.tables)) for section in sections])


def page_colours() -> AbstractContextManager[None]:
    """A context in which figures are made for a page: lines and texts have its text colour."""
    colours = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
                             "axes.titlecolor"), INK)
    return mpl.rc_context(colours)


def svg_of(figure: Figure, title: str) -> Markup:
    """The figure as SVG for a page: without a fixed size, with ids that are unique on the page, in its text colour.

    The ids are made from the title, which is unique on a page, so that the same figure is always the same text.

    Args:
        figure: a figure that was made with ``page_colours``.
    """
    svg = _draw(figure, title)
    prefix = f"f{hashlib.sha256(title.encode()).hexdigest()[:8]}-"

    def adapt(tag: re.Match[str]) -> str:
        adapted = re.sub(r'\bid="', f'id="{prefix}', tag[0].replace(INK, "currentColor"))
        return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", adapted)

    svg = re.sub(r"<[^>]*>", adapt, svg[svg.index("<svg"):])  # tags only: labels may contain anything
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*pt" ', r"<svg \1", re.sub(r' height="[^"]*pt"', "", svg, count=1), count=1)
    return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1))


def _draw(figure: Figure, title: str) -> str:
    """The figure as a file of SVG with a title."""
    text = io.StringIO()
    with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}), warnings.catch_warnings():
        # Letters are text in the SVG, and a browser has fonts for those that matplotlib's font does not have.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        canvas = FigureCanvasSVG(figure)
        if len(figure.axes) == 1:
            _fit_axes(figure, figure.axes[0])
        elif (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
        figure.set_layout_engine("none")
        for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
            patch.set(facecolor="none", edgecolor="none")
        # Not with savefig, which draws a figure with a layout a second time, without output.
        canvas.print_svg(text, metadata={"Date": None, "Creator": None, "Title": title})
    return text.getvalue()


def _fit_axes(figure: Figure, axes: Axes) -> None:
    """Let the axes of a figure fill it, with room for their labels.

    A constrained layout measures the labels twice, because a size of the axes changes them. From a position that is
    close to the result, they are measured once.
    """
    width, height = figure.get_size_inches()
    axes.set_position((0.6 / width, 0.5 / height, 1 - 0.7 / width, 1 - 0.8 / height))
    inner, outer = axes.get_window_extent(), axes.get_tightbbox(for_layout_only=True)
    assert outer is not None
    margins = np.subtract(inner.extents, outer.extents) * (1, 1, -1, -1) + _PADDING * figure.dpi
    left, bottom, right, top = margins / np.tile(figure.bbox.size, 2)
    if left + right < 1 and bottom + top < 1:  # otherwise the labels have no room, whatever the position
        axes.set_position((left, bottom, 1 - left - right, 1 - bottom - top))
