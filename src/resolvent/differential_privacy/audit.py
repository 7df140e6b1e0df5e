r"""An audit: a lower bound on epsilon from one run, with many canaries.

Each of m canaries is included or excluded by a fair coin. The auditor sees what the run releases, guesses for some
canaries whether they were included, and abstains for the others. If the run is (epsilon, delta)-differentially private,
then with r guesses, of which V are correct,

.. code-block:: text

    P(V >= v) <= beta + 2 m delta max over i in {1, ..., v} of P(v - i <= B < v) / i
    beta = P(B >= v),   B ~ Binomial(r, e^epsilon / (1 + e^epsilon))

An epsilon for which this is less than 1 - confidence is too small. The bound holds for every test statistic and every
algorithm; it is far below epsilon if the statistic is weak, or if m is small. Many runs with one canary each are one
run with many canaries.

Source: Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, Theorem 5.2 and Algorithm 1.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.errors import InputError, check_range

_LARGEST_EPSILON, _TOLERANCE = 100.0, 1e-4


class Audit(NamedTuple):
    """What an audit has shown.

    Attributes:
        lower_bound: epsilon is at least this, with the stated confidence.
        guesses: number of canaries about which the auditor guessed.
        correct: number of correct guesses.
        canaries: number of canaries.

    Example:
        >>> rv.privacy.Audit(0.0, 10, 5, 100).lower_bound
        0.0
    """

    lower_bound: float
    guesses: int
    correct: int
    canaries: int


@checked
def epsilon_lower_bound(guesses: int, correct: int, *, canaries: int, delta: float = 0.0,
                        confidence: float = 0.95) -> float:
    """The largest epsilon that this number of correct guesses refutes; 0 if it refutes none.

    Args:
        guesses: r, the number of canaries about which the auditor guessed; decided without the truth.
        correct: v, the number of correct guesses.
        canaries: m, the number of canaries.
        delta: the delta of the claim, in [0, 1).
        confidence: probability with which the bound holds, in (0, 1).

    Raises:
        InputError: a number is outside its range.

    Example:
        >>> round(rv.privacy.epsilon_lower_bound(100, 95, canaries=100), 2)
        2.17

    References:
        Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run, NeurIPS 2023, Theorem 5.2.
    """
    check_range("epsilon_lower_bound", "[0, 1)", delta=delta)
    check_range("epsilon_lower_bound", "(0, 1)", confidence=confidence)
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(f"epsilon_lower_bound(guesses={guesses}, correct={correct}, canaries={canaries}) needs "
                         "0 <= correct <= guesses <= canaries")

    def is_refuted(epsilon: float) -> bool:
        return _probability(epsilon, guesses, correct, canaries, delta) < 1 - confidence

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


@checked
def audit_scores(scores: NDArray[np.float64], is_included: NDArray[np.bool_], *, delta: float,
                 confidence: float = 0.95) -> Audit:
    """The lower bound on epsilon from a score of each canary.

    The auditor guesses that the canaries with the largest scores were included and those with the smallest scores were
    not. Several numbers of guesses are tried, each with its part of 1 - ``confidence``; canaries with the same score
    are in random order.

    Args:
        scores: [m] a score of each canary, computed from what a run releases; [S, m] several, the best of which counts
            with its part of 1 - ``confidence``.
        is_included: [m] the truth, drawn by fair coins.
        delta: the delta of the claim, in [0, 1).
        confidence: probability with which the bound holds, in (0, 1).

    Raises:
        InputError: the shapes do not fit together, or a number is outside its range.

    Example:
        >>> is_included = np.random.default_rng(0).integers(0, 2, 200).astype(bool)
        >>> rv.privacy.audit_scores(is_included + 0.0, is_included, delta=1e-5).lower_bound > 3
        True
    """
    table, truth = np.atleast_2d(np.asarray(scores, np.float64)), np.asarray(is_included, bool)
    if truth.ndim != 1 or table.shape[1:] != truth.shape:
        raise InputError(f"audit_scores: scores have the shape {np.shape(scores)}, and is_included "
                         f"{np.shape(is_included)}: give one score and one truth for each canary")
    count = len(truth)
    numbers = sorted({max(1, count // part) for part in (32, 8, 2, 1)})
    each = 1 - (1 - confidence) / (len(numbers) * len(table))
    rng = np.random.default_rng(0)
    audits = []
    for row in table:
        order = np.lexsort((rng.random(count), np.where(np.isfinite(row), row, -np.inf)))
        for guesses in numbers:
            included, excluded = order[count - guesses // 2:], order[:guesses - guesses // 2]
            correct = int(truth[included].sum() + (~truth[excluded]).sum())
            bound = epsilon_lower_bound(guesses, correct, canaries=count, delta=delta, confidence=each)
            audits.append(Audit(bound, guesses, correct, count))
    return max(audits)


def _probability(epsilon: float, guesses: int, correct: int, canaries: int, delta: float) -> float:
    """The bound on the probability of this number of correct guesses, or more."""
    from scipy.stats import binom  # takes long to import

    share = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(correct - 1, guesses, share))
    if delta == 0 or correct == 0:
        return beta
    fewer = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, share))  # P(v - i <= B < v)
    return beta + 2 * canaries * delta * float(np.max(fewer / np.arange(1, correct + 1)))
