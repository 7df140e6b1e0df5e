"""Explicit mixing of a shared model with the parties' own optima, compressed gradients, and implicit mixing."""

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.compressed import Compressed
from resolvent.algorithms.combinators.objectives import ExplicitMixture
from resolvent.algorithms.methods.gradient import DistributedGradient
from resolvent.algorithms.methods.own_optimum import OneShot
from resolvent.algorithms.methods.personal_models import L2GD
from resolvent.algorithms.presets.scale_free import default_sigma
from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.math.codecs import Codec, RandK
from resolvent.problem.solvers.solver import LocalSolver, require_gradient_steps

__all__ = ["dcgd", "dgd", "diana", "fedmix", "flix", "l2gd", "one_shot"]

_LEARNING_RATE = 0.1
_REPEATS = 20
_RAND_TENTH = RandK()


@checked
def fedmix(solver: LocalSolver, *, alpha: ArrayLike | Float[Array, " N"] = 0.9, inner: Algorithm | None = None,
           learning_rate: float | None = None, repeats: int = _REPEATS) -> Algorithm:
    """FedMix (FLIX): any algorithm on mixtures of one shared model and each party's own optimum.

    A party uses alpha_k w + (1 - alpha_k) x_k, where x_k minimises its own loss. alpha_k = 1 is the inner algorithm
    itself, alpha_k = 0 is local training.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), x_k = argmin f_k.
    Update: the inner algorithm's, with f_k(alpha_k w + (1 - alpha_k) x_k) as the loss of party k.
    Communication: the inner algorithm's, and alpha_k down; a party stores x_k, which it computes once.
    Defaults: alpha = 0.9; the poster finds values between 0 and 1 best; the inner algorithm is gradient descent
    with the gradients of all parties and the learning rate 0.1. Where parties differ much, 0.9 can be below training
    alone.
    Use when: parties differ, each can train a model of its own, and one parameter should say how personal the result
    is.

    Args:
        solver: computes each party's own optimum x_k, once, before the first round.
        alpha: weight of the shared model, in [0, 1]; one number or one per party.
        inner: the algorithm that finds w; default: gradient descent.
        learning_rate: learning rate of that gradient descent; default: 0.1. Another inner algorithm has its own.
        repeats: number of times that the solver is run to compute x_k, each time from the last result.

    Raises:
        InputError: ``learning_rate`` is set together with ``inner``; ``alpha`` is outside [0, 1], or ``repeats`` is
            less than 1.

    Example:
        >>> solver = rv.SGD(0.1, batch_size=20, epochs=1)
        >>> algorithm = rv.fedmix(solver, alpha=0.7, inner=rv.fedprox(solver, mu=0.1))

    References:
        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, (FedMix).
    """
    if inner is not None and learning_rate is not None:
        raise InputError(f"fedmix(learning_rate={learning_rate}, inner={type(inner).__name__}): the inner algorithm "
                         "has its own learning rate and does not use this one: leave learning_rate out, or inner")
    if inner is None:
        inner = DistributedGradient(_LEARNING_RATE if learning_rate is None else learning_rate)
    return ExplicitMixture(inner, solver=solver, alpha=alpha, repeats=repeats)


flix = fedmix


@checked
def one_shot(solver: LocalSolver, *, alpha: ArrayLike | Float[Array, " N"] = 0.5,
             smoothness: ArrayLike | Float[Array, " N"] | None = None, repeats: int = _REPEATS) -> Algorithm:
    """One-shot averaging: the weighted mean of the parties' own optima as FedMix's shared model.

    Each party communicates once. x_avg is eps-optimal if max alpha_k <= sqrt(2 eps)/(sqrt(L) D), with L the mean
    smoothness and D the largest distance between two parties' optima.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), up to an error in proportion to alpha^2.
    Update: x_avg = sum_k w_k x_k with w_k in proportion to lambda_k alpha_k^2 L_k, over the parties that have taken
    part.
    Communication: up one model and a number, once in the whole run; down x_avg, alpha_k and L_k; a party stores x_k.
    Defaults: L_k is the largest eigenvalue of f_k's Hessian at x_k, which is exact for quadratics; for other losses
    give a bound.
    Use when: parties can communicate once only, or for the start of a method on FedMix.

    Args:
        solver: computes each party's own optimum x_k, once, before the first round.
        alpha: weight of x_avg in the model that a party uses, in [0, 1]; one number or one per party.
        smoothness: L_k, one number or one per party; default: computed at x_k.
        repeats: number of times that the solver is run to compute x_k, each time from the last result.

    Raises:
        InputError: ``alpha`` is outside [0, 1], ``smoothness`` is negative, or ``repeats`` is less than 1.

    Example:
        >>> algorithm = rv.one_shot(rv.solvers.LBFGS(), alpha=0.2, smoothness=np.array([1.0, 4.0, 2.0]))

    References:
        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, (2) and (3).
    """
    return OneShot(solver=solver, alpha=alpha, smoothness=smoothness, repeats=repeats)


@checked
def dgd(solver: LocalSolver | None = None, *, learning_rate: float = _LEARNING_RATE,
        alpha: ArrayLike | Float[Array, " N"] = 0.5, repeats: int | None = None) -> Algorithm:
    """Distributed gradient descent on FedMix; with alpha = 1, on the average loss.

    The parties send gradients over all their samples, and the server makes the step. With alpha = 1 there is no x_k,
    hence no solver.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), x_k = argmin f_k.
    Update: w <- w - gamma sum_k lambda_k alpha_k grad f_k(alpha_k w + (1 - alpha_k) x_k).
    Communication: one model down, with alpha_k, and one gradient up; a party stores x_k.
    Defaults: the learning rate should be at most 1/L_alpha, L_alpha = sum_k lambda_k alpha_k^2 L_k, with L_k the
    smoothness of f_k.
    Use when: exact convergence, or a baseline for DCGD and DIANA, is wanted.

    Args:
        solver: computes each party's own optimum x_k, once, before the first round; None for alpha = 1.
        learning_rate: gamma, the server's step.
        alpha: weight of the shared model, in [0, 1]; one number or one per party.
        repeats: number of times that the solver is run to compute x_k, each time from the last result; default: 20.
            samples in both cases.

    Raises:
        InputError: ``solver`` or ``repeats`` is set for alpha = 1, or ``solver`` is missing for another alpha;
            ``alpha`` is outside [0, 1], or ``repeats`` is less than 1.

    Example:
        >>> on_average_loss = rv.dgd(learning_rate=0.1, alpha=1.0)
        >>> on_mixtures = rv.dgd(rv.SGD(0.1, batch_size=20, epochs=1), alpha=0.5, repeats=10)

    References:
        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, (DGD) and (4).
    """
    return _on_mixtures("dgd", DistributedGradient(learning_rate), solver, alpha, repeats)


@checked
def dcgd(solver: LocalSolver | None = None, *, learning_rate: float = _LEARNING_RATE, codec: Codec = _RAND_TENTH,
         alpha: ArrayLike | Float[Array, " N"] = 0.5, repeats: int | None = None) -> Algorithm:
    """DCGD: distributed gradient descent with compressed gradients, on FedMix.

    A codec C makes the gradients that the parties send shorter. With alpha = 1 there is no x_k, hence no solver.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), up to a neighbourhood of the minimiser.
    Update: w <- w - gamma mean of C(g_k), g_k = alpha_k grad f_k(alpha_k w + (1 - alpha_k) x_k).
    Communication: one model down, with alpha_k, and one compressed gradient up; a party stores x_k.
    Defaults: RandK of a tenth of the entries; a learning rate of at most 1/(L_alpha (1 + 2 omega/N)) is safe, with
    L_alpha as in dgd and omega the codec's relative variance.
    Use when: as the baseline of DIANA; it stops before the minimiser if the parties' gradients differ there.

    Args:
        solver: computes each party's own optimum x_k, once, before the first round; None for alpha = 1.
        learning_rate: gamma, the server's step.
        codec: C, which compresses the gradients.
        alpha: weight of the shared model, in [0, 1]; one number or one per party.
        repeats: number of times that the solver is run to compute x_k, each time from the last result; default: 20.
            samples in both cases.

    Raises:
        InputError: ``solver`` or ``repeats`` is set for alpha = 1, or ``solver`` is missing for another alpha;
            ``alpha`` is outside [0, 1], or ``repeats`` is less than 1.

    Example:
        >>> algorithm = rv.dcgd(learning_rate=0.1, codec=rv.codecs.QSGD(levels=4), alpha=1.0)

    References:
        Khirirat, Feyzmahdavian, Johansson: Distributed Learning with Compressed Gradients, 2018.

        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, table of compressed methods.
    """
    method = DistributedGradient(learning_rate)
    return Compressed(_on_mixtures("dcgd", method, solver, alpha, repeats), codec, 0.0)


@checked
def diana(solver: LocalSolver | None = None, *, learning_rate: float = _LEARNING_RATE, codec: Codec = _RAND_TENTH,
          step: float | None = None, alpha: ArrayLike | Float[Array, " N"] = 0.5,
          repeats: int | None = None) -> Algorithm:
    """DIANA: distributed gradient descent with compressed gradient differences, on FedMix.

    A party sends the compressed difference between its gradient and a shift h_k, which it moves towards the gradient;
    so the error of the compression vanishes. With alpha = 1 there is no x_k, hence no solver.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), exactly.
    Update: d_k = C(g_k - h_k), w <- w - gamma (h + mean of d_k), h_k <- h_k + step d_k, h = sum_k lambda_k h_k, g_k =
    alpha_k grad f_k(alpha_k w + (1 - alpha_k) x_k).
    Communication: one model down, with alpha_k, and one compressed gradient difference up; a party stores x_k and h_k.
    Defaults: RandK of a tenth of the entries; step 1/(1 + omega), with omega the codec's relative variance, or 1 with
    TopK, which is EF21.
    Use when: the parties' uploads are what limits training; it also removes the noise of sampled parties.

    Args:
        solver: computes each party's own optimum x_k, once, before the first round; None for alpha = 1.
        learning_rate: gamma, the server's step.
        codec: C, which compresses the gradient differences.
        step: step size of the shifts h_k, in [0, 1]; 0 is DCGD; default: the theory's value for the codec.
        alpha: weight of the shared model, in [0, 1]; one number or one per party.
        repeats: number of times that the solver is run to compute x_k, each time from the last result; default: 20.
            samples in both cases.

    Raises:
        InputError: ``solver`` or ``repeats`` is set for alpha = 1, or ``solver`` is missing for another alpha;
            ``alpha`` or ``step`` is outside [0, 1], or ``repeats`` is less than 1.

    Example:
        >>> algorithm = rv.diana(learning_rate=0.1, codec=rv.codecs.TopK(k=5), alpha=1.0)

    References:
        Mishchenko, Gorbunov, Takac, Richtarik: Distributed Learning with Compressed Gradient Differences, 2019,
        Algorithm 1.

        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, table of compressed methods.

        Richtarik, Sokolov, Fatkhullin: EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
        Feedback, NeurIPS 2021.
    """
    method = DistributedGradient(learning_rate)
    return Compressed(_on_mixtures("diana", method, solver, alpha, repeats), codec, step)


@checked
def l2gd(solver: LocalSolver, *, lam: float | None = None, p: float = 0.2) -> Algorithm:
    """L2GD: loopless local gradient descent on personal models, which are pulled to their mean at random times.

    Each step is a pull with probability p and a gradient step otherwise. A round is a run of pulls and the run of
    gradient steps after it, so that parties communicate once for several steps.

    Problem: min over y_1..y_N of sum_k lambda_k (f_k(y_k) + lam/2 |y_k - y_bar|^2), y_bar = sum_k lambda_k y_k.
    Update: with probability p, y_k <- y_k - eta lam/p (y_k - y_bar); otherwise y_k <- y_k - eta/(1-p) grad f_k(y_k).
    The paper's step size over N is here the solver's learning rate eta.
    Communication: one model down and one up; a party stores y_k.
    Defaults: lam = 0.053/learning rate, so that a pull closes 26 % of the distance from the mean, whatever the scale of
    the parameters. p = lam/(L + lam), with L the smoothness, needs the fewest exchanges; the remaining error is in
    proportion to the learning rate.
    Use when: a penalty should say how personal the models are, and exchanges cost more than steps.

    Args:
        solver: gradient steps, SGD or GD; its learning rate is eta. The number of steps is random, not the solver's.
        lam: weight of the pull of the models to their mean; 0 is local training; default: 0.053/learning rate.
        p: probability of a pull, in (0, 1); on average there are 1/p steps between two exchanges.

    Raises:
        InputError: ``solver`` is not SGD or GD.
        InputError: ``lam`` is negative, ``p`` is outside (0, 1), or a pull of length eta lam/p goes beyond the mean.

    Example:
        >>> algorithm = rv.l2gd(rv.SGD(0.1, batch_size=20), lam=0.5, p=0.25)

    References:
        Hanzely, Richtarik: Federated Learning of a Mixture of Global and Local Models, 2020, Algorithm 1.

        Gasanov, Khaled, Horvath, Richtarik: FLIX: A Simple and Communication-Efficient Alternative to Local Methods in
        Federated Learning, AISTATS 2022; as a poster FedMix, (IPFL).
    """
    steps = require_gradient_steps("l2gd", solver)
    return L2GD(solver=steps, lam=default_sigma(steps, lam), p=p)


def _on_mixtures(preset: str, method: Algorithm, solver: LocalSolver | None, alpha: ArrayLike,
                 repeats: int | None) -> Algorithm:
    """The method on FedMix's mixtures; for alpha = 1 the method itself: the mixture is then the shared model."""
    if isinstance(alpha, int | float) and alpha == 1:
        for name, value in (("solver", solver), ("repeats", repeats)):
            if value is not None:
                raise InputError(f"{preset}(alpha=1) does not use {name}, because there are no own optima x_k to "
                                 f"compute: leave {name} out (in a file, write '{name}: null'), or set alpha below 1")
        return method
    if solver is None:
        raise InputError(f"{preset} needs a solver for each party's own optimum x_k: give one, or set alpha=1 for the "
                         "average loss, which needs none")
    return ExplicitMixture(method, solver=solver, alpha=alpha, repeats=_REPEATS if repeats is None else repeats)
