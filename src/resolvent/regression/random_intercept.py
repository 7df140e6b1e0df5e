"""Generalised linear models with a random intercept for each party, by Laplace's approximation."""

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.regression.families import Family, Gaussian, RowTerms, ZeroInflatedPoisson
from resolvent.regression.objective import (
    FitSums,
    RegressionOracle,
    RegressionProblem,
    RowRegression,
    RowsOracle,
    ScoreWeights,
)
from resolvent.regression.site_intercepts import with_intercepts


class ScaledGaussian(Gaussian):
    """Normal labels; the logarithm of their standard deviation is a parameter, which a mixed model needs."""

    name: ClassVar[str] = "gaussian"
    has_dispersion: ClassVar[bool] = False

    @property
    @override
    def extra(self) -> tuple[str, ...]:
        return ("log_sigma",)

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        return ((y - z[0]) * jnp.exp(-z[1]))**2 / 2 + z[1] + jnp.log(2 * jnp.pi) / 2

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        return super().terms(z, y)._replace(likelihood=-self.loss(z, y))


class LossDerivative(Family):
    """A derivative of a family's loss in its linear predictor, in place of a loss.

    Attributes:
        family: the family, of one linear predictor.
        order: of the derivative.
    """

    family: Family
    order: int = eqx.field(static=True)

    @property
    @override
    def extra(self) -> tuple[str, ...]:
        return self.family.extra

    @override
    def loss(self, z: Float[Array, " C"], y: Float[Array, ""]) -> Float[Array, ""]:
        def along(eta: Array) -> Array:
            return self.family.loss(z.at[0].set(eta), y)

        for _ in range(self.order):
            along = jax.grad(along)
        return along(z[0])

    @override
    def terms(self, z: Float[Array, " C"], y: Float[Array, ""]) -> RowTerms:
        return self.family.terms(z, y)


class RandomIntercept(RegressionProblem):
    r"""f_k = -(log of the marginal likelihood of party k) / n_k, with u_k normal with deviation tau in its predictor.

    .. math:: -\log \int e^{-\sum_i \ell(\eta_i + u)} \mathcal N(u; 0, \tau^2)\, du \approx
              \sum_i \ell(\eta_i + \tau v) + v^2/2 + \tfrac12 \log\big(1 + \tau^2 \sum_i \ell''(\eta_i + \tau v)\big)

    at the minimiser v of the first two terms. It is exact for normal labels. The parameters are those of the regression
    and log(tau). The sums of replies have no party's intercept.

    Value and gradient of ``second_order`` are exact. Its Hessian is that of f_k with the sum of the l'' expanded to
    first order in the predictors, and v to first order as well: the terms that are missing are smaller than it by the
    factor 1/n_k, and would need the columns of l'''x and l''''x. ``fit_sums`` has all terms, for the standard errors;
    its ``information`` and ``hessian`` are equal, and the likelihood in its ``terms`` is the marginal one.

    Args:
        rows: the regression without random intercepts.
        start: [P + 1] the first model.

    Raises:
        InputError: the family has several linear predictors, or a dispersion that is no parameter.
    """

    rows: RowRegression  # with a column of ones before x

    def __init__(self, rows: RowRegression, start: Any) -> None:
        if rows.family.predictors != 1 or rows.family.has_dispersion or isinstance(rows.family, ZeroInflatedPoisson):
            raise InputError("a random intercept needs one linear predictor and a likelihood whose dispersion is a "
                             f"parameter, which {rows.family.name} does not have: use gaussian, binomial, poisson or "
                             "negative_binomial")
        x = jnp.concatenate([jnp.ones_like(rows.x[:, :1]), rows.x], axis=1)
        self.rows, self.start, self.sizes = eqx.tree_at(lambda r: r.x, rows, x), jnp.asarray(start, float), rows.sizes
        self.l2 = jnp.zeros_like(self.start)
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def oracle(self, k: Int[Array, ""]) -> "RandomInterceptOracle":
        return RandomInterceptOracle(self.sizes[k], self.l2, self.rows.oracle(k))

    @override
    def row_weights(self, w: Float[Array, " P"]) -> Float[Array, "rows C"]:
        return self.rows.row_weights(self.oracle(jnp.array(0)).with_intercept(w))

    @override
    def answered_columns(self, w: Float[Array, " P"], sums: bool = False, scores: bool = False,
                         weights: ScoreWeights | None = None) -> Float[Array, "rows columns"]:
        """Those of the regression, and of its second derivatives' gradient: the third; with ``sums``, their Hessians.

        The Hessians of the rows' slopes and curvatures are X'WX with the third and the fourth derivatives as W.
        """
        full = self.oracle(jnp.array(0)).with_intercept(w)
        of_loss, of_slope, of_curvature = (
            eqx.tree_at(lambda r: r.family, self.rows, family, is_leaf=lambda x: isinstance(x, Family))
            .answered_columns(full) for family in (self.rows.family, *(
                LossDerivative(self.rows.family, order) for order in (1, 2))))
        count = 1 + len(self.rows.family.extra)
        further = [of_slope[:, count:], of_curvature] if sums else [of_curvature[:, :count]]
        return jnp.concatenate([of_loss, *further], axis=1)


class RandomInterceptOracle(RegressionOracle):
    """One party's objective.

    Attributes:
        inner: the party's loss in u_k and the parameters of the regression.
    """

    inner: RowsOracle

    def with_intercept(self, w: Float[Array, " P"]) -> Float[Array, " P"]:
        """[P] u_k at the minimiser, and the parameters of the regression."""
        return with_intercepts(self.inner, w[:-1], jnp.exp(-2 * w[-1]) / self.samples)

    @override
    def mean_value(self, w: Vector) -> Float[Array, ""]:
        full = self.with_intercept(w)
        value, _, hessian = self.inner.mean_in_first(full)
        return value + self._rest(w, full[0] * jnp.exp(-w[-1]), hessian[0, 0])

    @override
    def mean_second_order(self, w: Vector) -> SecondOrder:
        full = self.with_intercept(w)
        loss, zero = self.inner.mean_second_order(full), jnp.zeros((full.size,) * 2, full.dtype)
        third = self._derivative(2).mean_gradient(full)
        return self._composed(w, full, loss, zero, SecondOrder(loss.hessian[0, 0], third, zero))

    @override
    def fit_sums(self, w: Vector, weights: ScoreWeights | None = None) -> FitSums:
        full = self.with_intercept(w)
        loss, slope, curvature = (oracle.mean_second_order(full) for oracle in (
            self.inner, self._derivative(1), self._derivative(2)))
        value, gradient, hessian = self._composed(w, full, loss, slope.hessian, curvature)
        terms, zero = self.inner.mean_terms(full), jnp.zeros_like(hessian)
        terms = terms._replace(likelihood=terms.likelihood - (value - loss.value))
        return FitSums(gradient, hessian, hessian, zero, zero, zero, terms, jnp.ones_like(value),
                       jnp.ones_like(value) / self.samples)

    def _derivative(self, order: int) -> RowsOracle:
        return replace(self.inner, family=LossDerivative(self.inner.family, order))

    def _rest(self, w: Vector, v: Array, curvature: Array) -> Array:
        """f_k without the mean loss."""
        rest: Array = (v**2 + jnp.log1p(jnp.exp(2 * w[-1]) * self.samples * curvature)) / (2 * self.samples)
        return rest

    def _composed(self, w: Vector, full: Vector, loss: SecondOrder, slope_hessian: Array,
                  curvature: SecondOrder) -> SecondOrder:
        """f_k with its derivatives, from those of the means of the loss, its slope and its curvature at ``full``."""
        n, tau = self.samples, jnp.exp(w[-1])
        slope = SecondOrder(loss.gradient[0], loss.hessian[0], slope_hessian)
        second = 1 + tau**2 * n * curvature.value  # derivative of the penalised loss in v

        def near(w: Vector) -> Array:
            def away(v: Array) -> Array:
                moved: Array = jnp.append(jnp.exp(w[-1]) * v, w[:-1]) - full
                return moved

            v = full[0] / tau
            for _ in range(2):  # two steps of the same slope from the minimiser have its first and second derivatives
                v = v - (jnp.exp(w[-1]) * n * _expanded(slope, away(v)) + v) / second
            return _expanded(loss, away(v)) + self._rest(w, v, _expanded(curvature, away(v)))

        value, gradient = jax.value_and_grad(near)(w)
        return SecondOrder(value, gradient, jax.hessian(near)(w))


def _expanded(mean: SecondOrder, away: Float[Array, " P"]) -> Float[Array, ""]:
    """Taylor's polynomial of second order."""
    value: Array = mean.value + mean.gradient @ away + away @ mean.hessian @ away / 2
    return value
