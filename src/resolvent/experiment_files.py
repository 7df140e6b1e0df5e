"""Experiment files from a program: read, change, build, run.

``ExperimentFile.load("mine.yaml", ["rounds=50"])`` reads a file, ``ExperimentFile.of_settings`` checks settings that a
program has made. ``compare_file`` runs all methods of a file, and ``build`` returns its parts.
"""

from resolvent.comparisons.experiment.experiment_file import Experiment, ExperimentFile
from resolvent.comparisons.experiment.merged_settings import with_choices
from resolvent.comparisons.runs.comparison_runs import compare_file
from resolvent.comparisons.runs.environment import device, versions

__all__ = ["Experiment", "ExperimentFile", "compare_file", "device", "versions", "with_choices"]
