"""Random keys: from the seed of a run to the keys of its first model, rounds, phases and parties."""

from resolvent.algorithms.keys import *
from resolvent.algorithms.keys import __all__ as __all__
