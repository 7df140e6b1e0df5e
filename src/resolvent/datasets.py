"""Data sets by name: each is a function that returns ``FederatedData``."""

from resolvent.data.datasets import *
from resolvent.data.datasets import __all__ as __all__
