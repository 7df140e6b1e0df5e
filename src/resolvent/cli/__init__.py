"""The command line: it parses arguments, calls the rooms and prints.

Importing it is cheap: ``tyro`` is imported when a command is parsed, JAX and the rooms when it runs. So
help is printed at once, and an interruption at any moment is answered in one line.
"""

import atexit
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator

from resolvent.cli.exit_codes import NO_RESOURCE
from resolvent.cli.interruption import Interrupted, answer_interruptions, limit_exit, print_interruption
from resolvent.cli.output import discard_output, flush_output, name_output, prepare_output, print_error

__all__ = ["main", "prepare_process"]

_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def prepare_process() -> None:
    """Set what speeds up a process that runs one command."""
    # A step of a small model does not occupy several cores. XLA's further threads would only wait actively, which can
    # triple the run time.
    os.environ.setdefault("PJRT_NPROC", "1")
    # Modules and traces live as long as the process. Searching them for garbage at Python's default of 700 new objects
    # takes a tenth of the CPU time before the first round.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # The interpreter would search all of them once more when it ends, for more than a second after the last line.
    atexit.register(gc.freeze)


def main() -> None:
    """Run the command line.

    Exit codes: see ``exit_codes``.
    """
    prepare_process()
    prepare_output()
    with answer_interruptions() as interruptions, _plain_warnings():
        try:
            try:
                _run()
            finally:
                flush_output()
        except (Exception, KeyboardInterrupt) as raised:
            error = next(iter(interruptions), raised)
            code = _report(name_output(error) if isinstance(error, OSError) else error)
            discard_output()
            processes = sys.modules.get("resolvent.cli.processes")
            if isinstance(error, Interrupted) or (processes is not None and processes.has_others()):
                limit_exit(code)
            sys.exit(code)


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        sys.stdout.write(f"resolvent {version('resolvent')}\n")
        return
    from resolvent.cli.parsing import parse_and_run

    parse_and_run()


def _report(error: BaseException) -> int:
    """Print why a command ended, on one line, and return the exit code; an error that is a defect is raised again."""
    if isinstance(error, KeyboardInterrupt):
        number = error.number if isinstance(error, Interrupted) else 2
        print_interruption(number)
        return 128 + number
    if isinstance(error, ImportError) and "shared object" in str(error):  # such as JAX, which `failures` imports
        print_error(f"{' '.join(str(error).split())}: there is not enough memory for the library (ulimit -v), or it is "
                    "not installed completely")
        return NO_RESOURCE
    from resolvent.cli.failures import explain

    failure = explain(error)
    if failure is None:
        raise error
    print_error(failure.message)
    return failure.code


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print a warning to the user as one line without the place in the program."""
    original = warnings.formatwarning

    def format_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                       line: str | None = None) -> str:
        if issubclass(category, UserWarning):
            return f"warning: {message}\n"
        return original(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = original
