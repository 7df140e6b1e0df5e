"""``python -m resolvent.cli``."""

from resolvent.cli import run_process

run_process()
