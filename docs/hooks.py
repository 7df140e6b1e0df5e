"""What the site's build makes of the code: the table of algorithms, the source of functions, docstrings that show."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

TABLE = "<!-- the table of algorithms -->"
SOURCE = re.compile(r"<!-- the source of (\S+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table of algorithms and the source of functions where a page asks for them."""
    return SOURCE.sub(lambda found: source(found[1]), markdown.replace(TABLE, table() if TABLE in markdown else ""))


def table() -> str:
    """The table of algorithms; each name leads to its docstring."""
    from resolvent.algorithms import presets
    from resolvent.study import catalogue

    head, rows = catalogue.table(catalogue.catalogue())
    linked = [(f"[`{name}`][{getattr(presets, name).__module__}.{name}]", *map(escaped, rest)) for name, *rest in rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *linked)]
    return "\n".join(lines) + "\n\n" + catalogue.CAPTION


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
