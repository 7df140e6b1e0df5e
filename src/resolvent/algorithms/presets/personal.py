"""Personal models around a robust centre: the Fed+ family."""

from typing import Literal

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean, MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.stale_replies import StaleReplies
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor, PullAnchor
from resolvent.math.penalties import L1, L2Norm, Penalty, SquaredL2
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedavg_plus", "fedcomed_plus", "fedgeomed_plus", "fedplus", "fedplus_pull"]

Over = Literal["active", "all"]


def fedplus(solver: LocalSolver, penalty: Penalty, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
            aggregate: Over = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Fed+ with any penalty: personal models around a centre that belongs to the same penalty.

    Problem: min over W, Theta, w~ of sum_k lambda_k [f_k(w_k) + Psi(theta_k) + sigma/2 |w_k - w~ - theta_k|^2] with Psi
    = sigma*delta*phi; the paper weighs all alike, which is ``Full("uniform")``.
    Update: theta_k = prox of delta*phi at w_k - w~; w_k <- solve f_k + sigma/2 |. - w~ - theta_k|^2 from (1-lam) w_k +
    lam w~; w~ <- argmin over w of sum_k weight_k min_theta phi(theta) + |w_k - w - theta|^2/(2 delta).
    Travels: down 1 model, up 1; a party keeps its own.
    Defaults: delta = 0.1 and lam = 0 are the paper's (section 4.4.1), which recommends a sigma for which 1/(1 +
    learning_rate*sigma) lies in [0.9, 0.999].
    Use when: one penalty for all layers is not right: ``PerLayer`` and ``Scaled`` give each layer its own.
    Source: Fed+, (3), (7), (11), (12) and Algorithm 1

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
                aggregate: Over = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedAvg+: personal models around the mean, Psi = sigma*delta/2 |theta|^2.

    Problem: Fed+'s, min over W, w~ of sum_k lambda_k [f_k(w_k) + sigma*delta/(2(1 + delta)) |w_k - w~|^2].
    Update: theta_k = (w_k - w~)/(1 + delta); w_k <- solve f_k + sigma/2 |. - w~ - theta_k|^2 from (1-lam) w_k + lam w~;
    w~ <- mean of w_k.
    Travels: down 1 model, up 1; a party keeps its own.
    Defaults: delta = 0.1 (section 4.4.1); the experiments use 0.001 in the newest paper and rho = 1000 in the first:
    nearly local training and nearly FedProx, so tune it (errata 4).
    Use when: parties differ and all of them are honest.
    Source: Fed+, section 4.4.1, with (7) and (11)

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
                   aggregate: Over = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedGeoMed+: personal models around a smoothed geometric median, Psi = sigma*delta |theta|.

    Problem: Fed+'s with phi = |theta|: a party may be far from the centre at a cost that grows like the distance only.
    Update: theta_k = max(0, 1 - delta/|w_k - w~|) (w_k - w~); w_k <- solve f_k + sigma/2 |. - w~ - theta_k|^2 from
    (1-lam) w_k + lam w~; w~ <- argmin over w of the sum of weight_k times Huber's function of |w_k - w|.
    Travels: down 1 model, up 1; a party keeps its own.
    Defaults: delta = 0.1 and lam = 0 (section 4.4.1). A party nearer than delta is pulled all the way to the centre,
    one further away by delta; so delta is to be read against the distances between models.
    Use when: parties differ and some may be outliers or corrupt: the first to try where nothing is known.
    Source: Fed+, section 4.4.1 and (16)

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
                  aggregate: Over = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedCoMed+: personal models around a smoothed coordinate-wise median, Psi = sigma*delta |theta|_1.

    Problem: Fed+'s with phi = |theta|_1: few coordinates of a party's model differ from the centre's.
    Update: theta_k = sign(r) max(|r| - delta, 0), r = w_k - w~, by coordinate; w_k <- solve f_k + sigma/2 |. - w~ -
    theta_k|^2 from (1-lam) w_k + lam w~; w~ <- argmin over w of the sum of weight_k times Huber's function of each
    coordinate of w_k - w.
    Travels: down 1 model, up 1; a party keeps its own.
    Defaults: delta = 0.1 and lam = 0 (section 4.4.1); delta is per coordinate, so smaller than FedGeoMed+'s would be.
    Use when: parties differ in few coordinates, such as the bias of a layer; in the paper's Table 2 it is the weakest
    of the three on images.
    Source: Fed+, section 4.4.1, (19) and (22), with the soft threshold in its odd form (errata 1)

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
                 stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Fed+ with any aggregator and any pull per party: the anchor and the centre need not share a penalty.

    Problem: none in general; at a fixed point, for the mean and the medians, the aggregate of grad f^_k(z_k)/(sigma
    gamma_k) is zero, f^_k the Moreau envelope of f_k.
    Update: z_k = (1 - gamma_k) w_k + gamma_k w~; w_k <- solve f_k + sigma/2 |. - z_k|^2 from (1-lam) w_k + lam w~; w~
    <- A(w_1, ..., w_N). With the mean and gamma = delta/(1 + delta) it is FedAvg+.
    Travels: down 1 model and gamma_k, up 1 model; a party keeps its own.
    Defaults: gamma = 0.5 pulls half of the way.
    Use when: you want a certain aggregator, or some parties held closer than others.
    Source: Fed+ (first paper), Proposition 3 with (27)-(29)

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
    return StaleReplies(algorithm) if aggregate == "all" else algorithm
