"""What the papers compare with."""

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.methods.ditto import Ditto
from resolvent.algorithms.methods.feddane import FedDANE
from resolvent.algorithms.methods.fednova import FedNova
from resolvent.algorithms.methods.scaffold import Option, Scaffold
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver

__all__ = ["ditto", "feddane", "fednova", "scaffold"]


def scaffold(solver: LocalSolver, *, option: Option = "II", server_rate: float = 1.0,
             stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Scaffold: control variates cancel the drift of parties that differ, so that FedAvg's bias goes.

    Problem: (1), min over w of sum_k lambda_k f_k(w), with many local steps.
    Update: w_k = gradient steps on f_k + <c - c_k, .> from w~; c_k <- grad f_k(w~) (option I) or c_k - c + (w~ -
    w_k)/(steps*learning_rate) (option II); w~ <- w~ + server_rate * mean of (w_k - w~); c moves by the sum of lambda_k
    times the change of c_k, so that it stays their weighted mean.
    Travels: down 2 models, up 2: the model and a control variate; a party keeps its control variate.
    Defaults: option II, which costs no extra gradient; server_rate 1.
    Use when: parties differ, come back often enough for their control variates to be fresh, and bandwidth is no
    concern.
    Source: Karimireddy et al., Algorithm 1

    Args:
        solver: gradient steps, SGD or GD.
        option: ``I``, a gradient at the shared model, or ``II``, the average of the gradients that were used.
        server_rate: how far the shared model moves to the mean.
        stragglers: drop or keep partial work.
    """
    if not isinstance(solver, SGD | GD):
        raise TypeError(f"scaffold needs plain gradient steps, got {type(solver).__name__}: use SGD or GD")
    return Scaffold(solver=solver, option=option, server_rate=server_rate, stragglers=stragglers)


def feddane(solver: LocalSolver, *, mu: float = 0.1, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedDANE: FedProx's subproblem with the gradient corrected by the mean gradient, in two exchanges a round.

    Problem: (1), min over w of sum_k lambda_k f_k(w), with exact solves and everybody present.
    Update: g = mean of grad f_k(w~); w_k = solve f_k + <g - grad f_k(w~), .> + mu/2 |. - w~|^2 from w~; w~ <- mean of
    w_k.
    Travels: down 1 model, then 2, up 1, then 1; a party keeps nothing.
    Defaults: mu = 0.1 as for FedProx; the authors draw a cohort per exchange, here both have the same.
    Use when: as a comparison: its authors find it unstable, and worse than FedProx, where parties differ or are
    sampled.
    Source: FedProx, appendix B and Figure 4; Li et al., FedDANE

    Args:
        solver: the local solver.
        mu: the weight of the proximal term.
        stragglers: drop or keep partial work.
    """
    return FedDANE(solver=solver, mu=mu, stragglers=stragglers)


def fednova(solver: LocalSolver, *, stragglers: StragglerPolicy = "keep") -> Algorithm:
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


def ditto(solver: LocalSolver, *, lam: float = 0.1, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Ditto: FedAvg's shared model and, beside it, a personal model held to it by lam/2 |v_k - w~|^2.

    Problem: min over v_k of f_k(v_k) + lam/2 |v_k - w~|^2 for every party, at the w~ that FedAvg finds.
    Update: w_k = solve f_k from w~; v_k <- solve f_k + lam/2 |. - w~|^2 from v_k; w~ <- mean of w_k.
    Travels: down 1 model, up 1; a party keeps its own and does the work twice.
    Defaults: lam = 0.1; 0 is local training, large lam approaches FedAvg.
    Use when: parties differ and the shared model is wanted untouched beside the personal ones.
    Source: Li, Hu, Beirami, Smith, Algorithm 1

    Args:
        solver: the local solver, for both models.
        lam: how strongly the personal model is held to the shared one; 0 is local training.
        stragglers: drop or keep partial work.
    """
    return Ditto(solver=solver, lam=lam, stragglers=stragglers)
