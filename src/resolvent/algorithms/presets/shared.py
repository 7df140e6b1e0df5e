"""One shared model, by the mean of the parties' models; local and pooled training."""

from typing import Annotated

from resolvent.algorithms.aggregators.aggregator import Mean
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.cohort import StragglerPolicy
from resolvent.algorithms.combinators.held_out import HeldOutSelection
from resolvent.algorithms.combinators.pooled_data import PooledData
from resolvent.algorithms.combinators.ridge_path import RidgePath
from resolvent.algorithms.methods.adaptive_mu import AdaptiveMu
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.problem.solvers.lbfgs import LBFGS
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["careful_local", "fedavg", "fedprox", "fedprox_adaptive", "local", "pooled"]


@checked
def local(solver: LocalSolver, *, ridge: float | None = None) -> Algorithm:
    """Local training: every party trains alone, without communication.

    It is the baseline that shows which parties gain from federated learning.

    Problem: min over w_k of f_k(w_k), for every party separately; with ``ridge``, of f_k(w_k) + ridge/(2 n_k) |w_k|^2.
    Update: w_k <- solve this from w_k; the server does nothing.
    Communication: none; a party stores its model.
    Defaults: no ridge, as in the paper. A party with few rows then overfits, so that the gain of other methods over
    training alone is too large; ``ridge=1`` is scikit-learn's default for logistic regression.
    Use when: the local work of another method is compared with the same work alone. As the reference that shows which
    parties gain from taking part it is untuned; ``careful_local`` is tuned.

    Args:
        solver: local solver of each party.
        ridge: weight of |w|^2 / 2, added to the sum of the party's n_k losses; biases are not shrunk. It is the
            ``alpha`` of scikit-learn's ``Ridge``, and 1/``C`` of its ``LogisticRegression``.

    Raises:
        InputError: ``ridge`` is not positive.

    Example:
        >>> algorithm = rv.local(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Kundu, Yu, Wynter, Lim: Robustness and Personalization in Federated Learning: A Unified Approach via
        Regularization, 2022, Table 1, first row (lambda = 0, sigma = 0).
    """
    return LocalTraining(solver=solver, ridge=ridge)


@checked
def careful_local(solver: LocalSolver, *, rates: Annotated[tuple[float, ...], "(0, inf)"] = (1.0, 0.3, 3.0),
                  folds: int = 5) -> Algorithm:
    """Careful local training: what a careful analyst would fit at each site, without communication.

    It is the reference for whether a party gains from taking part: a weak one flatters every other method.

    Problem: for linear and logistic models, min over W and b of sum_i loss_i(W x_i + b) + r/2 |W|^2, with the strength
    r of the smallest log loss, or squared error, in cross-validation on the party's own training rows. For other
    models, min over w_k of f_k(w).
    Update: a linear model is solved to convergence for each r, once, in the first round of the party. For other models,
    w_kj <- solve f_k from w_kj with each learning rate j; the party uses the w_kj of all rounds so far that has the
    smallest loss on its validation rows. The server does nothing.
    Communication: none; a party stores its models.
    Defaults: r is infinite, the intercept alone, or one of 10,000, 3,162, ..., 0.01; a path ends after two strengths
    that are worse than the best one. The intercept is not shrunk. Other models are trained with the solver's learning
    rate and with 0.3 and 3 times this rate, which takes three times the work of ``local``; without validation rows,
    with the solver's own rate to the end.
    Use when: always, in addition to the methods that you compare. In a comparison in one process, the federated methods
    of a linear model then have a ridge that is chosen in the same way on the rows of all parties.

    Args:
        solver: local solver of each party; linear models do not use it.
        rates: multiples of the solver's learning rate that a party tries, the first one if it has no validation rows.
            A solver without a learning rate, such as LBFGS, is the same for all.
        folds: number of folds of the cross-validation.

    Raises:
        InputError: a rate is not positive, there is none, or there are fewer than two folds.

    Example:
        >>> algorithm = rv.careful_local(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Friedman, Hastie, Tibshirani: Regularization Paths for Generalized Linear Models via Coordinate Descent, Journal
        of Statistical Software 2010, cross-validation along a path.
    """
    if not rates:
        raise InputError("careful_local(rates=()) has no learning rates: give at least one number, such as 1")
    first, *others = (LocalTraining(solver=solver.scaled(rate), stops_early=True) for rate in rates)
    return RidgePath(HeldOutSelection(first, tuple(others), by="loss") if others else first, folds=folds)


@checked
def fedavg(solver: LocalSolver, *, stragglers: StragglerPolicy | None = None) -> Algorithm:
    """FedAvg: every party trains from the shared model, and the server averages the results.

    With one gradient step per round it is gradient descent on the average loss; more local steps save communication.

    Problem: min over w of the average loss f(w) = sum_k lambda_k f_k(w), for one gradient step per round. With more
    steps the fixed point is another one if the parties differ; for least squares it is (10) of the operator-splitting
    paper.
    Update: w_k = solve f_k from w~; w~ <- mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: whether the work of stragglers counts is the run's policy, ``Stragglers(work=...)``, which is the same for
    all methods. The FedProx paper compares with FedAvg that drops it (section 5.2), ``stragglers="drop"``.
    Use when: parties are alike and one model serves all of them; otherwise as the baseline.

    Args:
        solver: local solver of each party.
        stragglers: ``drop`` or ``keep`` the partial work of stragglers; default: as the run says.

    Example:
        >>> algorithm = rv.fedavg(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
        Decentralized Data, AISTATS 2017, Algorithm 1.

        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
        Algorithm 1.

        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (9).
    """
    return ModelAggregation(solver=solver, aggregator=Mean(), mu=0.0, stragglers=stragglers)


@checked
def fedprox(solver: LocalSolver, *, mu: float = 0.1, stragglers: StragglerPolicy | None = None) -> Algorithm:
    """FedProx: FedAvg with a proximal term mu/2 |w - w~|^2.

    The proximal term keeps local models near the shared model, so that parties that differ, or that do unequal amounts
    of work, do not drift apart. With mu = 0 it is FedAvg.

    Problem: with exact solves the regularised problem, min over w of sum_k lambda_k min_x f_k(x) + mu/2 |x - w|^2; the
    larger mu, the nearer to the average loss and the slower the convergence.
    Update: w_k = solve f_k + mu/2 |. - w~|^2 from w~; w~ <- mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: mu = 0.1 lies inside the authors' candidates 0.001, 0.01, 0.1, 1, among which they tune per data set. With
    learning rates far below 1/mu it does almost nothing.
    Use when: parties differ or many are slow, and one shared model is wanted nevertheless.

    Args:
        solver: local solver of each party.
        mu: weight of the proximal term; the authors try 0.001 to 1.
        stragglers: ``drop`` or ``keep`` the partial work of stragglers; default: as the run says.

    Raises:
        InputError: ``mu`` is negative.

    Example:
        >>> algorithm = rv.fedprox(rv.SGD(0.1, batch_size=20, epochs=1), mu=0.1)

    References:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, (2)
        and Algorithm 2.

        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (12) and (13).
    """
    return ModelAggregation(solver=solver, aggregator=Mean(), mu=mu, stragglers=stragglers)


@checked
def fedprox_adaptive(solver: LocalSolver, *, mu: float = 0.0, step: float = 0.1, patience: int = 5,
                     paired: bool = False, per_dissimilarity: float | None = None) -> Algorithm:
    """FedProx adaptive: FedProx whose mu increases when the training loss increases, and decreases after a success run.

    The rule of the paper's experiments chooses mu without validation data. Here mu follows the loss one round later
    than in the paper, because no additional round is spent on measuring the loss.

    Problem: min over w of the average loss, as FedProx.
    Update: w_k = solve f_k + mu/2 |. - w~|^2 from w~; w~ <- mean of w_k; mu <- mu + step if the mean of f_k(w~) has
    increased, and mu <- max(mu - step, 0) after ``patience`` successive decreases.
    Communication: down 1 model and mu, up 1 model and one number, f_k(w~), for which a party evaluates all its samples
    once more; a party stores nothing.
    Defaults: the paper's step and patience; the paper starts at mu = 0 on data that differ and at 1 on data that do
    not, to make it hard for the rule.
    Use when: there are no validation data to choose mu; with small cohorts the loss, a mean over the cohort, is noisy,
    and so is mu, unless the losses are paired.

    Args:
        solver: local solver of each party.
        mu: first weight of the proximal term.
        step: by how much mu changes.
        patience: number of successive decreases of the loss after which mu decreases.
        paired: compare the losses of this and the last round's model in the same parties; a party then receives a
            second model.
        per_dissimilarity: mu is this number times B^2 - 1 instead, with B the dissimilarity of the cohort's updates in
            the round before; a party then sends |w_k - w~|^2 and no loss.

    Raises:
        InputError: ``mu``, ``step`` or ``per_dissimilarity`` is negative, or ``patience`` is less than 1.

    Example:
        >>> algorithm = rv.fedprox_adaptive(rv.SGD(0.1, batch_size=20, epochs=1), mu=1.0, paired=True)

    References:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
        section 5.3.2 and appendix C.3.3.
    """
    return AdaptiveMu(solver, mu, step, patience, paired, per_dissimilarity)


@checked
def pooled(solver: LocalSolver = LBFGS()) -> Algorithm:  # noqa: B008 - a frozen module
    """Pooled: one model trained on the samples of all parties together, an upper reference.

    All samples are in one place, which federated learning is meant to avoid. No cohort is drawn and no party is late.

    Problem: min over w of the mean loss over all samples, sum_k n_k/n f_k(w).
    Update: w <- solve f from w, on the training samples of all parties.
    Communication: none in a round, because the samples were collected before the first round.
    Defaults: L-BFGS, which converges. An upper reference must minimise the loss: with SGD its noise, or too few rounds,
    can leave it behind FedAvg. An experiment file supplies its own
    solver; ``solver: LBFGS`` under the method replaces it.
    Use when: you want to know what one model could reach if the data could be shared; if parties differ, personal
    models can still be better.

    Args:
        solver: the solver; one epoch is a pass over the samples of all parties. Neural networks need SGD with many
            rounds and a small learning rate, because L-BFGS reads all samples in every step.

    Example:
        >>> algorithm = rv.pooled()

    References:
        Centralised training, the usual reference of comparisons.
    """
    return PooledData(ModelAggregation(solver=solver))
