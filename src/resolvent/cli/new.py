"""``resolvent new``: a file to start from."""

import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import tyro

_NAME = re.compile(r"[A-Za-z_]\w{0,60}", re.ASCII)


def new(kind: Annotated[Literal["algorithm", "model", "experiment"], tyro.conf.Positional],
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]) -> None:
    """Write a file to start from, into the current folder.

    resolvent new algorithm mine
    resolvent new experiment mine

    Args:
        kind: algorithm: a method of your own, which passes the contract as it is; model: a network from two functions;
            experiment: an experiment file with comments.
        name: its name, of letters, digits and underscores; the file is NAME.py or NAME.yaml.
    """
    from resolvent.cli import terminal
    from resolvent.data.files.atomic_files import write_text
    from resolvent.errors import InputError, quote

    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(f"{quote(name)} cannot be the name of a Python module: use letters, digits and underscores, "
                         "such as mine")
    path = Path(f"{name}.{'yaml' if kind == 'experiment' else 'py'}")
    if path.exists():
        raise InputError(f"{path} exists: choose another name, or remove it")
    template = (resources.files("resolvent.cli") / "starters" / f"{kind}{path.suffix}.txt").read_text("utf-8")
    words = [word for word in name.split("_") if word]
    camel = "".join(word[:1].upper() + word[1:] for word in words) or "Mine"
    camel = f"{camel}Method" if camel == name else camel
    title = " ".join(words) or name
    write_text(path, template.format(name=name, camel=camel, title=title[:1].upper() + title[1:], file=path.name))
    terminal.print_path("Written", path)
    terminal.print_line({"algorithm": f"Check it with: python {path}", "model": f"Try it with: python {path}",
                         "experiment": f"Run it with: resolvent run {path}"}[kind])
