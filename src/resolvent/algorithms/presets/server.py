"""FedAvg with an optimizer on the server."""

import optax

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.server_optimizer import ServerOptimizer
from resolvent.algorithms.presets.shared import fedavg
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedadam", "fedavgm", "fedyogi", "reptile"]


def reptile(solver: LocalSolver, *, rate: float = 0.5, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Reptile: FedAvg whose server moves only a part of the way to the mean.

    Problem: a shared model from which few local steps lead to a good one; no objective in closed form.
    Update: w_k = solve f_k from w~; w~ <- (1-rate) w~ + rate * mean of w_k.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: rate = 0.5; 1 is FedAvg.
    Use when: cohorts are small and differ, so that FedAvg jumps; or parties will train on from the shared model.
    Source: Nichol, Achiam, Schulman, the batched form; a baseline of the FedMix poster

    Args:
        solver: the local solver.
        rate: the part, in (0, 1]; 1 is FedAvg.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.sgd,
                           settings={"learning_rate": rate})


def fedavgm(solver: LocalSolver, *, rate: float = 1.0, momentum: float = 0.9,
            stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAvgM: FedAvg with momentum on the server.

    Problem: FedAvg's, (1) but for its bias.
    Update: w_k = solve f_k from w~; m <- momentum*m + w~ - mean of w_k; w~ <- w~ - rate*m.
    Travels: down 1 model, up 1; a party keeps nothing, the server the momentum.
    Defaults: rate 1 and momentum 0.9, the usual values.
    Use when: parties are sampled and FedAvg wavers from round to round.
    Source: Hsu, Qi, Brown

    Args:
        solver: the local solver.
        rate: the server's step.
        momentum: the share of the last step that is kept.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.sgd,
                           settings={"learning_rate": rate, "momentum": momentum})


def fedadam(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAdam: FedAvg with Adam on the server.

    Problem: FedAvg's, (1) but for its bias.
    Update: w_k = solve f_k from w~; with g = w~ - mean of w_k, m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2; w~ <- w~ -
    rate m/(sqrt(v) + eps).
    Travels: down 1 model, up 1; a party keeps nothing, the server both moments.
    Defaults: b1, b2 and eps are the authors' 0.9, 0.99 and 0.001; built with optax's Adam, which corrects the moments
    for their zero start as the authors do not.
    Use when: coordinates differ in scale, as in language models; the rate then wants a search of its own.
    Source: Reddi et al., Algorithm 2

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
            stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedYogi: FedAvg with Yogi on the server.

    Problem: FedAvg's, (1) but for its bias.
    Update: w_k = solve f_k from w~; with g = w~ - mean of w_k, m <- b1 m + (1-b1) g, v <- v - (1-b2) sign(v - g^2) g^2;
    w~ <- w~ - rate m/(sqrt(v) + eps).
    Travels: down 1 model, up 1; a party keeps nothing, the server both moments.
    Defaults: b1, b2 and eps are the authors' 0.9, 0.99 and 0.001; built with optax's Yogi, which corrects the moments
    for their start as the authors do not.
    Use when: coordinates differ in scale, as in language models; the rate then wants a search of its own; milder than
    FedAdam where gradients are sparse.
    Source: Reddi et al., Algorithm 2

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
