"""FedAvg with an optimizer on the server."""

import optax

from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.presets.shared import fedavg
from resolvent.algorithms.server_optimizer import ServerOptimizer
from resolvent.problem.solvers import LocalSolver

__all__ = ["fedadam", "fedavgm", "fedyogi", "reptile"]


def reptile(solver: LocalSolver, *, rate: float = 0.5, stragglers: Stragglers = "keep") -> Algorithm:
    """Reptile: FedAvg whose server moves only a part of the way to the mean.

    Up and down: one model. Source: Nichol, Achiam, Schulman; FedMix's baseline.

    Args:
        solver: the local solver.
        rate: the part, in (0, 1]; 1 is FedAvg.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.sgd,
                           settings={"learning_rate": rate})


def fedavgm(solver: LocalSolver, *, rate: float = 1.0, momentum: float = 0.9,
            stragglers: Stragglers = "drop") -> Algorithm:
    """FedAvgM: FedAvg with momentum on the server.

    Up and down: one model. Source: Hsu, Qi, Brown.

    Args:
        solver: the local solver.
        rate: the server's step.
        momentum: the share of the last step that is kept.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.sgd,
                           settings={"learning_rate": rate, "momentum": momentum})


def fedadam(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: Stragglers = "drop") -> Algorithm:
    """FedAdam: FedAvg with Adam on the server.

    Up and down: one model. Built with optax's Adam, whose bias corrections the paper leaves out. Source: Reddi et al.

    Args:
        solver: the local solver.
        rate: the server's step.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: the paper's tau, which bounds how adaptive it is.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.adam,
                           settings={"learning_rate": rate, "b1": b1, "b2": b2, "eps": eps})


def fedyogi(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: Stragglers = "drop") -> Algorithm:
    """FedYogi: FedAvg with Yogi on the server.

    Up and down: one model. Built with optax's Yogi, whose bias corrections the paper leaves out. Source: Reddi et al.

    Args:
        solver: the local solver.
        rate: the server's step.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: the paper's tau, which bounds how adaptive it is.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.yogi,
                           settings={"learning_rate": rate, "b1": b1, "b2": b2, "eps": eps})
