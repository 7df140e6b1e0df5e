"""Progress on the terminal, on one line."""

import sys


def show_progress(label: str, done: int, total: int) -> None:
    """Show how much of a task is done on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r{label}: {done} of {total}\033[K", end="\n" if done == total else "", file=sys.stderr, flush=True)
