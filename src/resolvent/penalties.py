"""Penalties, their proximal operators and their Moreau envelopes."""

from resolvent.math.penalties import *
from resolvent.math.penalties import __all__ as __all__
