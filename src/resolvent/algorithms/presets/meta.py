"""A shared model to start from, and a personal one near it: meta-learning, Moreau envelopes, mixtures."""

from typing import Literal

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.meta_learned import MetaLearned
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.apfl import APFL
from resolvent.algorithms.methods.pfedme import PFedMe
from resolvent.problem.maps import GradientStep
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver

__all__ = ["apfl", "fomaml", "perfedavg", "pfedme"]

Order = Literal["first", "second"]
Variant = Literal["FO", "HF", "exact"]


def fomaml(solver: LocalSolver, *, gamma: float = 0.1, order: Order = "first", steps: int = 1,
           stragglers: StragglerPolicy = "keep") -> Algorithm:
    """FOMAML: a shared model from which one gradient step leads every party to a good model of its own.

    Problem: min over w of sum_k lambda_k f_k(w - gamma grad f_k(w)); first order leaves the Hessian out of its
    gradient, so that it finds where the mean of grad f_k after the step vanishes.
    Update: FedAvg whose parties descend along grad f_k(w - gamma grad f_k(w)), with order second (MAML itself) times
    I - gamma H_k(w); both gradients see one minibatch. A party uses w~ after its own step.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: first order, as in the FedMix poster's comparison; with one step of GD a round is one step of FOMAML.
    Use when: parties are alike enough to share a start but want a model each, and a start for new parties is wanted.
    Source: Finn, Abbeel, Levine; FedMix poster, (1).

    Args:
        solver: the local solver, on the composed objective; one that compares values, as a line search does, needs
            order second, because first order follows no gradient of theirs.
        gamma: the length of the step ahead.
        order: ``first`` leaves the Hessian out (FOMAML), ``second`` has it (MAML).
        steps: how many steps of length gamma a party makes before it uses the model.
        stragglers: drop or keep partial work.
    """
    if order not in ("first", "second"):
        raise ValueError(f"fomaml(order={order!r}) is not known: use 'first' or 'second'")
    return MetaLearned(ModelAggregation(solver=solver, stragglers=stragglers), steps=steps,
                       step=GradientStep(gamma, second_order=order == "second"))


def perfedavg(solver: LocalSolver, *, alpha: float = 0.01, variant: Variant = "HF", delta: float = 1e-3,
              steps: int = 1, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Per-FedAvg: FedAvg for a model that every party takes one gradient step from before it uses it.

    Problem: min over w of sum_k lambda_k F_k(w), F_k(w) = f_k(w - alpha grad f_k(w)).
    Update: local steps along (I - alpha H_k(w)) g, g = grad f_k(w - alpha grad f_k(w)); FO counts H_k as 0; HF takes
    H_k g as (grad f_k(w + delta g) - grad f_k(w - delta g)) / (2 delta). Then FedAvg's mean.
    Travels: down 1 model, up 1; a party keeps nothing.
    Defaults: the Hessian-free variant. The step ahead, g and H_k g see samples of their own, as the paper's three
    batches: each gets a third of a minibatch (FO: half), so give the solver a batch three times as large. A batch with
    fewer samples than parts uses some of them twice, and a solver that takes full gradients (GD) uses all for each.
    Use when: as FOMAML, and where its Hessian term matters: larger alpha, curved losses.
    Source: Fallah, Mokhtari, Ozdaglar, Algorithm 1 and its two approximations.

    Args:
        solver: the local solver, on F_k; its learning rate is the paper's beta. One that compares values, as a line
            search does, needs the exact variant.
        alpha: the length of the step ahead.
        variant: ``FO``, first order; ``HF``, Hessian-free; ``exact``, with the exact Hessian-vector product.
        delta: of HF's difference: its error is of order delta^2, and of order 1/delta by rounding.
        steps: how many steps of length alpha a party makes before it uses the model.
        stragglers: drop or keep partial work.
    """
    if variant not in ("FO", "HF", "exact"):
        raise ValueError(f"perfedavg(variant={variant!r}) is not known: use 'FO', 'HF' or 'exact'")
    step = GradientStep(alpha, second_order=variant != "FO", delta=delta if variant == "HF" else None, independent=True)
    return MetaLearned(ModelAggregation(solver=solver, stragglers=stragglers), step=step, steps=steps)


def pfedme(solver: LocalSolver, *, lam: float = 15.0, eta: float = 0.005, steps: int = 20, beta: float = 1.0,
           stragglers: StragglerPolicy = "keep") -> Algorithm:
    """pFedMe: personal models held to a shared one that descends on the parties' Moreau envelopes.

    Problem: min over w of sum_k lambda_k min over theta_k of f_k(theta_k) + lam/2 |theta_k - w|^2.
    Update: w_k = w~; steps times theta_k ~ argmin f_k + lam/2 |. - w_k|^2, w_k <- w_k - eta lam (w_k - theta_k);
    w~ <- (1 - beta) w~ + beta mean(w_k).
    Travels: down 1 model, up 1; a party keeps its own, theta_k.
    Defaults: near the paper's experiments; one step with eta lam = 1 and beta = 1 is FedProx with mu = lam. The solver
    runs once per step; in the authors' code that is a few gradient steps on one minibatch.
    Use when: parties should differ a little, and a shared model for all of them is wanted beside.
    Source: T Dinh, Tran, Nguyen, Algorithm 1; only the round's sample works, and each theta_k starts at the last.

    Args:
        solver: finds theta_k.
        lam: how strongly theta_k is held to w_k.
        eta: the length of a step on the envelope.
        steps: how many of them a party makes in a round.
        beta: how far the server goes to the mean; beyond 1 it goes further.
        stragglers: drop or keep partial work.
    """
    return PFedMe(solver=solver, lam=lam, eta=eta, steps=steps, beta=beta, stragglers=stragglers)


def apfl(solver: LocalSolver, *, alpha: float = 0.5, alpha_rate: float = 0.1,
         stragglers: StragglerPolicy = "keep") -> Algorithm:
    """APFL: each party uses a mixture of its own and the shared model, in a proportion that it learns.

    Problem: FedAvg's for the shared w; beside it min over v_k of f_k(alpha_k v_k + (1 - alpha_k) w).
    Update: w_k <- w_k - eta grad f_k(w_k) and v_k <- v_k - eta alpha_k grad f_k(m_k), m_k the mixture, in step;
    alpha_k <- clip(alpha_k - alpha_rate <v_k - w~, grad f_k(m_k)>, 0, 1), once a round; w~ <- mean(w_k).
    Travels: down 1 model, up 1; a party keeps its own, v_k, and alpha_k, and works on two models.
    Defaults: half and half, then adapted; with alpha_rate = 0 alpha stays, at 0 FedAvg and at 1 local training.
    Use when: some parties are like the rest and others are not, and nobody knows which. alpha_k descends on training
    loss, so with few samples it leans to the own model.
    Source: Deng, Kamani, Mahdavi, Algorithm 1; alpha's gradient over all samples, at the beginning of a round.

    Args:
        solver: gradient steps, SGD or GD, taken by both models at once.
        alpha: the own model's share in the mixture, at first.
        alpha_rate: the length of alpha's step.
        stragglers: drop or keep partial work.
    """
    if not isinstance(solver, SGD | GD):
        raise TypeError(f"apfl needs plain gradient steps, which its two models take together, got "
                        f"{type(solver).__name__}: use SGD or GD")
    return APFL(solver=solver, alpha=alpha, alpha_rate=alpha_rate, stragglers=stragglers)
