"""One shared model by an aggregate that malicious parties cannot move far, and any algorithm with such parties."""

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.aggregators.medians import CoordinateMedian, GeometricMedian
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.arguments import checked
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["attacked", "coordinate_median", "rfa", "robust"]


@checked
def rfa(solver: LocalSolver, *, smoothing: float = 1e-6, tolerance: float = 0.0) -> Algorithm:
    """RFA: FedAvg with the geometric median instead of the mean.

    The geometric median withstands malicious replies as long as these have less than half of the weight.

    Problem: one shared model that parties with less than half of the weight cannot move arbitrarily far; no objective
    is minimised.
    Update: w_k = solve f_k from w~; w~ <- argmin over w of sum_k weight_k |w_k - w|, by smoothed Weiszfeld iterations.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: the smoothing changes the objective by less than its value, 1e-6: the result is the median itself.
    Use when: some replies may be corrupt and the honest parties are alike; if they differ, a median ignores minorities.

    Args:
        solver: local solver of each party.
        smoothing: distances below this value are replaced by it in Weiszfeld's weights; positive.
        tolerance: the relative residual at which the median's iteration stops; by default the rounding error of the
            numbers' type.

    Raises:
        InputError: ``smoothing`` is not positive.

    Example:
        >>> algorithm = rv.rfa(rv.SGD(0.1, batch_size=20, epochs=1))
        >>> algorithm.aggregator.breakdown_point
        0.5

    References:
        Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning, 2019.

        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, (4) and Table 1.
    """
    return ModelAggregation(solver=solver, aggregator=GeometricMedian(smoothing, tolerance), mu=0.0)


@checked
def coordinate_median(solver: LocalSolver) -> Algorithm:
    """Coordinate-wise median: FedAvg with the median of each coordinate instead of the mean.

    The median of each coordinate withstands malicious replies as long as these have less than half of the weight.

    Problem: one shared model, of which parties with less than half of the weight cannot move any coordinate arbitrarily
    far; no objective is minimised.
    Update: w_k = solve f_k from w~; w~ <- argmin over w of sum_k weight_k |w_k - w|_1.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: the median is exact: the midpoint if half of the weight lies on either side.
    Use when: as for RFA, if single coordinates rather than whole replies are corrupt; it is not rotation invariant.

    Args:
        solver: local solver of each party.

    Example:
        >>> algorithm = rv.coordinate_median(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates,
        ICML 2018.

        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, (5) and Table 1.
    """
    return ModelAggregation(solver=solver, aggregator=CoordinateMedian(), mu=0.0)


@checked
def robust(solver: LocalSolver, aggregator: Aggregator, *, mu: float = 0.0) -> Algorithm:
    """FedAvg or FedProx with any aggregator instead of the mean.

    Aggregators such as the trimmed mean, Krum or a norm bound limit the influence of malicious replies.

    Problem: min over w of sum_k lambda_k f_k(w) over the good parties, as far as the aggregator can distinguish them.
    Update: w_k = solve f_k + mu/2 |. - w~|^2 from w~; w~ <- A(w_1, ..., w_N).
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: mu = 0 as in FedAvg; the aggregators' default share of malicious replies is 0.2.
    Use when: some parties may be faulty or malicious and the data of the others are alike. If good parties differ,
    robust aggregators also leave out the unusual ones: see the Fed+ family.

    Args:
        solver: local solver of each party.
        aggregator: A, such as TrimmedMean, MultiKrum or NormBound.
        mu: weight of the proximal term.

    Raises:
        InputError: ``mu`` is negative.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1, batch_size=20, epochs=1), rv.aggregators.TrimmedMean(share=0.2))

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
        Decentralized Data, AISTATS 2017, with the aggregator's paper.
    """
    return ModelAggregation(solver=solver, aggregator=aggregator, mu=mu)


@checked
def attacked(inner: Algorithm, attack: Attack, *, share: float = 0.2, parties: tuple[int, ...] = (),
             seed: int = 0) -> Algorithm:
    """Any algorithm under attack: a share of the parties is malicious.

    The same parties are malicious in all rounds and for all algorithms with the same seed and number of parties.

    Problem: the inner algorithm's.
    Update: the inner algorithm's, but the attack changes the updates that malicious parties send.
    Communication: the inner algorithm's, and one flag down; a party stores what the inner algorithm stores.
    Defaults: one party in five is malicious.
    Use when: you want to know how malicious parties affect a method; the scores are those of all parties on their own
    data.

    Args:
        inner: the algorithm that is attacked.
        attack: what malicious parties do.
        share: share of all parties that is drawn to be malicious, in [0, 1].
        parties: ids of parties that are malicious in addition to the drawn ones.
        seed: seed of the draw of malicious parties.

    Raises:
        InputError: ``share`` is outside [0, 1]; at the start of a run, a party id does not exist.

    Warns:
        BreakdownWarning: an aggregator of ``inner`` has a breakdown point, and the share is beyond it.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> algorithm = rv.attacked(rv.fedavg(solver), rv.attacks.SignFlip(), share=0.2)

    References:
        The attack's paper, see ``rv.attacks``.
    """
    return Attacked(inner=inner, attack=attack, share=share, parties=parties, seed=seed)
