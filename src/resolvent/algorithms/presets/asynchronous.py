"""Shared-model methods whose server does not wait: each reply enters when it arrives on the virtual clock."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.asynchronous import Asynchronous
from resolvent.algorithms.presets.availability import fedvarp
from resolvent.algorithms.presets.shared import fedavg, fedprox
from resolvent.arguments import checked
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["ca2fl", "fedasync", "fedbuff"]


@checked
def fedasync(solver: LocalSolver, *, mixing: float = 0.6, mu: float = 0.005, power: float = 0.5, slope: float = 1.0,
             grace: float = 0.0, max_staleness: int = 100, concurrency: int | None = None) -> Algorithm:
    """FedAsync: the server mixes each model into the shared one as it arrives, the less the staler it is.

    Problem: an average of the FedProx problems in which a party counts as often as it replies.
    Update: w_k = solve f_k + mu/2 |. - w_v|^2 from w_v, the model that party k was sent; with staleness tau,
    a = mixing * (1 + slope max(0, tau - grace))^(-power); w~ <- (1 - a) w~ + a w_k.
    Communication: down 1 model, up 1; a party stores nothing, the server stores max_staleness + 1 models.
    Defaults: mixing = 0.6, mu = 0.005 and the polynomial weight with power = 0.5 are the authors'; power = 0 has no
    weights, and power = 1, slope = 10, grace = 4 is their hinge.
    Use when: a round would wait for slow parties, and the model is small enough to be replaced by each reply.

    Args:
        solver: local solver of each party.
        mixing: weight of a reply without staleness, in (0, 1].
        mu: weight of the proximal term, at least 0.
        power: exponent of the weight of a stale reply, at least 0.
        slope: factor of the staleness, positive.
        grace: staleness without a loss of weight, at least 0.
        max_staleness: replies with a larger staleness do not count.
        concurrency: number of parties that work at the same time, as in ``Arrivals``; default: all.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedasync(rv.SGD(0.1, batch_size=20, epochs=1), concurrency=10)
        >>> participation = rv.participation.Arrivals(2.0, concurrency=10, jitter=0.5)

    References:
        Xie, Koyejo, Gupta: Asynchronous Federated Optimization, 2019, Algorithm 1 and section 5.2.
    """
    return Asynchronous(fedprox(solver, mu=mu), anchor="current", mixing=mixing, power=power, slope=slope, grace=grace,
                        max_staleness=max_staleness, concurrency=concurrency)


@checked
def fedbuff(solver: LocalSolver, *, buffer: int = 10, server_rate: float = 1.0, power: float = 0.5,
            max_staleness: int = 100, concurrency: int | None = None) -> Algorithm:
    """FedBuff: the server makes a step with every ``buffer`` updates that have arrived.

    Problem: FedAvg's, in which a party counts as often as it replies.
    Update: w_k = solve f_k from w_v, the model that party k was sent; w~ <- w~ + server_rate * mean over the buffer of
    (1 + tau)^(-power) (w_k - w_v).
    Communication: down 1 model, up 1; a party stores nothing, the server stores max_staleness + 1 models and
    buffer updates.
    Defaults: buffer = 10 and the weight 1/sqrt(1 + tau) are the authors'; server_rate = 1.
    Use when: many parties differ in speed, and single updates are noisy.

    Args:
        solver: local solver of each party.
        buffer: number of updates of a step, at least 1.
        server_rate: the server's learning rate, positive.
        power: exponent of the weight of a stale update, at least 0.
        max_staleness: updates with a larger staleness do not count.
        concurrency: number of parties that work at the same time, as in ``Arrivals``; default: all.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedbuff(rv.SGD(0.1, batch_size=20, epochs=1), buffer=5)

    References:
        Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation,
        AISTATS 2022, Algorithm 1.
    """
    return Asynchronous(fedavg(solver), buffer=buffer, mixing=server_rate, power=power, max_staleness=max_staleness,
                        concurrency=concurrency)


@checked
def ca2fl(solver: LocalSolver, *, buffer: int = 10, server_rate: float = 1.0, max_staleness: int = 100,
          concurrency: int | None = None) -> Algorithm:
    """CA2FL: FedBuff whose updates are corrected by the last updates of all parties; it is ``fedvarp``, asynchronous.

    Problem: FedAvg's with all parties, nearly also if parties reply at different rates, because the last updates of all
    of them are in every step.
    Update: d_k = (w_k - w_v) - h_k with w_k = solve f_k from w_v; h_k <- w_k - w_v; every ``buffer`` replies
    w~ <- w~ + server_rate * (h + mean of d_k); h <- h + sum of lambda_k d_k.
    Communication: down 1 model, up 1; a party stores h_k, the server stores max_staleness + 1 models, h and the buffer.
    Defaults: as FedBuff's, without weights for staleness, which would make h another mean. Replies that are staler than
    max_staleness do not count, and their parties keep h_k. The paper's server caches every h_k, and h is their mean
    with the weights 1/N; here each party stores its own, and the weights are lambda_k.
    Use when: parties differ in speed and in their data.

    Args:
        solver: local solver of each party.
        buffer: number of updates of a step, at least 1.
        server_rate: the server's learning rate, positive.
        max_staleness: updates with a larger staleness do not count.
        concurrency: number of parties that work at the same time, as in ``Arrivals``; default: all.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.ca2fl(rv.SGD(0.1, batch_size=20, epochs=1), buffer=5, max_staleness=20)

    References:
        Wang, Cao, Wu, Chen, Chen: Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
        Calibration, ICLR 2024, Algorithm 2.
    """
    return Asynchronous(fedvarp(solver, server_rate=server_rate), buffer=buffer, max_staleness=max_staleness,
                        concurrency=concurrency)
