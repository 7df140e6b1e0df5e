"""Calibration: a map of a classifier's logits after which its probabilities are frequencies.

It is fitted to rows that training has not used. Which map is used follows from the number of rows and from the
cross-validated log loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from resolvent.errors import InputError

CalibrationKind = Literal["none", "temperature", "platt", "isotonic"]
KINDS: tuple[CalibrationKind, ...] = ("none", "temperature", "platt", "isotonic")

POOLED_ROWS = 50.0  # the rows of all other sites count together as this many rows of the site
# Kind -> smallest number of rows, and of rows outside the most frequent class.
_MIN_ROWS: dict[CalibrationKind, tuple[int, int]] = {
    "none": (0, 0), "temperature": (10, 3), "platt": (50, 10), "isotonic": (500, 50)}
_FOLDS = 5
_SEED = 20_240_301  # seed of the folds
_MAX_TEMPERATURE = 100.0
_ABSENT = "the rows are too few, or of one class"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """An increasing map of logits.

    With z the logit of class 1 against class 0, the calibrated logit is

    .. code-block:: text

        none         z
        temperature  slope z                  slope = 1 / T
        platt        slope z + intercept
        isotonic     logit f(z), with f increasing and linear between the points

    For more than two classes a temperature divides all logits; the other kinds are for two classes.

    Attributes:
        kind: the kind of the map.
        slope: the factor of the logit, positive.
        intercept: what is added to the logit.
        points: logits z at which f is known, increasing; for ``isotonic``.
        values: probabilities f(z) at these points; for ``isotonic``.

    Example:
        >>> from resolvent.predict.calibration import Calibration
        >>> Calibration("temperature", slope=0.5).apply(np.array([[4.0], [-2.0]])).tolist()
        [[2.0], [-1.0]]

    References:
        Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017; Platt: Probabilistic Outputs
        for Support Vector Machines, 1999; Zadrozny, Elkan: Transforming Classifier Scores into Accurate Multiclass
        Probability Estimates, KDD 2002.
    """

    kind: CalibrationKind = "none"
    slope: float = 1.0
    intercept: float = 0.0
    points: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        """The kind with its numbers, such as ``temperature 1.7``."""
        return {"none": "none", "temperature": f"temperature {1 / self.slope:.3g}",
                "platt": f"Platt, {self.slope:.3g} z {'+' if self.intercept >= 0 else '−'} {abs(self.intercept):.3g}",
                "isotonic": f"isotonic, {len(self.points)} points"}[self.kind]

    def apply(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """[n, ...] the calibrated logits of outputs.

        Args:
            outputs: logits [n] or [n, 1] of class 1, or [n, classes].

        Raises:
            InputError: the kind is for two classes, and the outputs have more.
        """
        if self.kind == "none":
            return outputs
        if self.kind == "temperature":
            return (outputs * self.slope).astype(outputs.dtype)
        z = _logit_of_two(outputs, self.kind)
        calibrated = (logit(np.interp(z, self.points, self.values)) if self.kind == "isotonic"
                      else self.slope * z + self.intercept).astype(outputs.dtype)
        return calibrated.reshape(outputs.shape) if outputs.size == len(outputs) else np.stack(
            [np.zeros_like(calibrated), calibrated], axis=1)


class LabelledOutputs(NamedTuple):
    """Outputs of a model, before any calibration, for rows with known labels.

    Attributes:
        outputs: [n, ...] logits.
        labels: [n] class numbers.
    """

    outputs: NDArray[Any]
    labels: NDArray[Any]

    @classmethod
    def join(cls, parts: Sequence["LabelledOutputs"]) -> "LabelledOutputs | None":
        """The rows of several sites; None without rows."""
        parts = [part for part in parts if len(part.labels)]
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) if parts else None


class CalibrationChoice(NamedTuple):
    """The calibration of a site.

    Attributes:
        calibration: the calibration.
        losses: kind -> cross-validated log loss of every kind that was compared; empty if none was.
        rows: number of the site's rows to which it was fitted.
        other_rows: number of rows of other sites to which it was fitted.
        reason: why the kinds that are missing in ``losses`` were not compared, or what was fitted instead.
    """

    calibration: Calibration
    losses: dict[CalibrationKind, float]
    rows: int
    other_rows: int
    reason: str


def choose_calibration(site: LabelledOutputs, others: LabelledOutputs | None = None,
                       kind: CalibrationKind | Literal["auto"] = "auto") -> CalibrationChoice:
    """The kind with the smallest cross-validated log loss of those for which there are enough rows.

    A temperature needs 10 rows, of which 3 are not of the most frequent class; Platt's map 50 and 10, the isotonic map
    500 and 50. The rows of the other sites count together as 50 rows in every fit (or as their number, if they are
    fewer), so that a site with few rows is shrunk to the fit over all sites. A site with too few rows for a temperature
    gets what the rows of all sites choose of none and a temperature.

    Args:
        site: the rows of the site.
        others: the rows of the other sites, each with the outputs of its own site's model.
        kind: ``auto``, or the kind to fit.

    Raises:
        InputError: ``kind`` is for two classes, and there are more.
    """
    if kind in ("platt", "isotonic"):
        _logit_of_two(site.outputs, kind)
    number, other_number = len(site.labels), 0 if others is None else len(others.labels)
    if kind == "none":
        return CalibrationChoice(Calibration(), {}, 0, 0, "")
    allowed = _allowed(site)
    if "temperature" not in allowed:
        joined = LabelledOutputs.join([site, *([] if others is None else [others])])
        if joined is None or "temperature" not in _allowed(joined):
            return CalibrationChoice(Calibration(), {}, 0, 0, _ABSENT)
        fits = _losses(joined, None, ("none", "temperature")) if kind == "auto" else {}
        chosen: CalibrationKind = min(fits, key=lambda k: fits[k]) if fits else "temperature"
        return CalibrationChoice(fit_calibration(chosen, joined) or Calibration(), fits, number, other_number,
                                 f"{_ABSENT}, so that the rows of all sites choose")
    kinds = allowed if kind == "auto" else (kind,)
    losses = _losses(site, others, kinds) if kind == "auto" else {}
    best: CalibrationKind = min(losses, key=lambda k: losses[k]) if losses else kinds[0]
    calibration = _fit_shrunk(best, site, others)
    left_out = [k for k in KINDS if k not in allowed and not (k in ("platt", "isotonic") and _classes(site) > 2)]
    return CalibrationChoice(calibration or Calibration(), losses, number, other_number,
                             f"too few rows for {' and '.join(left_out)}" if kind == "auto" and left_out else "")


def _classes(rows: LabelledOutputs) -> int:
    return 2 if rows.outputs.size == len(rows.outputs) else rows.outputs.shape[1]


def _allowed(rows: LabelledOutputs) -> tuple[CalibrationKind, ...]:
    counts = np.bincount(rows.labels.astype(np.int64), minlength=1)
    number, minority = len(rows.labels), len(rows.labels) - int(counts.max())
    return tuple(kind for kind in KINDS if number >= _MIN_ROWS[kind][0] and minority >= _MIN_ROWS[kind][1]
                 and (kind in ("none", "temperature") or _classes(rows) == 2))


def _losses(site: LabelledOutputs, others: LabelledOutputs | None,
            kinds: Sequence[CalibrationKind]) -> dict[CalibrationKind, float]:
    """The cross-validated log loss of each kind; a kind whose fit is not increasing is left out."""
    rng = np.random.default_rng(_SEED)
    order = np.lexsort([rng.permutation(len(site.labels)), site.labels])
    fold = np.empty(len(order), np.intp)
    fold[order] = np.arange(len(order)) % _FOLDS  # of every class the same number in each fold
    losses: dict[CalibrationKind, float] = {}
    for kind in kinds:
        of_rows = np.zeros(len(fold))
        for number in range(_FOLDS):
            is_left = fold == number
            fitted = _fit_shrunk(kind, LabelledOutputs(*(part[~is_left] for part in site)), others)
            of_rows[is_left] = np.inf if fitted is None else log_losses(fitted.apply(site.outputs[is_left]),
                                                                        site.labels[is_left])
        if np.isfinite(of_rows).all():
            losses[kind] = float(of_rows.mean())
    return losses


def _fit_shrunk(kind: CalibrationKind, site: LabelledOutputs, others: LabelledOutputs | None) -> Calibration | None:
    """The fit to the site's rows and, with the weight of ``POOLED_ROWS`` rows, to those of the other sites."""
    if others is None or kind == "none":
        return fit_calibration(kind, site)
    weight = min(1.0, POOLED_ROWS / len(others.labels))
    joined = LabelledOutputs.join([site, others])
    assert joined is not None
    return fit_calibration(kind, joined, np.concatenate([np.ones(len(site.labels)),
                                                         np.full(len(others.labels), weight)]))


def fit_calibration(kind: CalibrationKind, rows: LabelledOutputs, weights: Array | None = None) -> Calibration | None:
    """Fit a calibration.

    A temperature maximises the likelihood. Platt's map does so with his targets (N_1 + 1) / (N_1 + 2) and
    1 / (N_0 + 2) instead of 1 and 0, and the values of the isotonic map lie in [1 / (n + 2), 1 - 1 / (n + 2)], so that
    no probability is 0 or 1.

    Args:
        kind: the kind.
        rows: the outputs and labels.
        weights: [n] weights of the rows; None: 1.

    Returns:
        The calibration; None if Platt's map is not increasing.

    Raises:
        InputError: ``kind`` is for two classes, and there are more.
    """
    weights = np.ones(len(rows.labels)) if weights is None else weights
    if kind == "none":
        return Calibration()
    if kind == "temperature":
        return Calibration("temperature", slope=_fit_slope(rows, weights))
    z, is_positive = _logit_of_two(rows.outputs, kind), rows.labels.astype(np.int64) == 1
    if kind == "isotonic":
        return _fit_isotonic(z, is_positive, weights)
    return _fit_platt(z, is_positive, weights)


def _fit_slope(rows: LabelledOutputs, weights: Array) -> float:
    """1 / T of the temperature T with the smallest weighted log loss, which is unimodal in log T."""
    from scipy.optimize import minimize_scalar

    def loss(log_slope: float) -> float:
        return float(weights @ log_losses(np.exp(log_slope) * rows.outputs.astype(np.float64), rows.labels))

    end = float(np.log(_MAX_TEMPERATURE))
    return float(np.exp(minimize_scalar(loss, bounds=(-end, end), method="bounded", options={"xatol": 1e-7}).x))


def _fit_platt(z: Array, is_positive: NDArray[np.bool_], weights: Array) -> Calibration | None:
    from sklearn.linear_model import LogisticRegression

    positives, negatives = float(weights[is_positive].sum()), float(weights[~is_positive].sum())
    target = np.where(is_positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # A row with the target t is a positive row of weight t and a negative row of weight 1 - t.
    regression = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8).fit(
        np.concatenate([z, z])[:, None], np.repeat([1, 0], len(z)),
        sample_weight=np.concatenate([weights * target, weights * (1 - target)]))
    slope, intercept = float(regression.coef_[0, 0]), float(regression.intercept_[0])
    return Calibration("platt", slope=slope, intercept=intercept) if slope > 0 else None


def _fit_isotonic(z: Array, is_positive: NDArray[np.bool_], weights: Array) -> Calibration:
    from sklearn.isotonic import IsotonicRegression

    end = 1 / (float(weights.sum()) + 2)
    regression = IsotonicRegression(y_min=end, y_max=1 - end, out_of_bounds="clip")
    regression.fit(z, is_positive.astype(float), sample_weight=weights)
    return Calibration("isotonic", points=tuple(regression.X_thresholds_.tolist()),
                       values=tuple(regression.y_thresholds_.tolist()))


def log_losses(outputs: NDArray[Any], labels: NDArray[Any]) -> Array:
    """[n] -log p of each row's label, in double precision."""
    logits = _all_logits(outputs)
    losses: Array = logsumexp(logits, axis=1) - logits[np.arange(len(logits)), labels.astype(np.int64)]
    return losses


def _all_logits(outputs: NDArray[Any]) -> Array:
    """[n, classes] logits of all classes, of which the first is 0 if the model has one logit."""
    if outputs.size == len(outputs):
        z = outputs.reshape(len(outputs)).astype(np.float64)
        return np.stack([np.zeros_like(z), z], axis=1)
    return outputs.astype(np.float64)


def _logit_of_two(outputs: NDArray[Any], kind: str) -> Array:
    """[n] the logit of class 1 against class 0."""
    logits = _all_logits(outputs)
    if logits.shape[1] != 2:
        raise InputError(f"a calibration of the kind {kind} is for two classes, and the model has {logits.shape[1]}: "
                         "use temperature or auto")
    return np.asarray(logits[:, 1] - logits[:, 0])


def probabilities_of(outputs: NDArray[Any]) -> Array:
    """[n, classes] the probability of each class from logits, in double precision."""
    logits = _all_logits(outputs)
    if logits.shape[1] == 2:
        positive = expit(logits[:, 1] - logits[:, 0])
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))
