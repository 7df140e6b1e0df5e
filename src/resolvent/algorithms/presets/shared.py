"""One shared model, averaged or by a median; and none at all."""

from resolvent.algorithms.adaptive import AdaptiveMu
from resolvent.algorithms.aggregators import CoordinateMedian, GeometricMedian, Mean
from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.averaging import Averaging, LocalOnly
from resolvent.algorithms.centralised import Centralised
from resolvent.problem.solvers import LocalSolver

__all__ = ["coordinate_median", "fedavg", "fedprox", "fedprox_adaptive", "local", "pooled", "rfa"]


def local(solver: LocalSolver) -> Algorithm:
    """Every party trains alone: the yardstick of "better off than alone".

    min over w_k of f_k(w_k), each on its own; nothing travels. Fed+ with lam = 0 and sigma = 0.

    Args:
        solver: the local solver.
    """
    return LocalOnly(solver=solver)


def fedavg(solver: LocalSolver, *, stragglers: Stragglers = "drop") -> Algorithm:
    """FedAvg: train from the shared model, average the results.

    Up and down: one model. Fixed points are not those of the average loss once parties differ and take more
    than one step. Source: McMahan et al.; stragglers are dropped as in the FedProx paper's comparison.

    Args:
        solver: the local solver.
        stragglers: drop or keep the work of parties that could not finish.
    """
    return Averaging(solver=solver, aggregator=Mean(), mu=0.0, stragglers=stragglers)


def fedprox(solver: LocalSolver, *, mu: float = 0.1, stragglers: Stragglers = "keep") -> Algorithm:
    """FedProx: FedAvg with a proximal term mu/2 |w - w~|^2 and partial work kept.

    Up and down: one model. With mu = 0 and all work done it is FedAvg. Source: Li et al., Algorithm 2.

    Args:
        solver: the local solver.
        mu: the weight of the proximal term; the authors try 0.001 to 1.
        stragglers: drop or keep partial work.
    """
    return Averaging(solver=solver, aggregator=Mean(), mu=mu, stragglers=stragglers)


def fedprox_adaptive(solver: LocalSolver, *, mu: float = 0.0, step: float = 0.1, patience: int = 5,
                     stragglers: Stragglers = "keep") -> Algorithm:
    """FedProx adaptive: mu grows when the training loss does, and falls after a run of decreases.

    Problem: min over w of sum_k lambda_k f_k(w), as FedProx.
    Update: w_k = argmin f_k(w) + mu/2 |w - w~|^2 and w~ = mean of w_k; mu + step when the mean of f_k(w~) has grown,
    max(mu - step, 0) after so many decreases in a row as patience says.
    Travels: down 1 model and mu, up 1 model and one number, f_k(w~), for which a party passes over its samples once
    more; a party keeps nothing.
    Defaults: the paper's step and patience; it begins at mu = 0 on data that differ and at 1 on data that do not, to
    make it hard for the rule.
    Use when: no validation data are there to choose mu by; with small cohorts the loss, a mean over the cohort, is
    noisy, and so is mu.
    Source: FedProx (Li et al.), section 5.3.2 and appendix C.3.3; mu follows the loss one round later, for no round
    more is spent.

    Args:
        solver: the local solver.
        mu: the first weight of the proximal term.
        step: by how much mu moves.
        patience: after so many decreases in a row mu falls.
        stragglers: drop or keep partial work.
    """
    return AdaptiveMu(inner=Averaging(solver=solver, aggregator=Mean(), mu=mu, stragglers=stragglers), step=step,
                      patience=patience)


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
    return Centralised(Averaging(solver=solver))


def rfa(solver: LocalSolver, *, smoothing: float = 1e-6, stragglers: Stragglers = "drop") -> Algorithm:
    """RFA: FedAvg with the geometric median in place of the mean.

    One shared model that up to half the weight cannot carry away; parties whose data differ are outvoted.
    Source: Pillutla, Kakade, Harchaoui.

    Args:
        solver: the local solver.
        smoothing: distances below it count as it in Weiszfeld's weights.
        stragglers: drop or keep partial work.
    """
    return Averaging(solver=solver, aggregator=GeometricMedian(smoothing), mu=0.0, stragglers=stragglers)


def coordinate_median(solver: LocalSolver, *, stragglers: Stragglers = "drop") -> Algorithm:
    """FedAvg with the median of each coordinate in place of the mean.

    Source: Yin, Chen, Ramchandran, Bartlett.

    Args:
        solver: the local solver.
        stragglers: drop or keep partial work.
    """
    return Averaging(solver=solver, aggregator=CoordinateMedian(), mu=0.0, stragglers=stragglers)
