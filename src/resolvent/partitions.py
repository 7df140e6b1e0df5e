"""Partitions: how samples are distributed over parties."""

from resolvent.data.partition.partitions import *
from resolvent.data.partition.partitions import __all__ as __all__
