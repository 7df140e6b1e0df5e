"""Parties count by their losses, or by the balance of their labels."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.methods.fairness import AFL, TERM, FedDisco, QFedAvg
from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["afl", "feddisco", "qfedavg", "term"]


@checked
def qfedavg(solver: LocalSolver, *, q: float = 1.0, L: float | None = None) -> Algorithm:
    """q-FedAvg: FedAvg for the objective q-FFL, in which a party counts more the larger its loss.

    Problem: min over w of sum_k lambda_k/(q+1) f_k(w)^(q+1), for one gradient step per round: the larger q, the more
    even are the losses of the parties. q = 0 is the average loss, and large q approaches the largest loss.
    Update: w_k = solve f_k from w~; dw_k = L (w~ - w_k); w~ <- w~ - mean of (f_k(w~)^q dw_k) / mean of (q
    f_k(w~)^(q-1) |dw_k|^2 + L f_k(w~)^q).
    Communication: down 1 model, up 1 and a number; a party stores nothing.
    Defaults: q = 1; the authors choose it among 0.001 to 15 by data set. L is 1/learning rate, as the authors set it.
    q = 0 is FedAvg, whatever L is. With one gradient step and L = 1/learning rate it is q-FedSGD.
    Use when: one model has to serve all parties about equally well, and some have larger losses.

    Args:
        solver: local solver of each party.
        q: how much a large loss counts; 0 is FedAvg.
        L: Lipschitz constant of the gradients; default: 1/learning rate.

    Raises:
        InputError: ``q`` is negative, ``L`` is not positive, or it is missing and the solver has no learning rate.

    Example:
        >>> algorithm = rv.qfedavg(rv.SGD(0.1, batch_size=20, epochs=1), q=2.0)

    References:
        Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020, (2) and Algorithm 2.
    """
    if L is None:
        if solver.step_size is None:
            raise InputError(f"qfedavg needs L, the Lipschitz constant, since {type(solver).__name__} has no learning "
                             "rate: give it, such as L=10")
        L = 1 / solver.step_size  # type: ignore[assignment]
    return QFedAvg(solver=solver, q=q, L=L)  # type: ignore[arg-type]


@checked
def term(solver: LocalSolver, *, t: float = 1.0) -> Algorithm:
    """TERM: FedAvg for the tilted empirical risk, in which a party counts by the exponential of its loss.

    Problem: min over w of 1/t log sum_k lambda_k exp(t f_k(w)), for one gradient step per round. t near 0 is the
    average loss, large t approaches the largest loss, and a negative t the smallest one.
    Update: w_k = solve f_k from w~; omega_k = lambda_k exp(t f_k(w~)), divided by their sum over the replies; w~ <- sum
    of omega_k w_k.
    Communication: down 1 model, up 1 and a number; a party stores nothing.
    Defaults: t = 1; the authors choose it by data set. t = 0 is FedAvg. The losses are those of all rows of a party,
    where the authors' stochastic solver keeps a running mean over minibatches.
    Use when: one model has to serve the parties with the largest losses, t > 0; or some parties have wrong labels and
    should count less, t < 0.

    Args:
        solver: local solver of each party.
        t: the tilt, of the unit of 1/loss; 0 is FedAvg.

    Raises:
        InputError: ``t`` is not finite.

    Example:
        >>> algorithm = rv.term(rv.SGD(0.1, batch_size=20, epochs=1), t=2.0)

    References:
        Li, Beirami, Sanjabi, Smith: Tilted Empirical Risk Minimization, ICLR 2021, the objective and its gradient
        (Lemma 1), with parties as samples.
    """
    return TERM(solver=solver, t=t)


@checked
def afl(solver: LocalSolver, *, gamma: float = 0.1) -> Algorithm:
    """AFL, agnostic federated learning: the model is trained for the worst mixture of the parties.

    The server has a weight lambda_k for each party, which grows with the party's loss.

    Problem: min over w of the max over lambda in the simplex of sum_k lambda_k f_k(w), the largest loss of a party, for
    one gradient step per round.
    Update: w_k = solve f_k from w~; w~ <- sum of lambda_k w_k; lambda <- the point of the simplex nearest to lambda +
    gamma (f_1(w~), ..., f_N(w~)), with the w~ before the round.
    Communication: down 1 model, up 1 and a number; a party stores nothing, the server stores N weights.
    Defaults: gamma = 0.1. The first lambda_k are the shares of the samples; gamma = 0 keeps them, which is FedAvg if
    all parties take part. The authors return the mean of the w~ of all rounds, and here the last one is the result.
    Use when: no party may be left with a bad model, all take part in most rounds, and none has wrong labels: such a
    party gets all the weight.

    Args:
        solver: local solver of each party; the authors make one stochastic gradient step.
        gamma: step size of the ascent in lambda, gamma_lambda of the paper, not negative.

    Raises:
        InputError: ``gamma`` is negative.

    Example:
        >>> algorithm = rv.afl(rv.SGD(0.1, batch_size=20, epochs=1), gamma=0.01)

    References:
        Mohri, Sivek, Suresh: Agnostic Federated Learning, ICML 2019, the algorithm Stochastic-AFL.
    """
    return AFL(solver=solver, gamma=gamma)


@checked
def feddisco(solver: LocalSolver, *, classes: int = 10, a: float = 0.5, b: float = 0.1) -> Algorithm:
    """FedDisco: FedAvg in which a party counts less the further its labels are from balance.

    The discrepancy d_k is the Kullback-Leibler divergence of the party's class shares from equal shares.

    Problem: sum_k p_k f_k(w), for one gradient step per round, with p_k in proportion to relu(n_k - a d_k + b).
    Update: w_k = solve f_k from w~; w~ <- sum of p_k w_k, with n_k the party's share of the weight of the replies.
    Communication: down 1 model, up 1 and a number, d_k; a party stores nothing.
    Defaults: a = 0.5, b = 0.1 and 10 classes; a = b = 0 is FedAvg. If all weights are 0, the model stays: a larger b
    helps.
    Use when: parties have different shares of the classes, and the classes are about equally frequent where the model
    is used.

    Args:
        solver: local solver of each party.
        classes: number of classes.
        a: weight of the discrepancy, not negative.
        b: what is added to each weight, not negative.

    Raises:
        InputError: a number is outside its range; when it runs, the model has another number of outputs.

    Example:
        >>> algorithm = rv.feddisco(rv.SGD(0.1, batch_size=20, epochs=1), classes=10, a=0.2)

    References:
        Ye, Xu, Wang, Xu, Chen, Wang: FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023.
    """
    return FedDisco(solver=solver, a=a, b=b, classes=classes)
