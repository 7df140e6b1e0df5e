"""The statistics of comparisons, for tables of your own: intervals of means, ranks, the worst tenth of the parties."""

from resolvent.comparisons.study.costs import worst_decile
from resolvent.comparisons.study.ranks import Ranks, rank_methods
from resolvent.predict.intervals import Interval, mean_interval

__all__ = ["Interval", "Ranks", "mean_interval", "rank_methods", "worst_decile"]
