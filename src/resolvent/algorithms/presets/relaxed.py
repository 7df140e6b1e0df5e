"""Personal models by operator splitting: Fed+'s anchors, over-relaxed."""

from resolvent.algorithms.aggregators.aggregator import MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.stale_replies import StaleReplies
from resolvent.algorithms.methods.fedplus import ProxAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.algorithms.presets.personal import Over
from resolvent.math.penalties import Penalty
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedpi_plus", "personal_splitting"]


def personal_splitting(solver: LocalSolver, penalty: Penalty, *, sigma: float = 0.1, delta: float = 0.1,
                       alpha: float = 1.0, beta: float = 1.0, gamma: float = 1.0, lam: float = 0.0,
                       aggregate: Over = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Personal splitting: Fed+'s personal anchors in the over-relaxed scheme of operator splitting.

    Problem: min over W, Theta, w~ of sum_k lambda_k [f_k(w_k) + (beta/alpha) sigma delta phi(theta_k) +
    s/2 |w_k - w~ - theta_k|^2], s = sigma/(1 + alpha/beta - alpha): Fed+'s (3) for (alpha, beta) = (1, 1), and for
    (2, 2), where s is infinite, Fed+'s own problem (2).
    Update: party: z = (1-alpha) u + alpha w with w = argmin f_k + sigma/2 |w - u|^2; server: w~ = the Moreau centre of
    the z; party: u = (1-gamma) u + gamma [(1-beta) z + beta a], a = w~ + prox_{delta phi}(z - w~).
    Travels: down 1 model, up 1; a party keeps 2, u and its model w.
    Defaults: (1, 1, 1) is Fed+; the penalty OriginIndicator makes it splitting(decentralised=True) with eta = 1/sigma.
    Use when: Fed+ is too slow or its smoothing is unwanted. For convex losses and exact local work it is proved to
    converge if gamma < 1 or both alpha, beta < 2; else only for strongly convex, smooth losses.
    Source: Fed+, (2), (3), (11) joined with the operator-splitting paper, (24)-(26); new here.

    Args:
        solver: the local solver.
        penalty: phi.
        sigma: how strongly a party's model is held to u; 1/eta of splitting.
        delta: the smoothing: differences that phi's prox with this step removes are pulled to the centre whole.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the anchor, in [0, 2].
        gamma: share of the new iterate, in [0, 1].
        lam: where local work starts, 0 at the own model, 1 at u.
        aggregate: over the active parties, or over all N with absent ones' last replies.
        stragglers: drop or keep partial work.
    """
    joined = PersonalSplitting(solver, ProxAnchor(penalty, delta), MoreauCentre(penalty, delta), sigma, alpha, beta,
                               gamma, lam, stragglers=stragglers)
    return StaleReplies(joined) if aggregate == "all" else joined


def fedpi_plus(solver: LocalSolver, penalty: Penalty, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
               aggregate: Over = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedPi+: Douglas-Rachford splitting with Fed+'s anchors, which solves Fed+'s own problem instead of its smoothing.

    Problem: min over W, w~ of sum_k lambda_k [f_k(w_k) + Psi(w_k - w~)] with Psi = sigma*delta*phi: Fed+'s (2), where
    Fed+ itself solves the penalised (3). FedPi is to FedProx what this is to Fed+.
    Update: as personal_splitting with (alpha, beta, gamma) = (2, 2, 1/2).
    Travels: down 1 model, up 1; a party keeps 2, u and its model.
    Defaults: as Fed+'s. The problem depends on sigma*delta alone; their ratio sets the speed only.
    Use when: parties that agree should have exactly the same model (phi a norm), and local work is nearly exact.
    Source: Fed+, (2), with the operator-splitting paper's (16); new here.

    Args:
        solver: the local solver.
        penalty: phi.
        sigma: how strongly a party's model is held to u; 1/eta of splitting.
        delta: with sigma, the strength of the penalty, sigma*delta.
        lam: where local work starts, 0 at the own model, 1 at u.
        aggregate: over the active parties, or over all N with absent ones' last replies.
        stragglers: drop or keep partial work.
    """
    return personal_splitting(solver, penalty, sigma=sigma, delta=delta, alpha=2.0, beta=2.0, gamma=0.5, lam=lam,
                              aggregate=aggregate, stragglers=stragglers)
