"""The papers' algorithms under the papers' names: each a plain function that returns a composition."""

from typing import Literal

import optax
from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.aggregators import Aggregator, CoordinateMedian, GeometricMedian, Mean, MoreauCentre
from resolvent.algorithms.algorithm import Algorithm, Stragglers
from resolvent.algorithms.averaging import Averaging, LocalOnly
from resolvent.algorithms.ditto import Ditto
from resolvent.algorithms.feddane import FedDANE
from resolvent.algorithms.fedplus import FedPlus, ProxAnchor, PullAnchor
from resolvent.algorithms.remembered import Remembered
from resolvent.algorithms.scaffold import Option, Scaffold
from resolvent.algorithms.schedules import Schedule
from resolvent.algorithms.server_optimizer import ServerOptimizer
from resolvent.algorithms.splitting import DecentralisedSplitting, LocalStep, Relaxation, Splitting
from resolvent.math.prox import L1, L2Norm, Penalty, SquaredL2
from resolvent.problem.solvers import GD, SGD, LocalSolver

__all__ = ["coordinate_median", "ditto", "fedadam", "fedavg", "fedavg_plus", "fedavgm", "fedcomed_plus", "feddane",
           "fedgeomed_plus", "fedpi", "fedplus", "fedplus_pull", "fedprox", "fedrp", "fedsplit", "fedyogi", "local",
           "reptile", "rfa", "scaffold", "splitting"]

Over = Literal["active", "all"]


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


def fedplus(solver: LocalSolver, penalty: Penalty, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
            aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """Fed+ with any penalty: personal models around a centre that belongs to the same penalty.

    min over W, Theta, w~ of sum_k lambda_k [f_k(w_k) + Psi(theta_k) + sigma/2 |w_k - w~ - theta_k|^2] with
    Psi = sigma*delta*phi; the paper weighs all alike, which is ``Full("uniform")``.
    Up and down: one model; a party keeps its own. Source: Fed+, Algorithm 1 and (3).

    Args:
        solver: the local solver.
        penalty: phi.
        sigma: how strongly a party's model is held to its anchor.
        delta: the smoothing: differences that phi's prox with this step removes are pulled to the centre whole.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return _over(aggregate, FedPlus(solver, ProxAnchor(penalty, delta), MoreauCentre(penalty, delta), sigma, lam,
                                    stragglers=stragglers))


def fedavg_plus(solver: LocalSolver, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
                aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """FedAvg+: personal models around the mean, Psi = sigma*delta/2 |theta|^2.

    theta_k = (w_k - w~)/(1 + delta). The papers use delta 0.001 (newest) and rho = 1000 (first): nearly local
    training and nearly FedProx. Source: Fed+, section 4.4.1; errata 4.

    Args:
        solver: the local solver.
        sigma: how strongly a party's model is held to its anchor.
        delta: how strongly the anchor is drawn from the own model to the mean.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    # The Moreau centre of a squared norm is the mean: no iteration is needed.
    return _over(aggregate, FedPlus(solver, ProxAnchor(SquaredL2(), delta), Mean(), sigma, lam,
                                    stragglers=stragglers))


def fedgeomed_plus(solver: LocalSolver, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
                   aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """FedGeoMed+: personal models around a smoothed geometric median, Psi = sigma*delta |theta|.

    A party closer than delta to the centre is pulled all the way; one further away, outliers above all, by delta.
    Source: Fed+, section 4.4.1 and (16).

    Args:
        solver: the local solver.
        sigma: how strongly a party's model is held to its anchor.
        delta: the radius within which parties agree.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return fedplus(solver, L2Norm(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate, stragglers=stragglers)


def fedcomed_plus(solver: LocalSolver, *, sigma: float = 0.1, delta: float = 0.1, lam: float = 0.0,
                  aggregate: Over = "active", stragglers: Stragglers = "keep") -> Algorithm:
    """FedCoMed+: personal models around a smoothed coordinate-wise median, Psi = sigma*delta |theta|_1.

    Coordinates that differ by less than delta agree; the others keep a personal part. Source: Fed+, section 4.4.1,
    (19) and (22) with the soft threshold in its odd form (errata 1).

    Args:
        solver: the local solver.
        sigma: how strongly a party's model is held to its anchor.
        delta: the threshold per coordinate.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return fedplus(solver, L1(), sigma=sigma, delta=delta, lam=lam, aggregate=aggregate, stragglers=stragglers)


def fedplus_pull(solver: LocalSolver, aggregator: Aggregator, *, gamma: ArrayLike | Float[Array, " N"] = 0.5,
                 sigma: float = 0.1, lam: float = 0.0, aggregate: Over = "active",
                 stragglers: Stragglers = "keep") -> Algorithm:
    """Fed+ with any aggregator and any pull per party: z_k = (1 - gamma_k) w_k + gamma_k w~.

    Source: Fed+ (first paper), Proposition 3. With the mean and gamma = delta/(1 + delta) it is FedAvg+.

    Args:
        solver: the local solver.
        aggregator: A.
        gamma: in (0, 1], one number or one per party.
        sigma: how strongly a party's model is held to its anchor.
        lam: where local work starts, 0 at the own model, 1 at the centre.
        aggregate: over the active parties, or over all N with absent ones' last models.
        stragglers: drop or keep partial work.
    """
    return _over(aggregate, FedPlus(solver, PullAnchor(gamma), aggregator, sigma, lam,
                                    stragglers=stragglers))


def splitting(solver: LocalSolver, *, eta: float | Schedule = 1.0, alpha: float | Schedule = 1.0,
              beta: float | Schedule = 1.0, gamma: float | Schedule = 1.0, local_step: LocalStep = "proximal",
              decentralised: bool = False, stragglers: Stragglers = "keep") -> Algorithm:
    """The grand scheme of operator splitting, of which FedAvg, FedProx, FedSplit, FedPi and FedRP are settings.

    z = (1-alpha) u + alpha P_f(u); w = (1-beta) z + beta P_H(z); u = (1-gamma) u + gamma w. Up and down: one model.
    Source: operator-splitting paper, (24)-(26) and Table 1; (1, 2, 1) is its variant (22), with gradient steps (21).

    Args:
        solver: how a party computes P_f; inexact unless exact.
        eta: length of the proximal step, so that a party's penalty is 1/eta; a number or a schedule.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the mean, in [0, 2].
        gamma: share of the new iterate, in [0, 1].
        local_step: the proximal step, or the solver's plain gradient steps.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    form = DecentralisedSplitting if decentralised else Splitting
    relaxation = Relaxation(eta=eta, alpha=alpha, beta=beta, gamma=gamma)
    return form(solver=solver, relaxation=relaxation, local=local_step, stragglers=stragglers)


def fedsplit(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
             stragglers: Stragglers = "keep") -> Algorithm:
    """FedSplit: Peaceman-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1).

    Solves (1) exactly with a constant eta where it converges: strongly convex and smooth parties. Source: Pathak and
    Wainwright; operator-splitting paper, (15).

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, decentralised=decentralised, stragglers=stragglers)


def fedpi(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
          stragglers: Stragglers = "keep") -> Algorithm:
    """FedPi: Douglas-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1/2).

    Solves (1) exactly with a constant eta for any convex parties. Source: operator-splitting paper, (16), Theorem 5.

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step.
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, gamma=0.5, decentralised=decentralised,
                     stragglers=stragglers)


def fedrp(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False,
          stragglers: Stragglers = "keep") -> Algorithm:
    """FedRP: the reflected party step and a plain mean, (alpha, beta, gamma) = (2, 1, 1).

    Shares FedProx's fixed points, those of the regularised problem (13), and is faster. Source: operator-splitting
    paper, (23), Theorem 7.

    Args:
        solver: how a party computes P_f.
        eta: length of the proximal step; let it fall to solve (1).
        decentralised: parties hold their iterates, and the server only averages.
        stragglers: drop or keep partial work.
    """
    return splitting(solver, eta=eta, alpha=2.0, decentralised=decentralised, stragglers=stragglers)


def scaffold(solver: LocalSolver, *, option: Option = "II", server_rate: float = 1.0,
             stragglers: Stragglers = "keep") -> Algorithm:
    """Scaffold: control variates cancel the drift of parties that differ, so that FedAvg's bias goes.

    Solves the average loss (1). Down and up: two models (the model and a control variate); a party keeps its control
    variate. Source: Karimireddy et al., Algorithm 1.

    Args:
        solver: gradient steps, SGD or GD.
        option: ``I``, a gradient at the shared model, or ``II``, the average of the gradients that were used.
        server_rate: how far the shared model moves to the mean.
        stragglers: drop or keep partial work.
    """
    if not isinstance(solver, SGD | GD):
        raise TypeError(f"scaffold needs plain gradient steps, got {type(solver).__name__}: use SGD or GD")
    return Scaffold(solver=solver, option=option, server_rate=server_rate, stragglers=stragglers)


def feddane(solver: LocalSolver, *, mu: float = 0.1, stragglers: Stragglers = "keep") -> Algorithm:
    """FedDANE: FedProx's subproblem with the gradient corrected by the mean gradient, in two exchanges a round.

    Down: a model, then a model and a gradient; up: a gradient, then a model. Unstable where parties differ much.
    Source: FedProx (Li et al.), appendix B and Figure 4.

    Args:
        solver: the local solver.
        mu: the weight of the proximal term.
        stragglers: drop or keep partial work.
    """
    return FedDANE(solver=solver, mu=mu, stragglers=stragglers)


def ditto(solver: LocalSolver, *, lam: float = 0.1, stragglers: Stragglers = "keep") -> Algorithm:
    """Ditto: FedAvg's shared model and, beside it, a personal model held to it by lam/2 |v_k - w~|^2.

    Up and down: one model; a party keeps its own and does the work twice. Source: Li, Hu, Beirami, Smith.

    Args:
        solver: the local solver, for both models.
        lam: how strongly the personal model is held to the shared one; 0 is local training.
        stragglers: drop or keep partial work.
    """
    return Ditto(solver=solver, lam=lam, stragglers=stragglers)


def reptile(solver: LocalSolver, *, rate: float = 0.5, stragglers: Stragglers = "keep") -> Algorithm:
    """Reptile: FedAvg whose server moves only a part of the way to the mean.

    Up and down: one model. Source: Nichol, Achiam, Schulman; FedMix's baseline.

    Args:
        solver: the local solver.
        rate: the part, in (0, 1]; 1 is FedAvg.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.sgd,
                           settings={"learning_rate": rate})


def fedavgm(solver: LocalSolver, *, rate: float = 1.0, momentum: float = 0.9,
            stragglers: Stragglers = "drop") -> Algorithm:
    """FedAvgM: FedAvg with momentum on the server.

    Up and down: one model. Source: Hsu, Qi, Brown.

    Args:
        solver: the local solver.
        rate: the server's step.
        momentum: the share of the last step that is kept.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.sgd,
                           settings={"learning_rate": rate, "momentum": momentum})


def fedadam(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: Stragglers = "drop") -> Algorithm:
    """FedAdam: FedAvg with Adam on the server.

    Up and down: one model. Built with optax's Adam, whose bias corrections the paper leaves out. Source: Reddi et al.

    Args:
        solver: the local solver.
        rate: the server's step.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: the paper's tau, which bounds how adaptive it is.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.adam,
                           settings={"learning_rate": rate, "b1": b1, "b2": b2, "eps": eps})


def fedyogi(solver: LocalSolver, *, rate: float = 0.01, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3,
            stragglers: Stragglers = "drop") -> Algorithm:
    """FedYogi: FedAvg with Yogi on the server.

    Up and down: one model. Built with optax's Yogi, whose bias corrections the paper leaves out. Source: Reddi et al.

    Args:
        solver: the local solver.
        rate: the server's step.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: the paper's tau, which bounds how adaptive it is.
        stragglers: drop or keep partial work.
    """
    return ServerOptimizer(inner=fedavg(solver, stragglers=stragglers), make=optax.yogi,
                           settings={"learning_rate": rate, "b1": b1, "b2": b2, "eps": eps})


def _over(aggregate: Over, algorithm: Algorithm) -> Algorithm:
    return Remembered(algorithm) if aggregate == "all" else algorithm
