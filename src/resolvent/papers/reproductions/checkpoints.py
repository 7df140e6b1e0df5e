"""The runs of a reproduction, with checkpoints from which an interrupted one is continued."""

import hashlib
from pathlib import Path

from resolvent.papers.reproductions.reproduction import PanelExperiment
from resolvent.papers.reproductions.run_metrics import RunMetrics


class Checkpoints:
    """Where the runs of a reproduction store their states, if anywhere.

    Attributes:
        restored_cpu_seconds: CPU seconds of the rounds that were restored and did not run again, so far.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.restored_cpu_seconds = 0.0

    def run(self, experiment: PanelExperiment, title: str, seed: int, number: int = 0) -> RunMetrics:
        """Run an experiment, or continue it, or read it if it is complete."""
        digest = hashlib.sha256(title.encode()).hexdigest()[:12]  # a title may have characters that no path has
        metrics = RunMetrics(experiment, None if self._folder is None else self._folder / f"{digest}-{seed}-{number}")
        self.restored_cpu_seconds += metrics.restored_cpu_seconds
        return metrics
