"""Statistics for tables of your own: intervals of means, ranks, the worst tenth of parties, regressions on new rows."""

from resolvent.comparisons.regression.validation import validate
from resolvent.comparisons.study.costs import worst_decile
from resolvent.comparisons.study.ranks import Ranks, rank_methods
from resolvent.predict.intervals import Interval, mean_interval

__all__ = ["Interval", "Ranks", "mean_interval", "rank_methods", "validate", "worst_decile"]
