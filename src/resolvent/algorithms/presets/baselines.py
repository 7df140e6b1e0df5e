"""Corrections of FedAvg that most papers compare with."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.methods.aggregation import FedNova
from resolvent.algorithms.methods.corrections import FedDANE, Option, Scaffold
from resolvent.arguments import checked
from resolvent.problem.solvers.solver import LocalSolver, require_gradient_steps

__all__ = ["feddane", "fednova", "scaffold"]


@checked
def scaffold(solver: LocalSolver, *, option: Option = "II", server_rate: float = 1.0) -> Algorithm:
    """Scaffold: FedAvg with control variates, which remove the bias that parties with different data cause.

    The control variate c_k estimates the gradient of party k, and c is their weighted mean. Every local gradient step
    is corrected by c - c_k.

    Problem: min over w of the average loss, with many local steps.
    Update: w_k = gradient steps on f_k + <c - c_k, .> from w~; c_k <- grad f_k(w~) (option I) or c_k - c + (w~ -
    w_k)/(steps*learning_rate) (option II); w~ <- w~ + server_rate * mean of (w_k - w~); c moves by the sum of lambda_k
    times the change of c_k, so that it remains their weighted mean.
    Communication: down 2 models, up 2: the model and a control variate; a party stores its control variate.
    Defaults: option II, which costs no additional gradient; server_rate 1.
    Use when: parties differ, they take part often enough for their control variates to be recent, and bandwidth is no
    concern.

    Args:
        solver: gradient steps, SGD or GD.
        option: ``I``, a gradient at the shared model, or ``II``, the mean of the gradients of the local steps.
        server_rate: how far the shared model moves to the mean.

    Raises:
        InputError: ``solver`` is not SGD or GD.
        InputError: ``option`` is not known.

    Example:
        >>> algorithm = rv.scaffold(rv.SGD(0.1, batch_size=20, epochs=1), option="I")

    References:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
        Learning, ICML 2020, Algorithm 1.
    """
    return Scaffold(solver=require_gradient_steps("scaffold", solver), option=option, server_rate=server_rate)


@checked
def feddane(solver: LocalSolver, *, mu: float = 0.1) -> Algorithm:
    """FedDANE: FedProx with the gradient corrected by the mean gradient, in two exchanges per round.

    The first exchange collects the gradients at the shared model, the second the solutions of the corrected
    subproblems. The authors draw a cohort for each exchange; here both exchanges have the same cohort.

    Problem: min over w of the average loss, with exact solves and full participation.
    Update: g = mean of grad f_k(w~); w_k = solve f_k + <g - grad f_k(w~), .> + mu/2 |. - w~|^2 from w~; w~ <- mean of
    w_k.
    Communication: down 1 model, then 2, up 1, then 1; a party stores nothing.
    Defaults: mu = 0.1 as for FedProx.
    Use when: as a baseline: its authors find it unstable, and worse than FedProx, if parties differ or are sampled.

    Args:
        solver: local solver of each party.
        mu: weight of the proximal term.

    Raises:
        InputError: ``mu`` is negative.

    Example:
        >>> algorithm = rv.feddane(rv.SGD(0.1, batch_size=20, epochs=1), mu=1.0)
        >>> len(algorithm.phases)
        2

    References:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method, Asilomar 2019.

        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
        appendix B and Figure 4.
    """
    return FedDANE(solver=solver, mu=mu)


@checked
def fednova(solver: LocalSolver) -> Algorithm:
    """FedNova: FedAvg in which parties that make more local steps do not have more influence.

    The server averages the changes per step, and moves by the mean number of steps. This is the paper's method without
    a proximal term, with plain steps or with local momentum rho, for which tau_k becomes the total weight of the
    gradients, (tau_k - rho (1 - rho^tau_k)/(1 - rho))/(1 - rho).

    Problem: min over w of the average loss. With steps of length eta the fixed point is within O(eta) of the minimiser,
    whatever number of steps each party makes; that of FedAvg is near the minimiser of the loss in which f_k has the
    weight lambda_k tau_k.
    Update: d_k = (w_k - w~) / tau_k after tau_k gradient steps from w~; w~ <- w~ + mean(tau_k) mean(d_k).
    Communication: down 1 model, up 1 and a number; a party stores nothing.
    Defaults: none; with the same tau_k for all parties it is FedAvg.
    Use when: parties make different numbers of steps: epochs over data of different sizes, stragglers, or a budget for
    each party.

    Args:
        solver: gradient steps: SGD, GD, or momentum whose state is new in every round.

    Raises:
        InputError: ``solver`` is another one.

    Example:
        >>> algorithm = rv.fednova(rv.SGD(0.1, batch_size=20, epochs=5))
        >>> with_momentum = rv.fednova(rv.solvers.momentum(0.02, decay=0.8, batch_size=20, epochs=5))

    References:
        Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
        Optimization, NeurIPS 2020, section 4.
    """
    return FedNova(solver=solver)
