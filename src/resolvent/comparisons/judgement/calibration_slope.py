r"""Calibration of predictions: the regression of labels on a linear predictor, intercept and slope.

.. code-block:: text

    binary    P(label = 1) = sigmoid(a + b eta)     by maximum likelihood
    numbers   label = a + b eta + error             by least squares

A model that fits the rows has a = 0 and b = 1. With 0 < b < 1 its predictions are too extreme, as an overfitted model's
are; with b < 0 its order is reversed. Several classes are reduced to the binary case by ``winning_log_odds``.

With few rows eta can separate the two classes, and the maximum is at infinity. With one predictor this is seen exactly:
no predictor of one class exceeds any of the other. The slope is then Firth's, which maximises the likelihood times the
root of the determinant of the information, and is always finite.

Source: Cox, *Two Further Applications of a Model for Binary Regression*, Biometrika 1958; Firth, *Bias Reduction of
Maximum Likelihood Estimates*, Biometrika 1993; Heinze, Schemper, *A Solution to the Problem of Separation in Logistic
Regression*, Statistics in Medicine 2002.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError

_STEPS = 100
_TOLERANCE = 1e-13  # of the decrease that Newton's quadratic model predicts, relative to the number of rows
_LARGEST_CHANGE = 5.0  # of a row's linear predictor in one step
_NARROWEST = 1e-9  # predictors whose range is smaller, relative to their size, are constant

Array = NDArray[np.float64]


class Calibration(NamedTuple):
    """The regression of n labels on a linear predictor.

    Attributes:
        intercept: a.
        slope: b; nan where it is not identified, because all labels or all predictors are equal.
        covariance: [2, 2] of (a, b), by the information; infinite where the slope is not identified.
        influence: [n, 2] how much each row moves (a, b), to first order. The covariance of the slope with the mean of
            other values z_i of the same rows is sum_i influence_i (z_i - mean z) / n.
        is_separated: whether the predictor separates the classes, so that the numbers are Firth's.
    """

    intercept: float
    slope: float
    covariance: Array
    influence: Array
    is_separated: bool = False


def calibration_slope(labels: Array, linear_predictor: Array, *, is_binary: bool) -> Calibration:
    """Intercept and slope of labels on a linear predictor.

    Args:
        labels: [n] 0 or 1, or numbers.
        linear_predictor: [n] log-odds of label 1, or predicted numbers.

    Raises:
        InputError: the lengths differ, a number is not finite, or a binary label is not 0 or 1.

    Example:
        >>> eta = np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])
        >>> round(calibration_slope(np.array([0, 0, 1, 0, 1, 1.0]), eta, is_binary=True).slope, 3)
        1.351
    """
    y, eta = np.asarray(labels, dtype=float), np.asarray(linear_predictor, dtype=float)
    if y.ndim != 1 or y.shape != eta.shape:
        raise InputError(f"labels and predictors must be two vectors of one length, got {y.shape} and {eta.shape}")
    if not (np.isfinite(y).all() and np.isfinite(eta).all()):
        raise InputError("labels and predictors must be finite")
    if is_binary and not np.isin(y, (0, 1)).all():
        raise InputError("the labels of a binary calibration must be 0 or 1")
    n = len(y)
    size = float(np.abs(eta).max(initial=0.0))
    if n < 3 or np.ptp(eta) <= _NARROWEST * max(size, 1e-300) or (is_binary and np.ptp(y) == 0):
        return Calibration(np.nan, np.nan, np.full((2, 2), np.inf), np.zeros((n, 2)))
    centre, spread = float(eta.mean()), float(eta.std())
    design = np.stack([np.ones(n), (eta - centre) / spread], axis=1)
    is_separated = is_binary and _separates(y, eta)
    standardised = _logistic(y, design, is_firth=is_separated) if is_binary else _least_squares(y, design)
    back = np.array([[1.0, -centre / spread], [0.0, 1 / spread]])  # from the standardised to the given predictor
    coefficients, covariance, influence = standardised
    intercept, slope = back @ coefficients
    return Calibration(float(intercept), float(slope), back @ covariance @ back.T, influence @ back.T, is_separated)


def winning_log_odds(probabilities: Array, labels: NDArray[np.integer]) -> tuple[Array, Array]:
    """Several classes as two: whether the most probable class is right, and the log-odds of its probability.

    Args:
        probabilities: [n, C] of the classes.
        labels: [n] the class of each row.

    Returns:
        [n] labels of 0 and 1, and [n] predictors for ``calibration_slope``. A model that fits has slope 1.
    """
    p = np.clip(np.asarray(probabilities, dtype=float), 1e-12, 1 - 1e-12)
    winner = p.argmax(axis=1)
    best = p[np.arange(len(p)), winner]
    return (winner == labels).astype(float), np.log(best) - np.log1p(-best)


def _separates(y: Array, eta: Array) -> bool:
    below, above = eta[y == 0], eta[y == 1]
    return bool(below.max() <= above.min() or above.max() <= below.min())


def _logistic(y: Array, design: Array, *, is_firth: bool) -> tuple[Array, Array, Array]:
    """Coefficients, covariance and influences, by Newton's method with steps that are halved until h falls."""
    w: Array = np.zeros(2)
    for _ in range(_STEPS):
        gradient, information = _score(y, design, w, is_firth=is_firth)
        step = np.linalg.solve(information, gradient)
        step *= min(1.0, _LARGEST_CHANGE / max(float(np.abs(design @ step).max()), 1e-300))
        value = _negative_log_likelihood(y, design, w, is_firth=is_firth)
        while _negative_log_likelihood(y, design, w + step, is_firth=is_firth) > value + 1e-12 * abs(value):
            step /= 2
        w = w + step
        if gradient @ step <= _TOLERANCE * len(y):
            break
    _, information = _score(y, design, w, is_firth=is_firth)
    covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
    return w, covariance, (y - _sigmoid(design @ w))[:, None] * (design @ covariance)


def _score(y: Array, design: Array, w: Array, *, is_firth: bool) -> tuple[Array, Array]:
    """[2] the derivative of the log-likelihood, modified by Firth, and [2, 2] the information."""
    p = _sigmoid(design @ w)
    curvature = p * (1 - p)
    information = (design * curvature[:, None]).T @ design
    residual = y - p
    if is_firth:  # + h_i (1/2 - p_i), with the leverages h_i
        leverage = curvature * np.einsum("ni,ij,nj->n", design, np.linalg.inv(information), design)
        residual = residual + leverage * (0.5 - p)
    return design.T @ residual, information


def _negative_log_likelihood(y: Array, design: Array, w: Array, *, is_firth: bool) -> float:
    eta = design @ w
    value = float(np.sum(np.logaddexp(0, eta) - y * eta))
    if is_firth:
        p = _sigmoid(eta)
        value -= 0.5 * float(np.linalg.slogdet((design * (p * (1 - p))[:, None]).T @ design)[1])
    return value


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _least_squares(y: Array, design: Array) -> tuple[Array, Array, Array]:
    inverse = np.linalg.inv(design.T @ design)
    w = inverse @ (design.T @ y)
    residual = y - design @ w
    return w, inverse * float(residual @ residual) / (len(y) - 2), residual[:, None] * (design @ inverse)
