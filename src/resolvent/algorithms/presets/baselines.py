"""What the papers compare with."""

from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.ditto import Ditto
from resolvent.algorithms.feddane import FedDANE
from resolvent.algorithms.fednova import FedNova
from resolvent.algorithms.scaffold import Option, Scaffold
from resolvent.problem.solvers import GD, SGD, LocalSolver

__all__ = ["ditto", "feddane", "fednova", "scaffold"]


def scaffold(solver: LocalSolver, *, option: Option = "II", server_rate: float = 1.0,
             stragglers: Stragglers = "keep") -> Algorithm:
    """Scaffold: control variates cancel the drift of parties that differ, so that FedAvg's bias goes.

    Solves the average loss (1). Down and up: two models (the model and a control variate); a party keeps its control
    variate. Source: Karimireddy et al., Algorithm 1.

    Args:
        solver: gradient steps, SGD or GD.
        option: ``I``, a gradient at the shared model, or ``II``, the average of the gradients that were used.
        server_rate: how far the shared model moves to the mean.
        stragglers: drop or keep partial work.
    """
    if not isinstance(solver, SGD | GD):
        raise TypeError(f"scaffold needs plain gradient steps, got {type(solver).__name__}: use SGD or GD")
    return Scaffold(solver=solver, option=option, server_rate=server_rate, stragglers=stragglers)


def feddane(solver: LocalSolver, *, mu: float = 0.1, stragglers: Stragglers = "keep") -> Algorithm:
    """FedDANE: FedProx's subproblem with the gradient corrected by the mean gradient, in two exchanges a round.

    Down: a model, then a model and a gradient; up: a gradient, then a model. Unstable where parties differ much.
    Source: FedProx (Li et al.), appendix B and Figure 4.

    Args:
        solver: the local solver.
        mu: the weight of the proximal term.
        stragglers: drop or keep partial work.
    """
    return FedDANE(solver=solver, mu=mu, stragglers=stragglers)


def fednova(solver: LocalSolver, *, stragglers: Stragglers = "keep") -> Algorithm:
    """FedNova: parties that make more local steps than others do not count for more.

    Problem: the average loss (1). With steps of length eta its fixed point is within O(eta) of the optimum however many
    steps each party makes; FedAvg's is as far off as if f_k weighed lambda_k tau_k.
    Update: d_k = (w_k - w~) / tau_k after tau_k gradient steps from w~; w~ <- w~ + mean(tau_k) mean(d_k).
    Travels: down 1 model, up 1 and a number; a party keeps nothing.
    Defaults: none; with the same tau_k for all it is FedAvg.
    Use when: parties make different numbers of steps: epochs over different sizes, stragglers, budgets of their own.
    Source: Wang, Liu, Liang, Joshi, Poor, with plain steps (a_k = (1, ..., 1)); no momentum, no proximal term.

    Args:
        solver: gradient steps, SGD or GD.
        stragglers: drop or keep partial work.
    """
    if not isinstance(solver, SGD | GD):
        raise TypeError(f"fednova divides by the number of plain gradient steps, got {type(solver).__name__}: use SGD "
                        "or GD")
    return FedNova(solver=solver, stragglers=stragglers)


def ditto(solver: LocalSolver, *, lam: float = 0.1, stragglers: Stragglers = "keep") -> Algorithm:
    """Ditto: FedAvg's shared model and, beside it, a personal model held to it by lam/2 |v_k - w~|^2.

    Up and down: one model; a party keeps its own and does the work twice. Source: Li, Hu, Beirami, Smith.

    Args:
        solver: the local solver, for both models.
        lam: how strongly the personal model is held to the shared one; 0 is local training.
        stragglers: drop or keep partial work.
    """
    return Ditto(solver=solver, lam=lam, stragglers=stragglers)
