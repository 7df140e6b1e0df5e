"""FedAvg with an optimizer on the server."""

from collections.abc import Callable

import optax

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.server_optimizer import ServerOptimizer
from resolvent.algorithms.presets.shared import fedavg
from resolvent.problem.solvers import LocalSolver, traced_optimizer

__all__ = ["fedadam", "fedavgm", "fedyogi", "reptile"]


def reptile(solver: LocalSolver, *, rate: float = 0.5, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Reptile: FedAvg whose server moves only a part of the way to the mean.

    It was proposed for meta-learning: the shared model is a start from which each party trains its own model.

    Problem: a shared model from which few local steps lead to a good one; no objective in closed form.
    Update: w_k = solve f_k from w~; w~ <- (1 - rate) w~ + rate * mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: rate = 0.5; 1 is FedAvg.
    Use when: cohorts are small and differ, so that FedAvg fluctuates; or parties will train further from the shared
    model.

    Args:
        solver: local solver of each party.
        rate: how far the server moves to the mean, in (0, 1]; 1 is FedAvg.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

    Example:
        >>> algorithm = rv.reptile(rv.SGD(0.1, batch_size=20, epochs=1), rate=0.3)

    References:
        Nichol, Achiam, Schulman: On First-Order Meta-Learning Algorithms, 2018, the batched form.

        Gasanov, Khaled, Horvath, Richtarik: FedMix, poster, a baseline of its comparison.
    """
    return _with_server_optimizer(solver, stragglers, optax.sgd, learning_rate=rate)


def fedavgm(solver: LocalSolver, *, rate: float = 1.0, momentum: float = 0.9,
            stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAvgM: FedAvg with momentum on the server.

    The server treats w~ - mean of w_k as a gradient, and makes a step of gradient descent with momentum.

    Problem: the average loss, up to FedAvg's bias.
    Update: w_k = solve f_k from w~; m <- momentum*m + w~ - mean of w_k; w~ <- w~ - rate*m.
    Communication: down 1 model, up 1; a party stores nothing, the server stores m.
    Defaults: rate 1 and momentum 0.9, the usual values.
    Use when: parties are sampled and FedAvg fluctuates from round to round.

    Args:
        solver: local solver of each party.
        rate: learning rate of the server.
        momentum: decay of the server's momentum.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

    Example:
        >>> algorithm = rv.fedavgm(rv.SGD(0.1, batch_size=20, epochs=1), momentum=0.8)

    References:
        Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
        2019.
    """
    return _with_server_optimizer(solver, stragglers, optax.sgd, learning_rate=rate, momentum=momentum)


def fedadam(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAdam: FedAvg with Adam on the server.

    The server treats g = w~ - mean of w_k as a gradient, and makes a step of Adam.

    Problem: the average loss, up to FedAvg's bias.
    Update: w_k = solve f_k from w~; with g = w~ - mean of w_k, m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2; w~ <- w~ -
    rate m/(sqrt(v) + eps).
    Communication: down 1 model, up 1; a party stores nothing, the server stores m and v.
    Defaults: b1, b2 and eps are the authors' 0.9, 0.99 and 0.001. The optimizer is optax's Adam, which corrects the
    moments for their start at zero, as the authors do not.
    Use when: coordinates differ in scale, as in language models; the rate then needs its own search.

    Args:
        solver: local solver of each party.
        rate: learning rate of the server.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: the paper's tau; the larger it is, the less adaptive is the step.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

    Example:
        >>> algorithm = rv.fedadam(rv.SGD(0.1, batch_size=20, epochs=1), rate=0.03)

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
        Algorithm 2.
    """
    return _with_server_optimizer(solver, stragglers, optax.adam, learning_rate=rate, b1=b1, b2=b2, eps=eps)


def fedyogi(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedYogi: FedAvg with Yogi on the server.

    The server treats g = w~ - mean of w_k as a gradient, and makes a step of Yogi.

    Problem: the average loss, up to FedAvg's bias.
    Update: w_k = solve f_k from w~; with g = w~ - mean of w_k, m <- b1 m + (1-b1) g, v <- v - (1-b2) sign(v - g^2) g^2;
    w~ <- w~ - rate m/(sqrt(v) + eps).
    Communication: down 1 model, up 1; a party stores nothing, the server stores m and v.
    Defaults: b1, b2 and eps are the authors' 0.9, 0.99 and 0.001. The optimizer is optax's Yogi, which corrects the
    moments for their start, as the authors do not.
    Use when: coordinates differ in scale, as in language models; the rate then needs its own search. It adapts more
    slowly than FedAdam if gradients are sparse.

    Args:
        solver: local solver of each party.
        rate: learning rate of the server.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: the paper's tau; the larger it is, the less adaptive is the step.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

    Example:
        >>> algorithm = rv.fedyogi(rv.SGD(0.1, batch_size=20, epochs=1), rate=0.03)

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
        Algorithm 2.
    """
    return _with_server_optimizer(solver, stragglers, optax.yogi, learning_rate=rate, b1=b1, b2=b2, eps=eps)


def _with_server_optimizer(solver: LocalSolver, stragglers: StragglerPolicy,
                           factory: Callable[..., optax.GradientTransformation], **settings: float) -> Algorithm:
    """FedAvg whose server makes steps of an optax optimizer."""
    return ServerOptimizer(fedavg(solver, stragglers=stragglers), traced_optimizer(factory, **settings))
