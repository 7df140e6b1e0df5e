"""A shared model as the start of personal ones: meta-learning, Moreau envelopes, adaptive mixtures."""

from typing import Literal

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.objectives import MetaLearned
from resolvent.algorithms.methods.aggregation import ModelAggregation
from resolvent.algorithms.methods.personal_models import APFL, PFedMe
from resolvent.algorithms.presets.scale_free import default_sigma
from resolvent.arguments import checked
from resolvent.errors import InputError, check_range
from resolvent.problem.maps import GradientStep
from resolvent.problem.solvers.solver import LocalSolver, require_gradient_steps

__all__ = ["apfl", "fomaml", "perfedavg", "pfedme"]

Order = Literal["first", "second"]
Variant = Literal["FO", "HF", "exact"]

_DELTA = 1e-3


@checked
def fomaml(solver: LocalSolver, *, gamma: float = 0.1, order: Order = "first", steps: int = 1) -> Algorithm:
    """FOMAML: a shared model from which one gradient step leads every party to a good personal model.

    The parties train the loss after a gradient step. The first-order form ignores the Hessian in its gradient; the
    second-order form is MAML itself.

    Problem: min over w of sum_k lambda_k f_k(w - gamma grad f_k(w)). First order finds instead where the mean of grad
    f_k after the step vanishes.
    Update: FedAvg whose parties descend along grad f_k(w - gamma grad f_k(w)), for order second multiplied by
    I - gamma H_k(w); both gradients use one minibatch. A party uses w~ after its own step.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: first order, as in the FedMix poster's comparison; with one step of GD a round is one step of FOMAML.
    Use when: parties are alike enough to share a start but each wants its own model, or new parties need a start.

    Args:
        solver: local solver of each party, on the loss after the step. A solver that compares values, such as one with
            a line search, needs order second, because the first-order direction is not the gradient of these values.
        gamma: length of the gradient step.
        order: ``first`` ignores the Hessian (FOMAML), ``second`` uses it (MAML).
        steps: number of steps of length gamma that a party makes before it uses the model.

    Raises:
        InputError: ``order`` is not known; ``gamma`` is not positive, or ``steps`` is negative.

    Example:
        >>> algorithm = rv.fomaml(rv.solvers.GD(0.1), gamma=0.1, order="second")

    References:
        Finn, Abbeel, Levine: Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks, ICML 2017.

        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, (1).
    """
    check_range("fomaml", "(0, inf)", gamma=gamma)
    return MetaLearned(ModelAggregation(solver=solver), steps=steps,
                       step=GradientStep(gamma, second_order=order == "second"))


@checked
def perfedavg(solver: LocalSolver, *, alpha: float = 0.01, variant: Variant = "HF", delta: float | None = None,
              steps: int = 1) -> Algorithm:
    """Per-FedAvg: FedAvg for a model from which every party makes one gradient step before it uses it.

    The objective is MAML's, and the gradient step, the gradient after it and the Hessian term use different samples,
    the paper's three batches.

    Problem: min over w of sum_k lambda_k F_k(w), F_k(w) = f_k(w - alpha grad f_k(w)).
    Update: local steps along (I - alpha H_k(w)) g, g = grad f_k(w - alpha grad f_k(w)); FO takes H_k as 0; HF replaces
    H_k g by (grad f_k(w + delta g) - grad f_k(w - delta g)) / (2 delta). Then FedAvg's mean.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: the Hessian-free variant. Each of the three batches is a third of a minibatch (FO: two halves), so give
    the solver a batch three times as large. A batch with fewer samples than parts uses some samples twice, and a solver
    that takes full gradients (GD) uses all samples for each part.
    Use when: as FOMAML, if its Hessian term matters: larger alpha, curved losses.

    Args:
        solver: local solver of each party, on F_k; its learning rate is the paper's beta. A solver that compares
            values, such as one with a line search, needs the exact variant.
        alpha: length of the gradient step.
        variant: ``FO``, first order; ``HF``, Hessian-free; ``exact``, with the exact Hessian-vector product.
        delta: step of HF's difference quotient, whose error is of order delta^2, and of order 1/delta by rounding;
            default: 0.001. The other variants have none.
        steps: number of steps of length alpha that a party makes before it uses the model.

    Raises:
        InputError: ``variant`` is not known, or ``delta`` is set for another variant than HF; ``alpha`` or ``delta`` is
            not positive, or ``steps`` is negative.

    Example:
        >>> algorithm = rv.perfedavg(rv.SGD(0.1, batch_size=60, epochs=1), alpha=0.05, variant="HF", delta=0.01)

    References:
        Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
        Meta-Learning Approach, NeurIPS 2020, Algorithm 1 and its two approximations.
    """
    check_range("perfedavg", "(0, inf)", alpha=alpha, delta=delta)
    if variant != "HF" and delta is not None:
        raise InputError(f"perfedavg(delta={delta}, variant={variant!r}): only variant 'HF' has a difference quotient: "
                         "leave delta out")
    quotient = (_DELTA if delta is None else delta) if variant == "HF" else None
    step = GradientStep(alpha, second_order=variant != "FO", delta=quotient, independent=True)
    return MetaLearned(ModelAggregation(solver=solver), step=step, steps=steps)


@checked
def pfedme(solver: LocalSolver, *, lam: float | None = None, eta: float | None = None, steps: int = 20,
           beta: float = 1.0) -> Algorithm:
    """pFedMe: personal models near a shared one, which descends on the parties' Moreau envelopes.

    Differences from the paper: only the parties of a round work, and each theta_k starts at the last one.

    Problem: min over w of sum_k lambda_k min over theta_k of f_k(theta_k) + lam/2 |theta_k - w|^2.
    Update: w_k = w~; ``steps`` times theta_k ~ argmin f_k + lam/2 |. - w_k|^2, w_k <- w_k - eta lam (w_k - theta_k);
    w~ <- (1 - beta) w~ + beta mean(w_k).
    Communication: down 1 model, up 1; a party stores its model theta_k.
    Defaults: lam makes 1/(1 + learning_rate*lam) equal to 0.95, and eta = 1/lam moves w_k to theta_k, whatever the
    scale of the parameters; lam = 0.1 for a solver without a learning rate. The paper's experiments have lam = 15 and
    eta = 0.005. One step with eta lam = 1 and beta = 1 is FedProx with mu = lam. The solver runs once per step; in the
    authors' code that is a few gradient steps on one minibatch.
    Use when: parties should differ a little, and a shared model for all of them is wanted as well.

    Args:
        solver: computes theta_k.
        lam: weight of the term that keeps theta_k near w_k; default: 0.053/learning rate.
        eta: length of a step on the envelope; default: 1/lam.
        steps: number of these steps in a round; a straggler makes ceil(effort * steps).
        beta: how far the server moves to the mean; it may be larger than 1.

    Raises:
        InputError: ``lam``, ``eta``, ``steps`` or ``beta`` is not positive.

    Example:
        >>> algorithm = rv.pfedme(rv.SGD(0.1, batch_size=20, steps=5), lam=15.0, steps=20)

    References:
        T. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1.
    """
    weight = default_sigma(solver, lam)
    # A weight of 0 is refused by the method.
    length = (1 / weight if weight else 1.0) if eta is None else eta
    return PFedMe(solver=solver, lam=weight, eta=length, steps=steps, beta=beta)


@checked
def apfl(solver: LocalSolver, *, alpha: float = 0.1, alpha_rate: float = 0.1) -> Algorithm:
    """APFL: each party uses a mixture of its own and the shared model, with a weight that it learns.

    Difference from the paper: the gradient of alpha_k is over all samples, at the start of a round.

    Problem: FedAvg's for the shared w; and min over v_k of f_k(alpha_k v_k + (1 - alpha_k) w).
    Update: w_k <- w_k - eta grad f_k(w_k) and v_k <- v_k - eta alpha_k grad f_k(m_k), with m_k the mixture, in the same
    steps; alpha_k <- clip(alpha_k - alpha_rate <v_k - w~, grad f_k(m_k)>, 0, 1), once a round; w~ <- mean(w_k).
    Communication: down 1 model, up 1; a party stores v_k and alpha_k, and trains two models.
    Defaults: the party's own model weighs 0.1 at first, then alpha_k adapts; from the paper's 1/2 it often moves to the
    party's own model. With alpha_rate = 0 it stays, at 0 FedAvg and at 1 local training.
    Use when: some parties are like the others and some are not, and it is not known which. alpha_k descends on the
    training loss, so with few samples it prefers the party's own model.

    Args:
        solver: gradient steps, SGD or GD, which both models make together.
        alpha: first weight of the party's own model in the mixture, in [0, 1].
        alpha_rate: learning rate of alpha.

    Raises:
        InputError: ``solver`` is not SGD or GD.
        InputError: ``alpha`` is outside [0, 1], or ``alpha_rate`` is negative.

    Example:
        >>> algorithm = rv.apfl(rv.SGD(0.1, batch_size=20, epochs=1), alpha=0.5, alpha_rate=0.05)

    References:
        Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020, Algorithm 1.
    """
    return APFL(solver=require_gradient_steps("apfl", solver), alpha=alpha, alpha_rate=alpha_rate)
