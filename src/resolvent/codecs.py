"""Codecs: lossy compression of vectors, with the exact number of bits and a bound on the error."""

from resolvent.math.codecs import *
from resolvent.math.codecs import __all__ as __all__
