"""Everything that an algorithm, a combinator, or a part of your own is made of, in one import.

An algorithm: ``SharedModelMethod``, ``OnePhaseMethod`` or ``Method``, ``local_work``, ``Subproblem``, ``tree``, and for
several phases ``Phase``. A combinator: ``Combinator`` and ``Wrapped``. Other parts: ``Aggregator``, ``Loss``,
``LocalObjective``, ``LocalSolver``, ``Oracle``, ``Participation`` and ``Codec``, each with its own check in
``resolvent.testing``.
"""

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Algorithm, Iterate, Part, PartyPart, Phase, Replies
from resolvent.algorithms.cohort import Cohort
from resolvent.algorithms.combinators.combinator import Combinator, Wrapped
from resolvent.algorithms.keys import substep_key
from resolvent.algorithms.method import Method, OnePhaseMethod, SharedModelMethod, info_of_all, local_work
from resolvent.algorithms.participation.rules import Participation, ParticipationWrapper
from resolvent.algorithms.round import Private
from resolvent.math import tree
from resolvent.math.codecs import Codec
from resolvent.math.penalties import Penalty
from resolvent.problem.models.losses import Loss
from resolvent.problem.objective import LocalObjective
from resolvent.problem.oracle import NO_MEMORY, Oracle
from resolvent.problem.problem import Problem
from resolvent.problem.schedules import Schedule
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem

__all__ = ["NO_MEMORY", "Aggregator", "Algorithm", "Codec", "Cohort", "Combinator", "Iterate", "LocalObjective",
           "LocalSolver", "Loss", "Method", "OnePhaseMethod", "Oracle", "Part", "Participation", "ParticipationWrapper",
           "PartyPart", "Penalty", "Phase", "Private", "Problem", "Replies", "Schedule", "SharedModelMethod",
           "Subproblem", "Wrapped", "info_of_all", "local_work", "substep_key", "tree"]
