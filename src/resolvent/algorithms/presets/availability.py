"""Shared-model methods for parties that take part at different rates."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.methods.availability import FedAU, StoredUpdates
from resolvent.arguments import checked
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedau", "fedvarp", "mifa"]


@checked
def mifa(solver: LocalSolver, *, server_rate: float = 1.0) -> Algorithm:
    """MIFA: in every round the server steps with the last updates of all parties, also of those that are absent.

    With all parties in every round it is FedAvg.

    Problem: min over w of the average loss, as FedAvg's with all parties, however often each party takes part.
    Update: d_k = w_k - w~ - h_k with w_k = solve f_k from w~; h_k <- w_k - w~; h <- h + sum over replies of
    lambda_k d_k; w~ <- w~ + server_rate * h.
    Communication: down 1 model, up 1; a party stores h_k, the server stores h.
    Defaults: server_rate = 1 is FedAvg's step. The more rounds parties are absent, the smaller steps must be. In a
    round without a reply nothing changes, where the paper's server repeats its last step.
    Use when: parties take part at different and unknown rates, and each of them again and again.

    Args:
        solver: local solver of each party.
        server_rate: the server's learning rate, positive.

    Raises:
        InputError: ``server_rate`` is not positive.

    Example:
        >>> algorithm = rv.mifa(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Gu, Huang, Zhang, Huang: Fast Federated Learning in the Presence of Arbitrary Device Unavailability, NeurIPS
        2021, Algorithm 1.
    """
    return StoredUpdates(solver, "memory", server_rate)


@checked
def fedvarp(solver: LocalSolver, *, server_rate: float = 1.0) -> Algorithm:
    """FedVARP: stored updates of all parties reduce the variance of the sampling; as ``mifa`` with an unbiased step.

    Problem: min over w of the average loss, for cohorts that are drawn without bias.
    Update: d_k = w_k - w~ - h_k with w_k = solve f_k from w~; h_k <- w_k - w~; w~ <- w~ + server_rate * (h + mean of
    d_k); h <- h + sum over replies of lambda_k d_k.
    Communication: down 1 model, up 1; a party stores h_k, the server stores h.
    Defaults: server_rate = 1 is FedAvg's step.
    Use when: cohorts are small and parties differ; also inside ``fedbuff``, where it is CA2FL.

    Args:
        solver: local solver of each party.
        server_rate: the server's learning rate, positive.

    Raises:
        InputError: ``server_rate`` is not positive.

    Example:
        >>> algorithm = rv.fedvarp(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Jhunjhunwala, Sharma, Nagarkatti, Joshi: FedVARP: Tackling the Variance Due to Partial Client Participation in
        Federated Learning, UAI 2022, Algorithm 2.
    """
    return StoredUpdates(solver, "corrected", server_rate)


@checked
def fedau(solver: LocalSolver, *, cutoff: int = 50, server_rate: float = 1.0) -> Algorithm:
    """FedAU: each party weighs its update by the mean number of rounds between two of its replies.

    Problem: min over w of the average loss, whatever the constant rates at which parties take part.
    Update: omega_k = mean interval between the rounds of party k, at most cutoff each; w_k = solve f_k from w~;
    w~ <- w~ + server_rate * sum over replies of lambda_k omega_k (w_k - w~).
    Communication: down 1 model + 1 number, up 1; a party stores 3 numbers.
    Defaults: cutoff = 50 is the authors' choice; server_rate = 1.
    Use when: parties take part at different and unknown rates, and cannot store a model.

    Args:
        solver: local solver of each party.
        cutoff: longest interval that counts, in rounds, at least 1; shorter ones bound the weights and leave a bias.
        server_rate: the server's learning rate, positive.

    Raises:
        InputError: ``cutoff`` is less than 1, or ``server_rate`` is not positive.

    Example:
        >>> algorithm = rv.fedau(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Wang, Ji: A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging, ICLR 2024,
        Algorithms 1 and 2.
    """
    return FedAU(solver, cutoff, server_rate)
