"""Robust aggregation of one shared model, and attacks on any algorithm."""

from resolvent.algorithms.aggregators import Aggregator
from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.arguments import checked
from resolvent.problem.solvers import LocalSolver

__all__ = ["attacked", "robust"]


@checked
def robust(solver: LocalSolver, aggregator: Aggregator, *, mu: float = 0.0,
           stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAvg or FedProx with any aggregator instead of the mean.

    Aggregators such as the trimmed mean, Krum or a norm bound limit the influence of malicious replies.

    Problem: min over w of sum_k lambda_k f_k(w) over the good parties, as far as the aggregator can distinguish them.
    Update: w_k = solve f_k + mu/2 |. - w~|^2 from w~; w~ <- A(w_1, ..., w_N).
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: mu = 0 and stragglers dropped as in FedAvg; the aggregators' default share of malicious replies is 0.2.
    Use when: some parties may be faulty or malicious and the data of the others are alike. If good parties differ,
    robust aggregators also leave out the unusual ones: see the Fed+ family.

    Args:
        solver: local solver of each party.
        aggregator: A, such as TrimmedMean, MultiKrum or NormBound.
        mu: weight of the proximal term.
        stragglers: ``drop`` or ``keep`` the partial work of parties that do not finish in time.

    Raises:
        InputError: ``mu`` is negative.

    Example:
        >>> algorithm = rv.robust(rv.SGD(0.1, batch_size=20, epochs=1), rv.aggregators.TrimmedMean(share=0.2))

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
        Decentralized Data, AISTATS 2017, with the aggregator's paper.
    """
    return ModelAggregation(solver=solver, aggregator=aggregator, mu=mu, stragglers=stragglers)


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
