"""One shared model, averaged or by a median; and none at all."""

from resolvent.algorithms.aggregators import CoordinateMedian, GeometricMedian, Mean
from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.averaging import Averaging, LocalOnly
from resolvent.problem.solvers import LocalSolver

__all__ = ["coordinate_median", "fedavg", "fedprox", "local", "rfa"]


def local(solver: LocalSolver) -> Algorithm:
    """Every party trains alone: the yardstick of "better off than alone".

    min over w_k of f_k(w_k), each on its own; nothing travels. Fed+ with lam = 0 and sigma = 0.

    Args:
        solver: the local solver.
    """
    return LocalOnly(solver=solver)


def fedavg(solver: LocalSolver, *, stragglers: Stragglers = "drop") -> Algorithm:
    """FedAvg: train from the shared model, average the results.

    Up and down: one model. Fixed points are not those of the average loss once parties differ and take more
    than one step. Source: McMahan et al.; stragglers are dropped as in the FedProx paper's comparison.

    Args:
        solver: the local solver.
        stragglers: drop or keep the work of parties that could not finish.
    """
    return Averaging(solver=solver, aggregator=Mean(), mu=0.0, stragglers=stragglers)


def fedprox(solver: LocalSolver, *, mu: float = 0.1, stragglers: Stragglers = "keep") -> Algorithm:
    """FedProx: FedAvg with a proximal term mu/2 |w - w~|^2 and partial work kept.

    Up and down: one model. With mu = 0 and all work done it is FedAvg. Source: Li et al., Algorithm 2.

    Args:
        solver: the local solver.
        mu: the weight of the proximal term; the authors try 0.001 to 1.
        stragglers: drop or keep partial work.
    """
    return Averaging(solver=solver, aggregator=Mean(), mu=mu, stragglers=stragglers)


def rfa(solver: LocalSolver, *, smoothing: float = 1e-6, stragglers: Stragglers = "drop") -> Algorithm:
    """RFA: FedAvg with the geometric median in place of the mean.

    One shared model that up to half the weight cannot carry away; parties whose data differ are outvoted.
    Source: Pillutla, Kakade, Harchaoui.

    Args:
        solver: the local solver.
        smoothing: distances below it count as it in Weiszfeld's weights.
        stragglers: drop or keep partial work.
    """
    return Averaging(solver=solver, aggregator=GeometricMedian(smoothing), mu=0.0, stragglers=stragglers)


def coordinate_median(solver: LocalSolver, *, stragglers: Stragglers = "drop") -> Algorithm:
    """FedAvg with the median of each coordinate in place of the mean.

    Source: Yin, Chen, Ramchandran, Bartlett.

    Args:
        solver: the local solver.
        stragglers: drop or keep partial work.
    """
    return Averaging(solver=solver, aggregator=CoordinateMedian(), mu=0.0, stragglers=stragglers)
