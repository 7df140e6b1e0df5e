"""Operator splitting: one scheme, five algorithms."""

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.methods.splitting import DecentralisedSplitting, LocalStep, Relaxation, Splitting
from resolvent.algorithms.schedules import Schedule
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedpi", "fedrp", "fedsplit", "splitting"]


def splitting(solver: LocalSolver, *, eta: float | Schedule = 1.0, alpha: float | Schedule = 1.0,
              beta: float | Schedule = 1.0, gamma: float | Schedule = 1.0, local_step: LocalStep = "proximal",
              decentralised: bool = False, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """The grand scheme of operator splitting, of which FedAvg, FedProx, FedSplit, FedPi and FedRP are settings.

    Problem: (1), min over w of sum_k lambda_k f_k(w), for alpha = beta = 2 or where eta falls to zero slowly enough
    (Theorem 2); the regularised (13) for beta = 1 and a constant eta.
    Update: z = (1-alpha) u + alpha P_f(u), P_f(u) = argmin f_k + 1/(2 eta) |. - u|^2; w = (1-beta) z + beta P_H(z), P_H
    the weighted mean over the parties; u <- (1-gamma) u + gamma w.
    Travels: down 1 model (and eta), up 1; a party keeps nothing, or u and z if decentralised.
    Defaults: (1, 1, 1), which is FedProx with mu = 1/eta; (1, 2, 1) is the variant (22), with gradient steps (21).
    Use when: you want to look between the named settings, or a schedule for a relaxation.
    Source: operator-splitting paper, (24)-(26) and Table 1; absent parties as in its Algorithm 1

    Args:
        solver: how a party computes P_f; inexact unless exact.
        eta: length of the proximal step, so that a party's penalty is 1/eta; a number or a schedule.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the mean, in [0, 2].
        gamma: share of the new iterate, in [0, 1].
        local_step: the proximal step, or the solver's plain gradient steps.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    form = DecentralisedSplitting if decentralised else Splitting
    relaxation = Relaxation(eta=eta, alpha=alpha, beta=beta, gamma=gamma)
    return form(solver=solver, relaxation=relaxation, local=local_step, stragglers=stragglers)


def fedsplit(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
             stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedSplit: Peaceman-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1).

    Problem: (1), min over w of sum_k lambda_k f_k(w), with a constant eta.
    Update: z = 2 P_f(u) - u; u <- 2 P_H(z) - z.
    Travels: down 1 model (and eta), up 1; a party keeps nothing, or u and z if decentralised.
    Defaults: eta = 1 knows nothing of your losses: it wants to be about 1/sqrt(mu L) of them.
    Use when: losses are strongly convex and smooth and everybody takes part: only then is the step a contraction
    (Theorem 5). The authors see it become unstable with half of the parties absent; take FedPi if in doubt.
    Source: Pathak and Wainwright; operator-splitting paper, (15)

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, decentralised=decentralised, stragglers=stragglers)


def fedpi(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
          stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedPi: Douglas-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1/2).

    Problem: (1), min over w of sum_k lambda_k f_k(w), with a constant eta, for any convex losses.
    Update: z = 2 P_f(u) - u; u <- u/2 + P_H(z) - z/2.
    Travels: down 1 model (and eta), up 1; a party keeps nothing, or u and z if decentralised.
    Defaults: eta = 1 knows nothing of your losses: it wants to be about 1/sqrt(mu L) of them.
    Use when: the exact minimiser of the average loss is wanted, local solves are accurate and everybody takes part;
    stable where FedSplit is not. With absent parties it stops near the solution, not at it (Figure 9).
    Source: operator-splitting paper, (16) and Theorem 6

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, gamma=0.5, decentralised=decentralised,
                     stragglers=stragglers)


def fedrp(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
          stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedRP: the reflected party step and a plain mean, (alpha, beta, gamma) = (2, 1, 1).

    Problem: the regularised problem (13) with a constant eta, whose solutions are its fixed points as they are
    FedProx's.
    Update: z = 2 P_f(u) - u; u <- P_H(z).
    Travels: down 1 model (and eta), up 1; a party keeps nothing, or u and z if decentralised.
    Defaults: eta = 1 is FedProx's mu = 1; let it fall (``InversePower``) to come near (1).
    Use when: FedProx is right but slow. Convergence is proved for alike parties and idempotent reflectors only; in the
    paper's nonconvex experiments it is among the best, under Anderson acceleration unstable.
    Source: operator-splitting paper, (23) and Theorem 7

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step; let it fall to solve (1).
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, decentralised=decentralised, stragglers=stragglers)
