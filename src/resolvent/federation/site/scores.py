r"""The scores of a model on the samples of one party: the loss, the score, and further metrics.

**What a score tells.** A share of n rows is a count, an equation about the rows: whoever chooses the models and reads
as many exact counts as there are rows solves for the rows. So a score that leaves a site is rounded to a multiple of

.. math:: s = \max\!\Big(\frac{1}{4\sqrt{n}},\ \frac{c}{n}\Big), \quad c = \text{min cell},

the larger of half the largest standard error of a share and of c rows. It is the multiple above or below, drawn with
the probabilities that make the mean of the answer the score itself. What is drawn follows from the site's secret and
the rows that a model predicts rightly: of models that agree on all rows there is one answer, since the mean of many
would be the score. Then

1. *A row changes an answer with a probability of at most 1/c.* It changes the score by at most 1/n, and the
   probability of either multiple by at most 1/(n s) <= 1/c. Over k evaluations that is at most k/c for each row.
2. *All rows together.* An answer is one of at most n/c + 1 multiples, and so says at most log2(n/c + 1) bits about all
   rows: 3 for 36 rows, 4.4 for 100, with c = 5. ``max_scores`` allows k <= n/3 answers, fewer equations than a third
   of the unknown numbers, each with an error of the standard deviation up to s/2.

For a metric by class, n is the number of rows of the rarest class. The loss of a row has no bound, so that one row
could be seen in the mean of many: losses are cut off at four times that of the best constant, rounded up to a power of
two, which depends on no model, and rounded as a share of this range. A prediction that is not finite has the worst
value. A metric without a range, such as R2, does not leave a site this way.

The judgement at the end has numbers without a range as well: a slope, a mean loss. Their range is that of typical rows:
the loss of the best constant, or twice the standard deviation of a row, as a power of two. What is drawn there follows
from the site's secret and the exact number: one model under twenty names of a method, or beside other methods in twenty
plans, has one answer. The standard errors that leave include the error of rounding.
"""

import hmac
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import HELD_OUT
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.evaluate import evaluate_models
from resolvent.simulator.record.cross_fit import Half, cross_fit, cross_fitted_scores
from resolvent.simulator.record.party_metrics import PartyMetrics

if TYPE_CHECKING:
    from resolvent.comparisons.judgement.advice import SiteEvidence
    from resolvent.comparisons.judgement.site_judgement import SiteJudgement
    from resolvent.predict.intervals import Interval

_random = random.SystemRandom()
_Z = 1.96  # half the width of an interval of 95 %, in standard errors
_DIGITS = 9  # numbers that agree in these have one answer
_PARTS = 4  # a standard error is rounded to this part of the step of its number


def scores_of_model(problem: Problem, model: Vector, metrics: PartyMetrics | None, min_cell: int = 1,
                    scored: Sequence[str] | None = None, secret: bytes | None = None,
                    choose: Callable[[Problem], Vector] | None = None) -> dict[str, dict[str, float | None]]:
    """Name of a score -> split -> its value; None if it is not finite. A split with fewer samples is left out.

    Args:
        metrics: are measured on validation and test samples, where the labels define them; None: no metrics.
        min_cell: smallest number of samples of a split; at least 1. From 2 on, scores are rounded at random.
        scored: the splits whose scores are computed; None: all.
        secret: of the site, from which the rounding of equal predictions follows; None: it is drawn anew.
        choose: problem -> the model that the party chooses by its validation samples, which are then divided into
            halves, see ``cross_fit``; None: the model does not depend on them.
    """
    stacked, first = tree.stack(model, 1), np.zeros(1, np.int32)
    halves = () if choose is None else cross_fit(problem, lambda half: tree.stack(choose(half), 1))
    sizes = {split: int(problem.split_sizes(i)[0]) if scored is None or split in scored else 0
             for i, split in enumerate(problem.splits)}
    if min_cell > 1:
        scores, drawn = _rounded_means(problem, model, halves, min_cell, sizes, secret)
    else:
        scores = {name: {split: _finite(value) for split, value in zip(
            problem.splits, np.asarray(values)[0], strict=True) if sizes[split] >= min_cell}
            for name, values in cross_fitted_scores(
                problem, evaluate_models(problem, stacked, jnp.asarray(first)), halves, jnp.asarray(first)).items()}
    if metrics is None:
        return scores
    measured = metrics.measure(problem, stacked, first, first, halves)
    for i, (name, metric) in enumerate(metrics.metrics.items()):
        scores[name] = {}
        for number, split in enumerate(HELD_OUT):
            rows, value = sizes.get(split, 0), measured.values[0, number, i]
            if not measured.is_defined[0, number, i] or rows < min_cell:
                continue
            if min_cell == 1:
                scores[name][split] = _finite(value)
                continue
            rarest = rows if metric.sampling == "rows" else _rarest(problem, split)
            if rarest >= min_cell and np.isfinite(metric.limits).all():
                worst = min(metric.limits) if metric.higher_is_better else max(metric.limits)
                scores[name][split] = rounded_at_random(value if np.isfinite(value) else worst, rarest, min_cell,
                                                        metric.limits, drawn(name, split))
    return scores


def rounded_at_random(value: float, rows: int, min_cell: int, limits: tuple[float, float] = (0.0, 1.0),
                      drawn: float | None = None) -> float:
    """A mean over rows, rounded to a multiple of s of its range, which divides the range; its mean is the value.

    Args:
        limits: the smallest and the largest possible value of a row.
        drawn: a random number from 0 to 1; None: of the operating system.
    """
    low, high = limits
    parts = _parts(rows, min_cell)
    drawn = _random.random() if drawn is None else drawn
    multiple = math.floor((value - low) / (high - low) * parts + drawn)
    return low + (high - low) * min(max(multiple, 0), parts) / parts


def _parts(rows: int, min_cell: int) -> int:
    """1/s, the number of steps of a score between its smallest and its largest value."""
    return max(1, math.floor(1 / max(1 / (4 * math.sqrt(rows)), min_cell / rows)))


def smallest_split(sizes: Mapping[str, int], min_cell: int) -> int:
    """The number of rows of the smallest split whose scores may leave; 0 without one."""
    return min((rows for rows in sizes.values() if rows >= min_cell), default=0)


def rounded_judgement(site: "SiteJudgement", min_cell: int, secret: bytes, *,
                      is_share: bool) -> "SiteJudgement":
    """The judgement of a site as it leaves the site: every number is rounded at random.

    Args:
        secret: of the site; with a number it decides what is drawn for it.
        is_share: whether scores lie in [0, 1].
    """
    rounding = _Rounding(site.rarest_class or site.test_rows, min_cell, secret)
    facts, scale = site.facts, 1.0 if is_share else None
    scores = {label: rounding.interval(ends, scale, "score") for label, ends in site.scores.items()}
    gains = {label: rounding.interval(ends, scale, "gain") for label, ends in site.gains.items()}
    if is_share:
        scores, gains = ({label: type(ends)(*np.clip(ends, low, 1.0).tolist()) for label, ends in numbers.items()}
                         for numbers, low in ((scores, 0.0), (gains, -1.0)))
    return site._replace(scores=scores, gains=gains, variances={
        label: rounding.error(math.sqrt(variance), scale or rounding.scale(math.sqrt(variance)), "variance")**2
        for label, variance in site.variances.items()},
        facts=facts._replace(
            losses={label: rounding.value(loss, facts.unit, "loss") for label, loss in facts.losses.items()},
            evidence={label: {kind: rounding.evidence(numbers) for kind, numbers in of_method.items()}
                      for label, of_method in facts.evidence.items()},
            calibrations={label: type(both)(*(rounding.interval(ends, None, name)
                                              for name, ends in both._asdict().items()))
                          for label, both in facts.calibrations.items()},
            columns={label: tuple(type(found)(found.column, found.shared, *rounding.interval(
                type(site.scores[label])(*found[2:]), None, "column")) for found in columns)
                for label, columns in facts.columns.items()}))


@dataclass(frozen=True)
class _Rounding:
    """Rounds statistics of a site's test rows at random.

    A number that is not finite stays as it is. Where all rows agree, so that they give no scale, nothing leaves: nan.
    """

    rows: int
    min_cell: int
    secret: bytes

    def value(self, value: float, scale: float, kind: str, parts: int = 1) -> float:
        """A number, rounded to a multiple of s of its scale, or of a part of it; its mean is the value.

        A number of a kind has one answer, whatever the method is called and which others are in the plan.
        """
        if not math.isfinite(value):
            return value
        step = scale / (parts * _parts(self.rows, self.min_cell))
        drawn = _drawn(self.secret, kind, self.rows, f"{value:.{_DIGITS}g}", step)
        return step * math.floor(value / step + drawn) if step > 0 else math.nan

    def scale(self, error: float) -> float:
        """Twice the standard deviation of a row, as a power of two, from the standard error of a mean."""
        return 2.0**math.ceil(math.log2(2 * error * math.sqrt(self.rows))) if 0 < error < math.inf else math.nan

    def error(self, error: float, scale: float, kind: str) -> float:
        """A standard error, with that of rounding: at most half a step."""
        step = scale / _parts(self.rows, self.min_cell)
        return self.value(math.hypot(error, step / 2), scale, f"error of {kind}", parts=_PARTS)

    def interval(self, ends: "Interval", scale: float | None, kind: str) -> "Interval":
        """An interval around the rounded number."""
        error = (ends.high - ends.low) / 2 / _Z
        if not math.isfinite(error):
            return ends
        scale = self.scale(error) if scale is None else scale
        value, half = self.value(ends.value, scale, kind), _Z * self.error(error, scale, kind)
        return type(ends)(value, value - half, value + half)

    def evidence(self, numbers: "SiteEvidence") -> "SiteEvidence":
        """Gain and slope with their errors; their correlation is a multiple of a quarter."""
        error = self.error(math.sqrt(numbers.variance), 1.0, "skill")
        scale = self.scale(math.sqrt(numbers.slope_variance))
        if math.isnan(scale):
            slope, slope_error, together = math.nan, math.inf, 0.0
        else:
            slope = self.value(numbers.slope, scale, "slope")
            slope_error = self.error(math.sqrt(numbers.slope_variance), scale, "slope")
            correlation = numbers.covariance / (error * slope_error) if 0 < error < math.inf else 0.0
            drawn = _drawn(self.secret, "covariance", f"{correlation:.{_DIGITS}g}")
            quarters = math.floor(4 * correlation + drawn)
            together = min(max(quarters, -3), 3) / 4 * error * slope_error if quarters else 0.0
        return numbers._replace(gain=self.value(numbers.gain, 1.0, "skill"), variance=error**2, slope=slope,
                                slope_variance=slope_error**2, covariance=together,
                                luck=self.value(numbers.luck, 1.0, "luck"))


def _drawn(secret: bytes, *question: object) -> float:
    """A number from 0 to 1 that follows from a secret and a question."""
    return random.Random(hmac.digest(secret, repr(question).encode(), "sha256")).random()


def _rounded_means(problem: Problem, model: Vector, halves: Sequence[Half], min_cell: int, sizes: Mapping[str, int],
                   secret: bytes | None) -> tuple[dict[str, dict[str, float | None]], Callable[[str, str], float]]:
    """The mean loss and the mean score, rounded at random; without those whose rows have no range.

    Returns:
        The scores; and name and split of a score -> what is drawn for it.
    """
    from resolvent.comparisons.judgement.metrics import is_share  # here: a process that scores nothing stays light

    scores: dict[str, dict[str, float | None]] = {"loss": {}, problem.score_name: {}}
    local, values_of = problem.local(), dict[str, str]()

    def drawn(name: str, split: str) -> float:
        known = secret is not None and split in values_of
        return _drawn(secret or b"", name, split, values_of[split]) if known else _random.random()

    if not isinstance(local, LearningProblem) or local.model.loss.needs_batch:
        return scores, drawn
    for split, rows in sizes.items():
        if rows < min_cell:
            continue
        has_halves = bool(halves) and split == "validation"
        models = [(half.problem.local(), tree.rows(half.models, 0)) for half in halves] if has_halves else [
            (local, model)]
        values = np.concatenate([of_model.evaluate_rows(w, _rows_of(of_model, split)) for of_model, w in models
                                 if isinstance(of_model, LearningProblem)], axis=1)
        values_of[split] = np.asarray(values[1], np.float32).tobytes().hex()
        for name, of_rows in zip(("loss", problem.score_name), values, strict=True):
            largest = 1.0 if is_share(name) else _largest_loss(local, split)
            if np.isfinite(largest):
                worst = 0.0 if is_share(name) else largest
                mean = np.clip(np.nan_to_num(of_rows, nan=worst, posinf=worst), 0.0, largest).mean()
                scores[name][split] = rounded_at_random(float(mean), rows, min_cell, (0.0, largest), drawn(name, split))
    return scores, drawn


def _largest_loss(problem: LearningProblem, split: str) -> float:
    """Where the losses of rows are cut off; nan for labels that have no best constant."""
    from resolvent.comparisons.judgement.advice import base_loss

    labels = _labels_of(problem, split)
    base = base_loss(labels, kind="classes" if problem.has_classes else "numbers") if labels.ndim == 1 else math.nan
    return 2.0 ** math.ceil(math.log2(4 * base)) if base > 0 else math.nan


def _rarest(problem: Problem, split: str) -> int:
    """The number of rows of the rarest class in a split; 0 for labels without classes."""
    local = problem.local()
    if not isinstance(local, LearningProblem) or not local.has_classes:
        return 0
    return int(np.unique(_labels_of(local, split), return_counts=True)[1].min())


def _labels_of(problem: LearningProblem, split: str) -> NDArray[Any]:
    labels = problem.labels
    return np.asarray(labels)[_rows_of(problem, split)] if hasattr(labels, "ndim") else np.zeros((0, 0))


def _rows_of(problem: LearningProblem, split: str) -> NDArray[np.integer]:
    number = problem.splits.index(split)
    first = int(np.asarray(problem.offset)[number, 0])
    return np.arange(first, first + int(np.asarray(problem.length)[number, 0]))


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
