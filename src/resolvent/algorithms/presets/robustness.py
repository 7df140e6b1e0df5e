"""Robust aggregation of one shared model, and attacks on any algorithm."""

from resolvent.algorithms.aggregators.aggregator import Aggregator
from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.attacks import Attack
from resolvent.algorithms.combinators.attacked import Attacked
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["attacked", "robust"]


def robust(solver: LocalSolver, aggregator: Aggregator, *, mu: float = 0.0,
           stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAvg or FedProx with any aggregator in place of the mean.

    Problem: min over w of sum_k lambda_k f_k(w) over the good parties, as far as the aggregator tells them apart.
    Update: w_k from w~ on f_k + mu/2 |. - w~|^2; w~ = A(w_1, ..., w_N).
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: mu = 0 and stragglers dropped as in FedAvg; an aggregator's own share is 0.2.
    Use when: some parties may be broken or malicious and the others' data are alike; where good parties differ, robust
    aggregators leave out the unusual ones too: see the Fed+ family.
    Source: McMahan et al. with the aggregator's paper.

    Args:
        solver: the local solver.
        aggregator: A, such as trimmed_mean, multi_krum or norm_bound.
        mu: the weight of the proximal term.
        stragglers: drop or keep partial work.
    """
    return ModelAggregation(solver=solver, aggregator=aggregator, mu=mu, stragglers=stragglers)


def attacked(inner: Algorithm, attack: Attack, *, share: float = 0.2, parties: tuple[int, ...] = (),
             seed: int = 0) -> Algorithm:
    """Any algorithm under attack: a share of the parties is bad.

    Problem: the inner algorithm's.
    Update: the inner algorithm's, but bad parties send what the attack makes of their updates.
    Travels: what the inner algorithm sends, and one flag down; a party keeps what it keeps there.
    Defaults: one party in five is bad, the same ones for every method with this seed.
    Use when: you want to know what bad parties do to a method; scores are over all parties' own data.
    Source: see resolvent list attacks.

    Args:
        inner: the algorithm that is attacked.
        attack: what bad parties do.
        share: of all parties that are bad, in [0, 1].
        parties: numbers of parties that are bad whatever is drawn.
        seed: of the draw of bad parties.
    """
    return Attacked(inner=inner, attack=attack, share=share, parties=parties, seed=seed)
