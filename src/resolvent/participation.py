"""Participation: which parties take part in a round, with which weight, and how much work they can do.

A cohort depends on the seed, the round and the earlier cohorts only, never on the algorithm. So methods that are
compared meet the same cohorts and the same stragglers (errata 8 and 16), in both precisions: all draws are in float32.
"""

from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.participation.arrivals import Arrivals
from resolvent.algorithms.participation.availability import (
    Availability,
    AvailabilityFunction,
    AvailabilityTable,
    DayNight,
    MarkovOnOff,
    MembershipPeriods,
    Outages,
)
from resolvent.algorithms.participation.rules import (
    Bernoulli,
    BiasedBySize,
    BySize,
    Dropout,
    FixedEffort,
    FixedSizeCohort,
    Full,
    Participation,
    ParticipationWrapper,
    Stragglers,
    Uniform,
    UniformAvailable,
)

__all__ = ["Arrivals", "Availability", "AvailabilityFunction", "AvailabilityTable", "Bernoulli", "BiasedBySize",
           "BySize", "Cohort", "DayNight", "Dropout", "FixedEffort", "FixedSizeCohort", "Full", "MarkovOnOff",
           "MembershipPeriods", "Outages", "Participation", "ParticipationWrapper", "Stragglers", "Uniform",
           "UniformAvailable"]
