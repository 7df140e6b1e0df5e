"""Feature shifts: changes of some parties' inputs, so that parties see the same classes differently."""

from resolvent.data.partition.shifts import *
from resolvent.data.partition.shifts import __all__ as __all__
