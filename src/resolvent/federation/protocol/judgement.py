"""The judgement of each site: the site computes it from its own test rows, and the lead reads it.

The value of a single row never leaves a site. If the site lets its scores out, the lead gets for each method the score
and the gain over training alone, each with an interval, the variance of the gain, the mean loss, and the evidence for
the advice: the gain in skill and the slope of the calibration, with their variances. They are those of a simulation
with the same rows and models, rounded at random as the site's ``min_cell`` asks, and so is the advice, which the lead
computes from the evidence of all sites.

The interval of a mean over the sites differs from that of a simulation, which adds the resampled means of all sites:
from these the lead could compute values of single rows. Here the half width of the interval is
sqrt(sum_k (w_k h_k)^2) / sum_k w_k, with the weight w_k and half the width h_k of the interval of site k.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resolvent.comparisons.judgement.site_judgement import Means, SiteJudgement, Sites, read_site
from resolvent.errors import InputError, shorten
from resolvent.predict.intervals import Interval


def read_judgement(content: Any, party: int, name: str, methods: Sequence[str]) -> SiteJudgement:
    """The judgement that a site has sent, in the form of a site in ``summary.json``.

    A method that the site has not judged, because it joined later, has an interval without numbers.
    """
    try:
        site = read_site(content, party, name)
        scores, gains = ({**{label: of_site[label] for label in methods if label in of_site}, **of_site}
                         for of_site in (site.scores, site.gains))
        facts = site.facts
        unknown = {*scores, *gains, *site.variances, *facts.losses, *facts.evidence, *facts.calibrations,
                   *facts.columns} - {*methods}
        if len(unknown) > 1 or (unknown and not all(label.isprintable() and len(label) < 200 for label in unknown)):
            raise ValueError("there is a method that the experiment does not have")
        return site._replace(scores=scores, gains=gains)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"the site sent no judgement of the methods: {shorten(error)}") from error


def join_judgements(judgements: Sequence[SiteJudgement], methods: Sequence[str], alone: str | None, *,
                    is_share: bool) -> Sites:
    """All sites, and the means over them.

    Args:
        alone: label of training alone, or None.
        is_share: whether scores lie in [0, 1].
    """
    if not judgements:
        return Sites((), None)
    baselines = dict.fromkeys(label for site in judgements for label in site.scores if label not in methods)
    labels = (*methods, *baselines)
    missing = Interval(math.nan, math.nan, math.nan)
    others = [label for label in labels if label != alone] if alone is not None else []
    sites = tuple(site._replace(scores={label: site.scores.get(label, missing) for label in labels},
                                gains={label: site.gains.get(label, missing) for label in others})
                  for site in judgements)
    complete = [site for site in sites if all(np.isfinite([*interval]).all()
                                              for interval in (*site.scores.values(), *site.gains.values()))]
    if len(complete) < len(sites):
        return Sites(sites, None)
    equal, by_rows = [1.0] * len(sites), [float(site.test_rows) for site in sites]
    scores, gains = ((0.0, 1.0), (-1.0, 1.0)) if is_share else ((-math.inf, math.inf),) * 2
    return Sites(sites, Means(
        *({label: _mean([site.scores[label] for site in sites], weights, scores) for label in labels}
          for weights in (equal, by_rows)),
        *({label: _mean([site.gains[label] for site in sites], weights, gains) for label in others}
          for weights in (equal, by_rows))))


def _mean(intervals: Sequence[Interval], weights: Sequence[float], limits: tuple[float, float]) -> Interval:
    total = sum(weights)
    value = sum(w * interval.value for w, interval in zip(weights, intervals, strict=True)) / total
    half = math.sqrt(sum((w * (interval.high - interval.low) / 2) ** 2
                         for w, interval in zip(weights, intervals, strict=True))) / total
    return Interval(value, max(value - half, limits[0]), min(value + half, limits[1]))
