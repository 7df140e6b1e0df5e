"""Personal models around a shared one: the Fed+ family, its over-relaxed form by operator splitting, and Ditto."""

from typing import Annotated, Literal, TypeAlias

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators.aggregator import Aggregator, Mean
from resolvent.algorithms.aggregators.medians import MoreauCentre
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.methods.ditto import Ditto
from resolvent.algorithms.methods.fedplus import FedPlus, ProxAnchor, PullAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.algorithms.presets.scale_free import Aggregated, aggregate_parties, default_sigma
from resolvent.arguments import checked
from resolvent.math.penalties import L1, L2Norm, Penalty, SquaredL2
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["ditto", "fedavg_plus", "fedcomed_plus", "fedgeomed_plus", "fedpi_plus", "fedplus", "fedplus_pull",
           "personal_splitting"]

_KAPPA = 0.98  # 1/(1 + step size * sigma) of fedpi_plus
_DELTA = 10.0  # of penalties that are not norms: a squared norm pulls by the share delta/(1 + delta)
_UNSMOOTHED_SPREAD = 0.3  # without smoothing, parties that are nearer than about delta agree exactly

# The smoothing as a number, or the median distance of the replies from the centre.
Delta: TypeAlias = Annotated[float, "(0, inf)"] | Literal["spread"]


def _anchor_and_centre(penalty: Penalty, delta: Delta | None, tolerance: float = 0.0,
                       spread: float = 1.0) -> tuple[ProxAnchor, Aggregator]:
    """R and A of a penalty; by default delta is relative to the spread for norms, and 10 for other penalties."""
    if delta is None:
        delta = "spread" if penalty.has_bounded_pull else _DELTA
    is_relative, number = isinstance(delta, str), spread if isinstance(delta, str) else delta
    anchor = ProxAnchor(penalty, number, is_relative)
    if isinstance(penalty, SquaredL2):  # its Moreau centre is the mean, so no iteration is needed
        return anchor, Mean()
    return anchor, MoreauCentre(penalty, number, tolerance, is_relative=is_relative)


@checked
def fedplus(solver: LocalSolver, penalty: Penalty, *, sigma: float | None = None, delta: Delta | None = None,
            lam: float = 0.0, abstains: bool = False, aggregate: Aggregated = "active",
            tolerance: float = 0.0) -> Algorithm:
    """Fed+: personal models around a centre, both from one penalty on their differences.

    The penalty Psi = sigma*delta*phi says which differences theta_k between a personal model and the centre are cheap.
    It determines both where a party's model is pulled to and how the server aggregates.

    Problem: min over W, Theta, w~ of sum_k lambda_k [f_k(w_k) + Psi(theta_k) + sigma/2 |w_k - w~ - theta_k|^2]. The
    paper gives all parties the same weight, as ``Full("uniform")`` does.
    Update: theta_k = prox of delta*phi at w_k - w~; w_k <- solve f_k + sigma/2 |. - w~ - theta_k|^2 from (1-lam) w_k +
    lam w~; w~ <- argmin over w of sum_k weight_k min_theta phi(theta) + |w_k - w - theta|^2/(2 delta).
    Communication: down 1 model, up 1; a party stores its model.
    Defaults: sigma makes kappa = 1/(1 + learning_rate*sigma) equal to 0.95; the paper recommends 0.9 to 0.999. For a
    solver without a learning rate, such as LBFGS, sigma = 0.1. delta is relative to the spread of the models: the
    median distance of the parties from the centre, which the server measures in every round and sends with the centre.
    It is 10 for a squared norm, which has no such distance. The paper's delta = 0.1 (section 4.4.1) is a length in the
    space of parameters, with which Fed+ is nearly local training on many problems. lam = 0 is the paper's.
    Use when: one penalty for all layers is not suitable: ``PerLayer`` and ``Scaled`` give each layer its own. The usual
    penalties have presets: ``fedavg_plus``, ``fedgeomed_plus`` and ``fedcomed_plus``.

    Args:
        solver: local solver of each party.
        penalty: phi, such as L2Norm, which makes it fedgeomed_plus; if nothing is known, use robust_interpolation.
        sigma: weight of the term that keeps a party's model near its anchor w~ + theta_k;
            default: 0.053/learning rate.
        delta: the smoothing: differences that the prox of delta*phi removes are pulled to the centre completely; a
            number, or ``spread``, the median distance; default: see above.
        lam: where local work starts: 0 at the party's model, 1 at the centre.
        abstains: a party trains alone, and replies the centre, in rounds whose centre is worse for its training samples
            than the first model was; see ``FedPlus``.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.
        tolerance: the relative residual at which the centre's iteration stops; by default the rounding error of the
            numbers' type.

    Raises:
        InputError: ``aggregate`` is not known; ``sigma`` is negative, ``delta`` is not positive, or ``lam`` is outside
            [0, 1].

    Example:
        >>> layers = rv.penalties.PerLayer({"bias": rv.penalties.OriginIndicator()}, default=rv.penalties.L2Norm())
        >>> algorithm = rv.fedplus(rv.SGD(0.1, batch_size=20, epochs=1), layers, sigma=1.0)

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, (3), (7), (11), (12) and Algorithm 1.
    """
    method = FedPlus(solver, *_anchor_and_centre(penalty, delta, tolerance), default_sigma(solver, sigma), lam,
                     abstains=abstains)
    return aggregate_parties(aggregate, method)


@checked
def fedavg_plus(solver: LocalSolver, *, sigma: float | None = None, delta: float = _DELTA, lam: float = 0.0,
                aggregate: Aggregated = "active") -> Algorithm:
    """FedAvg+: personal models around the mean, Psi = sigma*delta/2 |theta|^2.

    The quadratic penalty makes every difference from the mean cost its square.

    Problem: Fed+'s, min over W, w~ of sum_k lambda_k [f_k(w_k) + sigma*delta/(2(1 + delta)) |w_k - w~|^2].
    Update: theta_k = (w_k - w~)/(1 + delta); w_k <- solve f_k + sigma/2 |. - w~ - theta_k|^2 from (1-lam) w_k + lam w~;
    w~ <- mean of w_k.
    Communication: as fedplus.
    Defaults: sigma and lam as in fedplus. delta = 10 pulls by 10/11 of the difference from the mean. The paper has
    delta = 0.1 (section 4.4.1), its experiments 0.001, and the first paper's rho = 1000: nearly local training and
    nearly FedProx.
    Use when: parties differ and all of them are honest.

    Args:
        solver: local solver of each party.
        sigma: weight of the term that keeps a party's model near its anchor w~ + theta_k;
            default: 0.053/learning rate.
        delta: how strongly the anchor is pulled from the party's model to the mean.
        lam: where local work starts: 0 at the party's model, 1 at the centre.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.

    Raises:
        InputError: ``aggregate`` is not known; ``sigma`` is negative, ``delta`` is not positive, or ``lam`` is outside
            [0, 1].

    Example:
        >>> algorithm = rv.fedavg_plus(rv.SGD(0.1, batch_size=20, epochs=1), sigma=1.0, delta=0.1)

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, section 4.4.1 with (7) and (11).
    """
    return fedplus(solver, SquaredL2(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate)


@checked
def fedgeomed_plus(solver: LocalSolver, *, sigma: float | None = None, delta: Delta = "spread",
                   lam: float = 0.0, aggregate: Aggregated = "active", tolerance: float = 0.0) -> Algorithm:
    """FedGeoMed+: personal models around a smoothed geometric median, Psi = sigma*delta |theta|.

    The cost of a party's difference from the centre grows only linearly with its length, so that outliers neither lose
    their own model nor move the centre.

    Problem: Fed+'s with phi = |theta|.
    Update: theta_k = max(0, 1 - delta/|w_k - w~|) (w_k - w~); w_k <- solve f_k + sigma/2 |. - w~ - theta_k|^2 from
    (1-lam) w_k + lam w~; w~ <- argmin over w of the sum of weight_k times Huber's function of |w_k - w|.
    Communication: as fedplus.
    Defaults: sigma, delta and lam as in fedplus; the paper has delta = 0.1 (section 4.4.1). A party nearer than delta
    is pulled to the centre completely, one further away by delta.
    Use when: parties differ and some may be outliers or corrupt, and you set or tune sigma; ``robust_interpolation``
    and ``protected_fedplus`` need no settings.

    Args:
        solver: local solver of each party.
        sigma: weight of the term that keeps a party's model near its anchor w~ + theta_k;
            default: 0.053/learning rate.
        delta: the distance from the centre below which a party has the centre as its anchor; a number, or ``spread``,
            the median distance of the parties.
        lam: where local work starts: 0 at the party's model, 1 at the centre.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.
        tolerance: the relative residual at which the centre's iteration stops; by default the rounding error of the
            numbers' type.

    Raises:
        InputError: ``aggregate`` is not known; ``sigma`` is negative, ``delta`` is not positive, or ``lam`` is outside
            [0, 1].

    Example:
        >>> algorithm = rv.fedgeomed_plus(rv.SGD(0.1, batch_size=20, epochs=1), sigma=1.0, delta=0.5)
        >>> algorithm.aggregator.breakdown_point
        0.5

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, section 4.4.1 and (16).
    """
    return fedplus(solver, L2Norm(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate, tolerance=tolerance)


@checked
def fedcomed_plus(solver: LocalSolver, *, sigma: float | None = None, delta: Delta = "spread",
                  lam: float = 0.0, aggregate: Aggregated = "active") -> Algorithm:
    """FedCoMed+: personal models around a smoothed coordinate-wise median, Psi = sigma*delta |theta|_1.

    The 1-norm makes a party's model differ from the centre in few coordinates.

    Problem: Fed+'s with phi = |theta|_1.
    Update: theta_k = sign(r) max(|r| - delta, 0), r = w_k - w~, by coordinate; w_k <- solve f_k + sigma/2 |. - w~ -
    theta_k|^2 from (1-lam) w_k + lam w~; w~ <- argmin over w of the sum of weight_k times Huber's function of each
    coordinate of w_k - w. The paper prints a soft threshold that loses negative coordinates; this is the odd one.
    Communication: as fedplus.
    Defaults: sigma, delta and lam as in fedplus; delta applies per coordinate, so a number should be smaller than for
    FedGeoMed+. The paper has delta = 0.1 (section 4.4.1).
    Use when: parties differ in few coordinates, such as the bias of a layer; in the paper's Table 2 it is the weakest
    of the three on images.

    Args:
        solver: local solver of each party.
        sigma: weight of the term that keeps a party's model near its anchor w~ + theta_k;
            default: 0.053/learning rate.
        delta: the threshold per coordinate; a number, or ``spread``, the median over the parties of the largest
            absolute difference from the centre.
        lam: where local work starts: 0 at the party's model, 1 at the centre.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.

    Raises:
        InputError: ``aggregate`` is not known; ``sigma`` is negative, ``delta`` is not positive, or ``lam`` is outside
            [0, 1].

    Example:
        >>> algorithm = rv.fedcomed_plus(rv.SGD(0.1, batch_size=20, epochs=1), sigma=1.0, delta=0.01)

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, section 4.4.1, (19) and (22).
    """
    return fedplus(solver, L1(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate)


@checked
def fedplus_pull(solver: LocalSolver, aggregator: Aggregator, *, gamma: ArrayLike | Float[Array, " N"] = 0.5,
                 sigma: float | None = None, lam: float = 0.0, aggregate: Aggregated = "active") -> Algorithm:
    """Fed+ with any aggregator and a pull per party: the anchor and the centre need not share a penalty.

    With the mean and gamma = delta/(1 + delta) it is FedAvg+.

    Problem: none in general. At a fixed point, for the mean and the medians, the aggregate of grad f^_k(z_k)/(sigma
    gamma_k) is zero, with f^_k the Moreau envelope of f_k.
    Update: z_k = (1 - gamma_k) w_k + gamma_k w~; w_k <- solve f_k + sigma/2 |. - z_k|^2 from (1-lam) w_k + lam w~; w~
    <- A(w_1, ..., w_N).
    Communication: down 1 model and gamma_k, up 1 model; a party stores its model.
    Defaults: gamma = 0.5: the anchor is half of the way to the centre; sigma as in fedplus.
    Use when: you want a certain aggregator, or some parties held closer to the centre than others.

    Args:
        solver: local solver of each party.
        aggregator: A.
        gamma: how far the anchor is from the party's model to the centre, in (0, 1]; one number or one per party.
        sigma: weight of the term that keeps a party's model near its anchor z_k; default: 0.053/learning rate.
        lam: where local work starts: 0 at the party's model, 1 at the centre.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.

    Raises:
        InputError: ``gamma`` is outside (0, 1], ``sigma`` is negative, or ``lam`` is outside [0, 1]; ``aggregate`` is
            not known; at the start of a run, ``gamma`` has another length than N.

    Example:
        >>> solver, median = rv.SGD(0.1, batch_size=20, epochs=1), rv.aggregators.CoordinateMedian()
        >>> algorithm = rv.fedplus_pull(solver, median, gamma=np.array([0.2, 0.5, 0.9]))

    References:
        Yu, Kundu, Wynter, Lim: Fed+: A Unified Approach to Robust Personalized Federated Learning, 2020, Proposition 3
        with (27)-(29).
    """
    method = FedPlus(solver, PullAnchor(gamma), aggregator, default_sigma(solver, sigma), lam)
    return aggregate_parties(aggregate, method)


@checked
def personal_splitting(solver: LocalSolver, penalty: Penalty, *, sigma: float | None = None,
                       delta: Delta | None = None, alpha: float = 1.0, beta: float = 1.0, gamma: float = 1.0,
                       lam: float = 0.0, aggregate: Aggregated = "active") -> Algorithm:
    """Personal splitting: Fed+'s personal anchors in the over-relaxed scheme of operator splitting.

    It combines two papers: the centre and the anchors are Fed+'s, the relaxations alpha, beta and gamma those of
    operator splitting. The combination is new here.

    Problem: min over W, Theta, w~ of sum_k lambda_k [f_k(w_k) + (beta/alpha) sigma delta phi(theta_k) +
    s/2 |w_k - w~ - theta_k|^2], s = sigma/(1 + alpha/beta - alpha): Fed+'s smoothed problem (3) for (alpha, beta) =
    (1, 1), and for (2, 2), where s is infinite, Fed+'s original problem (2).
    Update: party: z = (1-alpha) u + alpha w with w = argmin f_k + sigma/2 |w - u|^2; server: w~ = the Moreau centre of
    the z; party: u = (1-gamma) u + gamma [(1-beta) z + beta a], a = w~ + prox_{delta phi}(z - w~).
    Communication: down 1 model, up 1; a party stores 2, u and its model w.
    Defaults: sigma and delta are Fed+'s, see fedplus; (1, 1, 1) is Fed+; the penalty OriginIndicator makes it
    splitting(decentralised=True) with eta = 1/sigma.
    Use when: Fed+ is too slow or its smoothing is unwanted. For convex losses and exact local work it is proved to
    converge if gamma < 1 or both alpha, beta < 2; otherwise only for strongly convex, smooth losses.

    Args:
        solver: local solver of each party.
        penalty: phi.
        sigma: weight of the term that keeps a party's model near u; it is 1/eta of splitting; default:
            0.053/learning rate.
        delta: the smoothing: differences that the prox of delta*phi removes are pulled to the centre completely; a
            number, or ``spread``; default: as in fedplus.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the anchor, in [0, 2].
        gamma: weight of the new iterate, in [0, 1].
        lam: where local work starts: 0 at the party's model, 1 at u.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last replies of absent parties.

    Raises:
        InputError: ``aggregate`` is not known; a parameter is outside its range.

    Example:
        >>> solver = rv.solvers.GD(0.1, steps=10)
        >>> algorithm = rv.personal_splitting(solver, rv.penalties.L2Norm(), alpha=1.5, beta=1.5)

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, (2), (3) and (11).

        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (24)-(26).
    """
    method = PersonalSplitting(solver, *_anchor_and_centre(penalty, delta), default_sigma(solver, sigma), alpha, beta,
                               gamma, lam)
    return aggregate_parties(aggregate, method)


@checked
def fedpi_plus(solver: LocalSolver, penalty: Penalty, *, sigma: float | None = None, delta: Delta | None = None,
               lam: float = 0.0, aggregate: Aggregated = "active") -> Algorithm:
    """FedPi+: Douglas-Rachford splitting with Fed+'s anchors, which solves Fed+'s problem without smoothing.

    It is to Fed+ what FedPi is to FedProx. The combination is new here.

    Problem: min over W, w~ of sum_k lambda_k [f_k(w_k) + Psi(w_k - w~)] with Psi = sigma*delta*phi: Fed+'s (2), of
    which Fed+ itself solves the smoothed form (3).
    Update: as personal_splitting with (alpha, beta, gamma) = (2, 2, 1/2).
    Communication: down 1 model, up 1; a party stores 2, u and its model.
    Defaults: sigma is 0.4 of Fed+'s, with which it needs fewer rounds; delta is 0.3 of the median distance of the
    replies from the centre, because without smoothing parties that are nearer than about delta agree exactly. The
    problem depends on sigma*delta only; their ratio determines the speed.
    Use when: parties that agree should have exactly the same model (phi a norm), and local work is nearly exact.

    Args:
        solver: local solver of each party.
        penalty: phi.
        sigma: weight of the term that keeps a party's model near u; it is 1/eta of splitting; default:
            0.0204/learning rate.
        delta: with sigma, the strength of the penalty, sigma*delta; a number, or ``spread``, 0.3 of the median
            distance; default: ``spread`` for norms, and 10 for other penalties.
        lam: where local work starts: 0 at the party's model, 1 at u.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last replies of absent parties.

    Raises:
        InputError: ``aggregate`` is not known; ``sigma`` or ``delta`` is not positive, or ``lam`` is outside [0, 1].

    Example:
        >>> algorithm = rv.fedpi_plus(rv.solvers.GD(0.1, steps=10), rv.penalties.L2Norm(), sigma=1.0)

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, (2).

        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (16).
    """
    method = PersonalSplitting(solver, *_anchor_and_centre(penalty, delta, spread=_UNSMOOTHED_SPREAD),
                               default_sigma(solver, sigma, _KAPPA), 2.0, 2.0, 0.5, lam)
    return aggregate_parties(aggregate, method)


@checked
def ditto(solver: LocalSolver, *, lam: float | None = None) -> Algorithm:
    """Ditto: FedAvg's shared model, and a personal model that lam/2 |v_k - w~|^2 keeps near it.

    Personal models do not influence the shared model, which is exactly FedAvg's.

    Problem: min over v_k of f_k(v_k) + lam/2 |v_k - w~|^2 for every party, where w~ is FedAvg's shared model.
    Update: w_k = solve f_k from w~; v_k <- solve f_k + lam/2 |. - w~|^2 from v_k; w~ <- mean of w_k.
    Communication: down 1 model, up 1; a party stores v_k and does the local work twice.
    Defaults: lam makes 1/(1 + learning_rate*lam) equal to 0.95, as sigma of Fed+, whatever the scale of the parameters;
    0.1 for a solver without a learning rate. 0 is local training, and large lam approaches FedAvg.
    Use when: parties differ, and an unchanged shared model is wanted in addition to the personal models.

    Args:
        solver: local solver of each party, for both models.
        lam: weight of the term that keeps the personal model near the shared one; 0 is local training; default:
            0.053/learning rate.

    Raises:
        InputError: ``lam`` is negative.

    Example:
        >>> algorithm = rv.ditto(rv.SGD(0.1, batch_size=20, epochs=1), lam=0.5)

    References:
        Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
        Algorithm 1.
    """
    return Ditto(solver=solver, lam=default_sigma(solver, lam))
