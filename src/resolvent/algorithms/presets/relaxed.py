"""Personal models by operator splitting: Fed+'s anchors, over-relaxed."""

from resolvent.algorithms.aggregators import MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.methods.fedplus import ProxAnchor
from resolvent.algorithms.methods.personal_splitting import PersonalSplitting
from resolvent.algorithms.presets.personal import Aggregated, aggregate_parties
from resolvent.algorithms.presets.scale_free import UNSMOOTHED_MEDIAN_DISTANCES, default_sigma, with_delta
from resolvent.arguments import checked
from resolvent.math.penalties import Penalty
from resolvent.problem.solvers import LocalSolver

__all__ = ["fedpi_plus", "personal_splitting"]


@checked
def personal_splitting(solver: LocalSolver, penalty: Penalty, *, sigma: float | None = None,
                       delta: float | None = None, alpha: float = 1.0, beta: float = 1.0, gamma: float = 1.0,
                       lam: float = 0.0, aggregate: Aggregated = "active",
                       stragglers: StragglerPolicy = "keep") -> Algorithm:
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
        delta: the smoothing: differences that the prox of delta*phi removes are pulled to the centre completely;
            default: the median distance.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the anchor, in [0, 2].
        gamma: weight of the new iterate, in [0, 1].
        lam: where local work starts: 0 at the party's model, 1 at u.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last replies of absent parties.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

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
    def method(delta: float) -> PersonalSplitting:
        return PersonalSplitting(solver, ProxAnchor(penalty, delta), MoreauCentre(penalty, delta),
                                 default_sigma(solver, sigma), alpha, beta, gamma, lam, stragglers=stragglers)

    return aggregate_parties(aggregate, with_delta(penalty, delta, method))


@checked
def fedpi_plus(solver: LocalSolver, penalty: Penalty, *, sigma: float | None = None, delta: float | None = None,
               lam: float = 0.0, aggregate: Aggregated = "active", stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedPi+: Douglas-Rachford splitting with Fed+'s anchors, which solves Fed+'s problem without smoothing.

    It is to Fed+ what FedPi is to FedProx. The combination is new here.

    Problem: min over W, w~ of sum_k lambda_k [f_k(w_k) + Psi(w_k - w~)] with Psi = sigma*delta*phi: Fed+'s (2), of
    which Fed+ itself solves the smoothed form (3).
    Update: as personal_splitting with (alpha, beta, gamma) = (2, 2, 1/2).
    Communication: down 1 model, up 1; a party stores 2, u and its model.
    Defaults: sigma as in Fed+; delta is 0.3 times the median distance of the replies from the centre. The problem
    depends on sigma*delta only; their ratio determines the speed.
    Use when: parties that agree should have exactly the same model (phi a norm), and local work is nearly exact.

    Args:
        solver: local solver of each party.
        penalty: phi.
        sigma: weight of the term that keeps a party's model near u; it is 1/eta of splitting; default:
            0.053/learning rate.
        delta: with sigma, the strength of the penalty, sigma*delta; default: 0.3 median distances.
        lam: where local work starts: 0 at the party's model, 1 at u.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last replies of absent parties.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

    Raises:
        InputError: ``aggregate`` is not known; ``sigma`` or ``delta`` is not positive, or ``lam`` is outside [0, 1].

    Example:
        >>> algorithm = rv.fedpi_plus(rv.solvers.GD(0.1, steps=10), rv.penalties.L2Norm(), sigma=1.0)

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, (2).

        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (16).
    """
    def method(delta: float) -> PersonalSplitting:
        return PersonalSplitting(solver, ProxAnchor(penalty, delta), MoreauCentre(penalty, delta),
                                 default_sigma(solver, sigma), 2.0, 2.0, 0.5, lam, stragglers=stragglers)

    return aggregate_parties(aggregate, with_delta(penalty, delta, method, UNSMOOTHED_MEDIAN_DISTANCES))
