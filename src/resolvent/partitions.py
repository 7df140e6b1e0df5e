"""Partitions: how samples are distributed over parties."""

from resolvent.data.partitions import *
from resolvent.data.partitions import __all__ as __all__
