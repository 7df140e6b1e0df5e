"""Families of generalised linear models: the loss of a row as a function of its linear predictors.

A row has C linear predictors eta (one, or one for each class but the first), and a family may have further parameters,
such as the dispersion of the negative binomial distribution, or the thresholds between ordered classes. Losses are
negative log-likelihoods without the terms that depend on the labels alone; derivatives come from automatic
differentiation.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, xlogy
from jaxtyping import Array, Float
from numpy.typing import NDArray
from typing_extensions import override

Labels: TypeAlias = Literal["any", "positive", "count", "classes"]

_MANY = 1e3  # from which 1/alpha on Stirling's series is exact to rounding
_NO_MEAN = 1e-6  # the mean with which a fit on the logarithm begins if all labels are zero


class RowTerms(NamedTuple):
    """What the fit of a row adds to the sums from which a regression is reported.

    Attributes:
        deviance: twice the row's log-likelihood in the saturated model minus that in this one.
        pearson: (y - mean)^2 / variance at dispersion 1.
        likelihood: the row's log-likelihood, without the parts that need the dispersion.
        label: a function of the label alone, for the log-likelihood of families with a dispersion.
    """

    deviance: Float[Array, ""]
    pearson: Float[Array, ""]
    likelihood: Float[Array, ""]
    label: Float[Array, ""]


class Family(eqx.Module):
    """The distribution of a label, given its linear predictors.

    Attributes:
        name: its name, as users write it.
        effect: what the exponential of a coefficient is; None: nothing.
        labels: what the labels are.
        is_logarithmic: whether the linear predictor is the logarithm of the mean.
        has_dispersion: whether the variance has a factor that is estimated from Pearson's statistic.
        has_likelihood: whether there is a distribution, and not the variance only.
        has_thresholds: whether further parameters take the place of the intercept.
    """

    name: ClassVar[str]
    effect: ClassVar[str | None]
    labels: ClassVar[Labels] = "any"
    is_logarithmic: ClassVar[bool] = False
    has_dispersion: ClassVar[bool] = False
    has_likelihood: ClassVar[bool] = True
    has_thresholds: ClassVar[bool] = False

    @property
    def predictors(self) -> int:
        """C, the number of linear predictors of a row."""
        return 1

    @property
    def extra(self) -> tuple[str, ...]:
        """The names of the E parameters that are not coefficients."""
        return ()

    @abstractmethod
    def loss(self, z: Float[Array, " C+E"], y: Float[Array, ""]) -> Float[Array, ""]:
        """The negative log-likelihood of a row, from its linear predictors and the further parameters."""

    def information(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, "C C"]:
        """The second derivatives of the loss, or their expected value: the inverse of their sum is the covariance."""
        second: Array = jax.hessian(self.loss)(z, y)
        return second

    def mean(self, z: Float[Array, " C+E"]) -> Float[Array, " K"]:
        """The mean label of a row; for classes the probability of each, that of the first left out if there are two."""
        return jnp.exp(z[:1]) if self.is_logarithmic else z[:1]

    @abstractmethod
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        """What the row adds to the sums of the fit."""

    def log_likelihood(self, rows: float, dispersion: float, terms: RowTerms) -> float:
        """The log-likelihood of all rows, from the sums of their terms."""
        return float(terms.likelihood)

    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """[C] the linear predictors whose mean label is ``mean``, [C], from which the fit begins."""
        return mean

    def start_extra(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """[E] the further parameters from which the fit begins.

        Args:
            counts: [K] rows of each class; empty without classes.
        """
        return np.zeros(len(self.extra))


class Gaussian(Family):
    """Linear regression: normal labels, the identity as link, the residual variance as dispersion."""

    name: ClassVar[str] = "gaussian"
    effect: ClassVar[str | None] = None
    has_dispersion: ClassVar[bool] = True

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        return (y - z[0])**2 / 2

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        squared = (y - z[0])**2
        return RowTerms(squared, squared, jnp.zeros_like(y), jnp.zeros_like(y))

    @override
    def log_likelihood(self, rows: float, dispersion: float, terms: RowTerms) -> float:
        """At the variance that maximises it, as for ordinary least squares."""
        variance = float(terms.deviance) / rows
        return -rows / 2 * (math.log(2 * math.pi * variance) + 1) if variance > 0 else math.inf


class Binomial(Family):
    """Labels 0 and 1 with the logit as link: logistic regression."""

    name: ClassVar[str] = "binomial"
    effect: ClassVar[str | None] = "odds ratio"
    labels: ClassVar[Labels] = "classes"

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        return jax.nn.softplus(z[0]) - y * z[0]

    @override
    def mean(self, z: Float[Array, " C"]) -> Float[Array, " K"]:
        return jax.nn.sigmoid(z)

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        loss, p = self.loss(z, y), jax.nn.sigmoid(z[0])
        return RowTerms(2 * loss, (y - p)**2 / (p * (1 - p)), -loss, jnp.zeros_like(y))

    @override
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(mean) - np.log1p(-mean))


class Multinomial(Family):
    """Labels 0, ..., K-1; each class but the first has the log of its odds against the first as linear predictor.

    Attributes:
        classes: K, at least 2.
    """

    name: ClassVar[str] = "multinomial"
    effect: ClassVar[str | None] = "odds ratio"
    labels: ClassVar[Labels] = "classes"
    classes: int = eqx.field(static=True)

    @property
    @override
    def predictors(self) -> int:
        return self.classes - 1

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        with_first = jnp.concatenate([jnp.zeros(1, z.dtype), z])
        return jax.nn.logsumexp(with_first) - with_first[y.astype(int)]

    @override
    def mean(self, z: Float[Array, " C"]) -> Float[Array, " K"]:
        return jax.nn.softmax(jnp.concatenate([jnp.zeros(1, z.dtype), z]))

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        loss, p = self.loss(z, y), self.mean(z)[y.astype(int)]
        return RowTerms(2 * loss, 1 / p - 1, -loss, jnp.zeros_like(y))


class Poisson(Family):
    """Counts with the logarithm as link."""

    name: ClassVar[str] = "poisson"
    effect: ClassVar[str | None] = "rate ratio"
    labels: ClassVar[Labels] = "count"
    is_logarithmic: ClassVar[bool] = True

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.exp(z[0]) - y * z[0]

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        loss, mean = self.loss(z, y), jnp.exp(z[0])
        return RowTerms(2 * (loss + xlogy(y, y) - y), (y - mean)**2 / mean, -loss - gammaln(y + 1), jnp.zeros_like(y))

    @override
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return _log_mean(mean)


class QuasiPoisson(Poisson):
    """Counts whose variance is a multiple of the mean: Poisson's estimates, with an estimated dispersion."""

    name: ClassVar[str] = "quasi_poisson"
    has_dispersion: ClassVar[bool] = True
    has_likelihood: ClassVar[bool] = False


class ZeroInflatedPoisson(Poisson):
    r"""Counts that are zero with the probability pi, and otherwise Poisson's; the logit of pi is estimated as well.

    .. math:: P(0) = \pi + (1 - \pi) e^{-\mu}, \qquad P(y) = (1 - \pi) e^{-\mu} \mu^y / y!

    Source: Lambert, *Zero-inflated Poisson regression*, 1992.
    """

    name: ClassVar[str] = "zero_inflated_poisson"

    @property
    @override
    def extra(self) -> tuple[str, ...]:
        return ("logit_zero",)

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        always, not_always = -jax.nn.softplus(-z[1]), -jax.nn.softplus(z[1])
        zero = -jnp.logaddexp(always, not_always - jnp.exp(z[0]))
        return jnp.where(y == 0, zero, super().loss(z, y) - not_always)

    @override
    def mean(self, z: Float[Array, " C"]) -> Float[Array, " K"]:
        return jax.nn.sigmoid(-z[1:]) * jnp.exp(z[:1])

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        """The deviance is -2 log-likelihood: the saturated model has no single pi."""
        likelihood, mean = -self.loss(z, y) - gammaln(y + 1), self.mean(z)[0]
        variance = mean * (1 + jax.nn.sigmoid(z[1]) * jnp.exp(z[0]))
        return RowTerms(-2 * likelihood, (y - mean)**2 / variance, likelihood, jnp.zeros_like(y))


class Ordinal(Family):
    r"""Ordered labels 0, ..., K-1 with proportional odds: logit P(y <= j) = theta_j - eta.

    The thresholds theta_0 < ... < theta_{K-2} are further parameters. A positive coefficient makes later classes more
    probable. At thresholds in another order the loss is not finite.

    Source: McCullagh, *Regression models for ordinal data*, 1980.

    Attributes:
        classes: K, at least 2.
    """

    name: ClassVar[str] = "ordinal"
    effect: ClassVar[str | None] = "odds ratio"
    labels: ClassVar[Labels] = "classes"
    has_thresholds: ClassVar[bool] = True
    classes: int = eqx.field(static=True)

    @property
    @override
    def extra(self) -> tuple[str, ...]:
        return tuple(f"threshold {j}" for j in range(1, self.classes))

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        """With a and b the ends of the class, log(s(b) - s(a)) = log s(b) + log s(-a) + log(1 - e^(a - b))."""
        label, zero = y.astype(int), jnp.zeros(1, z.dtype)
        is_first, is_last = label == 0, label == self.classes - 1
        low, high = (jnp.concatenate(ends)[label] - z[0] for ends in ((zero, z[1:]), (z[1:], zero)))
        width = jnp.where(is_first | is_last, 1, high - low)
        middle = jnp.where(is_first | is_last, 0, jnp.log(-jnp.expm1(-width)))
        return (jnp.where(is_last, 0, jax.nn.softplus(-high)) + jnp.where(is_first, 0, jax.nn.softplus(low)) - middle)

    @override
    def mean(self, z: Float[Array, " C"]) -> Float[Array, " K"]:
        below = jnp.concatenate([jnp.zeros(1, z.dtype), jax.nn.sigmoid(z[1:] - z[0]), jnp.ones(1, z.dtype)])
        return jnp.diff(below)

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        loss, p = self.loss(z, y), self.mean(z)[y.astype(int)]
        return RowTerms(2 * loss, 1 / p - 1, -loss, jnp.zeros_like(y))

    @override
    def start_extra(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        below = np.cumsum(counts)[:-1] / np.sum(counts)
        return np.asarray(np.log(below) - np.log1p(-below))


class GroupedHazards(Family):
    r"""Times to an event in M intervals, each with one baseline hazard for all rows: Cox's model of grouped times.

    The label is 2(aM + m) + 1 if the row entered in interval a and the event was in interval m, of 0, ..., M - 1, and
    one less if the observation ended there. A row is at risk in the intervals from a to m:

    .. math:: \ell = \sum_{j=a}^m e^{\alpha_j + \eta} - [\text{event}] (\alpha_m + \eta)

    The logarithms alpha of the hazards are further parameters. Maximised over them, the sum of the losses is minus the
    logarithm of the partial likelihood of the times m with ties by Breslow, up to a constant: the estimates and errors
    of the coefficients are the same, and all is a sum over rows.

    Source: Holford, *The analysis of rates and of survivorship using log-linear models*, 1980.

    Attributes:
        intervals: M, at least 2.
    """

    name: ClassVar[str] = "cox"
    effect: ClassVar[str | None] = "hazard ratio"
    is_logarithmic: ClassVar[bool] = True
    has_thresholds: ClassVar[bool] = True
    intervals: int = eqx.field(static=True)

    @property
    @override
    def extra(self) -> tuple[str, ...]:
        return tuple(f"log hazard {j}" for j in range(1, self.intervals + 1))

    @override
    def loss(self, z: Float[Array, " C+E"], y: Float[Array, ""]) -> Float[Array, ""]:
        number, event = jnp.divmod(y.astype(int), 2)
        first, last = jnp.divmod(number, self.intervals)
        log_hazards, intervals = z[1:] + z[0], jnp.arange(self.intervals)
        total = jnp.where((first <= intervals) & (intervals <= last), jnp.exp(log_hazards), 0).sum()
        return total - event * log_hazards[last]

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        loss = self.loss(z, y)
        return RowTerms(2 * loss, jnp.zeros_like(loss), -loss, jnp.zeros_like(loss))

    @override
    def start_extra(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The events over the rows and intervals; counts are of rows without and with an event."""
        return np.full(self.intervals, np.log(counts[1] / counts.sum() / self.intervals))


class NegativeBinomial(Family):
    """Counts with variance mean + alpha mean^2 and the logarithm as link; log(alpha) is estimated as well."""

    name: ClassVar[str] = "negative_binomial"
    effect: ClassVar[str | None] = "rate ratio"
    labels: ClassVar[Labels] = "count"
    is_logarithmic: ClassVar[bool] = True

    @property
    @override
    def extra(self) -> tuple[str, ...]:
        return ("log_alpha",)

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        """The terms that depend on the label alone, log(y!), are left out; alpha = 0 has the loss of Poisson.

        The logarithm of Gamma(y + s) / (Gamma(s) s^y) with s = 1/alpha is small next to its parts if s is large.
        """
        size, log_mean = jnp.exp(-z[1]), z[0]  # 1/alpha
        near, far = jnp.minimum(size, _MANY), jnp.maximum(size, _MANY)  # where the other branch counts, both are finite
        exact = gammaln(y + near) - gammaln(near) - y * jnp.log(near)
        series = ((y + far - 0.5) * jnp.log1p(y / far) - y - y / (12 * far * (y + far))  # Stirling, without size^-5
                  + (far**-3 - (y + far)**-3) / 360)
        ratio = jnp.where(size < _MANY, exact, series)
        log_growth = jax.nn.softplus(log_mean + z[1])  # log(1 + alpha mean)
        return (y + size) * log_growth - y * log_mean - ratio

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        mean, alpha = jnp.exp(z[0]), jnp.exp(z[1])
        loss = self.loss(z, y)
        growth = jnp.log1p(alpha * (y - mean) / (1 + alpha * mean))
        deviance = 2 * (xlogy(y, y / mean) - (y + 1 / alpha) * growth)
        return RowTerms(deviance, (y - mean)**2 / (mean + alpha * mean**2), -loss - gammaln(y + 1), jnp.zeros_like(y))

    @override
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return _log_mean(mean)


class Gamma(Family):
    """Positive labels with constant coefficient of variation and the logarithm as link."""

    name: ClassVar[str] = "gamma"
    effect: ClassVar[str | None] = "ratio of means"
    labels: ClassVar[Labels] = "positive"
    is_logarithmic: ClassVar[bool] = True
    has_dispersion: ClassVar[bool] = True

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        return y * jnp.exp(-z[0]) + z[0]

    @override
    def information(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, "C C"]:
        """The expected one, which is 1 for every row."""
        return jnp.ones((1, 1), z.dtype)

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        ratio = y * jnp.exp(-z[0])
        return RowTerms(2 * (ratio - 1 - jnp.log(ratio)), (ratio - 1)**2, jnp.log(ratio) - ratio, jnp.log(y))

    @override
    def log_likelihood(self, rows: float, dispersion: float, terms: RowTerms) -> float:
        if dispersion <= 0:
            return math.inf
        shape = 1 / dispersion
        constant = rows * (shape * math.log(shape) - math.lgamma(shape))
        return constant + shape * float(terms.likelihood) - float(terms.label)

    @override
    def start(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        return _log_mean(mean)


def _log_mean(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(np.where(mean > 0, mean, _NO_MEAN)))


FAMILIES: Mapping[str, type[Family]] = {
    family.name: family for family in (Gaussian, Binomial, Multinomial, Ordinal, Poisson, QuasiPoisson,
                                       ZeroInflatedPoisson, NegativeBinomial, Gamma)}
