"""Personal models around a robust centre: the Fed+ family."""

from typing import Literal

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators import Aggregator, Mean, MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.fedplus import FedPlus, ProxAnchor, PullAnchor
from resolvent.algorithms.remembered import Remembered
from resolvent.math.prox import L1, L2Norm, Penalty, SquaredL2
from resolvent.problem.solvers import LocalSolver

__all__ = ["fedavg_plus", "fedcomed_plus", "fedgeomed_plus", "fedplus", "fedplus_pull"]

Over = Literal["active", "all"]


def fedplus(solver: LocalSolver, penalty: Penalty, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
            aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """Fed+ with any penalty: personal models around a centre that belongs to the same penalty.

    min over W, Theta, w~ of sum_k lambda_k [f_k(w_k) + Psi(theta_k) + sigma/2 |w_k - w~ - theta_k|^2] with
    Psi = sigma*delta*phi; the paper weighs all alike, which is ``Full("uniform")``.
    Up and down: one model; a party keeps its own. Source: Fed+, Algorithm 1 and (3).

    Args:
        solver: the local solver.
        penalty: phi.
        sigma: how strongly a party's model is held to its anchor.
        delta: the smoothing: differences that phi's prox with this step removes are pulled to the centre whole.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return _over(aggregate, FedPlus(solver, ProxAnchor(penalty, delta), MoreauCentre(penalty, delta), sigma, lam,
                                    stragglers=stragglers))


def fedavg_plus(solver: LocalSolver, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
                aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """FedAvg+: personal models around the mean, Psi = sigma*delta/2 |theta|^2.

    theta_k = (w_k - w~)/(1 + delta). The papers use delta 0.001 (newest) and rho = 1000 (first): nearly local
    training and nearly FedProx. Source: Fed+, section 4.4.1; errata 4.

    Args:
        solver: the local solver.
        sigma: how strongly a party's model is held to its anchor.
        delta: how strongly the anchor is drawn from the own model to the mean.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    # The Moreau centre of a squared norm is the mean: no iteration is needed.
    return _over(aggregate, FedPlus(solver, ProxAnchor(SquaredL2(), delta), Mean(), sigma, lam,
                                    stragglers=stragglers))


def fedgeomed_plus(solver: LocalSolver, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
                   aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """FedGeoMed+: personal models around a smoothed geometric median, Psi = sigma*delta |theta|.

    A party closer than delta to the centre is pulled all the way; one further away, outliers above all, by delta.
    Source: Fed+, section 4.4.1 and (16).

    Args:
        solver: the local solver.
        sigma: how strongly a party's model is held to its anchor.
        delta: the radius within which parties agree.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return fedplus(solver, L2Norm(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate, stragglers=stragglers)


def fedcomed_plus(solver: LocalSolver, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
                  aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """FedCoMed+: personal models around a smoothed coordinate-wise median, Psi = sigma*delta |theta|_1.

    Coordinates that differ by less than delta agree; the others keep a personal part. Source: Fed+, section 4.4.1,
    (19) and (22) with the soft threshold in its odd form (errata 1).

    Args:
        solver: the local solver.
        sigma: how strongly a party's model is held to its anchor.
        delta: the threshold per coordinate.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return fedplus(solver, L1(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate, stragglers=stragglers)


def fedplus_pull(solver: LocalSolver, aggregator: Aggregator, *, gamma: ArrayLike | Float[Array, " N"] = 0.5,
                 sigma: float = 0.1, lam: float = 0.0, aggregate: Over = "active",
                 stragglers: Stragglers = "keep") -> Algorithm:
    """Fed+ with any aggregator and any pull per party: z_k = (1 - gamma_k) w_k + gamma_k w~.

    Source: Fed+ (first paper), Proposition 3. With the mean and gamma = delta/(1 + delta) it is FedAvg+.

    Args:
        solver: the local solver.
        aggregator: A.
        gamma: in (0, 1], one number or one per party.
        sigma: how strongly a party's model is held to its anchor.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return _over(aggregate, FedPlus(solver, PullAnchor(gamma), aggregator, sigma, lam,
                                    stragglers=stragglers))


def _over(aggregate: Over, algorithm: Algorithm) -> Algorithm:
    return Remembered(algorithm) if aggregate == "all" else algorithm
