"""Data sets by name: each is a function that returns ``FederatedData``."""

from resolvent.data.datasets import *
from resolvent.data.datasets import __all__
from resolvent.tables.party_tables import *

__all__ = [*__all__, "from_frame", "table"]
