"""Callbacks for the evaluations of a run: stop early, save the best models, write curves to files or other programs."""

from resolvent.simulator.record.callbacks import *
from resolvent.simulator.record.callbacks import __all__ as __all__
