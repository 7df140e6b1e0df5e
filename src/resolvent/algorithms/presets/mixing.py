"""Explicit mixing of a shared model with the parties' own optima, compressed gradients, and implicit mixing."""

from jaxtyping import Array, ArrayLike, Float

from resolvent.algorithms.algorithm import Algorithm, StragglerPolicy
from resolvent.algorithms.combinators.compressed import Compressed
from resolvent.algorithms.combinators.explicit_mixture import ExplicitMixture
from resolvent.algorithms.methods.gradient import DistributedGradient
from resolvent.algorithms.methods.l2gd import L2GD
from resolvent.algorithms.methods.one_shot import OneShot
from resolvent.math.codecs import Codec, RandK
from resolvent.problem.solvers.solver import GD, SGD, LocalSolver

__all__ = ["dcgd", "dgd", "diana", "fedmix", "flix", "l2gd", "one_shot"]

_TENTH = RandK()


def fedmix(solver: LocalSolver, *, alpha: ArrayLike | Float[Array, " N"] = 0.5, inner: Algorithm | None = None,
           learning_rate: float = 0.1, repeats: int = 20) -> Algorithm:
    """FedMix (FLIX): explicit mixtures of one shared model and each party's own optimum, by any algorithm.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), x_k = argmin f_k.
    Update: the inner algorithm's, with f_k(alpha_k w + (1 - alpha_k) x_k) for f_k; without one, gradient descent.
    Travels: what the inner algorithm's does, and alpha_k down; a party keeps x_k, which it finds once.
    Defaults: alpha 1 is the inner algorithm itself and 0 local training; the poster finds values between them best.
    Use when: parties differ, each can train a model of its own, and how personal the result is should be one knob.
    Source: FedMix poster, (FedMix); Gasanov, Khaled, Horvath, Richtarik (FLIX).

    Args:
        solver: finds each party's own optimum x_k, once, before the first round.
        alpha: the share of the shared model, in [0, 1]; one number, or one per party.
        inner: the algorithm that finds w; default: gradient descent with gradients from all parties.
        learning_rate: of that gradient descent; with an inner algorithm of your own it is not used.
        repeats: how many times over the solver is run to find x_k.
    """
    algorithm = DistributedGradient(learning_rate) if inner is None else inner
    return ExplicitMixture(algorithm, solver=solver, alpha=alpha, repeats=repeats)


flix = fedmix


def one_shot(solver: LocalSolver, *, alpha: ArrayLike | Float[Array, " N"] = 0.5,
             smoothness: ArrayLike | Float[Array, " N"] | None = None, repeats: int = 20,
             stragglers: StragglerPolicy = "keep") -> Algorithm:
    """One-shot averaging: the parties' own optima, averaged once, as FedMix's shared model.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), up to an error that falls as alpha^2.
    Update: x_avg = sum_k w_k x_k with w_k in proportion to lambda_k alpha_k^2 L_k, over those that have taken part.
    Travels: up one model and a number, once in all; down x_avg, alpha_k and L_k; a party keeps x_k.
    Defaults: L_k is the largest eigenvalue of f_k's Hessian at x_k, exact for quadratics; else give a bound.
    Use when: parties can speak once only, or as the start of a method on FedMix.
    Source: FedMix poster, (2)-(3): x_avg is eps-optimal where max alpha_k <= sqrt(2 eps)/(sqrt(L) D).

    Args:
        solver: finds each party's own optimum x_k, once, before the first round.
        alpha: the share of x_avg in what a party uses, in [0, 1]; one number, or one per party.
        smoothness: L_k, one number or one per party; default: found at x_k.
        repeats: how many times over the solver is run to find x_k.
        stragglers: drop or keep parties that are late.
    """
    return OneShot(solver=solver, alpha=alpha, smoothness=smoothness, repeats=repeats, stragglers=stragglers)


def dgd(solver: LocalSolver, *, learning_rate: float = 0.1, alpha: ArrayLike | Float[Array, " N"] = 0.5,
        repeats: int = 20, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """Distributed gradient descent on FedMix; with alpha = 1, on the average loss.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), x_k = argmin f_k.
    Update: w <- w - gamma sum_k lambda_k alpha_k grad f_k(alpha_k w + (1 - alpha_k) x_k).
    Travels: one model down, with alpha_k, and one gradient up; a party keeps x_k.
    Defaults: the rate should be at most 1/L_alpha, L_alpha = sum_k lambda_k alpha_k^2 L_k.
    Use when: exact convergence and a yardstick for DCGD and DIANA are wanted.
    Source: FedMix poster, (DGD) and (4).

    Args:
        solver: finds each party's own optimum x_k, once, before the first round; with alpha = 1 there is none.
        learning_rate: gamma, the server's step.
        alpha: the share of the shared model, in [0, 1]; one number, or one per party.
        repeats: how many times over the solver is run to find x_k.
        stragglers: drop or keep parties that are late; a gradient is over all samples either way.
    """
    return _mixed(DistributedGradient(learning_rate, stragglers=stragglers), solver, alpha, repeats)


def dcgd(solver: LocalSolver, *, learning_rate: float = 0.1, codec: Codec = _TENTH,
         alpha: ArrayLike | Float[Array, " N"] = 0.5, repeats: int = 20,
         stragglers: StragglerPolicy = "keep") -> Algorithm:
    """DCGD: distributed gradient descent with compressed gradients, on FedMix.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), to a neighbourhood of the minimiser.
    Update: w <- w - gamma mean of C(g_k), g_k the gradient at w of party k's part.
    Travels: one model down, with alpha_k, and one compressed gradient up; a party keeps x_k.
    Defaults: RandK of a tenth of the entries; a rate of at most 1/(L_alpha (1 + 2 omega/N)) is safe.
    Use when: as DIANA's yardstick; it stalls where the parties' gradients differ at the minimiser.
    Source: FedMix poster, table of compressed methods; Khirirat, Feyzmahdavian, Johansson.

    Args:
        solver: finds each party's own optimum x_k, once, before the first round; with alpha = 1 there is none.
        learning_rate: gamma, the server's step.
        codec: C, what shortens a gradient.
        alpha: the share of the shared model, in [0, 1]; one number, or one per party.
        repeats: how many times over the solver is run to find x_k.
        stragglers: drop or keep parties that are late; a gradient is over all samples either way.
    """
    return Compressed(dgd(solver, learning_rate=learning_rate, alpha=alpha, repeats=repeats, stragglers=stragglers),
                      codec, 0.0)


def diana(solver: LocalSolver, *, learning_rate: float = 0.1, codec: Codec = _TENTH, step: float | None = None,
          alpha: ArrayLike | Float[Array, " N"] = 0.5, repeats: int = 20,
          stragglers: StragglerPolicy = "keep") -> Algorithm:
    """DIANA: distributed gradient descent with compressed gradient differences, on FedMix.

    Problem: min over w of sum_k lambda_k f_k(alpha_k w + (1 - alpha_k) x_k), exactly.
    Update: d_k = C(g_k - h_k), w <- w - gamma (h + mean of d_k), h_k <- h_k + step d_k, h = sum_k lambda_k h_k.
    Travels: one model down, with alpha_k, and one compressed gradient difference up; a party keeps x_k and h_k.
    Defaults: RandK of a tenth of the entries; step 1/(1 + omega), or 1 with TopK, which is EF21.
    Use when: what parties send is what costs; it also loses the noise of sampled parties.
    Source: FedMix poster, table of compressed methods; Mishchenko, Gorbunov, Takac, Richtarik, Algorithm 1.

    Args:
        solver: finds each party's own optimum x_k, once, before the first round; with alpha = 1 there is none.
        learning_rate: gamma, the server's step.
        codec: C, what shortens a gradient difference.
        step: of the memories h_k, in [0, 1]; 0 is DCGD; default: what the theory says for the codec.
        alpha: the share of the shared model, in [0, 1]; one number, or one per party.
        repeats: how many times over the solver is run to find x_k.
        stragglers: drop or keep parties that are late; a gradient is over all samples either way.
    """
    return Compressed(dgd(solver, learning_rate=learning_rate, alpha=alpha, repeats=repeats, stragglers=stragglers),
                      codec, step)


def l2gd(solver: LocalSolver, *, lam: float = 0.1, p: float = 0.2, stragglers: StragglerPolicy = "keep") -> Algorithm:
    """L2GD: loopless local gradient descent; parties' own models, pulled to their mean now and then.

    Problem: min over y_1..y_N of sum_k lambda_k (f_k(y_k) + lam/2 |y_k - y_bar|^2), y_bar = sum_k lambda_k y_k.
    Update: with chance p y_k <- y_k - eta lam/p (y_k - y_bar), else y_k <- y_k - eta/(1-p) grad f_k(y_k).
    Travels: a round is a run of the first and a run of the second: one model each way; a party keeps y_k.
    Defaults: p = lam/(L + lam) needs the fewest exchanges; the error left is in proportion to the learning rate.
    Use when: how personal models are should follow from a penalty, and exchanges are dearer than steps.
    Source: Hanzely, Richtarik, Algorithm 1, with the solver's learning rate for their step over N; FedMix, (IPFL).

    Args:
        solver: gradient steps, SGD or GD; its learning rate is eta, and the number of steps is drawn.
        lam: how strongly models are held to their mean; 0 is local training.
        p: the chance of a pull, in (0, 1); 1/p steps are expected between two exchanges.
        stragglers: drop or keep partial work.
    """
    if not isinstance(solver, SGD | GD):
        raise TypeError(f"l2gd needs plain gradient steps, got {type(solver).__name__}: use SGD or GD")
    return L2GD(solver=solver, lam=lam, p=p, stragglers=stragglers)


def _mixed(inner: Algorithm, solver: LocalSolver, alpha: ArrayLike, repeats: int) -> Algorithm:
    """On FedMix; all alphas one is the average loss, which needs no x_k."""
    if isinstance(alpha, int | float) and alpha == 1:
        return inner
    return ExplicitMixture(inner, solver=solver, alpha=alpha, repeats=repeats)
