"""The names of ``import resolvent``, which imports this module when a name is first used."""

from typing import TYPE_CHECKING

from resolvent.algorithms import presets
from resolvent.algorithms.algorithm import Algorithm, Phase, Replies
from resolvent.algorithms.presets import *
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.runs.load import load
from resolvent.data.encoded_rows import UnusualRowsWarning
from resolvent.data.federated import FederatedData
from resolvent.data.files.packed import open_packed, write_packed
from resolvent.errors import DivergedError, InputError
from resolvent.predict.explain import explain
from resolvent.predict.fitted import Fitted
from resolvent.problem.models.model import Model
from resolvent.problem.solvers.optax_solvers import OptaxSolver
from resolvent.problem.solvers.solver import SGD
from resolvent.simulator.record.result import Result
from resolvent.simulator.record.systems import VirtualClock
from resolvent.simulator.run import simulate

if TYPE_CHECKING:  # imported when they are used
    from resolvent import (
        aggregators,
        arguments,
        attacks,
        callbacks,
        codecs,
        combinators,
        datasets,
        errors,
        experiment_files,
        files,
        keys,
        losses,
        metrics,
        models,
        participation,
        partitions,
        penalties,
        plots,
        privacy,
        problems,
        schedulers,
        schedules,
        shifts,
        solvers,
        statistics,
    )
    from resolvent.comparisons.description.describe import describe
    from resolvent.comparisons.experiment.data_check import check
    from resolvent.comparisons.regression.regress import regress
    from resolvent.comparisons.runs.compare import compare
    from resolvent.comparisons.study.study import Study
    from resolvent.comparisons.survival.survive import survival
    from resolvent.comparisons.tuning.sweep import sweep
    from resolvent.comparisons.tuning.tune import tune

__all__ = ["SGD", "Algorithm", "DecisionRule", "DivergedError", "FederatedData", "Fitted", "InputError", "Model",
           "OptaxSolver", "Phase", "Replies", "Result", "Study", "UnusualRowsWarning", "VirtualClock", "aggregators",
           "arguments", "attacks", "callbacks", "check", "codecs", "combinators", "compare", "datasets", "describe",
           "errors", "experiment_files", "explain", "files", "keys", "load", "losses", "metrics", "models",
           "open_packed", "participation", "partitions", "penalties", "plots", "privacy", "problems", "regress",
           "schedulers", "schedules", "shifts", "simulate", "solvers", "statistics", "survival", "sweep", "tune",
           "write_packed"]
if not TYPE_CHECKING:  # a type checker takes them from the presets themselves
    __all__ += presets.__all__
