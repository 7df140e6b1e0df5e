"""The text of a page from a template: one self-contained file, in which every value is escaped."""

from typing import Any

import jinja2

_ROOM = "resolvent.comparisons"


def page_text(template: str, *, package: str = _ROOM, **values: Any) -> str:
    """The text of a page.

    Args:
        package: the package with the folder ``page_templates`` that has the template. Every template can extend
            ``page.html.jinja`` of this room.
    """
    loaders = [jinja2.PackageLoader(name, "page_templates") for name in dict.fromkeys((package, _ROOM))]
    environment = jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=True,
                                     undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(f"{template}.html.jinja").render(**values)
