"""What the test rows of one site say about the models, for the advice.

The decision's score is proper: the log loss, the squared error, or the loss that the model minimises, in units of the
loss of the best constant at the site, by all its labels. Where training alone is worse than the predictions that need
no training, gains are over these: a model that is worse than the majority class is never advised. With ``decide_by``
the score is the user's metric, in units of 1 for shares, otherwise of the metric of the predictions that need no
training.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.judgement.advice import FEWEST_ROWS, ModelKind, SiteEvidence, site_evidence, with_slope
from resolvent.comparisons.judgement.calibration_slope import Calibration, calibration_slope
from resolvent.comparisons.judgement.column_tests import opposite_columns
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.row_values import Quantity, RowValues
from resolvent.comparisons.judgement.site_judgement import SiteCalibration, SiteFacts
from resolvent.predict.intervals import Interval
from resolvent.predict.site_values import difference

_Z = 1.959963984540054

Values = NDArray[np.float64]


def facts_of_site(rows: RowValues, evidence: Evidence, scores: Mapping[str, Interval], gains: Mapping[str, Interval],
                  variances: Mapping[str, float]) -> SiteFacts:
    """The facts of one site; a row that several seeds test counts once, with the mean of its values.

    Args:
        rows: the test rows of the site.
        scores: the score of each label by the user's metric.
        gains: the gain of each label over training alone by the user's metric.
        variances: their variances.
    """
    assert rows.labels is not None
    _, first, position = np.unique(rows.row, return_index=True, return_inverse=True)
    count = np.bincount(position)

    def mean(values: Values) -> Values:
        with np.errstate(invalid="ignore"):  # a model that diverged has infinite losses
            return np.asarray(np.bincount(position, values) / count)

    def values(method: str, quantity: Quantity) -> Values | None:
        return mean(rows.models[method, quantity]) if (method, quantity) in rows.models else None

    labels, alone = mean(rows.labels), evidence.alone
    losses = {label: float(of_label.mean()) for label in (*evidence.methods, evidence.baseline)
              if label is not None and (of_label := values(label, "loss")) is not None}
    # Of several seeds the first one that tests a row: a mean outcome would be no class.
    calibrations = {method: calibration for method in evidence.methods if (method, "outcome") in rows.models and (
        calibration := _calibration(rows.models[method, "outcome"][first], rows.models[method, "predictor"][first],
                                    rows.kind)) is not None}
    shown = {method: SiteCalibration(_interval(c.intercept, c.covariance[0, 0]), _interval(c.slope, c.covariance[1, 1]))
             for method, c in calibrations.items()}
    names, tested = rows.column_names, len(rows.column_names) * len(evidence.parties)
    columns = {method: found for (method, party), sums in rows.columns.items() if party == rows.party[0]
               and (found := opposite_columns(sums, names, tested))}
    reference = None if alone is None else values(alone, "loss")
    base = math.nan if rows.base is None else float(rows.base[0])
    if reference is None or alone is None:
        return SiteFacts(base, losses, calibrations=shown, columns=columns)
    base = float(np.abs(reference).mean()) if rows.base is None else base
    unit = _unit_of_metric(evidence, scores) if evidence.decides else base
    untrained = None if evidence.baseline is None else values(evidence.baseline, "loss")
    if untrained is not None and untrained.mean() < reference.mean() < np.inf:
        reference = untrained
    of_methods: dict[str, Mapping[ModelKind, SiteEvidence]] = {}
    for method in evidence.candidates:
        calibration, personal, shared = calibrations.get(method), values(method, "loss"), values(method, "shared")
        assert personal is not None
        is_same = shared is not None and bool(np.allclose(personal, shared, rtol=1e-5, atol=1e-7, equal_nan=True))
        if evidence.decides:
            of_methods[method] = {"shared" if is_same else "personal": _evidence_by_metric(
                gains[method], variances[method], unit, len(labels), calibration,
                difference(mean(rows.values[method]), mean(rows.values[alone]), 1.0 if evidence.higher_is_better else
                           -1.0))}
            continue
        kinds: dict[ModelKind, Values] = {} if shared is None else {"shared": shared}
        if not is_same:
            kinds["personal"] = personal
        of_methods[method] = {model: site_evidence(reference, losses_of, labels, calibration, kind=rows.kind,
                                                   coefficients=evidence.coefficients, base=base)
                              for model, losses_of in kinds.items()}
    return SiteFacts(unit, losses, of_methods, shown, columns)


def _calibration(outcome: Values, predictor: Values, kind: str) -> Calibration | None:
    if not (np.isfinite(outcome).all() and np.isfinite(predictor).all()):
        return None
    calibration = calibration_slope(outcome, predictor, is_binary=kind != "numbers")
    return calibration if math.isfinite(calibration.slope) else None


def _interval(value: float, variance: float) -> Interval:
    reach = _Z * math.sqrt(variance)
    return Interval(float(value), float(value) - reach, float(value) + reach)


def _unit_of_metric(evidence: Evidence, scores: Mapping[str, Interval]) -> float:
    if evidence.is_share:
        return 1.0
    reference = evidence.baseline if evidence.baseline is not None else evidence.alone
    assert reference is not None
    return abs(scores[reference].value)


def _evidence_by_metric(gain: Interval, variance: float, unit: float, rows: int, calibration: Calibration | None,
                        differences: Values) -> SiteEvidence:
    if rows < FEWEST_ROWS or not unit > 0 or not math.isfinite(gain.value):
        return SiteEvidence(gain.value if gain.value == -math.inf else math.nan, math.inf, rows)
    return with_slope(SiteEvidence(gain.value / unit, variance / unit**2, rows), differences / unit, calibration)
