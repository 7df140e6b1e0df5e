"""What the site's build makes of the code and the results: tables, pictures, sources, docstrings that show."""

import importlib
import inspect
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
sys.path.insert(0, str(ROOT / "src"))

TABLE, USES = "<!-- the table of algorithms -->", "<!-- the uses of algorithms -->"
FIGURES = "<!-- the papers' figures -->"
SOURCE = re.compile(r"<!-- the source of (\S+) -->")


def on_files(files: "Files", *, config: "MkDocsConfig", **_: Any) -> "Files":
    """Put the pictures of the committed results on the site."""
    from mkdocs.structure.files import File  # the rest is tested where only the test extra is installed

    for picture in sorted(RESULTS.glob("*.svg")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of algorithms and the source of functions where a page asks for them."""
    for mark, made in ((TABLE, table), (USES, uses), (FIGURES, figures)):
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


def figures() -> str:
    """Every committed picture with its claims, by paper; above them a line for each."""
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    lines = ["| figure | what of | setting | claims that hold | in part | that do not |", "|---|---|---|---|---|---|"]
    for stem, r in records.items():
        verdicts = [claim["verdict"] for claim in r["claims"]]
        counts = (str(verdicts.count(v)) for v in ("holds", "holds in part", "does not hold"))
        lines.append(f"| [{stem}](#{stem}) | {escaped(r['figure'])} | {r['setting']} | {' | '.join(counts)} |")
    for paper, group in groupby(sorted(records, key=lambda stem: str(records[stem]["paper"])),
                                key=lambda stem: str(records[stem]["paper"])):
        lines += ["", f"## {paper}"]
        for stem in group:
            lines += ["", *figure(stem, records[stem])]
    return "\n".join(lines)


def figure(stem: str, record: dict[str, Any]) -> list[str]:
    """One picture, its claims and what a reader should know, as lines of Markdown."""
    from resolvent.study.results import claims_table, cpu_time, notes

    seeds = f"{record['seeds']} seed{'s' if record['seeds'] > 1 else ''}"
    picture = f"results/{stem}.svg"
    return [f"### {stem}", "", f"{escaped(record['title'])}. {record['figure']}; {record['setting']}, {seeds}: "
            f"`{record['command']}`, {cpu_time(record)}.", "",
            f"[![{escaped(record['title'])}]({picture}){{ loading=lazy }}]({picture})", "",
            "| claim | paper | ours: mean ± standard deviation over seeds | verdict |", "|---|---|---|---|",
            *(f"| {' | '.join(cells)} |" for cells in claims_table(record)), "", *notes(record)]


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
