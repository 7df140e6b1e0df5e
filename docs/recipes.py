"""The recipes: scripts of the folder ``examples``, each with a title, a text, a picture and its code.

A script begins with a docstring: the title, paragraphs in Markdown, and last a paragraph ``Picture:``, which describes
what the script leaves in ``figure``. ``python docs/recipes.py [NAME ...]`` runs scripts and draws their pictures.
"""

import ast
import os
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

EXAMPLES = Path(__file__).parents[1] / "examples"
PICTURES = Path(__file__).parent / "images" / "recipes"
LINK = re.compile(r"\]\((?!https?:|#)")
MARK = re.compile(r"<!-- the recipes: (?P<names>[\w, \n]+?) -->")


class Recipe(NamedTuple):
    """What the page of a script shows."""

    title: str
    text: str
    picture: str
    code: str


def read(name: str) -> Recipe:
    """The parts of a script."""
    source = (EXAMPLES / f"{name}.py").read_text("utf-8")
    first, *_ = ast.parse(source).body
    title, text, picture = re.fullmatch(r"(.+?)\n\n(.+)\n\nPicture: (.+?)\n?", first.value.value, re.DOTALL).groups()
    code = "\n".join(source.splitlines()[first.end_lineno:])
    return Recipe(title.rstrip("."), text, " ".join(picture.split()), code.strip() + "\n")


def names() -> list[str]:
    """The scripts in the order of the page on research."""
    page = (Path(__file__).parent / "research.md").read_text("utf-8")
    return [name for mark in MARK.finditer(page) for name in re.findall(r"\w+", mark["names"])]


def run(name: str) -> dict[str, Any]:
    """Run a script in the present folder. Returns its variables."""
    path = EXAMPLES / f"{name}.py"
    module = types.ModuleType(name)
    sys.modules[name] = module  # jaxtyping and dataclasses look modules up
    exec(compile(path.read_text("utf-8"), str(path), "exec"), module.__dict__)
    return module.__dict__


def page_of(name: str) -> str:
    """The page of a recipe as Markdown. Links in its text are relative to the folder of the documentation."""
    recipe = read(name)
    text = LINK.sub("](../", recipe.text)
    return "\n".join([
        f"# {recipe.title}", "", text, "", f"![](../images/recipes/{name}.webp){{ .recipe }}", "",
        f"*Picture: {recipe.picture}*", "", "```py", recipe.code.rstrip(), "```", "",
        f"The script: [{name}.py](../examples/{name}.py). [All recipes](../research.md#9-recipes)", ""])


def links(text: str) -> list[str]:
    """The pages to which a text leads, relative to the folder of the documentation."""
    return [text[match.end():].split(")")[0] for match in LINK.finditer(text)]


def cards(names: list[str]) -> str:
    """The recipes as cards: picture and title, which lead to their pages."""
    lines = ['<div class="grid recipes" markdown>', ""]
    for name in names:
        lines += [f"[![](images/recipes/{name}.webp){{ loading=lazy }} <span>{read(name).title}</span>]"
                  f"(recipes/{name}.md){{ .card }}", ""]
    return "\n".join([*lines, "</div>"])


def on_files(files: "Files", *, config: "MkDocsConfig", **_: Any) -> "Files":
    """Put the scripts and a page for each on the site."""
    from mkdocs.structure.files import File

    for name in names():
        files.append(File.generated(config, f"recipes/{name}.md", content=page_of(name)))
        files.append(File.generated(config, f"examples/{name}.py", abs_src_path=str(EXAMPLES / f"{name}.py")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of the recipes by cards."""
    return MARK.sub(lambda mark: cards(re.findall(r"\w+", mark["names"])), markdown)


def main() -> None:
    """Draw the pictures of the scripts that the command names, or of all."""
    import tempfile
    import time
    import traceback

    import matplotlib as mpl

    sys.path.insert(0, str(EXAMPLES.parent / "src"))
    from resolvent.simulator.record.plots import style

    failed: list[str] = []
    for name in sys.argv[1:] or names():
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder, mpl.rc_context(style):
            os.chdir(folder)
            try:
                run(name)["figure"].savefig(PICTURES / f"{name}.webp", dpi=110, pil_kwargs={"quality": 90})
            except Exception:
                traceback.print_exc()
                failed.append(name)
        print(f"{name}: {time.process_time() - start:.0f} CPU seconds", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
