"""``python -m resolvent.cli``."""

from resolvent.cli import main

main()
