"""What a regression fits, without rows: the parameters, the family and the sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.agreement import RowsAgreement
from resolvent.comparisons.regression.formula import parse_formula
from resolvent.comparisons.regression.settings import RegressionSettings, Weights
from resolvent.regression.cox import Ties
from resolvent.regression.families import FAMILIES, Family, GroupedHazards
from resolvent.tables.cells import CellRules, Code

_BLOCK = 2048  # rows that are computed at a time, at most


@dataclass(frozen=True)
class RegressionModel:
    """What a regression fits, without rows; all values are plain.

    Attributes:
        columns: [d] the names of the columns.
        family_name: the distribution of the label.
        classes: the names of the label's classes, base first; () if it has none.
        counts: rows of each class; of a Cox model, rows without and with an event; otherwise ().
        mean: mean label, from which the fit begins.
        left_out: site -> number of rows with missing values, if there are any.
        offset: the offset that stands for those of all rows in the first model.
        event: for times, the value that says that the event occurred.
        levels: column of categories -> its levels, base first.
        added: offset and exposure -> the column, if there is one.
        missing: column, or ``*`` -> the cells that stand for a missing value, also in new rows.
        keeps_intercepts: whether each site has an intercept of its own, which stays there.
        weights: what the weights of the rows mean; None: all are 1.
        strata: of a Cox model, the column of strata within the sites; None: a site is one.
        ties: of a Cox model.
        cluster: the column of clusters within the sites; None: a site is one.
        baseline_times: of a Cox model with one baseline, the ends of its intervals but the last.
        moments: column of polynomials -> its moments over the rows of all sites.
        imputed: site -> number of rows in which missing values were drawn, if there are any.
    """

    formula: str
    columns: tuple[str, ...]
    family_name: str
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    mean: float
    sites: tuple[str, ...]
    site_rows: tuple[int, ...]
    left_out: Mapping[str, int]
    offset: float
    event: str
    levels: Mapping[str, list[str]]
    added: Mapping[str, str]
    missing: Mapping[str, Sequence[Code]]
    keeps_intercepts: bool = False
    weights: Weights | None = None
    strata: str | None = None
    ties: Ties = "efron"
    cluster: str | None = None
    moments: Mapping[str, Sequence[float]] = field(default_factory=dict)
    baseline_times: tuple[float, ...] = ()
    imputed: Mapping[str, int] = field(default_factory=dict)

    @property
    def cells(self) -> CellRules:
        """What the cells of new rows mean."""
        return CellRules(self.missing, frozenset(self.levels))

    @property
    def family(self) -> Family | None:
        """The distribution of the label; None: times to an event, with a baseline for each site."""
        if self.family_name == "cox":
            return GroupedHazards(len(self.baseline_times) + 1) if self.baseline_times else None
        family: type[Any] = FAMILIES[self.family_name]
        found: Family = family(len(self.classes)) if "classes" in family.__dataclass_fields__ else family()
        return found

    @property
    def codes(self) -> dict[float, str]:
        """Number that stands for a label -> what it is; of classes and of intervals of time."""
        if not self.baseline_times:
            return {float(k): f"class {k} of the label" for k in range(len(self.classes))}
        ends = [f"up to {time:g}" for time in self.baseline_times] + [f"after {self.baseline_times[-1]:g}"]
        late = [f", entry from {time:g} on" for time in self.baseline_times]
        entries = ["", *(late if parse_formula(self.formula).response.entry is not None else ())]
        return {2.0 * (a * len(ends) + m) + k: f"{kind} {end}{entry}"
                for a, entry in enumerate(entries) for m, end in enumerate(ends) if a <= m
                for k, kind in enumerate(("the end of observation", "the event"))}

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[N] the sites' numbers of rows."""
        return np.array(self.site_rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the P parameters."""
        family = self.family
        if family is None or family.predictors == 1:
            return (*self.columns, *self.extra)
        return tuple(f"{level}: {name}" for level in self.classes[1:] for name in self.columns)

    @property
    def extra(self) -> tuple[str, ...]:
        """The names of the parameters that are no coefficients."""
        return () if self.family is None else self.family.extra

    @property
    def has_intercept(self) -> bool:
        """Whether one of the columns is the intercept."""
        return "Intercept" in self.columns

    @property
    def has_baseline(self) -> bool:
        """Whether a baseline of each site, or thresholds, take the place of the intercept."""
        return self.family is None or self.keeps_intercepts or self.family.has_thresholds

    @property
    def kept(self) -> int:
        """The number of intercepts that stay at the sites."""
        return len(self.sites) * self.family.predictors if self.keeps_intercepts and self.family is not None else 0

    @property
    def block(self) -> int:
        """Rows that are computed at a time: the same at every site, so that a federation repeats a simulation."""
        return min(_BLOCK, 1 << (max(self.site_rows) - 1).bit_length())

    @property
    def start(self) -> NDArray[np.float64]:
        """[P] the first parameters: with them and the typical offset, the mean label is the observed one."""
        start, family = np.zeros(len(self.names)), self.family
        if self.has_intercept and family is not None:
            first, d = self.columns.index("Intercept"), len(self.columns)
            if family.predictors > 1:
                predictors = np.log(np.array(self.counts[1:]) / self.counts[0])
            else:
                predictors = family.start(np.array([self.mean]))
            start[first:d * family.predictors:d] = predictors - self.offset
        if self.extra and family is not None:
            start[-len(self.extra):] = family.start_extra(np.array(self.counts, float))
        return start

    @property
    def is_penalised(self) -> NDArray[np.float64]:
        """[P] 1 for coefficients, 0 for intercepts and further parameters."""
        of_predictor = [float(name != "Intercept") for name in self.columns]
        predictors = 1 if self.family is None else self.family.predictors
        return np.array([*of_predictor * predictors, *[0.0] * len(self.extra)])

    @classmethod
    def of_agreement(cls, settings: RegressionSettings, columns: Sequence[str],
                     agreement: RowsAgreement) -> "RegressionModel":
        """The model on whose rows sites have agreed."""
        classes, event = [*agreement.classes], ""
        if agreement.family == "cox":
            classes, event = [], classes[1]
        return cls(settings.formula, tuple(columns), agreement.family, tuple(classes),
                   tuple(agreement.classes.values()), agreement.mean, tuple(agreement.sites),
                   tuple(agreement.sites.values()), dict(agreement.left_out), agreement.offset, event,
                   dict(agreement.levels), settings.added, dict(agreement.missing),
                   settings.site == "fixed", None if settings.weights is None else settings.weights[0],
                   settings.strata, settings.ties, settings.cluster, dict(agreement.moments),
                   tuple(settings.baseline_times or ()), dict(agreement.imputed))
