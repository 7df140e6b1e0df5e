"""The style of the library's figures, for figures of your own: colours, and settings of matplotlib."""

from resolvent.simulator.record.plots import COLOURS, colour_of, style

__all__ = ["COLOURS", "colour_of", "style"]
