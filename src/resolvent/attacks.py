"""Attacks: what malicious parties send."""

from resolvent.algorithms.attacks import *
from resolvent.algorithms.attacks import __all__ as __all__
