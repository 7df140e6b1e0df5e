"""FedAvg with an optimizer on the server."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.server_steps import ServerOptimizer
from resolvent.algorithms.presets.shared import fedavg, fedprox
from resolvent.arguments import checked
from resolvent.errors import check_range
from resolvent.problem.solvers.optimizers import traced_optimizer
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedacg", "fedadam", "fedavgm", "fedyogi", "reptile"]


@checked
def reptile(solver: LocalSolver, *, server_rate: float = 0.5) -> Algorithm:
    """Reptile: FedAvg whose server moves only a part of the way to the mean.

    It was proposed for meta-learning: the shared model is a start from which each party trains its own model.

    Problem: a shared model from which few local steps lead to a good one; no objective in closed form.
    Update: w_k = solve f_k from w~; w~ <- (1 - server_rate) w~ + server_rate * mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: server_rate = 0.5; 1 is FedAvg.
    Use when: cohorts are small and differ, so that FedAvg fluctuates; or parties will train further from the shared
    model.

    Args:
        solver: local solver of each party.
        server_rate: how far the server moves to the mean, positive; 1 is FedAvg.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.reptile(rv.SGD(0.1, batch_size=20, epochs=1), server_rate=0.3)

    References:
        Nichol, Achiam, Schulman: On First-Order Meta-Learning Algorithms, 2018, the batched form.

        Gasanov, Khaled, Horvath, Richtarik: FedMix, poster, a baseline of its comparison.
    """
    check_range("reptile", "(0, inf)", server_rate=server_rate)
    return _with_server_optimizer(solver, optax.sgd, learning_rate=server_rate)


@checked
def fedavgm(solver: LocalSolver, *, server_rate: float = 1.0, momentum: float = 0.9) -> Algorithm:
    """FedAvgM: FedAvg with momentum on the server.

    The server treats w~ - mean of w_k as a gradient, and makes a step of gradient descent with momentum.

    Problem: the average loss, up to FedAvg's bias.
    Update: w_k = solve f_k from w~; m <- momentum*m + w~ - mean of w_k; w~ <- w~ - server_rate*m.
    Communication: down 1 model, up 1; a party stores nothing, the server stores m.
    Defaults: server_rate 1 and momentum 0.9, the usual values.
    Use when: parties are sampled and FedAvg fluctuates from round to round.

    Args:
        solver: local solver of each party.
        server_rate: learning rate of the server, positive.
        momentum: decay of the server's momentum, in [0, 1).

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedavgm(rv.SGD(0.1, batch_size=20, epochs=1), momentum=0.8)

    References:
        Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
        2019.
    """
    check_range("fedavgm", "(0, inf)", server_rate=server_rate)
    check_range("fedavgm", "[0, 1)", momentum=momentum)
    return _with_server_optimizer(solver, optax.sgd, learning_rate=server_rate, momentum=momentum)


@checked
def fedacg(solver: LocalSolver, *, lam: float = 0.85, beta: float = 0.01) -> Algorithm:
    """FedACG: parties start where the server's momentum leads, and local work stays near that point.

    Problem: the average loss, up to FedAvg's bias.
    Update: v = w~ + lam m; w_k = solve f_k + beta/2 |. - v|^2 from v; m <- lam m + mean of w_k - v; w~ <- w~ + m, which
    is the mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing, the server stores m.
    Defaults: lam = 0.85 and beta = 0.01. The shared model of a result is v, the one that is sent; the
    authors evaluate w~. lam = 0 is FedProx with mu = beta.
    Use when: few of the parties take part in a round, and FedAvg fluctuates or is slow.

    Args:
        solver: local solver of each party.
        lam: decay of the server's momentum, in [0, 1).
        beta: weight of the proximal term.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedacg(rv.SGD(0.1, batch_size=20, epochs=1), lam=0.8)

    References:
        Kim, Kim, Han: Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024,
        Algorithm 1.
    """
    check_range("fedacg", "[0, 1)", lam=lam)
    check_range("fedacg", "[0, inf)", beta=beta)
    # Nesterov's form of momentum on the points v: v+ = mean of w_k + lam m+.
    optimizer = traced_optimizer(optax.sgd, learning_rate=1.0, momentum=lam, nesterov=True)
    return ServerOptimizer(fedprox(solver, mu=beta), optimizer)


@checked
def fedadam(solver: LocalSolver, *, server_rate: float = 0.01, b1: float = 0.9, b2: float = 0.99,
            eps: float = 1e-3) -> Algorithm:
    """FedAdam: FedAvg with Adam on the server.

    The server treats g = w~ - mean of w_k as a gradient, and makes a step of Adam.

    Problem: the average loss, up to FedAvg's bias.
    Update: w_k = solve f_k from w~; with g = w~ - mean of w_k, m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2; w~ <- w~ -
    server_rate m/(sqrt(v) + eps).
    Communication: down 1 model, up 1; a party stores nothing, the server stores m and v.
    Defaults: b1, b2 and eps are the authors' 0.9, 0.99 and 0.001. The optimizer is optax's Adam, which corrects the
    moments for their start at zero, as the authors do not.
    Use when: coordinates differ in scale, as in language models; server_rate then needs its own search.

    Args:
        solver: local solver of each party.
        server_rate: learning rate of the server, positive.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        eps: the paper's tau, positive; the larger it is, the less adaptive is the step.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedadam(rv.SGD(0.1, batch_size=20, epochs=1), server_rate=0.03)

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
        Algorithm 2.
    """
    check_range("fedadam", "(0, inf)", server_rate=server_rate, eps=eps)
    check_range("fedadam", "[0, 1)", b1=b1, b2=b2)
    return _with_server_optimizer(solver, optax.adam, learning_rate=server_rate, b1=b1, b2=b2, eps=eps)


@checked
def fedyogi(solver: LocalSolver, *, server_rate: float = 0.01, b1: float = 0.9, b2: float = 0.99,
            eps: float = 1e-3) -> Algorithm:
    """FedYogi: FedAvg with Yogi on the server.

    The server treats g = w~ - mean of w_k as a gradient, and makes a step of Yogi.

    Problem: the average loss, up to FedAvg's bias.
    Update: w_k = solve f_k from w~; with g = w~ - mean of w_k, m <- b1 m + (1-b1) g, v <- v - (1-b2) sign(v - g^2) g^2;
    w~ <- w~ - server_rate m/(sqrt(v) + eps).
    Communication: down 1 model, up 1; a party stores nothing, the server stores m and v.
    Defaults: b1, b2 and eps are the authors' 0.9, 0.99 and 0.001. As the authors' moments, m starts at 0 and v at
    eps^2. The update is optax's Yogi, which divides the moments by 1 - b1^t and 1 - b2^t, as the authors do not.
    Use when: coordinates differ in scale, as in language models; server_rate then needs its own search. It adapts more
    slowly than FedAdam if gradients are sparse.

    Args:
        solver: local solver of each party.
        server_rate: learning rate of the server, positive.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        eps: the paper's tau, positive; the larger it is, the less adaptive is the step.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedyogi(rv.SGD(0.1, batch_size=20, epochs=1), server_rate=0.03)

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
        Algorithm 2.
    """
    check_range("fedyogi", "(0, inf)", server_rate=server_rate, eps=eps)
    check_range("fedyogi", "[0, 1)", b1=b1, b2=b2)
    return _with_server_optimizer(solver, _yogi, learning_rate=server_rate, b1=b1, b2=b2, eps=eps)


def _yogi(learning_rate: ArrayLike, b1: ArrayLike, b2: ArrayLike, eps: ArrayLike) -> optax.GradientTransformation:
    """Yogi with m_0 = 0 and v_0 = eps^2; ``optax.yogi`` starts m at 1e-6, so that a model at rest moves."""
    scaled = optax.scale_by_yogi(b1, b2, eps, initial_accumulator_value=jnp.square(eps))

    def init(params: optax.Params) -> optax.OptState:
        state = scaled.init(params)
        return state._replace(mu=jax.tree.map(jnp.zeros_like, state.mu))

    return optax.chain(optax.GradientTransformation(init, scaled.update), optax.scale_by_learning_rate(learning_rate))


def _with_server_optimizer(solver: LocalSolver, factory: Callable[..., optax.GradientTransformation],
                           **settings: float) -> Algorithm:
    """FedAvg whose server makes steps of an optax optimizer."""
    return ServerOptimizer(fedavg(solver), traced_optimizer(factory, **settings))
