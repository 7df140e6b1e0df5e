"""Hyperparameters and mixtures that each party chooses by its held-out data."""

from itertools import product
from typing import Annotated

from resolvent.algorithms.aggregators.medians import MoreauCentre
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.held_out import HeldOutInterpolation, HeldOutSelection, Measure
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.presets.personal import fedplus
from resolvent.algorithms.presets.scale_free import Aggregated, aggregate_parties, with_server_momentum
from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.math.penalties import L2Norm, Penalty
from resolvent.problem.solvers.solver import SGD, LocalSolver

__all__ = ["fedplus_auto", "model_interpolation", "protected_fedplus", "robust_interpolation"]

_MEDIAN_LENGTHS = 0.3  # delta of robust_interpolation, in median lengths of the parties' updates


@checked
def fedplus_auto(solver: LocalSolver, penalty: Penalty = L2Norm(), *,  # noqa: B008 - a frozen module
                 sigmas: Annotated[tuple[float, ...], "[0, inf)"] = (0.03, 0.3, 3.0),
                 deltas: Annotated[tuple[float, ...], "(0, inf)"] = (0.1, 1.0, 10.0),
                 lam: float = 0.0, aggregate: Aggregated = "active", by: Measure = "score") -> Algorithm:
    """Fed+ auto: Fed+ in which each party chooses sigma and delta by its held-out data during training.

    A party trains one model for each pair of a grid, all around the same centre, and uses the best one. The choice is
    this library's own; the rest is Fed+.

    Problem: Fed+'s for the largest sigma and delta; and for each party the best of the models w_kj that the pairs
    (sigma_j, delta_j) keep near that centre.
    Update: w_kj = argmin f_k(w) + sigma_j/2 |w - z_kj|^2 with z_kj = w~ + prox_{delta_j phi}(w_kj - w~), for every
    pair j; the server runs Fed+ for the largest pair, whose models are the only ones that it receives. A party uses the
    w_kj with the best score on its validation samples; of equal scores, the one with the lowest loss.
    Communication: as Fed+, down 1 model, up 1; a party stores a model per pair, and does the local work of Fed+ for
    every pair.
    Defaults: nine pairs, a decade apart, from nearly local training to nearly one shared model.
    Use when: communication is expensive, local work is cheap, and nothing is known by which to choose sigma and delta.

    Args:
        solver: local solver of each party.
        penalty: phi of Psi = sigma*delta*phi.
        sigmas: candidates for sigma, the weight of the term that keeps a party's model near its anchor.
        deltas: candidates for delta, the smoothing.
        lam: where local work starts: 0 at the party's model, 1 at the centre.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.
        by: what is compared on the validation samples, the score (accuracy) or the loss.

    Raises:
        InputError: a sigma is negative, a delta is not positive, or ``lam`` is outside [0, 1]; there are no candidates,
            or ``aggregate`` is not known; at the start of a run, no party has validation samples.

    Example:
        >>> algorithm = rv.fedplus_auto(rv.SGD(0.1, batch_size=20, epochs=1), sigmas=(0.1, 1.0), deltas=(0.1, 1.0))
        >>> 1 + len(algorithm.others)
        4

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, Algorithm 1.
    """
    for name, candidates in (("sigmas", sigmas), ("deltas", deltas)):
        if not candidates:
            raise InputError(f"fedplus_auto({name}=()) has no candidates: give at least one number")
    first, *others = (fedplus(solver, penalty, sigma=sigma, delta=delta, lam=lam, aggregate=aggregate)
                      for sigma, delta in product(sorted(sigmas, reverse=True), sorted(deltas, reverse=True)))
    return HeldOutSelection(first, tuple(others), by)


@checked
def model_interpolation(solver: LocalSolver, inner: Algorithm, *, points: int = 11, by: Measure = "loss") -> Algorithm:
    """Model interpolation: each party uses the best mixture of its own and the joint model on its held-out data.

    One of the mixtures is the party's model trained alone, so the held-out loss of the model that a party uses is never
    higher than training alone gives. With few held-out samples this may not hold on test samples.

    Problem: the inner algorithm's; and for each party, min over s of its held-out loss at (1 - s) v_k + s J_k, with
    v_k its model trained alone and J_k its personal model of the inner algorithm.
    Update: the inner algorithm's, and v_k <- solve f_k from v_k.
    Communication: the inner algorithm's; a party also stores its own model and does the local work twice.
    Defaults: eleven mixtures, s = 0, 0.1, ..., 1; of equally good ones, that with the smallest s.
    Use when: parties must not lose by taking part.

    Args:
        solver: local solver of the model trained alone.
        inner: the algorithm that trains the joint model.
        points: number of mixtures, including both ends; with 2 a party uses one of the two models.
        by: what is compared on the validation samples, the loss or the score (accuracy).

    Raises:
        InputError: ``points`` is less than 2, or ``by`` is not known; at the start of a run, no party has validation
            samples.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> data = rv.datasets.digits(parties=3, validation=0.2)  # the choice needs held-out samples
        >>> algorithm = rv.model_interpolation(solver, rv.fedprox(solver, mu=0.1), points=5)

    References:
        Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning, 2020,
        model interpolation; the guarantee is this library's own.
    """
    return HeldOutInterpolation(inner, solver, points, by)


@checked
def robust_interpolation(solver: LocalSolver | None = None, *, delta: float | None = None,
                         aggregate: Aggregated = "active") -> Algorithm:
    """Robust interpolation: each party mixes its own model with a robust shared model on its held-out data.

    ``model_interpolation`` around FedAvg with the smoothed geometric median instead of the mean, and with the server's
    momentum 0.9 of ``fedavgm``. Momentum lets the shared model converge in few rounds also if the learning rate is
    small. Nothing has to be set. The combination is this library's own.

    Problem: model_interpolation's, around a shared model without an objective of its own.
    Update: model_interpolation's; w~ <- w~ + v, v <- 0.9 v + (the centre of w_k) - w~, with w_k <- solve f_k from w~,
    and the argmin over w of the sum of weight_k times Huber's function of |w_k - w| as the centre.
    Communication: down 1 model, up 1; a party stores its own model and does the local work twice.
    Defaults: the median is smoothed by 0.3 times the median length of the parties' updates, so that the algorithm does
    not depend on the scale of the parameters. With delta = 0.1, no honest party was distinguishably worse off than
    alone on the four problems of ``benchmarks/default.json``, and with the default learning rate of 0.1 the mean
    accuracy was at most 0.5 points below that of the best tuned method.
    Use when: nothing is known, and no party may lose.

    Args:
        solver: local solver of each party; default: SGD with learning rate 0.1.
        delta: the smoothing of the median: replies nearer to it than delta are averaged; default: see above.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.

    Raises:
        InputError: ``aggregate`` is not known, or ``delta`` is not positive; at the start of a run, no party has
            validation samples.

    Example:
        >>> algorithm = rv.robust_interpolation()

    References:
        Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning, 2020,
        model interpolation; Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified
        Approach via Regularization, 2022, the centre of section 4.4.1.
    """
    solver = SGD(0.1) if solver is None else solver
    median = (MoreauCentre(L2Norm(), _MEDIAN_LENGTHS, is_relative=True) if delta is None else
              MoreauCentre(L2Norm(), delta))
    centre = ModelAggregation(solver=solver, aggregator=median)
    return HeldOutInterpolation(with_server_momentum(aggregate_parties(aggregate, centre)), solver)


@checked
def protected_fedplus(solver: LocalSolver | None = None, penalty: Penalty = L2Norm(), *,  # noqa: B008 - a frozen module
                      aggregate: Aggregated = "active", tolerance: float = 0.0) -> Algorithm:
    """Protected Fed+: Fed+ with four additions, with which parties gain in few rounds and keep what they have alone.

    Local work starts at the centre (lam = 1), so that all parties follow it. The centre moves with momentum 0.9, so
    that few rounds suffice. A party abstains from rounds whose centre is worse for its training samples than the first
    model was, and mixes its model with one trained alone by its validation samples; these two keep what training alone
    gives if some parties are malicious.

    Problem: fedplus's for the centre and the models around it; and for each party the best of the mixtures of its model
    there and its model trained alone.
    Update: fedplus's, and model_interpolation's around it; w~ <- w~ + v, v <- 0.9 v + (the centre of w_k) - w~.
    Communication: down 1 model and delta, up 1 model; a party stores two models and a number, and does the local work
    twice.
    Defaults: sigma and delta are Fed+'s, see fedplus, so that nothing depends on the scale of the parameters. A party
    without validation samples uses Fed+'s model. For the solver see robust_interpolation.
    Use when: nothing is known, and some parties may be malicious; ``robust_interpolation`` is simpler.

    Args:
        solver: local solver of each party; default: SGD with learning rate 0.1. It must not add noise or keep a state
            between rounds.
        penalty: phi of Psi = sigma*delta*phi: L2Norm, L1, or SquaredL2, whose centre is not robust.
        aggregate: the ``active`` parties of a round, or ``all`` N with the last models of absent parties.
        tolerance: the relative residual at which the centre's iteration stops; by default the rounding error of the
            numbers' type.

    Raises:
        InputError: ``aggregate`` is not known, or the solver adds noise.

    Example:
        >>> algorithm = rv.protected_fedplus()

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, Algorithm 1; Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with
        Applications to Federated Learning, 2020, model interpolation. The combination is this library's own.
    """
    solver = SGD(0.1) if solver is None else solver
    plus = fedplus(solver, penalty, lam=1.0, abstains=True, aggregate=aggregate, tolerance=tolerance)
    return HeldOutInterpolation(with_server_momentum(plus), solver, fallback="joint")
