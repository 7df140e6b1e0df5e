"""Callbacks for the evaluations of a run: stop early, save the best models, write curves to files or other programs."""

from resolvent.simulator.callbacks import *
from resolvent.simulator.callbacks import __all__ as __all__
