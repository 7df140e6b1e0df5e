"""What the site's build makes of the code: the table of algorithms, the source of functions, docstrings that show."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

TABLE, USES = "<!-- the table of algorithms -->", "<!-- the uses of algorithms -->"
SOURCE = re.compile(r"<!-- the source of (\S+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of algorithms and the source of functions where a page asks for them."""
    for mark, made in ((TABLE, table), (USES, uses)):
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    return SOURCE.sub(lambda found: source(found[1]), markdown)


def table() -> str:
    """The table of algorithms."""
    from resolvent.study import catalogue

    return rows(*catalogue.table(catalogue.catalogue())) + "\n\n" + catalogue.CAPTION


def uses() -> str:
    """When to use each algorithm, as its docstring says."""
    from resolvent.algorithms import presets
    from resolvent.study.catalogue import paragraphs

    return rows(("algorithm", "use when"),
                [(name, paragraphs(getattr(presets, name))["Use when"]) for name in presets.__all__])


def rows(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A table in which the name of an algorithm, the first cell, leads to its docstring."""
    from resolvent.algorithms import presets

    def where(name: str) -> str:  # of an alias, the function itself
        preset = getattr(presets, name)
        return f"{preset.__module__}.{preset.__name__}"

    linked = [(f"[`{name}`][{where(name)}]", *map(escaped, rest)) for name, *rest in lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *linked))


def source(name: str) -> str:
    """The source of a function as a block of code."""
    module, function = name.rsplit(".", 1)
    return f"```py\n{inspect.getsource(getattr(importlib.import_module(module), function))}```"


def labelled(text: str) -> str:
    """A docstring whose labels are bold and begin paragraphs; without any, as it is."""
    from resolvent.study.catalogue import LABELS

    start = re.compile(rf"^(\s*)({'|'.join(LABELS)}): ", re.MULTILINE)
    return start.sub(r"\n\1**\2.** ", escaped(text)) if start.search(text) else text


def escaped(text: str) -> str:
    """Formulas' angle brackets and bars as text."""
    return re.sub(r"<(?=\w)", "&lt;", text).replace("|", "&#124;")
