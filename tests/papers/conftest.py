"""The command line in this process."""

from command_line import call

__all__ = ["call"]
