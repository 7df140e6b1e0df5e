"""Texts from the templates of the package, in which every value is escaped: pages as one file, and Markdown."""

import html
from typing import Any, Literal

import jinja2

_ROOM = "resolvent.comparisons"


def page_text(template: str, form: Literal["html", "md"] = "html", *, package: str = _ROOM, **values: Any) -> str:
    """The text of a page.

    Args:
        form: HTML, or Markdown, in which every value is one line.
        package: the package with the folder ``page_templates`` that has the template. Every template can extend
            ``page.html.jinja`` of this room.
    """
    loaders = [jinja2.PackageLoader(name, "page_templates") for name in dict.fromkeys((package, _ROOM))]
    is_html = form == "html"
    environment = jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=is_html,
                                     finalize=None if is_html else _markdown_line, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(f"{template}.{form}.jinja").render(**values)


def _markdown_line(value: object) -> str:
    """A value as one line of Markdown; characters with a meaning in Markdown or HTML are escaped."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in text)
