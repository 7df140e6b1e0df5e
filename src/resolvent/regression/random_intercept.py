"""Generalised linear models with a random intercept for each party, by Laplace's approximation."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from resolvent.errors import InputError
from resolvent.math.newton import SecondOrder
from resolvent.math.tree import Vector
from resolvent.problem.oracle import Oracle
from resolvent.regression.families import Family, Gaussian, ZeroInflatedPoisson
from resolvent.regression.objective import LikelihoodProblem, RowRegression

_STEPS = 50  # of Newton's method for a party's intercept
_LONGEST = 2.0  # of its steps, in standard deviations of the intercepts


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


class RandomIntercept(LikelihoodProblem):
    r"""f_k = -(log of the marginal likelihood of party k) / n_k, with u_k normal with deviation tau in its predictor.

    .. math:: -\log \int e^{-\sum_i \ell(\eta_i + u)} \mathcal N(u; 0, \tau^2)\, du \approx
              \sum_i \ell(\eta_i + \tau v) + v^2/2 + \tfrac12 \log\big(1 + \tau^2 \sum_i \ell''(\eta_i + \tau v)\big)

    at the minimiser v of the first two terms. It is exact for normal labels. The parameters are those of the regression
    and log(tau). The sums of replies have no party's intercept.

    Args:
        rows: the regression without random intercepts.
        start: [P + 1] the first model.

    Raises:
        InputError: the family has several linear predictors, or a dispersion that is no parameter.
    """

    rows: RowRegression
    longest: int = eqx.field(static=True)

    def __init__(self, rows: RowRegression, start: Any) -> None:
        if rows.family.predictors != 1 or rows.family.has_dispersion or isinstance(rows.family, ZeroInflatedPoisson):
            raise InputError("a random intercept needs one linear predictor and a likelihood whose dispersion is a "
                             f"parameter, which {rows.family.name} does not have: use gaussian, binomial, poisson or "
                             "negative_binomial")
        self.rows, self.start, self.sizes = rows, jnp.asarray(start, float), rows.sizes
        self.longest = int(jnp.max(rows.sizes))
        self.splits, self.score_name, self.higher_is_better = ("train",), "objective", False

    @override
    def oracle(self, k: Int[Array, ""]) -> "RandomInterceptOracle":
        rows, first = self.rows, self.rows.first[k]
        # The block after the last row is shorter than the longest party may be.
        index = jnp.minimum(first + jnp.arange(self.longest), rows.x.shape[0] - 1)
        mask = jnp.arange(self.longest) < self.sizes[k]
        return RandomInterceptOracle(self.sizes[k], rows.family, rows.x[index], rows.y[index], rows.offsets[index],
                                     mask)


class RandomInterceptOracle(Oracle):
    """One party's objective; the attributes are those of ``RowsOracle``, padded to the longest party."""

    family: Family
    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    offsets: Float[Array, " n"]
    mask: Bool[Array, " n"]

    @override
    def value(self, w: Vector) -> Float[Array, ""]:
        d = self.x.shape[1]
        predictor, extra, tau = self.x @ w[:d] + self.offsets, w[d:-1], jnp.exp(w[-1])

        def row(eta: Array, y: Array) -> Array:
            return self.family.loss(jnp.concatenate([eta[None], extra]), y)

        def total(f: Any, v: Array) -> Array:
            return jnp.where(self.mask, jax.vmap(f)(predictor + tau * v, self.y), 0).sum()

        slope, curvature = jax.grad(row), jax.grad(jax.grad(row))

        def newton(v: Array) -> Array:
            step = (tau * total(slope, v) + v) / (tau**2 * jnp.maximum(total(curvature, v), 0) + 1)
            return v - jnp.clip(step, -_LONGEST, _LONGEST)

        v = jax.lax.stop_gradient(jax.lax.fori_loop(0, _STEPS, lambda _, v: newton(v), jnp.zeros_like(tau)))
        v = newton(newton(v))  # two steps from the solution have its exact first and second derivatives
        penalised = total(row, v) + v**2 / 2
        return (penalised + jnp.log1p(tau**2 * total(curvature, v)) / 2) / self.samples

    @override
    def second_order(self, w: Vector) -> SecondOrder:
        value, gradient = jax.value_and_grad(self.value)(w)
        return SecondOrder(value, gradient, jax.hessian(self.value)(w))

    @override
    def grad(self, w: Vector) -> Vector:
        gradient: Array = jax.grad(self.value)(w)
        return gradient

    @override
    def batch_grad(self, w: Vector, positions: Int[Array, " B"], mask: Bool[Array, " B"],
                   memory: PyTree[Any] = ()) -> tuple[Vector, PyTree[Any]]:
        """The full gradient: the rows of a party are not independent."""
        return self.grad(w), memory
