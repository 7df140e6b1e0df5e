"""Resolvent: federated optimization as exact compositions of a few mathematical parts, on JAX."""

from resolvent.algorithms import presets
from resolvent.algorithms.accelerated import Anderson
from resolvent.algorithms.aggregators import Aggregator, CoordinateMedian, GeometricMedian, Mean, MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, Phase, Replies
from resolvent.algorithms.averaged import Averaged
from resolvent.algorithms.decentralised_anderson import DecentralisedAnderson
from resolvent.algorithms.presets import *
from resolvent.algorithms.remembered import Remembered
from resolvent.algorithms.schedules import Constant, Exponential, InverseLog, InversePower, Schedule
from resolvent.algorithms.server_optimizer import ServerOptimizer
from resolvent.math.prox import L1, Indicator0, L2Norm, Penalty, PerLayer, Quadratic, Scaled, SquaredL2, Zero
from resolvent.problem import datasets, models
from resolvent.problem.data import FederatedData
from resolvent.problem.errors import InputError
from resolvent.problem.models import Model
from resolvent.problem.problem import LearningProblem, Problem, QuadraticProblem
from resolvent.problem.solvers import GD, SGD, ClosedForm, LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.simulate.participation import (
    Bernoulli,
    BySize,
    FixedEffort,
    Full,
    Participation,
    Stragglers,
    Uniform,
)
from resolvent.simulate.result import Result
from resolvent.simulate.run import simulate

__version__ = "0.1.0"

__all__ = [
    "GD",
    "L1",
    "SGD",
    "Aggregator",
    "Algorithm",
    "Anderson",
    "Averaged",
    "Bernoulli",
    "BySize",
    "ClosedForm",
    "Constant",
    "CoordinateMedian",
    "DecentralisedAnderson",
    "Exponential",
    "FederatedData",
    "FixedEffort",
    "Full",
    "GeometricMedian",
    "Indicator0",
    "InputError",
    "InverseLog",
    "InversePower",
    "L2Norm",
    "LearningProblem",
    "LocalSolver",
    "Mean",
    "Model",
    "MoreauCentre",
    "Participation",
    "Penalty",
    "PerLayer",
    "Phase",
    "Problem",
    "Quadratic",
    "QuadraticProblem",
    "Remembered",
    "Replies",
    "Result",
    "Scaled",
    "Schedule",
    "ServerOptimizer",
    "SquaredL2",
    "Stragglers",
    "Subproblem",
    "Uniform",
    "Zero",
    "datasets",
    "models",
    "simulate",
]
__all__ += presets.__all__
