"""The settings of a regression, as a call, a command or a file states them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from resolvent.comparisons.plan_file import Numbers, Texts
from resolvent.errors import InputError, alternatives, check_range, quote
from resolvent.regression.cox import Ties
from resolvent.tables.cells import Code, text_of_value

Errors: TypeAlias = Literal["model", "robust", "clustered", "HC0", "HC1", "HC2", "HC3"]
Weights: TypeAlias = Literal["frequency", "sampling"]
Site: TypeAlias = Literal["fixed", "random"]
LEVERAGE_POWERS = {"HC2": 1.0, "HC3": 2.0}  # of the weights 1/(1 - leverage) of the rows' squared scores
FamilyName: TypeAlias = Literal["auto", "gaussian", "binomial", "multinomial", "ordinal", "poisson", "quasi_poisson",
                                "zero_inflated_poisson", "negative_binomial", "gamma", "cox"]


@dataclass(frozen=True, kw_only=True)
class RegressionOptions:
    """What is fitted, and how it is reported, as a call states it.

    Attributes:
        formula: ``label ~ columns``, such as ``ill ~ age + C(ward) + age:sex`` or ``Surv(days, died) ~ age``, with
            ``Surv(start, stop, died)`` for rows that are at risk after start, until stop (left truncation, columns that
            change with time). Text columns are categories; ``C(column)`` makes a number one; ``a:b`` is a product,
            ``a*b`` is ``a + b + a:b``.
        family: distribution of the label: ``gaussian`` (identity), ``binomial`` (logit), ``multinomial`` (logit against
            the first class), ``ordinal`` (proportional odds), ``poisson``, ``quasi_poisson``,
            ``zero_inflated_poisson``, ``negative_binomial`` and ``gamma`` (logarithm), or ``cox``. ``auto``: from the
            label, where it is certain.
        errors: standard errors from the ``model``, ``robust`` to a wrong variance (HC1; also ``HC0``, and with
            leverages ``HC2`` and ``HC3``), or ``clustered`` by site, or by ``cluster``.
        level: level of the intervals.
        l1: weight of the absolute values of the coefficients (lasso), next to the mean loss of a row.
        l2: weight of half their squares (ridge). The intercept has no penalty. Columns are penalised in their units.
        offset: a column that is added to the linear predictor.
        exposure: a column whose logarithm is added, such as person-years.
        frequency_weights: a column that says for how many equal rows a row stands: the fit is the same as with a table
            in which each row is repeated.
        sampling_weights: a column with the inverse of the probability that a row was sampled, treated, or observed:
            estimates solve the weighted score equations, with ``errors="robust"`` (of Binder, 1983, as R's ``survey``
            has them for a sample with replacement; t statistics with n - P) or ``clustered``. There is no likelihood.
        cluster: a column whose values are clusters within each site, such as patients with several rows, for
            ``errors="clustered"``; default: a site is a cluster. The same value at two sites is two clusters.
        strata: of a Cox model, a column for whose values each site has baseline hazards of their own.
        ties: of a Cox model with equal times of events: ``efron`` or ``breslow``.
        baseline_times: of a Cox model, the ends of intervals of time in which all sites have the same baseline hazard,
            such as ``[90, 180, 365]``; the last interval has no end. It is the Cox model of times that are coarsened to
            the intervals, with ties by Breslow. Default: each site has a baseline of its own.
        reference: the base level of categories, and of the label: ``{"ward": "A"}``.
        order: with ``family="ordinal"``, the classes of the label from the lowest; default: they are numbers.
        site: ``fixed`` fits an intercept of its own for each site, which stays there; ``random`` adds a fit with a
            normal intercept for each site, whose deviation is estimated: ``fit.random``. Default: one for all.
        tests: hypotheses to test beside the table, such as ``["C(ward)", "age = 0.05"]``; see ``Regression.test``.
        likelihood_tests: the same by the ratio of likelihoods, with a fit under each hypothesis; see
            ``Regression.likelihood_test``.
        profile: coefficients whose interval is that of the profile likelihood, such as ``["age", "ward[T.B]"]``.
        firth: use Firth's penalty, with which estimates are finite where columns divide the rows perfectly, and nearly
            unbiased with few events; of families ``binomial`` and ``poisson``.
        imputations: number of completed tables, such as 20: missing values of the formula's columns are drawn at each
            site by chained equations of its own rows, and the fits of the tables are pooled by Rubin's rules. Default:
            rows with missing values are left out.
        seed: of the draws of ``imputations``.

    Raises:
        InputError: a number is out of range, or a name is not known.
    """

    formula: str = field(kw_only=False)
    family: FamilyName = "auto"
    errors: Errors = "model"
    level: float = 0.95
    l1: float = 0.0
    l2: float = 0.0
    offset: str | None = None
    exposure: str | None = None
    frequency_weights: str | None = None
    sampling_weights: str | None = None
    cluster: str | None = None
    strata: str | None = None
    ties: Ties = "efron"
    baseline_times: Numbers | None = None
    reference: dict[str, Code] | None = None
    order: tuple[Code, ...] | list[Code] | None = None
    site: Site | None = None
    tests: Texts | None = None
    likelihood_tests: Texts | None = None
    profile: Texts | None = None
    firth: bool = False
    imputations: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("regress", "[0, inf)", l1=self.l1, l2=self.l2)
        check_range("regress", "(0, 1)", level=self.level)
        check_range("regress", "[0, inf)", seed=self.seed)
        for name, kinds in (("family", FamilyName), ("errors", Errors), ("site", Site)):
            value = getattr(self, name)
            if value not in get_args(kinds) and not (name == "site" and value is None):
                raise InputError(f"{name}={quote(value)} is not known{alternatives(value, get_args(kinds))}")

        if self.baseline_times is not None:
            check_baseline_times(self.baseline_times)
            if self.strata is not None or self.site is not None:
                raise InputError("baseline_times are of one baseline hazard for all rows, and strata and site are of "
                                 "several: leave one of them out, or write C() of the column in the formula")
        if self.frequency_weights is not None and self.sampling_weights is not None:
            raise InputError("frequency_weights and sampling_weights mean different things: set one of them")
        if self.cluster is not None and self.errors != "clustered":
            raise InputError(f"cluster={quote(self.cluster)} names the clusters of errors=clustered, and errors="
                             f"{self.errors} has none: set errors=clustered, or leave cluster out")
        check_errors_of_weights(self.errors, self.weights and self.weights[0])
        if self.tests and self.has_penalty:
            raise InputError("tests: a fit with a penalty has no standard errors, and so no tests: leave l1 and l2 out")
        of_likelihood = {"likelihood_tests": self.likelihood_tests, "profile": self.profile, "firth": self.firth}
        for name, value in of_likelihood.items():
            if value and (self.has_penalty or self.errors != "model" or self.sampling_weights is not None):
                raise InputError(f"{name} is of the likelihood, which a fit with l1, l2, sampling_weights or other "
                                 "errors than those of the model does not report: leave these settings out, or test "
                                 "with tests, which are Wald's")

        if self.imputations is not None:
            if self.imputations < 2:
                raise InputError(f"imputations={self.imputations} has no variance between completed tables: set 20, or "
                                 "at least 2")
            others = {"l1": self.l1, "l2": self.l2, "likelihood_tests": self.likelihood_tests, "profile": self.profile,
                      "frequency_weights": self.frequency_weights, "site=random": self.site == "random"}
            if stated := [name for name, value in others.items() if value]:
                raise InputError(f"imputations and {stated[0]} do not go together: leave one of them out. Rubin's "
                                 "rules pool estimates with their covariances, and Wald's tests (tests); for "
                                 "frequency_weights, repeat the rows of the table")

    @property
    def added(self) -> dict[str, str]:
        """``offset`` and ``exposure`` -> the column, if there is one."""
        columns = {"offset": self.offset, "exposure": self.exposure}
        return {role: column for role, column in columns.items() if column is not None}

    @property
    def weights(self) -> tuple[Weights, str] | None:
        """What the weights of the rows mean, and their column; None: all rows have the weight 1."""
        if self.frequency_weights is not None:
            return "frequency", self.frequency_weights
        return None if self.sampling_weights is None else ("sampling", self.sampling_weights)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are used and that the formula does not name."""
        others = (name for name in (self.strata, self.cluster) if name is not None)
        return (*self.added.values(), *(() if self.weights is None else self.weights[1:]), *others)

    @property
    def references(self) -> Mapping[str, str]:
        """Column -> its base level as text; empty if none is set."""
        return {name: text_of_value(base) for name, base in (self.reference or {}).items()}

    @property
    def has_penalty(self) -> bool:
        """Whether the coefficients are shrunk, so that there are no standard errors."""
        return bool(self.l1 or self.l2)


@dataclass(frozen=True, kw_only=True)
class RegressionSettings(RegressionOptions):
    """What is fitted, and how it is reported.

    Attributes:
        heterogeneity: whether the sites' own fits are compared. In a federation each site then sends its own estimates.
        rounds: largest number of rounds; 4 to 8 are usual. A separated fit moves by about 1 a round, and ends after
            about 30.

    Raises:
        InputError: a number is out of range, or a name is not known.
    """

    heterogeneity: bool = True
    rounds: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("regress", "[1, inf)", rounds=self.rounds)


def check_baseline_times(times: Sequence[float]) -> None:
    """Refuse ends of intervals that are not rising times."""
    if not all(low < high < math.inf for low, high in pairwise((0, *times))) or not times:
        raise InputError(f"baseline_times={list(times)} must be times after zero that rise: write such as "
                         "[90, 180, 365]")


def check_errors_of_weights(errors: Errors, weights: Weights | None) -> None:
    """Refuse errors that sampling weights do not have."""
    if weights == "sampling" and errors not in ("robust", "HC0", "HC1", "clustered"):
        raise InputError(f"errors={errors} does not go with sampling_weights, which have no likelihood: set "
                         "errors=robust, or clustered")
