"""The folders of the checkpoints of a reproduction, so that an interrupted one can be continued."""

import hashlib
from pathlib import Path
from typing import NamedTuple

__all__ = ["Checkpoints"]


class Checkpoints(NamedTuple):
    """Where the runs of a reproduction store their states.

    Attributes:
        folder: the folder of all runs; None: they store nothing.
    """

    folder: Path | None = None

    def of(self, title: str, seed: int, number: int = 0) -> Path | None:
        """The folder of an experiment: its panel, seed, and number among the panel's experiments."""
        if self.folder is None:
            return None
        digest = hashlib.sha256(title.encode()).hexdigest()[:12]  # a title may have characters that no path has
        return self.folder / f"{digest}-{seed}-{number}"
