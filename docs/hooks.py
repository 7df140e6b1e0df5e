"""What the build of the site takes from the code and the results: tables, pictures, sources, reference entries."""

import importlib
import inspect
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
BENCHMARKS = ROOT / "benchmarks"
REFERENCE_PAGES = ROOT / "docs" / "api"
IMPORTED = [str(ROOT / "src"), str(ROOT)]
sys.path[:0] = IMPORTED

PARAGRAPHS = ("Problem", "Update", "Communication", "Defaults", "Use when")  # of the docstring of a preset
TABLE = "<!-- the tables of algorithms -->"
CAPTION = ("keeps: what a party stores between rounds; down, up: what it receives and replies in a round, in all "
           "exchanges; all in models, at the preset's defaults. personal: the parties use different models. robust: "
           "one party cannot move the shared model arbitrarily far. sums: whether the server needs sums of the replies "
           "only, so that secure sums are possible: yes, no, or in the form of CentreFromSums.")
SOURCE = re.compile(r"<!-- the source of (\S+) -->")
FIGURE = re.compile(r"<!-- (?:figure: .+?|end) -->")  # around what benchmarks/figures.py has written
CODE_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. code-block:: (?P<language>\w+)\n\n(?P<code>(?:(?P=indent) +.*(?:\n|$)|\n)+)", re.MULTILINE)
DISPLAYED = re.compile(r"^(?P<indent> *)\.\. math::(?: +(?=\S)|\s*?\n\n(?= ))(?P<latex>.+(?:\n(?P=indent) +\S.*)*)",
                       re.MULTILINE)
MENU = re.compile(r'aria-labelledby="__nav\w*"(?P<rest> aria-expanded="\w+">\s*'
                  r'<label class="md-nav__title" for="\w+">\s*<span class="md-nav__icon md-icon"></span>\s*'
                  r'(?P<title>[^<]*?)\s*</label>)')
REFERENCE = re.compile(r"<!-- the reference of (?P<module>[\w.]+)(?:: (?P<names>[\w, \n]+?))? -->")


# Pages of earlier releases -> where their content is now.
MOVED = {
    **dict.fromkeys(("datashield", "fedjax", "flower", "nvflare", "pfl", "pfllib", "pytorch", "scikit-learn"),
                    "coming-from/"),
    **dict.fromkeys(("papers", "reproductions"), "research/#do-the-papers-claims-hold"),
    "after": "predict/#calibrate",
    "algorithms": "choosing/#all-algorithms",
    "cluster": "scaling/#several-processes-and-hosts",
    "cpu-rewrites": "scaling/#your-own-network-on-a-cpu",
    "diagnostics": "research/#8-diagnostics",
    "ditto": "research/#6-a-method-of-the-library-ditto",
    "faq": "",
    "from-r": "coming-from/#from-r-or-datashield",
    "gallery": "research/#9-recipes",
    "inside": "architecture/",
    "method": "decisions/#the-rule",
    "metrics": "tuning/",
    "on-my-tables": "tutorial/",
    "paper": "research/#7-from-a-comparison-to-a-paper",
    "portfolio": "api/portfolio/",
    "pretrained": "scaling/#pretrained-models",
    "release": "changelog/",
    "run-a-federation": "federation-tutorial/",
    "secure-sums-protocol": "secure-sums/#the-protocol",
    "services": "federation-operations/#services",
    "survival": "describe/#survival",
    "tables": "tutorial/",
    "unification": "theory/#one-algorithm-ten-lines",
}


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Name the version in the footer of every page, and let the hooks import the library and the experiments.

    MkDocs takes back what a hook adds to the path while it is loaded.
    """
    sys.path[:0] = IMPORTED
    import resolvent

    config.copyright = f"Resolvent {resolvent.__version__}"
    return config


def on_files(files: "Files", *, config: "MkDocsConfig", **_: Any) -> "Files":
    """Put the pictures of the committed results and of the benchmarks on the site."""
    from mkdocs.structure.files import File  # not at the top: the tests import this file without the docs extra

    for picture in sorted(RESULTS.glob("*.svg")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    for picture in [*sorted(BENCHMARKS.glob("*.svg")), ROOT / "experiments" / "reference" / "reference.svg"]:
        files.append(File.generated(config, f"images/{picture.name}", abs_src_path=str(picture)))
    return files


def on_post_build(config: "MkDocsConfig", **_: Any) -> None:
    """Write a page at each former address, which leads to the present one."""
    for page, target in MOVED.items():
        folder = Path(config.site_dir) / page
        folder.mkdir()
        (folder / "index.html").write_text(
            f'<!doctype html><html lang="en"><title>Moved</title><meta http-equiv="refresh" content="0; '
            f'url=../{target}"><link rel="canonical" href="../{target}"><a href="../{target}">This page has moved.</a>'
            "</html>", "utf-8")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks on a page: tables of algorithms, sources of functions, entries of the reference.

    The marks around numbers and tables of the benchmarks, which ``benchmarks/figures.py`` writes, are left out.
    """
    markdown = FIGURE.sub("", markdown)
    if TABLE in markdown:
        markdown = markdown.replace(TABLE, table())
    markdown = SOURCE.sub(lambda match: source(match[1]), markdown)
    return REFERENCE.sub(entries, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Write the head of its column to every cell of a table; a phone shows the cells below each other."""
    return re.sub(r"<table>.*?</table>", with_labels, content, flags=re.DOTALL)


def on_post_page(output: str, **_: Any) -> str:
    """Name the parts of a page for screen readers that the theme leaves without a name of their own.

    These are the search, the menus of pages, and lists of contents that have the name of another one.
    """
    named = MENU.sub(r'aria-label="\g<title>"\g<rest>', output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'))
    seen = Counter[str]()

    def numbered(match: re.Match[str]) -> str:
        seen[match["name"]] += 1
        return match[0] if seen[match["name"]] == 1 else f"{match['before']}{match['name']} {seen[match['name']]}\""

    return re.sub(r'(?P<before><nav\b[^>]*aria-label=")(?P<name>[^"]*)"', numbered, named)


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """The same for the page of addresses that lead nowhere."""
    return on_post_page(output_content) if template_name == "404.html" else output_content


def with_labels(table: re.Match[str]) -> str:
    """A table whose cells have the text of their head as ``data-label``."""
    heads = [re.sub("<.*?>", "", head) for head in re.findall(r"<th\b.*?>(.*?)</th>", table[0], re.DOTALL)]

    def row(match: re.Match[str]) -> str:
        labels = iter(heads)
        return re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels, "")}"', match[0])

    labelled = re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)
    return re.sub(r"<th\b([^>]*)></th>", r"<td\1></td>", labelled)  # an empty cell in the corner heads nothing


def entries(match: re.Match[str]) -> str:
    """The entries of a mark of the reference; without a section before it on the page, they are of the second level."""
    level = 3 if "\n## " in match.string[:match.start()] else 2
    return "\n".join(f"::: {path}\n    options:\n      heading_level: {level}\n" for path in referenced(match))


def referenced(match: re.Match[str]) -> list[str]:
    """The full paths of what a mark of the reference names: the names after the colon, or the module's ``__all__``.

    The path is where a function or a class is defined, so that a page names a namespace, not a file.
    """
    module = importlib.import_module(match["module"])
    names = re.findall(r"\w+", match["names"]) if match["names"] else module.__all__
    parts = {name: getattr(module, name) for name in names}
    paths = [f"{part.__module__}.{part.__qualname__}" if inspect.isroutine(part) or inspect.isclass(part)
             else f"{match['module']}.{name}" for name, part in parts.items()]
    return list(dict.fromkeys(paths))


def table() -> str:
    """The tables of algorithms, one for each family: when to use an algorithm, and what its parties store and send."""
    from resolvent.algorithms import presets
    from resolvent.comparisons.experiment.catalogue import catalogue

    def answer(value: bool, parts: "Mapping[str, str]") -> str:
        return ", ".join(["yes" if value else "no", *(f"with {part}" for part in parts.values())])

    head = ("algorithm", "keeps", "down", "up", "personal", "robust", "sums")
    computed = {e["name"]: (*(e[key]["text"] for key in ("keeps", "down", "up")), answer(e["personal"], {}),
                            answer(e["robust"], e["parts"]), e["sums"]) for e in catalogue()}
    parts = [CAPTION]
    for title, names in families().items():
        entries = [(paragraphs(getattr(presets, name))["Use when"], name, *computed[name]) for name in names]
        parts += ["", f"### {title}", "", '<div class="uses" markdown>', "",
                  rows(("use when", *head), entries, column=1), "", "</div>"]
    return "\n".join(parts)


def paragraphs(function: "Callable[..., Any]") -> dict[str, str]:
    """The labelled paragraphs of a preset's docstring, by label.

    A paragraph starts with one of ``PARAGRAPHS`` and a colon. It ends at the next label or at a blank line.
    """
    lines_by_label: dict[str, list[str]] = {}
    label = None
    for line in (inspect.getdoc(function) or "").split("\n"):
        start = re.match(rf"({'|'.join(PARAGRAPHS)}): (.*)", line)
        if start:
            label, line = start[1], start[2]
        if not line.strip():
            label = None
        if label:
            lines_by_label.setdefault(label, []).append(line.strip())
    return {label: " ".join(lines) for label, lines in lines_by_label.items()}


def families() -> dict[str, list[str]]:
    """The presets by family: the titles and the entries of the reference's pages, in the order of its index."""
    index = (REFERENCE_PAGES / "index.md").read_text(encoding="utf-8")
    section = index.split("## Algorithms, by family")[1].split("\n## ")[0]
    pages = [(REFERENCE_PAGES / name).read_text(encoding="utf-8") for name in re.findall(r"\((\w+\.md)\)", section)]
    return {page.split("\n")[0].removeprefix("# "):
            [name for match in REFERENCE.finditer(page) if match["module"].endswith(".presets")
             for name in re.findall(r"\w+", match["names"])]
            for page in pages}


def rows(head: tuple[str, ...], lines: list[tuple[str, ...]], column: int = 0) -> str:
    """A table; the cells of one column are names of algorithms, which become links to the reference."""
    from resolvent.algorithms import presets

    def linked(name: str) -> str:
        preset = getattr(presets, name)  # the entry of an alias is that of the function itself
        return f"[`{name}`][{preset.__module__}.{preset.__name__}]"

    cells = [[linked(cell) if i == column else escaped(cell) for i, cell in enumerate(line)] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells))


def source(name: str) -> str:
    """The source of a function as a block of code."""
    module, function = name.rsplit(".", 1)
    return f"```py\n{inspect.getsource(getattr(importlib.import_module(module), function))}```"


def markdown_of(docstring: str) -> str:
    """A docstring as Markdown for the reference.

    Labels are bold and begin paragraphs, examples and code blocks show as code, displayed formulas are of the language
    ``math``, and formulas in the text keep their brackets.
    """
    text = re.sub(r"^(\s*)Example:$", r"\1Examples:", docstring, flags=re.MULTILINE)  # shows as code
    text = CODE_BLOCK.sub(lambda m: f"{m['indent']}```{m['language']}\n{m['code'].rstrip()}\n{m['indent']}```\n", text)
    text = DISPLAYED.sub(lambda m: f"{m['indent']}```math\n{m['latex']}\n{m['indent']}```", text)
    pieces = re.split(r"(^\s*```.*?```$|^ *>>>[^\n]*$|``.*?``|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    text = "".join(piece if i % 2 else escaped(piece) for i, piece in enumerate(pieces))
    return re.sub(rf"^(\s*)({'|'.join(PARAGRAPHS)}): ", r"\n\1**\2.** ", text, flags=re.MULTILINE)


def escaped(text: str) -> str:
    """Angle brackets and bars of formulas as text."""
    return re.sub(r"<(?=\w)", "&lt;", text).replace("|", "&#124;")
