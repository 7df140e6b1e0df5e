"""Parses the command line with ``tyro``, and prints help."""

import ast
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module, resources
from inspect import cleandoc
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from resolvent.cli.exit_codes import EXIT_CODES
from resolvent.cli.former_words import present_words
from resolvent.cli.output import print_note, print_texts

_DESCRIPTION = """Federated optimization: train and compare federations on real data.

  resolvent run digits
  resolvent COMMAND --help"""

# A word -> module and name of its command. Only the module of the word that the user types is imported.
COMMANDS = {
    "run": "commands.run", "check": "experiments_and_runs.check", "tune": "tune.tune",
    "compare": "experiments_and_runs.compare", "regress": "regress.regress", "describe": "numbers.describe",
    "survival": "numbers.survival",
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
    program, purpose, commands, arguments = "resolvent", _DESCRIPTION, COMMANDS, sys.argv[1:]
    if arguments[:1] and arguments[0] in GROUPS:
        program = f"resolvent {arguments[0]}"
        (text, commands), arguments = GROUPS[arguments[0]], arguments[1:]
        purpose = f"{text}."
    word = arguments[0] if arguments else ""
    if word in commands:
        import tyro

        command, text = _described(commands[word])
        parse: Callable[..., Any] = tyro.cli
        parse(command, prog=f"{program} {word}", description=text, args=arguments[1:],
              config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone))
    elif word in ("-h", "--help"):
        _print_overview(program, purpose, commands)
    else:
        from resolvent.errors import InputError, alternatives, quote  # imports NumPy, which help does not need

        words = [*commands, *(GROUPS if commands is COMMANDS else ())]
        raise InputError(f"{program}: {f'there is no command {quote(word)}' if word else 'a command is missing'}"
                         f"{alternatives(word, words)}; see {program} --help")


def _print_overview(program: str, purpose: str, commands: Mapping[str, str]) -> None:
    """Print what there is to type, with a sentence each. No command is imported for it."""
    sys.stdout.write(f"usage: {program} COMMAND ...\n\n{purpose}\n\n")
    groups = GROUPS if commands is COMMANDS else {}
    print_texts("Commands:", {**{f"  {word}": _first_sentence(path) for word, path in commands.items()}, **{
        f"  {word}": f"{text}: {', '.join(verbs)}." for word, (text, verbs) in groups.items()}})
    if groups:
        print_texts("Exit codes:", {f"  {code}": meaning for code, meaning in EXIT_CODES.items()})


def _first_sentence(path: str) -> str:
    """The first sentence of a command's docstring."""
    module, _, name = path.partition(".")
    source = (resources.files("resolvent.cli") / f"{module}.py").read_text("utf-8")
    command = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return (ast.get_docstring(command) or "").split("\n\n")[0]


def _described(path: str) -> tuple[Callable[..., Any], str]:
    """A command, and its description."""
    command = command_of(path)
    # tyro ends a line of help where the line of the docstring ends.
    command.__doc__ = re.sub(r"\n {8,}(?=\S)", " ", cleandoc(command.__doc__ or ""))
    paragraphs = command.__doc__.partition("\nArgs:")[0].strip().split("\n\n")
    return command, "\n".join(map(_paragraph, paragraphs))


def _paragraph(text: str) -> str:
    """A paragraph of a docstring as wide as the terminal; commands to type stay lines of their own.

    tyro joins lines that are not indented.
    """
    if text.startswith("resolvent "):
        return "\n".join(f"  {line}" for line in text.splitlines())
    return fill(" ".join(text.split()), get_terminal_size().columns, initial_indent="  ", subsequent_indent="  ",
                break_long_words=False, break_on_hyphens=False)
