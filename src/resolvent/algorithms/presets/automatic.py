"""What is otherwise set by hand or left to hope, chosen from held-out data."""

from itertools import product

from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.never_worse import NeverWorse
from resolvent.algorithms.presets.personal import fedplus
from resolvent.algorithms.self_tuned import Measure, SelfTuned
from resolvent.math.prox import L2Norm, Penalty
from resolvent.problem.solvers import LocalSolver

__all__ = ["fedplus_auto", "never_worse"]


def fedplus_auto(solver: LocalSolver, penalty: Penalty = L2Norm(), *,  # noqa: B008 - a frozen module
                 sigmas: tuple[float, ...] = (0.03, 0.3, 3.0), deltas: tuple[float, ...] = (0.1, 1.0, 10.0),
                 lam: float = 0.0, decay: float = 0.9, by: Measure = "score",
                 stragglers: Stragglers = "keep") -> Algorithm:
    """Fed+ auto: Fed+ whose sigma and delta are chosen during training from the parties' held-out data.

    Problem: Fed+'s, for the (sigma, delta) of a grid under which the deployed models are best on validation samples.
    Update: every party keeps a model per pair and works for all of them around the one centre, anchors and pulls as
    the pair says; the server runs Fed+ for the pair that is followed, keeps a running mean G of the parties' held-out
    measures, G <- decay G + (1 - decay) mean, and follows the pair with the largest.
    Travels: down 1 model and the number of the pair, up 1 model and one measure per pair; a party keeps a model per
    pair. No rounds more than Fed+, but as many times its local work as there are pairs.
    Defaults: nine pairs, a decade apart, between nearly local training and nearly one shared model; ten rounds of
    memory; the pair in the middle of the lists is followed first.
    Use when: rounds are dear, local work is cheap, and there is nothing to choose sigma and delta by beforehand.
    Source: Fed+ (Kundu, Yu, Wynter, Lim), Algorithm 1; the choice is this library's own.

    Args:
        solver: the local solver.
        penalty: phi of Psi = sigma*delta*phi.
        sigmas: the candidates for sigma, how strongly a party's model is held to its anchor.
        deltas: the candidates for delta, the smoothing.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        decay: how much of the running measure is kept from round to round; 0 looks at the last round alone.
        by: what is compared on the validation samples, the score (accuracy) or the loss.
        stragglers: drop or keep partial work.

    Raises:
        ValueError: no candidates, or one that is negative.
    """
    for name, values in (("sigmas", sigmas), ("deltas", deltas)):
        if not values or any(isinstance(v, int | float) and v < 0 for v in values):
            raise ValueError(f"fedplus_auto({name}={list(values)}) must be at least one number, none negative")
    first, *others = sorted(product(enumerate(sigmas), enumerate(deltas)), key=lambda pair: (
        abs(2 * pair[0][0] - len(sigmas) + 1) + abs(2 * pair[1][0] - len(deltas) + 1)))

    def candidate(pair: tuple[tuple[int, float], tuple[int, float]]) -> Algorithm:
        (_, sigma), (_, delta) = pair
        return fedplus(solver, penalty, sigma=sigma, delta=delta, lam=lam, stragglers=stragglers)

    return SelfTuned(candidate(first), tuple(map(candidate, others)), decay, by)


def never_worse(solver: LocalSolver, inner: Algorithm, *, points: int = 11, by: Measure = "loss") -> Algorithm:
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
        by: what is compared on the validation samples, the loss or the score (accuracy).
    """
    return NeverWorse(inner, solver, points, by)
