"""Schedulers: in which order, in which lanes and on which devices the parties of a cohort do their work."""

from resolvent.simulator.engine.schedulers import *
from resolvent.simulator.engine.schedulers import __all__ as __all__
