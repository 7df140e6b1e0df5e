"""Parses the command line with ``tyro``, and prints help."""

import re
import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any, Union

import tyro

from resolvent.cli.commands import COMMANDS
from resolvent.cli.exit_codes import EXIT_CODES

# Commands that have moved out of the package -> where they are.
_MOVED = {"reproduce": "the papers' figures are not part of the package: run them in a clone of the repository, with "
                       "`python -m experiments NAME`"}


def parse_and_run() -> None:
    """Parse the arguments of the process and run the command."""
    if sys.argv[1:2] and sys.argv[1] in _MOVED:
        from resolvent.errors import InputError  # imports JAX, which help does not need

        raise InputError(_MOVED[sys.argv[1]])
    names_command = sys.argv[1:2] and sys.argv[1] in COMMANDS
    subcommands = tuple(_subcommand(name, command, is_brief=not names_command) for name, command in COMMANDS.items())
    codes = "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items())
    parse: Callable[..., Any] = tyro.cli
    parse(Union[subcommands], prog="resolvent", config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),  # noqa: UP007 - a computed union
          description="Federated optimization: train and compare federations on real data.\n\n"
                      "Begin with `resolvent run digits`. `resolvent COMMAND --help` explains a command and its "
                      "options, and `resolvent --version` prints the version.\n\n"
                      f"Exit codes:\n{codes}")


def _subcommand(name: str, command: Callable[..., Any], *, is_brief: bool) -> Any:
    """The command as tyro knows it; among all commands it is described by one sentence."""
    doc = cleandoc(command.__doc__ or "")
    # tyro ends a line of help where the line of the docstring ends.
    command.__doc__ = re.sub(r"\n {8,}(?=\S)", " ", doc)
    description = doc.partition("\n")[0] if is_brief else None
    return Annotated[Any, tyro.conf.subcommand(name=name, constructor=command, description=description)]
