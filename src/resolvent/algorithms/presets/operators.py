"""Operator splitting: one scheme, five algorithms."""

from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.schedules import Schedule
from resolvent.algorithms.splitting import DecentralisedSplitting, LocalStep, Relaxation, Splitting
from resolvent.problem.solvers import LocalSolver

__all__ = ["fedpi", "fedrp", "fedsplit", "splitting"]


def splitting(solver: LocalSolver, *, eta: float | Schedule = 1.0, alpha: float | Schedule = 1.0,
              beta: float | Schedule = 1.0, gamma: float | Schedule = 1.0, local_step: LocalStep = "proximal",
              decentralised: bool = False, stragglers: Stragglers = "keep") -> Algorithm:
    """The grand scheme of operator splitting, of which FedAvg, FedProx, FedSplit, FedPi and FedRP are settings.

    z = (1-alpha) u + alpha P_f(u); w = (1-beta) z + beta P_H(z); u = (1-gamma) u + gamma w. Up and down: one model.
    Source: operator-splitting paper, (24)-(26) and Table 1; (1, 2, 1) is its variant (22), with gradient steps (21).

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
             stragglers: Stragglers = "keep") -> Algorithm:
    """FedSplit: Peaceman-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1).

    Solves (1) exactly with a constant eta where it converges: strongly convex and smooth parties. Source: Pathak and
    Wainwright; operator-splitting paper, (15).

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, decentralised=decentralised, stragglers=stragglers)


def fedpi(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
          stragglers: Stragglers = "keep") -> Algorithm:
    """FedPi: Douglas-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1/2).

    Solves (1) exactly with a constant eta for any convex parties. Source: operator-splitting paper, (16), Theorem 5.

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, gamma=0.5, decentralised=decentralised,
                     stragglers=stragglers)


def fedrp(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
          stragglers: Stragglers = "keep") -> Algorithm:
    """FedRP: the reflected party step and a plain mean, (alpha, beta, gamma) = (2, 1, 1).

    Shares FedProx's fixed points, those of the regularised problem (13), and is faster. Source: operator-splitting
    paper, (23), Theorem 7.

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step; let it fall to solve (1).
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, decentralised=decentralised, stragglers=stragglers)
