"""Objectives that give parties with a large loss more influence."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.methods.fairness import QFedAvg
from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.problem.solvers import LocalSolver

__all__ = ["qfedavg"]


@checked
def qfedavg(solver: LocalSolver, *, q: float = 1.0, L: float | None = None) -> Algorithm:
    """q-FedAvg: FedAvg for the objective q-FFL, in which a party counts more the larger its loss.

    Problem: min over w of sum_k lambda_k/(q+1) f_k(w)^(q+1), for one gradient step per round: the larger q, the more
    even are the losses of the parties. q = 0 is the average loss, and large q approaches the largest loss.
    Update: w_k = solve f_k from w~; dw_k = L (w~ - w_k); w~ <- w~ - mean of (f_k(w~)^q dw_k) / mean of (q
    f_k(w~)^(q-1) |dw_k|^2 + L f_k(w~)^q).
    Communication: down 1 model, up 1 and a number; a party stores nothing.
    Defaults: q = 1; the authors choose it among 0.001 to 15 by data set. L is 1/learning rate, as the authors set it.
    q = 0 is FedAvg, whatever L is. With one gradient step and L = 1/learning rate it is q-FedSGD.
    Use when: one model has to serve all parties about equally well, and some have larger losses.

    Args:
        solver: local solver of each party.
        q: how much a large loss counts; 0 is FedAvg.
        L: Lipschitz constant of the gradients; default: 1/learning rate.

    Raises:
        InputError: ``q`` is negative, ``L`` is not positive, or it is missing and the solver has no learning rate.

    Example:
        >>> algorithm = rv.qfedavg(rv.SGD(0.1, batch_size=20, epochs=1), q=2.0)

    References:
        Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020, (2) and Algorithm 2.
    """
    if L is None:
        if solver.step_size is None:
            raise InputError(f"qfedavg needs L, the Lipschitz constant, since {type(solver).__name__} has no learning "
                             "rate: give it, such as L=10")
        L = 1 / solver.step_size  # type: ignore[assignment]
    return QFedAvg(solver=solver, q=q, L=L)  # type: ignore[arg-type]
