"""What is otherwise set by hand or left to hope, chosen from held-out data."""

from itertools import product

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.held_out import Measure
from resolvent.algorithms.combinators.held_out_interpolation import HeldOutInterpolation
from resolvent.algorithms.combinators.held_out_selection import HeldOutSelection
from resolvent.algorithms.presets.personal import Over, fedplus
from resolvent.math.penalties import L2Norm, Penalty
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedplus_auto", "model_interpolation"]


def fedplus_auto(solver: LocalSolver, penalty: Penalty = L2Norm(), *,  # noqa: B008 - a frozen module
                 sigmas: tuple[float, ...] = (0.03, 0.3, 3.0), deltas: tuple[float, ...] = (0.1, 1.0, 10.0),
                 lam: float = 0.0, aggregate: Over = "active", by: Measure = "score",
                 stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Fed+ auto: Fed+ whose sigma and delta each party chooses during training from its held-out data.

    Problem: Fed+'s for the largest sigma and delta, and for each party the best of the models w_kj that a grid of
    pairs (sigma_j, delta_j) holds to that centre.
    Update: w_kj = argmin f_k(w) + sigma_j/2 |w - z_kj|^2 with z_kj = w~ + prox_{delta_j phi}(w_kj - w~), for every
    pair j; the server runs Fed+ for the largest pair, whose models are the only ones that it is sent. A party deploys
    the w_kj of the best score on its validation samples, of the lowest loss where several have it.
    Travels: what Fed+ sends, down 1 model, up 1, and nothing more; a party keeps a model per pair, and does as many
    times the local work of Fed+ as there are pairs.
    Defaults: nine pairs, a decade apart, from nearly local training to nearly one shared model.
    Use when: rounds are dear, local work is cheap, and there is nothing to choose sigma and delta by beforehand.
    Source: Fed+ (Kundu, Yu, Wynter, Lim), Algorithm 1; the choice is this library's own.

    Args:
        solver: the local solver.
        penalty: phi of Psi = sigma*delta*phi.
        sigmas: the candidates for sigma, how strongly a party's model is held to its anchor.
        deltas: the candidates for delta, the smoothing.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        by: what is compared on the validation samples, the score (accuracy) or the loss.
        stragglers: drop or keep partial work.

    Raises:
        ValueError: no candidates, or one that is negative.
    """
    for name, values in (("sigmas", sigmas), ("deltas", deltas)):
        if not values or min(values) < 0:
            raise ValueError(f"fedplus_auto({name}={list(values)}) must be at least one number, none negative")
    first, *others = (fedplus(solver, penalty, sigma=sigma, delta=delta, lam=lam, aggregate=aggregate,
                              stragglers=stragglers)
                      for sigma, delta in product(sorted(sigmas, reverse=True), sorted(deltas, reverse=True)))
    return HeldOutSelection(first, tuple(others), by)


def model_interpolation(solver: LocalSolver, inner: Algorithm, *, points: int = 11, by: Measure = "loss") -> Algorithm:
    """Never worse: each party joins, mixes or stays alone, by its held-out data, and never does worse than alone.

    Problem: the inner algorithm's; and for each party, min over s of its held-out loss at (1 - s) v_k + s J_k, with
    v_k its model trained alone and J_k what the inner algorithm would deploy.
    Update: the inner algorithm's, and v_k <- local work on f_k from v_k beside it.
    Travels: what the inner algorithm sends, and nothing more; a party keeps its own model too and works twice.
    Defaults: eleven mixtures, s = 0, 0.1, ..., 1; of equals, the one nearest to alone.
    Use when: parties must not lose by taking part; the held-out loss of what a party deploys is at most that of its
    model trained alone, by construction, though with few held-out samples test samples may say otherwise.
    Source: this library's own; mixtures chosen on held-out data are model interpolation (Mansour, Mohri, Ro, Suresh).

    Args:
        solver: the local solver of the model trained alone.
        inner: the algorithm that is joined.
        points: how many mixtures are tried, both ends among them; 2 is to join or to stay alone.
        by: what is compared on the validation samples, and never worse there: the loss or the score (accuracy).
    """
    return HeldOutInterpolation(inner, solver, points, by)
