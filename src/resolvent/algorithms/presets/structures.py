"""Several shared models, critical parameters, personal layers, and sharpness-aware gradients."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.objectives import SharpnessAware
from resolvent.algorithms.combinators.personal_layers import PersonalLayers
from resolvent.algorithms.methods.clustered import Clustered, CriticalParameters
from resolvent.algorithms.methods.dual_variables import PrimalDual
from resolvent.algorithms.presets.shared import fedavg
from resolvent.arguments import checked
from resolvent.problem.maps import Ascent
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedcac", "fedrep", "fedsam", "fedspeed", "ifca"]


@checked
def ifca(solver: LocalSolver, *, clusters: int = 2, spread: float = 0.1) -> Algorithm:
    """IFCA: several shared models, of which each party uses and trains the one with the smallest loss on its data.

    Problem: min over w_1, ..., w_J of the average of min_j f_k(w_j), up to FedAvg's bias; a local minimum that depends
    on the first models.
    Update: j = argmin_j f_k(w~_j); w_k = solve f_k from w~_j; w~_j <- mean of the w_k of cluster j.
    Communication: down ``clusters`` models, up 1 and a number; a party stores nothing.
    Defaults: 2 clusters; the first models differ by normal noise with standard deviation 0.1.
    Use when: parties fall into a few unknown groups. If all parties begin in one cluster and stay there, use
    a larger ``spread`` or another seed.

    Args:
        solver: local solver of each party.
        clusters: number of models, at least 1; 1 is FedAvg.
        spread: standard deviation of the noise that makes the first models differ, positive.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.ifca(rv.SGD(0.1, batch_size=20, epochs=1), clusters=3)

    References:
        Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm
        1 with model averaging (option II).
    """
    return Clustered(solver=solver, clusters=clusters, spread=spread)


@checked
def fedcac(solver: LocalSolver, *, tau: float = 0.5, beta: float = 100) -> Algorithm:
    """FedCAC: all parties share most parameters; a party's critical ones are shared with the parties that resemble it.

    Problem: none that is stated; every party has a model of its own.
    Update: w_k = solve f_k from v_k; critical are the entries of each array with the largest |(w_k - v_k) w_k|; v_k <-
    the mean of all w_k, but in critical entries the mean of those w_j whose critical entries overlap enough with k's.
    Enough is the mean overlap of two parties at first, and rises to the largest one in ``beta`` rounds.
    Communication: down 1 model, up 1; a party stores nothing, the server two models and the critical entries of each.
    Defaults: tau = 0.5, half of the entries are critical; beta = 100 rounds until parties keep these to themselves.
    Use when: parties have different labels, and some resemble one another. Set ``beta`` to about the number of rounds.

    Args:
        solver: local solver of each party.
        tau: share of the entries of an array that are critical, in (0, 1].
        beta: number of the first round after which no other party takes part in critical entries, at least 1.

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> algorithm = rv.fedcac(rv.SGD(0.1, batch_size=20, epochs=1), tau=0.4, beta=60)

    References:
        Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
        Cautiously Aggressive Collaboration, ICCV 2023, Algorithm 1.
    """
    return CriticalParameters(solver=solver, tau=tau, beta=beta)


@checked
def fedrep(solver: LocalSolver, *, layers: tuple[str, ...] = ("head",),
           personal_solver: LocalSolver | None = None) -> Algorithm:
    """FedRep: a shared body and personal heads; each party trains its head first, then the body.

    It is ``PersonalLayers`` around ``fedavg`` with a ``personal_solver``. FedPer, which trains head and body together,
    is the same combinator without it.

    Problem: min over the body b of the average of min over h_k of f_k(b, h_k), up to FedAvg's bias.
    Update: h_k <- solve f_k(b~, .) from h_k; b_k = solve f_k(., h_k) from b~; b~ <- mean of b_k.
    Communication: down the body, up the body; a party stores its head.
    Defaults: the layers whose name begins with ``head``; one solver for both parts. The authors train the head longer
    than the body.
    Use when: parties share features but not labels, or the meaning of labels differs. Name the last layer of your
    network, such as ``layer 1`` of ``rv.models.mlp``.

    Args:
        solver: local solver of the body.
        layers: patterns of the names of the personal layers, see ``PersonalLayers``.
        personal_solver: local solver of the head; default: ``solver``.

    Raises:
        InputError: in the first round, a pattern matches no layer, or the patterns match all layers.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> algorithm = rv.fedrep(solver, layers=("layer 1",), personal_solver=rv.SGD(0.1, batch_size=20, epochs=5))

    References:
        Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning,
        ICML 2021, Algorithm 1.
    """
    return PersonalLayers(fedavg(solver), layers,
                          solver if personal_solver is None else personal_solver)


@checked
def fedsam(solver: LocalSolver, *, radius: float = 0.05) -> Algorithm:
    """FedSAM: FedAvg with sharpness-aware local steps, which look for flat minima.

    Problem: the average of max over |e| <= radius of f_k(w + e), to first order and up to FedAvg's bias.
    Update: w_k = solve f_k from w~ with the gradients grad f_k(w + radius grad f_k(w)/|grad f_k(w)|); w~ <- mean of
    w_k.
    Communication: down 1 model, up 1; a party stores nothing and computes two gradients per step.
    Defaults: radius = 0.05, the usual value of SAM.
    Use when: networks generalise badly because parties differ and each fits its own data sharply.

    Args:
        solver: local solver of each party.
        radius: distance to the point whose gradient is used, positive.

    Raises:
        InputError: ``radius`` is not positive.

    Example:
        >>> algorithm = rv.fedsam(rv.SGD(0.1, batch_size=20, epochs=1), radius=0.1)

    References:
        Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022,
        Algorithm 1 (FedSAM).
    """
    return SharpnessAware(fedavg(solver), ascent=Ascent(radius))


@checked
def fedspeed(solver: LocalSolver, *, eta: float = 1.0, radius: float = 0.05) -> Algorithm:
    """FedSpeed: consensus by dual variables (FedPD) with sharpness-aware local steps.

    The authors step along (1 - a) g + a g', with g the gradient and g' that after an ascent step of length radius * g.
    Here a = 1, and the ascent step has the length ``radius``, as in SAM.

    Problem: the average of max over |e| <= radius of f_k(w + e), to first order.
    Update: fedpd's, with the gradients grad f_k(w + radius grad f_k(w)/|grad f_k(w)|).
    Communication: down 1 model, up 1; a party stores g_k and computes two gradients per step.
    Defaults: radius = 0.05, the usual value of SAM; eta = 1 as in fedpd.
    Use when: as fedpd, for networks that generalise badly.

    Args:
        solver: local solver of each party.
        eta: length of the proximal step, positive; the authors' lambda.
        radius: distance to the point whose gradient is used, positive.

    Raises:
        InputError: a number is not positive.

    Example:
        >>> algorithm = rv.fedspeed(rv.SGD(0.1, batch_size=20, epochs=1), eta=10.0)

    References:
        Sun, Shen, Huang, Ding, Tao: FedSpeed: Larger Local Interval, Less Communication Round, and Higher
        Generalization Accuracy, ICLR 2023, Algorithm 1.
    """
    return SharpnessAware(PrimalDual(solver=solver, eta=eta), ascent=Ascent(radius))
