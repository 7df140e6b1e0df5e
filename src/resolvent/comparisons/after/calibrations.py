"""Calibration and thresholds of the models of a run: fitted to validation rows, measured on test rows, site by site."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.after.held_out_rows import SHARED, HeldOutRows, LabelledInputs, SiteRows
from resolvent.errors import InputError, alternatives, quote
from resolvent.math.score_intervals import wilson_interval
from resolvent.predict.calibration import (
    POOLED_ROWS,
    CalibrationChoice,
    CalibrationKind,
    LabelledOutputs,
    choose_calibration,
    probabilities_of,
)
from resolvent.predict.fitted import Fitted
from resolvent.predict.intervals import Interval
from resolvent.predict.site_values import SiteRows as MeasuredRows
from resolvent.predict.site_values import measure_site
from resolvent.predict.special_intervals import share_interval
from resolvent.predict.threshold import Goal, Threshold, choose_threshold
from resolvent.problem.metrics.classification import BrierScore, CalibrationError, LogLoss
from resolvent.problem.metrics.metric import Predictions, Sampling
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy
from resolvent.simulator.record.model_folder import CALIBRATION_FILE

if TYPE_CHECKING:
    import pandas as pd

_MIN_BINS, _MAX_BINS = 3, 10
_ROWS_PER_BIN = 10
_METRICS = (LogLoss(), BrierScore(), CalibrationError())
_Z = 1.959963984540054

ProgressOfSites = Callable[[int, int], None]  # models done, models in total


class Change(NamedTuple):
    """A score on the same rows before and after a change of the predictions.

    Attributes:
        before: the score before.
        after: the score after.
        gain: how much smaller it is after, paired over the rows.
    """

    before: Interval
    after: Interval
    gain: Interval


class Bin(NamedTuple):
    """The rows of one point of a reliability diagram.

    Attributes:
        probability: mean probability of the class; for more than two classes, of the predicted class.
        frequency: share of the rows that are of the class.
        low: lower end of Wilson's interval of the share.
        high: its upper end.
        rows: number of rows.
    """

    probability: float
    frequency: float
    low: float
    high: float
    rows: int


class ReachedShares(NamedTuple):
    """What a threshold reaches on test rows.

    Attributes:
        sensitivity: share of the positive rows that are predicted as positive.
        specificity: share of the other rows that are not.
        cost: the cost per row, before: of the most probable class; None if the threshold is not for costs.
    """

    sensitivity: Interval
    specificity: Interval
    cost: Change | None


class SiteCalibration(NamedTuple):
    """The calibration of one model, and its effect on test rows.

    Attributes:
        fitted: the model with its calibration and its threshold.
        choice: how the calibration was chosen.
        test_rows: number of test rows.
        scores: ``log_loss``, ``brier_score`` and ``calibration_error`` on the test rows; empty without test rows.
        reliability: ``before`` and ``after`` -> the points of the reliability diagram.
        reached: what the threshold reaches on the test rows; None without a threshold or test rows.
        threshold_rows: number of the site's validation rows by which the threshold was chosen.
        note: why there is no threshold, if one was wanted.
    """

    fitted: Fitted
    choice: CalibrationChoice
    test_rows: int
    scores: dict[str, Change]
    reliability: dict[str, tuple[Bin, ...]]
    reached: ReachedShares | None
    threshold_rows: int = 0
    note: str = ""

    @property
    def improves(self) -> bool:
        """Whether the log loss is smaller after the calibration, on rows to which it was not fitted."""
        return "log_loss" in self.scores and self.scores["log_loss"].gain.value > 0

    def plain(self) -> dict[str, Any]:
        """The record as JSON can hold it."""
        threshold = self.fitted.threshold
        assert self.fitted.calibration is not None
        return {
            "calibration": asdict(self.fitted.calibration), "title": self.fitted.calibration.title,
            "rows": self.choice.rows, "other_rows": self.choice.other_rows, "cross_validated": self.choice.losses,
            "reason": self.choice.reason, "test_rows": self.test_rows, "note": self.note,
            "scores": {name: _plain_change(change) for name, change in self.scores.items()},
            "reliability": {name: [list(point) for point in points] for name, points in self.reliability.items()},
            "threshold": None if threshold is None else {
                "threshold": asdict(threshold), "text": str(threshold), "rows": self.threshold_rows,
                **({} if self.reached is None else {
                    "sensitivity": plain_interval(self.reached.sensitivity),
                    "specificity": plain_interval(self.reached.specificity),
                    "cost": None if self.reached.cost is None else _plain_change(self.reached.cost)})}}


@dataclass(frozen=True, eq=False)
class Calibrations:
    """The calibrations of the models of one method.

    Attributes:
        method: name of the method.
        sites: name of a site -> the calibration of its personal model; None -> that of the shared model.
        rows: the models, without calibration, and their rows.
    """

    method: str
    sites: dict[str | None, SiteCalibration]
    rows: HeldOutRows

    def fitted(self, site: str | None = None) -> Fitted:
        """The calibrated model of a site, or the shared model, with its threshold.

        Raises:
            InputError: there is no such site, or no shared model.
        """
        if site not in self.sites:
            raise InputError(f"there is no calibration of {'the shared model' if site is None else quote(site)}"
                             f"{alternatives(site or '', [name for name in self.sites if name])}")
        return self.sites[site].fitted

    @property
    def table(self) -> "pd.DataFrame":
        """A row per site, and one for the ``shared model``: the kind of calibration, and scores on test rows.

        ``rows`` are the site's validation rows. Each score has ``before``, ``after``, and the ``gain`` with the ends
        ``low`` and ``high`` of its interval of level 0.95. With a threshold there are also its value and the
        sensitivity and specificity that it reaches.
        """
        import pandas as pd

        return pd.DataFrame([_table_row(name, site) for name, site in self.sites.items()])

    def save(self, folder: Path | str) -> Path:
        """Write the calibrations next to the saved models; `resolvent show --redraw` shows them.

        Args:
            folder: the run folder of these models.

        Raises:
            InputError: the folder has other models.
        """
        from resolvent.comparisons.after.later_files import write_records

        return write_records(Path(folder), self.rows, CALIBRATION_FILE,
                             {name: site.plain() for name, site in self.sites.items()})


def _table_row(name: str | None, site: SiteCalibration) -> dict[str, Any]:
    row: dict[str, Any] = {"site": name or SHARED, "calibration": site.choice.calibration.title,
                           "rows": site.choice.rows, "test_rows": site.test_rows}
    for metric, change in site.scores.items():
        row |= {f"{metric}_before": change.before.value, f"{metric}_after": change.after.value,
                f"{metric}_gain": change.gain.value, f"{metric}_low": change.gain.low,
                f"{metric}_high": change.gain.high}
    if site.fitted.threshold is not None:
        row |= {"threshold": site.fitted.threshold.value}
        if site.reached is not None:
            for measure in ("sensitivity", "specificity"):
                value, low, high = getattr(site.reached, measure)
                row |= {measure: value, f"{measure}_low": low, f"{measure}_high": high}
    return row


def calibrate(rows: HeldOutRows, *, sites: Sequence[str] = (), kind: CalibrationKind | Literal["auto"] = "auto",
              positive: str | None = None, goal: Goal | None = None,
              progress: ProgressOfSites | None = None) -> Calibrations:
    """Calibrate the models of a method on validation rows, and measure them on test rows.

    A calibration that does not improve the log loss on test rows is not used, unless its kind is given.

    With folds the calibration is fitted to all rows of a site, each with the prediction of the model that was not
    trained on it. It is measured on the same rows: those of each fold with the calibration that the other folds give.

    Args:
        sites: names of the sites; default: all sites and the shared model.
        kind: the kind of calibration; ``auto``: chosen by cross-validated log loss, see ``choose_calibration``.
        goal: what a threshold is chosen for; None: no threshold.
    """
    models = rows.chosen(sites)
    first = next(iter(models.values())).fitted
    if not isinstance(first.model.loss, BinaryCrossEntropy | CrossEntropy):
        raise InputError(f"{rows.method} has a model with the loss {type(first.model.loss).__name__}, and a "
                         "calibration needs a classifier whose outputs are logits: a loss of cross-entropy")
    index = _positive_index(first, positive, goal)

    def calibrated(site: SiteRows, of_model: LabelledOutputs, others: LabelledOutputs | None,
                   of_kind: CalibrationKind | Literal["auto"]) -> tuple[Fitted, CalibrationChoice, str]:
        choice = choose_calibration(of_model, others, of_kind)
        fitted, note = replace(site.fitted, calibration=choice.calibration), ""
        if goal is not None:
            assert positive is not None
            fitted, note = _with_threshold(fitted, of_model, others, positive, index, goal)
        return fitted, choice, note

    def measured(site: SiteRows, parts: list[LabelledOutputs], others: LabelledOutputs | None, number: int,
                 of_kind: CalibrationKind | Literal["auto"]) -> SiteCalibration:
        of_model = LabelledOutputs.join(parts) or parts[0]
        fitted, choice, note = calibrated(site, of_model, others, of_kind)
        tested = [_Tested(fitted, *_outputs(site.fitted, site.test))]
        if site.folds:  # the rows of each fold are calibrated by those of the others
            tested = [_Tested(calibrated(site, LabelledOutputs.join([*parts[:i], *parts[i + 1:]]) or part, others,
                                         of_kind)[0], *part) for i, part in enumerate(parts)]
        return _measure(fitted, choice, tested, index, number, len(of_model.labels) if goal is not None else 0, note)

    of_sites = {name: _fitting_outputs(site) for name, site in rows.sites.items() if name not in rows.against}
    done = dict[str | None, SiteCalibration]()
    for number, (name, site) in enumerate(models.items()):
        parts = _fitting_outputs(site) if name is None else of_sites[name]
        others = None if name is None else LabelledOutputs.join(
            [part for n, of_site in of_sites.items() if n != name for part in of_site])
        made = measured(site, parts, others, number, kind)
        if kind == "auto" and not made.improves:
            plain = measured(site, parts, others, number, "none")
            made = plain._replace(choice=plain.choice._replace(
                losses=made.choice.losses, reason="no calibration improved the log loss on test rows"))
        done[name] = made
        if progress is not None:
            progress(number + 1, len(models))
    return Calibrations(rows.method, done, rows)


class _Tested(NamedTuple):
    """A calibrated model, and its outputs for rows by which it was neither trained nor calibrated."""

    fitted: Fitted
    outputs: NDArray[Any]
    labels: NDArray[Any]


def _fitting_outputs(site: SiteRows) -> list[LabelledOutputs]:
    """The outputs to which a calibration is fitted: for validation rows, or with folds for the test rows of each."""
    return [_outputs(part.fitted, part.test) for part in site.folds] or [_outputs(site.fitted, site.validation)]


def _outputs(fitted: Fitted, rows: LabelledInputs) -> LabelledOutputs:
    return LabelledOutputs(fitted.outputs_of_inputs(rows.x) if len(rows.y) else np.zeros((
        0, max(len(fitted.classes), 1))), rows.y)


def _positive_index(fitted: Fitted, positive: str | None, goal: Goal | None) -> int:
    """The number of the positive class: of a threshold, and of the reliability diagram of two classes."""
    classes = fitted.classes
    if goal is not None and len(classes) != 2:
        raise InputError(f"a threshold is for two classes, and the labels have {len(classes)}")
    if goal is not None and positive is None:
        raise InputError(f"name the class that the threshold is for with positive: {' or '.join(map(quote, classes))}")
    if positive is not None and positive not in classes:
        raise InputError(f"positive: there is no class {quote(positive)}{alternatives(positive, classes)}")
    return classes.index(positive) if positive is not None else len(classes) - 1


def _with_threshold(fitted: Fitted, site: LabelledOutputs, others: LabelledOutputs | None, positive: str, index: int,
                    goal: Goal) -> tuple[Fitted, str]:
    """The model with a threshold, or the reason why there is none.

    The rows of the other sites count together as ``POOLED_ROWS`` rows, with the calibration of this site.
    """
    assert fitted.calibration is not None
    weights = np.ones(len(site.labels))
    joined = site
    if others is not None:
        weight = min(1.0, POOLED_ROWS / len(others.labels))
        weights = np.concatenate([weights, np.full(len(others.labels), weight)])
        joined = others if not len(site.labels) else LabelledOutputs.join([site, others]) or site
    if not len(joined.labels):
        return fitted, "no validation rows, so that no threshold can be chosen"
    probabilities = probabilities_of(fitted.calibration.apply(joined.outputs))[:, index]
    try:
        value = choose_threshold(probabilities, joined.labels.astype(np.int64) == index, goal, weights)
    except InputError as error:
        return fitted, f"no threshold: {error}"
    return replace(fitted, threshold=Threshold(positive, value, goal)), ""


def _measure(fitted: Fitted, choice: CalibrationChoice, tested: Sequence[_Tested], index: int, number: int,
             threshold_rows: int, note: str) -> SiteCalibration:
    tested = [part for part in tested if len(part.labels)]
    if not tested:
        return SiteCalibration(fitted, choice, 0, {}, {"before": (), "after": ()}, None, threshold_rows, note)
    labels = np.concatenate([part.labels for part in tested]).astype(np.int64)
    stages = {"before": np.concatenate([part.outputs for part in tested]),
              "after": np.concatenate([_calibrated_outputs(part) for part in tested])}
    predictions = {}
    for stage, outputs in stages.items():
        probabilities = probabilities_of(outputs)
        predictions[stage] = Predictions(labels, probabilities.argmax(axis=1), probabilities, outputs)
    scores = {metric.name: _change({stage: metric.row_values(p) for stage, p in predictions.items()}, labels, number,
                                   metric.limits, metric.sampling) for metric in _METRICS}
    reliability = {stage: _reliability(p, index) for stage, p in predictions.items()}
    reached = None
    if all(part.fitted.threshold is not None for part in tested):
        is_positive = np.concatenate([part.fitted.threshold.is_positive(probabilities_of(_calibrated_outputs(part))[
            :, index]) for part in tested if part.fitted.threshold is not None])
        assert fitted.threshold is not None
        reached = _reached(fitted.threshold, is_positive, predictions["after"], index, number)
    return SiteCalibration(fitted, choice, len(labels), scores, reliability, reached, threshold_rows, note)


def _calibrated_outputs(part: _Tested) -> NDArray[Any]:
    assert part.fitted.calibration is not None
    return part.fitted.calibration.apply(part.outputs)


def _change(values: Mapping[str, NDArray[np.float64]], labels: NDArray[np.int64], number: int,
            limits: tuple[float, float], sampling: Sampling = "rows") -> Change:
    rows = MeasuredRows({stage: v[None] for stage, v in values.items()}, np.ones((1, len(labels)), bool),
                        None if sampling == "rows" else labels)
    return Change(*measure_site(rows, ["before", "after"], "before", sampling, number, higher_is_better=False,
                                limits=limits).intervals)


def _reliability(predictions: Predictions, index: int) -> tuple[Bin, ...]:
    """Bins with equal numbers of rows, sorted by the probability of the class, or of the predicted class."""
    assert predictions.probabilities is not None
    if predictions.probabilities.shape[1] == 2:
        probability, is_hit = predictions.probabilities[:, index], predictions.labels == index
    else:
        probability = predictions.probabilities.max(axis=1)
        is_hit = predictions.labels == predictions.predicted
    count = min(len(is_hit), int(np.clip(len(is_hit) // _ROWS_PER_BIN, _MIN_BINS, _MAX_BINS)))
    bins = []
    for part in np.array_split(np.argsort(probability, kind="stable"), count):
        share = float(is_hit[part].mean())
        low, high = (float(end) for end in wilson_interval(share, len(part), _Z))
        bins.append(Bin(float(probability[part].mean()), share, low, high, len(part)))
    return tuple(bins)


def _reached(threshold: Threshold, is_positive: NDArray[np.bool_], predictions: Predictions, index: int,
             number: int) -> ReachedShares:
    labels = predictions.labels == index
    cost = None
    if threshold.goal.has_cost:
        assert threshold.goal.cost_false_negative is not None
        assert threshold.goal.cost_false_positive is not None

        def costs(predicted: NDArray[np.bool_]) -> NDArray[np.float64]:
            return np.asarray(threshold.goal.cost_false_negative * (labels & ~predicted)
                              + threshold.goal.cost_false_positive * (~labels & predicted))

        cost = _change({"before": costs(predictions.predicted == index), "after": costs(is_positive)},
                       predictions.labels, number,
                       (0.0, max(threshold.goal.cost_false_negative, threshold.goal.cost_false_positive)))
    return ReachedShares(_share(is_positive[labels]), _share(~is_positive[~labels]), cost)


def _share(is_right: NDArray[np.bool_]) -> Interval:
    """The share with Wilson's interval; nan without rows."""
    if not len(is_right):
        return Interval(np.nan, np.nan, np.nan)
    return share_interval(is_right[None].astype(float), np.ones((1, len(is_right)), bool))


def plain_interval(interval: Interval) -> list[float | None]:
    """An interval as JSON can hold it."""
    return [float(end) if np.isfinite(end) else None for end in interval]


def _plain_change(change: Change) -> dict[str, list[float | None]]:
    return {name: plain_interval(interval) for name, interval in change._asdict().items()}
