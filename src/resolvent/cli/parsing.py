"""Parses the command line with ``tyro``, and prints help."""

import re
import sys
from collections.abc import Callable, Mapping
from inspect import cleandoc
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Any, Union

import tyro

from resolvent.cli.commands import COMMANDS, GROUPS
from resolvent.cli.exit_codes import EXIT_CODES
from resolvent.cli.former_words import present_words
from resolvent.cli.output import print_note

_DESCRIPTION = """Federated optimization: train and compare federations on real data.

  resolvent run digits
  resolvent COMMAND --help
"""


def parse_and_run() -> None:
    """Parse the arguments of the process and run the command."""
    former, sys.argv = sys.argv, [sys.argv[0], *present_words(sys.argv[1:])]
    if sys.argv[1:] != former[1:]:
        import shlex

        print_note(f"`resolvent {shlex.join(former[1:])}` is now: resolvent {shlex.join(sys.argv[1:])}")
    word, *others = sys.argv[1:] or [""]
    if word in GROUPS:
        purpose, verbs = GROUPS[word]
        _run(f"resolvent {word}", f"{purpose}.", verbs, others)
        return
    codes = "\n".join(_wrapped(meaning, f"{code:>5}  ") for code, meaning in EXIT_CODES.items())
    groups = {name: _group(f"{purpose}: {', '.join(verbs)}") for name, (purpose, verbs) in GROUPS.items()}
    _run("resolvent", _DESCRIPTION, {**COMMANDS, **groups}, sys.argv[1:], end=f"\nExit codes:\n{codes}\n")


def _run(program: str, description: str, commands: Mapping[str, Callable[..., Any]], arguments: list[str], *,
         end: str = "") -> None:
    """Run the command that the arguments name."""
    is_named = arguments[:1] != [] and arguments[0] in commands
    subcommands = tuple(_subcommand(name, command, is_brief=not is_named) for name, command in commands.items())
    parse: Callable[..., Any] = tyro.cli
    try:
        parse(Union[subcommands], prog=program, description=description, args=arguments,  # noqa: UP007 - a computed union
              config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone))
    except SystemExit as stop:
        if end and not is_named and {"-h", "--help"} & {*arguments} and not stop.code:
            sys.stdout.write(end)
        raise


def _group(description: str) -> Callable[..., Any]:
    def group() -> None:
        pass

    group.__doc__ = f"{description}."
    return group


def _subcommand(name: str, command: Callable[..., Any], *, is_brief: bool) -> Any:
    """The command as tyro knows it; among all commands it is described by one sentence."""
    doc = cleandoc(command.__doc__ or "")
    # tyro ends a line of help where the line of the docstring ends.
    command.__doc__ = re.sub(r"\n {8,}(?=\S)", " ", doc)
    paragraphs = doc.partition("\nArgs:")[0].strip().split("\n\n")
    description = paragraphs[0] if is_brief else "\n".join([f"{paragraphs[0]}\n", *map(_paragraph, paragraphs[1:])])
    return Annotated[Any, tyro.conf.subcommand(name=name, constructor=command, description=description)]


def _paragraph(text: str) -> str:
    """A paragraph of a docstring as wide as the terminal; commands to type stay lines of their own.

    tyro joins lines that are not indented.
    """
    if text.startswith("resolvent "):
        return "\n".join(f"  {line}" for line in text.splitlines())
    return _wrapped(" ".join(text.split()), "  ")


def _wrapped(text: str, begin: str) -> str:
    return fill(text, get_terminal_size().columns, initial_indent=begin, subsequent_indent=" " * len(begin),
                break_long_words=False, break_on_hyphens=False)
