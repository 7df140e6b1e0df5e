"""Shared-model methods that correct the bias of local work, and one that extrapolates FedAvg's step."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.replies import StaleReplies
from resolvent.algorithms.methods.aggregation import FedExP
from resolvent.algorithms.methods.corrections import FedDANE, Scaffnew
from resolvent.algorithms.methods.dual_variables import ConsensusADMM, FedDyn, PrimalDual
from resolvent.algorithms.presets.operators import splitting
from resolvent.arguments import checked
from resolvent.errors import check_range
from resolvent.problem.solvers.solver import LocalSolver, require_gradient_steps

__all__ = ["admm", "feddr", "feddyn", "fedexp", "fedlin", "fedpd", "scaffnew"]


@checked
def feddyn(solver: LocalSolver, *, alpha: float = 0.1) -> Algorithm:
    """FedDyn: a linear term at each party removes the bias that parties with different data cause.

    With all parties in every round and exact solves it is consensus ADMM, and its shared models are those of the
    splitting FedPi with eta = 1/alpha.

    Problem: min over w of the average loss.
    Update: w_k = solve f_k - <g_k, .> + alpha/2 |. - w~|^2 from w~; g_k <- g_k - alpha (w_k - w~); h <- h - alpha * sum
    over replies of lambda_k (w_k - w~); w~ <- mean of w_k - h/alpha.
    Communication: down 1 model, up 1; a party stores g_k, the server stores h.
    Defaults: alpha = 0.1; the authors use 0.1 to 0.001.
    Use when: parties differ, one model is wanted, and Scaffold's two models each way are too much. A small alpha with
    few local steps can diverge, because every change is divided by alpha.

    Args:
        solver: local solver of each party.
        alpha: weight of the proximal term, positive.

    Raises:
        InputError: ``alpha`` is not positive.

    Example:
        >>> algorithm = rv.feddyn(rv.SGD(0.1, batch_size=20, epochs=1), alpha=0.01)

    References:
        Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization,
        ICLR 2021, Algorithm 1.
    """
    return FedDyn(solver=solver, alpha=alpha)


@checked
def fedpd(solver: LocalSolver, *, eta: float = 1.0) -> Algorithm:
    """FedPD: consensus ADMM with dual variables at the parties, and an exchange in every round.

    Problem: min over w of the average loss.
    Update: w_k = solve f_k - <g_k, .> + 1/(2 eta) |. - w~|^2 from w~; g_k <- g_k - (w_k - w~)/eta; w~ <- mean of
    w_k - eta g_k.
    Communication: down 1 model, up 1; a party stores g_k.
    Defaults: eta = 1 does not depend on your losses; a good value is about 1/sqrt(mu L), with mu their strong convexity
    and L their smoothness.
    Use when: all parties take part in every round. If parties are sampled, the g_k of a cohort do not sum to zero, and
    feddyn or feddr is exact where this is not.

    Args:
        solver: local solver of each party.
        eta: length of the proximal step, positive.

    Raises:
        InputError: ``eta`` is not positive.

    Example:
        >>> algorithm = rv.fedpd(rv.SGD(0.1, batch_size=20, epochs=1), eta=2.0)

    References:
        Zhang, Hong, Dhople, Yin, Liu: FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data, IEEE
        Transactions on Signal Processing 2021, Algorithm 1 with p = 0 and local work that starts at the shared model.
    """
    return PrimalDual(solver=solver, eta=eta)


@checked
def feddr(solver: LocalSolver, *, eta: float = 1.0, alpha: float = 1.0) -> Algorithm:
    """FedDR: Douglas-Rachford splitting that stays exact if only some parties take part.

    It is decentralised FedPi whose server stores the last reply of every party and averages all N of them.

    Problem: min over w of the average loss, under any sampling that draws each party again and again.
    Update: u_k <- u_k + alpha (w~ - w_k); w_k = solve f_k + 1/(2 eta) |. - u_k|^2; z_k = 2 w_k - u_k; w~ <- mean over
    all N of the last z_k.
    Communication: down 1 model, up 1; a party stores u_k and z_k, the server stores N models.
    Defaults: alpha = 1 is Douglas-Rachford splitting; eta = 1 does not depend on your losses, and about 1/sqrt(mu L) is
    a good value, with mu their strong convexity and L their smoothness.
    Use when: the exact minimiser of the average loss is wanted and parties are sampled; with all parties in every
    round it is FedPi.

    Args:
        solver: how a party computes its proximal point, exactly or approximately.
        eta: length of the proximal step, positive.
        alpha: relaxation, in (0, 2).

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.feddr(rv.solvers.GD(0.1, steps=10), eta=0.5)

    References:
        Tran-Dinh, Pham, Phan, Nguyen: FedDR: Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
        Composite Optimization, NeurIPS 2021, Algorithm 1 without the term g.
    """
    check_range("feddr", "(0, 2)", alpha=alpha)
    return StaleReplies(splitting(solver, eta=eta, alpha=2.0, beta=2.0, gamma=alpha / 2, decentralised=True))


@checked
def admm(solver: LocalSolver, *, rho: float = 1.0, relaxation: float = 1.0) -> Algorithm:
    """Over-relaxed consensus ADMM with scaled dual variables y_k.

    With all parties in every round, the u_k = z - y_k are the iterates of the splitting (alpha, beta, gamma) =
    (2, 2, relaxation/2) with eta = 1/rho. The shared model is z.

    Problem: min over w of the average loss, for any convex losses.
    Update: x_k = solve f_k + rho/2 |. - (z - y_k)|^2; x_k <- relaxation x_k + (1 - relaxation) z; z <- mean of
    x_k + y_k; y_k <- y_k + x_k - z.
    Communication: down 1 model, up 1; a party stores x_k + y_k, from which its y_k follows.
    Defaults: relaxation = 1, plain ADMM; textbooks recommend 1.5 to 1.8. rho = 1 does not depend on your losses; a good
    value is about sqrt(mu L), with mu their strong convexity and L their smoothness.
    Use when: you know ADMM and its parameters, and all parties take part; fedpi has the same iterates in the notation
    of splitting, and its shared model is the mean of 2 x_k - u_k. With absent parties use feddr or feddyn.

    Args:
        solver: how a party computes its proximal point, exactly or approximately.
        rho: penalty parameter, positive.
        relaxation: over-relaxation, in (0, 2).

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.admm(rv.solvers.GD(0.1, steps=10), rho=2.0, relaxation=1.6)

    References:
        Boyd, Parikh, Chu, Peleato, Eckstein: Distributed Optimization and Statistical Learning via the Alternating
        Direction Method of Multipliers, 2011, sections 3.4.3 and 7.1.

        Eckstein, Bertsekas: On the Douglas-Rachford Splitting Method and the Proximal Point Algorithm for Maximal
        Monotone Operators, 1992.
    """
    return ConsensusADMM(solver=solver, rho=rho, relaxation=relaxation)


@checked
def fedlin(solver: LocalSolver) -> Algorithm:
    """FedLin: gradient steps corrected by the mean gradient, of a length that depends on how many a party makes.

    The first exchange collects the gradients at the shared model. A party that makes tau_k steps makes steps of length
    learning_rate/tau_k, so that all parties move about equally far.

    Problem: min over w of the average loss, with a constant learning rate and any numbers of local steps.
    Update: g = mean of grad f_k(w~); w_k = tau_k gradient steps of length learning_rate/tau_k on f_k + <g - grad
    f_k(w~), .> from w~; w~ <- mean of w_k.
    Communication: down 1 model, then 2, up 1, then 1; a party stores nothing.
    Defaults: none; the learning rate of the solver is the sum of the lengths of a party's steps.
    Use when: parties differ in data and speed, the exact minimiser is wanted, and two exchanges per round are
    affordable.

    Args:
        solver: gradient steps, SGD or GD.

    Raises:
        InputError: ``solver`` is not SGD or GD.

    Example:
        >>> algorithm = rv.fedlin(rv.solvers.GD(0.5, steps=10))

    References:
        Mitra, Jaafar, Pappas, Hassani: Linear Convergence in Federated Learning: Tackling Client Heterogeneity and
        Sparse Gradients, NeurIPS 2021, Algorithm 1 without compression.
    """
    return FedDANE(solver=require_gradient_steps("fedlin", solver), mu=0.0, divides_rate=True)


@checked
def fedexp(solver: LocalSolver, *, epsilon: float = 1e-3) -> Algorithm:
    """FedExP: FedAvg with an extrapolated server step.

    The more the parties' changes cancel each other, the longer is the step along their mean.

    Problem: the average loss, up to FedAvg's bias.
    Update: d_k = (solve f_k from w~) - w~; w~ <- w~ + step * mean of d_k, step = max(1, mean of |d_k|^2 / (2 (|mean of
    d_k|^2 + epsilon))).
    Communication: down 1 model, up 1 and a number; a party stores nothing.
    Defaults: epsilon = 0.001, which the authors use for most of their experiments.
    Use when: FedAvg is slow because parties differ; it has no learning rate of the server to tune. The last models
    oscillate: average them, or choose by held-out samples.

    Args:
        solver: local solver of each party.
        epsilon: added to the denominator, positive; larger values extrapolate less.

    Raises:
        InputError: ``epsilon`` is not positive.

    Example:
        >>> algorithm = rv.fedexp(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, Algorithm 1.
    """
    return FedExP(solver=solver, epsilon=epsilon)


@checked
def scaffnew(solver: LocalSolver, *, p: float = 0.1) -> Algorithm:
    """Scaffnew (ProxSkip): gradient steps with control variates, and an exchange after a random number of steps.

    On strongly convex, smooth losses it needs fewer exchanges than gradient descent by a factor sqrt(L/mu), with mu
    their strong convexity and L their smoothness, for p = sqrt(mu/L) and the learning rate 1/L.

    Problem: min over w of the average loss, with all parties in every round.
    Update: x_k = L gradient steps on f_k - <h_k, .> from w~, with L drawn from the geometric distribution of mean 1/p;
    w~ <- mean of x_k; h_k <- h_k + p/learning_rate (w~ - x_k).
    Communication: down 1 model, then 1, up 1; a party stores h_k and x_k.
    Defaults: p = 0.1: ten steps between two exchanges on average.
    Use when: losses are ill-conditioned, exchanges are expensive, and full gradients are affordable. The drawn number
    of steps replaces that of the solver.

    Args:
        solver: gradient steps, SGD or GD.
        p: probability of an exchange after a step, in (0, 1].

    Raises:
        InputError: ``solver`` is not SGD or GD, or ``p`` is outside (0, 1].

    Example:
        >>> algorithm = rv.scaffnew(rv.solvers.GD(0.1), p=0.2)

    References:
        Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
        Acceleration! Finally!, ICML 2022, Algorithm 2.
    """
    return Scaffnew(solver=require_gradient_steps("scaffnew", solver), p=p)
