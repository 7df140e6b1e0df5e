"""The command line: it parses arguments, calls ``study`` and prints.

Importing it is cheap: ``tyro``, ``rich`` and the modules of ``study`` are imported when a command runs.
"""

import os
import sys

from resolvent.errors import InputError

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 failure, 2 wrong input, 130 interrupted.
    """
    # A step of a small model does not occupy several cores. XLA's further threads would only wait actively, which can
    # triple the run time.
    os.environ.setdefault("PJRT_NPROC", "1")
    from resolvent.cli.commands import parse_and_run
    from resolvent.cli.terminal import print_error

    try:
        parse_and_run()
    except InputError as error:
        print_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: finish an unfinished run with --resume\n")
        sys.exit(130)
