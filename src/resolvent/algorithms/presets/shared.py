"""One shared model, averaged or by a median; and none at all."""

from resolvent.algorithms.aggregators.aggregator import CoordinateMedian, GeometricMedian, Mean
from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.adaptive_mu import AdaptiveMu
from resolvent.algorithms.combinators.pooled_data import PooledData
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["coordinate_median", "fedavg", "fedprox", "fedprox_adaptive", "local", "pooled", "rfa"]


def local(solver: LocalSolver) -> Algorithm:
    """Local training: every party alone, the yardstick of "better off than alone".

    Problem: min over w_k of f_k(w_k), every party its own.
    Update: w_k <- solve f_k from w_k; the server does nothing.
    Travels: nothing; a party keeps its model.
    Defaults: none; it has the solver and nothing else.
    Use when: always, beside whatever else you run: it says who gains from taking part.
    Source: Fed+, Table 1, first row (lambda = 0, sigma = 0)

    Args:
        solver: the local solver.
    """
    return LocalTraining(solver=solver)


def fedavg(solver: LocalSolver, *, stragglers: StragglerPolicy = "drop") -> Algorithm:
    """FedAvg: train from the shared model, average the results.

    Problem: min over w of f(w) = sum_k lambda_k f_k(w), the problem (1); with one gradient step a round that is what it
    solves, with more it stops elsewhere once parties differ, for least squares at (10).
    Update: w_k = solve f_k from w~; w~ <- mean of w_k.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: work that is not finished in time is dropped, as in the FedProx paper's comparison (section 5.2).
    Use when: parties are alike and one model will do; otherwise as the method to beat.
    Source: McMahan et al.; FedProx, Algorithm 1; operator-splitting paper, (9)

    Args:
        solver: the local solver.
        stragglers: drop or keep the work of parties that could not finish.
    """
    return ModelAggregation(solver=solver, aggregator=Mean(), mu=0.0, stragglers=stragglers)


def fedprox(solver: LocalSolver, *, mu: float = 0.1, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedProx: FedAvg with a proximal term mu/2 |w - w~|^2 and partial work kept.

    Problem: with exact solves the regularised problem (13), min over w of sum_k lambda_k min_x f_k(x) + mu/2 |x - w|^2;
    the larger mu, the nearer to (1) and the slower.
    Update: w_k = solve f_k + mu/2 |. - w~|^2 from w~; w~ <- mean of w_k. With mu = 0 and all work done it is FedAvg.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: mu = 0.1 lies inside the authors' candidates 0.001, 0.01, 0.1, 1, among which they tune per data set.
    Use when: parties differ or many are slow, and one shared model is wanted all the same.
    Source: FedProx, (2) and Algorithm 2; operator-splitting paper, (12) and (13)

    Args:
        solver: the local solver.
        mu: the weight of the proximal term; the authors try 0.001 to 1.
        stragglers: drop or keep partial work.
    """
    return ModelAggregation(solver=solver, aggregator=Mean(), mu=mu, stragglers=stragglers)


def fedprox_adaptive(solver: LocalSolver, *, mu: float = 0.0, step: float = 0.1, patience: int = 5,
                     paired: bool = False, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FedProx adaptive: mu grows when the training loss does, and falls after a run of decreases.

    Problem: min over w of sum_k lambda_k f_k(w), as FedProx.
    Update: w_k = argmin f_k(w) + mu/2 |w - w~|^2 and w~ = mean of w_k; mu + step when the mean of f_k(w~) has grown,
    max(mu - step, 0) after so many decreases in a row as patience says.
    Travels: down 1 model and mu, up 1 model and one number, f_k(w~), for which a party passes over its samples once
    more; a party keeps nothing.
    Defaults: the paper's step and patience; it begins at mu = 0 on data that differ and at 1 on data that do not, to
    make it hard for the rule.
    Use when: no validation data are there to choose mu by; with small cohorts the loss, a mean over the cohort, is
    noisy, and so is mu, unless the losses are paired.
    Source: FedProx (Li et al.), section 5.3.2 and appendix C.3.3; mu follows the loss one round later, for no round
    more is spent.

    Args:
        solver: the local solver.
        mu: the first weight of the proximal term.
        step: by how much mu moves.
        patience: after so many decreases in a row mu falls.
        paired: compare the losses of this and the last round's model in the same parties; it takes a model more down.
        stragglers: drop or keep partial work.
    """
    return AdaptiveMu(inner=ModelAggregation(solver=solver, aggregator=Mean(), mu=mu, stragglers=stragglers), step=step,
                      patience=patience, paired=paired)


def pooled(solver: LocalSolver) -> Algorithm:
    """Pooled: one model trained on everybody's samples together, the upper reference.

    Problem: min over w of the mean loss over all samples, sum_k n_k/n f_k(w).
    Update: w <- the solver's work from w on everybody's training samples.
    Travels: nothing in a round, for the samples have been brought together, which a federation is there to avoid; no
    cohort is drawn and nobody is late.
    Defaults: none.
    Use when: you want to know what one model could reach if the data could be shared; where parties differ, personal
    models can still be better.
    Source: centralised training, as in every comparison.

    Args:
        solver: the solver; an epoch is one over everybody's samples.
    """
    return PooledData(ModelAggregation(solver=solver))


def rfa(solver: LocalSolver, *, smoothing: float = 1e-6, stragglers: StragglerPolicy = "drop") -> Algorithm:
    """RFA: FedAvg with the geometric median in place of the mean.

    Problem: one shared model that parties of less than half the weight cannot carry away; no objective is minimised.
    Update: w_k = solve f_k from w~; w~ <- argmin over w of sum_k weight_k |w_k - w|, by smoothed Weiszfeld steps.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: the smoothing moves the objective by less than its 1e-6: the result is the median itself.
    Use when: some replies may be corrupt and the honest parties are alike; where they differ, a median outvotes
    minorities.
    Source: Pillutla, Kakade, Harchaoui; Fed+, (4) and Table 1

    Args:
        solver: the local solver.
        smoothing: distances below it count as it in Weiszfeld's weights.
        stragglers: drop or keep partial work.
    """
    return ModelAggregation(solver=solver, aggregator=GeometricMedian(smoothing), mu=0.0, stragglers=stragglers)


def coordinate_median(solver: LocalSolver, *, stragglers: StragglerPolicy = "drop") -> Algorithm:
    """Coordinate-wise median: FedAvg with the median of each coordinate in place of the mean.

    Problem: one shared model each of whose coordinates less than half the weight cannot carry away; no objective is
    minimised.
    Update: w_k = solve f_k from w~; w~ <- argmin over w of sum_k weight_k |w_k - w|_1.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: the median is exact, the midpoint where half of the weight lies on either side.
    Use when: as for RFA, if single coordinates rather than whole replies are corrupt; it is not rotation invariant.
    Source: Yin, Chen, Ramchandran, Bartlett; Fed+, (5) and Table 1

    Args:
        solver: the local solver.
        stragglers: drop or keep partial work.
    """
    return ModelAggregation(solver=solver, aggregator=CoordinateMedian(), mu=0.0, stragglers=stragglers)
