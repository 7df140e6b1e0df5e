"""Gradient methods with compressed or recursively estimated gradients, on the average loss."""

from typing import NamedTuple

from jaxtyping import ArrayLike

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.compressed import Compressed, CompressedMessages
from resolvent.algorithms.combinators.momentum import Momentum
from resolvent.algorithms.methods.gradient import DistributedGradient, RecursiveGradient
from resolvent.arguments import checked
from resolvent.errors import InputError, check_range
from resolvent.math.codecs import Codec, RandK, TopK
from resolvent.problem.solvers.solver import SGD, LocalSolver, require_gradient_steps

__all__ = ["ef21_bc", "ef21_sgdm", "marina", "page"]

_RAND_TENTH, _TOP_TENTH = RandK(), TopK()


@checked
def marina(solver: LocalSolver, *, codec: Codec = _RAND_TENTH, p: float | None = None) -> Algorithm:
    """MARINA: compressed differences of gradients, and whole gradients in a few random rounds.

    All parties send whole gradients in the same rounds, which the server draws. Without a codec it is PAGE.

    Problem: min over w of the average loss, with all parties in every round.
    Update: c = 1 with probability p, else 0; g <- mean of grad f_k(w~) if c = 1, else g + mean of C(grad f_k(w~) - grad
    f_k(v~)), with v~ the shared model of the round before; w~ <- w~ - learning_rate g.
    Communication: down 2 models and c, up a compressed difference, or 1 gradient if c = 1 (``reply_bits`` in the
    metrics). The part of a reply that is not used is zero, of which ``resolvent lead start`` sends the shape only; if
    c = 1 also the difference's zeros as the codec encodes them. A party stores nothing.
    Defaults: RandK of a tenth of the entries; p = 1/(1 + omega), with omega the codec's relative variance, so that both
    kinds of rounds send about equally much.
    Use when: uploads limit training, the losses are not convex, and parties cannot store a shift as diana needs.

    Args:
        solver: SGD or GD. Its learning rate is the server's step, and the batch size of SGD is that of the differences
            (VR-MARINA); GD uses all samples. The number of local steps has no effect.
        codec: C, unbiased.
        p: probability of whole gradients in a round, in (0, 1]; 1 is gradient descent.
            partial.

    Raises:
        InputError: ``solver`` is not SGD or GD, or has a schedule; the codec is biased; ``p`` is outside (0, 1].

    Example:
        >>> algorithm = rv.marina(rv.solvers.GD(0.1), codec=rv.codecs.RandK(share=0.05))

    References:
        Gorbunov, Burlachenko, Li, Richtarik: MARINA: Faster Non-Convex Distributed Learning with Compression, ICML
        2021, Algorithms 1 and 2.
    """
    steps = _server_steps("marina", solver)
    return RecursiveGradient(steps.rate, p, codec, steps.batch_size)


@checked
def page(solver: LocalSolver, *, p: float = 0.1) -> Algorithm:
    """PAGE: gradients over a minibatch that correct the last estimate, and over all samples in a few random rounds.

    The noise of the minibatches vanishes as the model converges, so that a constant learning rate suffices.

    Problem: min over w of the average loss, with all parties in every round.
    Update: c = 1 with probability p, else 0; g <- mean of grad f_k(w~) if c = 1, else g + mean of (grad f_kB(w~) - grad
    f_kB(v~)) over a minibatch B, with v~ the shared model of the round before; w~ <- w~ - learning_rate g.
    Communication: down 2 models and c, up 1; a party stores nothing.
    Defaults: p = 0.1; the theory's value is b/(n + b), with b the batch size and n the samples of a party.
    Use when: parties have many samples, so that gradients over all of them are expensive, and the exact minimiser is
    wanted.

    Args:
        solver: SGD or GD. Its learning rate is the server's step, and the batch size of SGD is that of the minibatch;
            GD uses all samples, which is gradient descent. The number of local steps has no effect.
        p: probability of gradients over all samples in a round, in (0, 1]; 1 is gradient descent.
            partial.

    Raises:
        InputError: ``solver`` is not SGD or GD, or has a schedule; ``p`` is outside (0, 1].

    Example:
        >>> algorithm = rv.page(rv.SGD(0.1, batch_size=20), p=0.2)

    References:
        Li, Bao, Zhang, Richtarik: PAGE: A Simple and Optimal Probabilistic Gradient Estimator for Nonconvex
        Optimization, ICML 2021, Algorithm 1, with one minibatch for each party.
    """
    steps = _server_steps("page", solver)
    return RecursiveGradient(steps.rate, p, None, steps.batch_size)


@checked
def ef21_sgdm(solver: LocalSolver, *, codec: Codec = _TOP_TENTH, eta: float = 0.1) -> Algorithm:
    """EF21-SGDM: error feedback for compressed stochastic gradients, with momentum at the parties.

    Momentum averages the noise of minibatches, which a biased codec such as TopK would otherwise amplify. It is
    ``Compressed`` around ``Momentum`` around distributed stochastic gradients.

    Problem: min over w of the average loss; exactly with GD, and up to the noise of the minibatches with SGD.
    Update: v_k <- (1 - eta) v_k + eta grad f_k(w~); c_k = C(v_k - h_k); h_k <- h_k + c_k; w~ <- w~ - learning_rate
    times the mean of the h_k.
    Communication: down 1 model, up a compressed gradient; a party stores v_k and h_k, the server stores the mean of
    h_k.
    Defaults: TopK of a tenth of the entries; eta = 0.1, which is momentum of 0.9.
    Use when: uploads limit training and gradients are over minibatches. With eta = 1 it is EF21, which is diana with
    TopK and alpha = 1.

    Args:
        solver: SGD or GD. Its learning rate is the server's step, and the batch size of SGD is that of a gradient; GD
            uses all samples. The number of local steps has no effect.
        codec: C; a biased one, such as TopK, moves the shifts by whole steps, an unbiased one by 1/(1 + omega).
        eta: weight of the new gradient in v_k, in (0, 1]; v_k begins at the first gradient.
            partial.

    Raises:
        InputError: ``solver`` is not SGD or GD, or has a schedule; ``eta`` is outside (0, 1].

    Example:
        >>> algorithm = rv.ef21_sgdm(rv.SGD(0.1, batch_size=20), codec=rv.codecs.TopK(share=0.02))

    References:
        Fatkhullin, Tyurin, Richtarik: Momentum Provably Improves Error Feedback!, NeurIPS 2023, Algorithm 1.
    """
    check_range("ef21_sgdm", "(0, 1]", eta=eta)
    steps = _server_steps("ef21_sgdm", solver)
    gradients = DistributedGradient(steps.rate, batch_size=steps.batch_size)
    return Compressed(Momentum(gradients, decay=1 - eta), codec)


@checked
def ef21_bc(solver: LocalSolver, *, codec: Codec = _TOP_TENTH, message_codec: Codec = _TOP_TENTH) -> Algorithm:
    """EF21-BC: gradient descent with error feedback that compresses in both directions.

    The paper's server compresses its estimate of the gradient, from which all parties compute the model. Here it
    compresses the model itself (EF21-P), so that a party can be absent: it is ``CompressedMessages`` around
    ``Compressed`` around distributed gradients.

    Problem: min over w of the average loss, exactly, for a small enough learning rate.
    Update: r_k <- r_k + C_s(w~ - r_k), which the server sends; c_k = C(grad f_k(r_k) - h_k); h_k <- h_k + c_k; w~ <- w~
    - learning_rate times the mean of the h_k.
    Communication: down a compressed model, up a compressed gradient; a party stores r_k and h_k, the server stores the
    r_k of all parties and the mean of the h_k.
    Defaults: TopK of a tenth of the entries in both directions.
    Use when: downloads are as expensive as uploads. For methods with local work put ``CompressedMessages`` around them.

    Args:
        solver: SGD or GD. Its learning rate is the server's step, and the batch size of SGD is that of a gradient; GD
            uses all samples. The number of local steps has no effect.
        codec: C, of the parties' gradients.
        message_codec: C_s, of the server's model.
            partial.

    Raises:
        InputError: ``solver`` is not SGD or GD, or has a schedule.

    Example:
        >>> algorithm = rv.ef21_bc(rv.solvers.GD(0.05), message_codec=rv.codecs.TopK(share=0.2))

    References:
        Fatkhullin, Sokolov, Gorbunov, Li, Richtarik: EF21 with Bells & Whistles: Practical Algorithmic Extensions of
        Modern Error Feedback, 2021, Algorithm 5 (EF21-BC).

        Gruntkowska, Tyurin, Richtarik: EF21-P and Friends: Improved Theoretical Communication Complexity for
        Distributed Optimization with Bidirectional Compression, ICML 2023, Algorithm 1.
    """
    steps = _server_steps("ef21_bc", solver)
    gradients = DistributedGradient(steps.rate, batch_size=steps.batch_size)
    return CompressedMessages(Compressed(gradients, codec), message_codec)


class _ServerSteps(NamedTuple):
    rate: ArrayLike  # length of a step
    batch_size: int | None  # samples of a party's gradient; None for all


def _server_steps(preset: str, solver: LocalSolver) -> _ServerSteps:
    """The learning rate and the batch size of a solver, for a server that steps along the parties' gradients."""
    steps = require_gradient_steps(preset, solver)
    if steps.schedule is not None:
        raise InputError(f"{preset} has a constant learning rate and does not use the schedule of "
                         f"{type(steps).__name__}: leave schedule out")
    if isinstance(steps, SGD) and steps.clip is not None:
        raise InputError(f"{preset} takes the learning rate and the batch size of SGD, and does not clip gradients: "
                         "leave clip out")
    return _ServerSteps(steps.learning_rate, steps.batch_size if isinstance(steps, SGD) else None)
