"""A small experiment as text, and how it is refused."""

import pytest

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.errors import InputError

BASE = """\
data:
  name: digits
  parties: 4
model: logistic
solver:
  name: SGD
  learning_rate: 0.05
algorithms:
  alone: local
  FedAvg: fedavg
participation: full
rounds: 3
"""


def refused(source, *changes):
    """The message with which an experiment is refused."""
    with pytest.raises(InputError) as caught:
        ExperimentFile.load(source, changes)
    return str(caught.value)
