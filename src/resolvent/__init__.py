"""Resolvent: federated optimization as exact compositions of a few mathematical parts, on JAX."""

from resolvent.algorithms import attacks, presets
from resolvent.algorithms.accelerated import Anderson
from resolvent.algorithms.adaptive import AdaptiveMu
from resolvent.algorithms.aggregators import Aggregator, CoordinateMedian, GeometricMedian, Mean, MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, Phase, Replies
from resolvent.algorithms.attacked import Attacked
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.averaged import Averaged
from resolvent.algorithms.centralised import Centralised
from resolvent.algorithms.compressed import Compressed
from resolvent.algorithms.decentralised_anderson import DecentralisedAnderson
from resolvent.algorithms.gradient import DistributedGradient
from resolvent.algorithms.meta import MetaLearned
from resolvent.algorithms.never_worse import NeverWorse
from resolvent.algorithms.personal_splitting import PersonalSplitting
from resolvent.algorithms.personalised import Personalised
from resolvent.algorithms.presets import *
from resolvent.algorithms.remembered import Remembered
from resolvent.algorithms.robust import Bulyan, CentredClipping, Krum, MultiKrum, NormBound, TrimmedMean
from resolvent.algorithms.schedules import Constant, Exponential, InverseLog, InversePower, Schedule
from resolvent.algorithms.self_tuned import SelfTuned
from resolvent.algorithms.server_optimizer import ServerOptimizer
from resolvent.math.codecs import QSGD, Codec, Identity, NaturalCompression, RandK, TopK
from resolvent.math.prox import L1, Indicator0, L2Norm, Penalty, PerLayer, Quadratic, Scaled, SquaredL2, Zero
from resolvent.problem import datasets, models, networks, partitions, shifts
from resolvent.problem.data import FederatedData
from resolvent.problem.errors import InputError
from resolvent.problem.maps import GradientStep
from resolvent.problem.models import Model
from resolvent.problem.optimizers import LBFGS, Optax, adam, momentum
from resolvent.problem.problem import LearningProblem, Problem, QuadraticProblem, SolvedProblem
from resolvent.problem.solvers import GD, SGD, ClosedForm, LocalSolver
from resolvent.problem.subproblem import Subproblem
from resolvent.simulate.participation import (
    Bernoulli,
    BySize,
    Dropout,
    FixedEffort,
    Full,
    Participation,
    Stragglers,
    Uniform,
)
from resolvent.simulate.result import Result
from resolvent.simulate.run import simulate
from resolvent.simulate.systems import VirtualClock

__version__ = "0.1.0"

__all__ = [
    "GD",
    "L1",
    "LBFGS",
    "QSGD",
    "SGD",
    "AdaptiveMu",
    "Aggregator",
    "Algorithm",
    "Anderson",
    "Attack",
    "Attacked",
    "Averaged",
    "Bernoulli",
    "Bulyan",
    "BySize",
    "Centralised",
    "CentredClipping",
    "ClosedForm",
    "Codec",
    "Compressed",
    "Constant",
    "CoordinateMedian",
    "DecentralisedAnderson",
    "DistributedGradient",
    "Dropout",
    "Exponential",
    "FederatedData",
    "FixedEffort",
    "Full",
    "GeometricMedian",
    "GradientStep",
    "Identity",
    "Indicator0",
    "InputError",
    "InverseLog",
    "InversePower",
    "Krum",
    "L2Norm",
    "LearningProblem",
    "LocalSolver",
    "Mean",
    "MetaLearned",
    "Model",
    "MoreauCentre",
    "MultiKrum",
    "NaturalCompression",
    "NeverWorse",
    "NormBound",
    "Optax",
    "Participation",
    "Penalty",
    "PerLayer",
    "PersonalSplitting",
    "Personalised",
    "Phase",
    "Problem",
    "Quadratic",
    "QuadraticProblem",
    "RandK",
    "Remembered",
    "Replies",
    "Result",
    "Scaled",
    "Schedule",
    "SelfTuned",
    "ServerOptimizer",
    "SolvedProblem",
    "SquaredL2",
    "Stragglers",
    "Subproblem",
    "TopK",
    "TrimmedMean",
    "Uniform",
    "VirtualClock",
    "Zero",
    "adam",
    "attacks",
    "datasets",
    "models",
    "momentum",
    "networks",
    "partitions",
    "shifts",
    "simulate",
]
__all__ += presets.__all__
