"""Aggregators: maps from the replies of a round to one vector."""

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.aggregators.low_rank import LowRankMean
from resolvent.algorithms.aggregators.medians import CoordinateMedian, GeometricMedian, MoreauCentre
from resolvent.algorithms.aggregators.mixing import Bucketing, NearestNeighbourMixing, TrustScores
from resolvent.algorithms.aggregators.robust import Bulyan, CentredClipping, Krum, MultiKrum, NormBound, TrimmedMean

__all__ = ["Aggregator", "Bucketing", "Bulyan", "CentredClipping", "CoordinateMedian", "GeometricMedian", "Krum",
           "LowRankMean", "Mean", "MoreauCentre", "MultiKrum", "NearestNeighbourMixing", "NormBound", "TrimmedMean",
           "TrustScores"]
