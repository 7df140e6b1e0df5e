"""Parses the command line with ``tyro``, and prints help."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import cleandoc
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Any, Union

import tyro

from resolvent.cli.exit_codes import EXIT_CODES
from resolvent.cli.former_words import present_words
from resolvent.cli.output import print_note

_DESCRIPTION = """Federated optimization: train and compare federations on real data.

  resolvent run digits
  resolvent COMMAND --help
"""

# A word -> module and name of its command. Only the module of the word that the user types is imported.
COMMANDS = {
    "run": "commands.run", "check": "experiments_and_runs.check", "tune": "tune.tune",
    "compare": "experiments_and_runs.compare", "regress": "regress.regress", "describe": "describe.describe",
    "show": "experiments_and_runs.show", "list": "commands.list_", "new": "new.new", "data": "commands.data",
}
# A word, what it is for, and the verbs that follow it.
GROUPS = {
    "model": ("Use trained models on rows", {
        "predict": "models.predict", "evaluate": "models.evaluate", "calibrate": "models.calibrate",
        "explain": "models.explain", "refit": "refit.refit"}),
    "site": ("At a site of a federation", {
        verb: f"site.{verb}" for verb in ("new", "check", "start", "plans", "approve", "reject", "ledger")}),
    "lead": ("Organise a federation", {
        verb: f"lead.{verb}" for verb in ("kits", "serve", "start", "status", "card", "revoke", "rotate", "clean")}),
}


def command_of(path: str) -> Callable[..., Any]:
    """The command of a module and a name."""
    module, _, name = path.partition(".")
    command: Callable[..., Any] = getattr(import_module(f"resolvent.cli.{module}"), name)
    return command


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


def _run(program: str, description: str, commands: Mapping[str, str | Callable[..., Any]], arguments: list[str], *,
         end: str = "") -> None:
    """Run the command that the arguments name."""
    parse: Callable[..., Any] = tyro.cli
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    word = arguments[0] if arguments else ""
    if word in commands:
        command, text = _described(commands[word], is_brief=False)
        parse(command, prog=f"{program} {word}", description=text, args=arguments[1:], config=config)
        return
    subcommands = []
    for name, path in commands.items():
        command, text = _described(path, is_brief=True)
        subcommands.append(Annotated[Any, tyro.conf.subcommand(name=name, constructor=command, description=text)])
    try:
        parse(Union[tuple(subcommands)],  # noqa: UP007 - a computed union
              prog=program, description=description, args=arguments, config=config)
    except SystemExit as stop:
        if end and {"-h", "--help"} & {*arguments} and not stop.code:
            sys.stdout.write(end)
        raise


def _group(description: str) -> Callable[..., Any]:
    def group() -> None:
        pass

    group.__doc__ = f"{description}."
    return group


def _described(path: str | Callable[..., Any], *, is_brief: bool) -> tuple[Callable[..., Any], str]:
    """A command, and its description; among all commands it is one sentence."""
    command = command_of(path) if isinstance(path, str) else path
    # tyro ends a line of help where the line of the docstring ends.
    command.__doc__ = re.sub(r"\n {8,}(?=\S)", " ", cleandoc(command.__doc__ or ""))
    paragraphs = command.__doc__.partition("\nArgs:")[0].strip().split("\n\n")
    return command, paragraphs[0] if is_brief else "\n".join([f"{paragraphs[0]}\n", *map(_paragraph, paragraphs[1:])])


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
