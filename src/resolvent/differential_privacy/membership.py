r"""Membership inference: whether an attacker can say which records a model was trained on.

The likelihood-ratio attack has shadow models, which are trained like the attacked model, each on a random half of the
records. With phi_m(i) = log p - log(1 - p), where p is the probability that model m gives to the label of record i,

.. code-block:: text

    score of (m, i) = log N(phi_m(i); in_i, s_in) - log N(phi_m(i); out_i, s_out)

    in_i, out_i:   mean of phi_j(i) over the shadow models j that were, and that were not, trained on record i
    s_in, s_out:   standard deviations of phi_j(i) around these means, over all shadow models and records

A large score says that record i was a training record of model m. Every model is attacked in turn, with all others but
the one that has the other half of the records as its shadow models.

Source: Carlini, Chien, Nasr, Song, Terzis, Tramer, *Membership Inference Attacks From First Principles*, Algorithm 1
with the fixed variance of section VI.C.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.errors import InputError, check_range
from resolvent.math.tree import Vector
from resolvent.problem.models.model import Model

_SMALLEST_LOSS = 1e-7  # a loss that float32 rounds to zero would have an infinite statistic
_SMALLEST_DEVIATION = 1e-6

Numbers = NDArray[np.float64]
Membership = NDArray[np.bool_]


class MembershipAttack(NamedTuple):
    """How well membership was inferred, over all models and records.

    Attributes:
        auc: area under the ROC curve: the probability that a training record has a larger score than another record;
            1/2 for guessing.
        advantage: the largest difference between the true-positive and the false-positive rate; 0 for guessing.
        true_positive_rate: at ``false_positive_rate``, to which it is equal for guessing.
        false_positive_rate: the share of other records that are called training records.
        scores: [M, n] the score of each record for each model; larger scores mean a training record.

    Example:
        >>> attack = rv.privacy.MembershipAttack(0.5, 0.0, 0.01, 0.01, np.zeros((4, 10)))
        >>> attack.auc
        0.5
    """

    auc: float
    advantage: float
    true_positive_rate: float
    false_positive_rate: float
    scores: Numbers


@checked
def draw_members(models: int, records: int, *, seed: int = 0) -> Membership:
    """Draw the training records of shadow models: each model has half of the records, each record half of the models.

    Args:
        models: M, an even number.
        records: n, at least 2.
        seed: seed of the draw.

    Returns:
        [M, n] whether record i is a training record of model m. Model m + M/2 has the records that model m does not.

    Raises:
        InputError: ``models`` is odd or less than 2, or there are fewer than 2 records.

    Example:
        >>> rv.privacy.draw_members(4, 6).sum(axis=0).tolist()
        [2, 2, 2, 2, 2, 2]
    """
    if models < 2 or models % 2 or records < 2:
        raise InputError(f"draw_members(models={models}, records={records}) needs an even number of models, so that "
                         "each record is in half of them, and at least 2 models and 2 records")
    rng = np.random.default_rng(seed)
    ranks = rng.random((models // 2, records)).argsort(axis=1).argsort(axis=1)
    half = ranks < records // 2
    return np.concatenate([half, ~half])


@checked
def membership_inference(model: Model, shadows: Sequence[Vector], x: ArrayLike, y: ArrayLike, is_member: Membership, *,
                         false_positive_rate: float = 0.01) -> MembershipAttack:
    """The likelihood-ratio attack on each of several models, with the others as its shadow models.

    Train the models with the algorithm and the settings that are to be tested, each on its own records of
    ``draw_members``. The attack knows the model, the labels and the algorithm. It is an average over records: it can
    show that a setting is not private, but a weak attack does not prove privacy.

    Args:
        model: the model.
        shadows: M parameters of the model, at least 4; 16 to 64 are usual.
        x: [n, ...] inputs of the records.
        y: [n] labels.
        is_member: [M, n] of ``draw_members``, whether record i was a training record of model m.
        false_positive_rate: at which the true-positive rate is read, in (0, 1).

    Raises:
        InputError: the shapes do not fit together, a number is outside its range, or ``is_member`` is not one of
            ``draw_members`` for at least 4 models.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(20, 40)).astype("float32"), rng.integers(2, size=20)
        >>> members = rv.privacy.draw_members(8, 20)
        >>> fits = [np.linalg.pinv(x[m]) @ (2 * y[m] - 1) for m in members]  # least squares, without an error
        >>> shadows = [{"weight": w[None], "bias": np.zeros(1)} for w in fits]
        >>> rv.privacy.membership_inference(rv.models.logistic(40, 2), shadows, x, y, members).auc > 0.9
        True

    References:
        Carlini, Chien, Nasr, Song, Terzis, Tramer: Membership Inference Attacks From First Principles, IEEE Symposium
        on Security and Privacy 2022, Algorithm 1.
    """
    x, y = jnp.asarray(x), jnp.asarray(y)
    if is_member.shape != (len(shadows), len(x)) or len(y) != len(x):
        raise InputError(f"membership_inference(is_member=) has the shape {is_member.shape} for {len(shadows)} models, "
                         f"{len(x)} inputs and {len(y)} labels: give one row per model, and one column per record")
    return attack_statistics(np.stack([_statistics(model, params, x, y) for params in shadows]), is_member,
                             false_positive_rate=false_positive_rate)


@checked
def attack_statistics(statistics: Numbers, is_member: Membership, *,
                      false_positive_rate: float = 0.01) -> MembershipAttack:
    """The likelihood-ratio attack on statistics of your own, such as the losses of a model that is not a ``Model``.

    Args:
        statistics: [M, n] phi_m(i), of model m for record i; approximately normally distributed.
        is_member: [M, n] of ``draw_members``, whether record i was a training record of model m.
        false_positive_rate: at which the true-positive rate is read, in (0, 1).

    Raises:
        InputError: see ``membership_inference``.

    Example:
        >>> is_member = rv.privacy.draw_members(8, 50)
        >>> statistics = np.random.default_rng(0).normal(size=(8, 50)) + 10 * is_member
        >>> rv.privacy.attack_statistics(statistics, is_member).auc
        1.0
    """
    check_range("membership_inference", "(0, 1)", false_positive_rate=false_positive_rate)
    half = len(is_member) // 2
    if statistics.shape != is_member.shape or len(is_member) < 4 or len(is_member) % 2 or (
            is_member[:half] == is_member[half:]).any():
        raise InputError("membership_inference(is_member=) must be that of draw_members for at least 4 models, whose "
                         f"second half has the other records of the first half; got the shape {is_member.shape}")
    phi = np.asarray(statistics, np.float64)
    scores = _log_density(phi, is_member) - _log_density(phi, ~is_member)
    return _judge(scores, is_member, false_positive_rate)


@checked
def advantage_bound(epsilon: float, delta: float = 0.0) -> float:
    """The largest advantage of any attack on an (epsilon, delta)-differentially private algorithm.

    It is (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).

    Args:
        epsilon: at least 0.
        delta: in [0, 1].

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> round(rv.privacy.advantage_bound(1.0), 3)
        0.462

    References:
        Kairouz, Oh, Viswanath: The Composition Theorem for Differential Privacy, ICML 2015, Theorem 2.1.
    """
    check_range("advantage_bound", "[0, inf)", epsilon=epsilon)
    check_range("advantage_bound", "[0, 1]", delta=delta)
    return math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0)))


def _statistics(model: Model, params: Vector, x: ArrayLike, y: ArrayLike) -> Numbers:
    """[n] log p - log(1 - p) with p = exp(-loss): the logit of the label's probability for a cross-entropy."""
    loss = np.asarray(model.loss.loss(model.apply(params, jnp.asarray(x)), jnp.asarray(y)), np.float64)
    loss = np.maximum(loss, _SMALLEST_LOSS)
    phi: Numbers = -loss - np.log(-np.expm1(-loss))
    return phi


def _log_density(phi: Numbers, among: Membership) -> Numbers:
    """[M, n] the logarithm of the density of phi_m(i) among the models j of a group, up to a constant.

    Model m and its complement are left out of the means. One of them is in the group, so that all means are over the
    same number of models: with different numbers, the scores of guesses would depend on the membership.
    """
    half = len(phi) // 2
    values = np.where(among, phi, 0.0)
    total = values.sum(axis=0)
    mean = (total - np.tile(values[:half] + values[half:], (2, 1))) / (half - 1)
    # The variance is that of all records together: a single record has too few models.
    residuals = np.where(among, phi - total / half, 0.0)
    variance = np.sum(residuals**2) / (phi.shape[1] * (half - 1)) + _SMALLEST_DEVIATION**2
    density: Numbers = -((phi - mean) ** 2) / (2 * variance) - np.log(variance) / 2
    return density


def _judge(scores: Numbers, is_member: Membership, false_positive_rate: float) -> MembershipAttack:
    """The ROC curve of scores: a record is called a training record if its score is at least the threshold."""
    order = np.argsort(-scores, axis=None, kind="stable")
    ranked, members = scores.ravel()[order], is_member.ravel()[order]
    is_last = np.append(ranked[1:] != ranked[:-1], True)  # equal scores have one threshold
    true = np.append(0, np.cumsum(members)[is_last]) / members.sum()
    false = np.append(0, np.cumsum(~members)[is_last]) / (~members).sum()
    at = np.flatnonzero(false <= false_positive_rate)[-1]
    return MembershipAttack(float(np.trapezoid(true, false)), float(np.max(true - false)), float(true[at]),
                            false_positive_rate, scores)
