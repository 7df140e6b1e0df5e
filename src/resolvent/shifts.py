"""Feature shifts: changes of some parties' inputs, so that parties see the same classes differently."""

from resolvent.data.shifts import *
from resolvent.data.shifts import __all__ as __all__
