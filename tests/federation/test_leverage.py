"""Leverages of rows in the span of columns: the algebra. ``test_federated_regression`` has them at a site."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
from resolvent.federation.site.leverage import LeverageError, Span
from resolvent.regression.cox import CoxRegression
from resolvent.regression.families import Binomial, Multinomial, NegativeBinomial
from resolvent.regression.objective import RowRegression

RNG = np.random.default_rng(4)


def leverages(x):
    basis = np.linalg.qr(np.column_stack([np.ones(len(x)), x]))[0]
    return (basis**2).sum(1)


@pytest.mark.parametrize(("rows", "width"), [(40, 3), (300, 70), (30, 45)])
def test_leverages_of_random_designs_are_those_of_one_factorisation(rows, width):
    """Columns of all scales, added in two plans; what depends on others adds nothing."""
    x = RNG.normal(size=(rows, width)) * 10.0 ** RNG.integers(-6, 6, width) + RNG.normal(size=width)
    span = Span.of_rows(rows).extended({"a": x[:, :2]}).extended({f"b{j}": x[:, j] for j in range(2, width)})
    assert span.rank == min(width + 1, rows)
    np.testing.assert_allclose(span.leverages, leverages(x[:, :rows - 1]), atol=1e-9)
    np.testing.assert_allclose(span.basis @ span.basis.T, np.eye(span.rank), atol=1e-9)
    again = span.extended({"c": x / np.abs(x).max(0) @ RNG.normal(size=(width, 40)), "d": np.full(rows, 7.0)})
    assert again.rank == span.rank


def test_the_bounds_of_the_docstring_hold_and_are_reached():
    """v_i^2 <= h_i |v|^2 for all v of the span, with equality for v = Q Q_i; its signal over noise is sqrt(h/(1-h))."""
    span = Span.of_rows(60).extended({"x": RNG.standard_t(2, (60, 9))})
    v = (RNG.normal(size=(2000, span.rank)) @ span.basis)
    assert (v**2 <= span.leverages * (v**2).sum(1, keepdims=True) * (1 + 1e-12)).all()
    best = span.basis.T @ span.basis  # its row i is the best combination for row i
    own, square = np.diag(best), (best**2).sum(1)
    np.testing.assert_allclose(own**2 / square, span.leverages, rtol=1e-9)
    h = span.leverages
    np.testing.assert_allclose(own / np.sqrt(square - own**2), np.sqrt(h / (1 - h)), rtol=1e-6)
    assert (square / (best**2).max(1) >= 1 / span.largest - 1e-9).all()


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6, 1e-9])
def test_no_column_that_completes_an_indicator_of_a_row_is_admitted(size):
    x, one = RNG.normal(size=(200, 12)), np.zeros(200)
    one[17] = 1
    span = Span.of_rows(200).extended({"x": x}, 0.5, 1 / 3)
    with pytest.raises(LeverageError, match=r"leverage 1 in a row, more than 0\.8") as refused:
        span.extended({"harmless": x @ RNG.normal(size=12), "composed": x @ RNG.normal(size=12) + size * one}, 0.8)
    assert refused.value.column == "composed"
    with pytest.raises(LeverageError, match="14 independent columns"):
        span.extended({"more": RNG.normal(size=200)}, None, 13 / 200)


def test_nearly_dependent_columns_keep_the_basis_orthonormal():
    """Rounds of Newton's method add W_r X with W_r that converge; no leverage exceeds 1, nor the rank the rows."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.normal(60, 10, (200, 4)).round(1), rng.integers(0, 2, (200, 2))])
    span = Span.of_rows(200).extended({"x": x})
    for slope in rng.normal(size=(3, 7)) / 100:
        for step in 10.0 ** -np.arange(9):
            odds = np.exp(x @ slope + step * (x[:, 1] - 60) / 10)
            span = span.extended({"weighted": (odds / (1 + odds)**2)[:, None] * x, "slope": odds / (1 + odds)})
    np.testing.assert_allclose(span.basis @ span.basis.T, np.eye(span.rank), atol=1e-12)
    assert 20 < span.rank < 200
    full = span.extended({"more": rng.normal(size=(200, 200))}, 1.0, 1.0)
    assert (full.rank, full.largest) == (200, 1)


def test_a_stored_span_is_the_same(tmp_path):
    span = Span.of_rows(50).extended({"x": RNG.normal(size=(50, 4))})
    span.write(tmp_path / "columns.npy")
    read = Span.read(tmp_path / "columns.npy")
    np.testing.assert_array_equal(read.basis, span.basis)
    np.testing.assert_allclose(read.leverages, span.leverages, rtol=1e-12)


X, COUNTS = RNG.normal(size=(40, 2)), RNG.poisson(2, 40).astype(float)


@nightly.parametrize(("family", "labels"), [
    (Binomial(), COUNTS > 1), (Multinomial(3), np.minimum(COUNTS, 2)), (NegativeBinomial(), COUNTS)],
                     others=nightly.WHEN_CHANGED, ids=["binomial", "multinomial", "negative binomial"])
def test_the_sums_of_a_round_are_products_of_features_and_the_columns_that_it_adds(family, labels):
    """Each block of the gradient and of the second derivatives is X'c; c is a slope, or a column of WX."""
    with jax.enable_x64(True):
        problem = RowRegression(family, X, labels, [40])
        w = jnp.linspace(-0.2, 0.3, problem.start.size)
        mean, sums = (f(w) for f in (problem.oracle(0).second_order, problem.oracle(0).fit_sums))
        columns = np.asarray(problem.answered_columns(w, True, True)) / 40
    c, sides = family.predictors, [*[X] * family.predictors, *[np.ones((40, 1))] * len(family.extra)]
    slopes, columns = np.split(columns, [len(sides)], axis=1)
    np.testing.assert_allclose(np.concatenate([side.T @ s for side, s in zip(sides, slopes.T, strict=True)]),
                               mean.gradient, rtol=1e-9)
    starts = np.cumsum([0] + [side.shape[1] for side in sides])
    for matrix in (mean.hessian, sums.information, sums.scores):
        for i, left in enumerate(sides):
            for j in range(i, len(sides)):
                block, columns = np.split(columns, [2 if j < c else 1], axis=1)
                np.testing.assert_allclose(left.T @ block, matrix[starts[i]:starts[i + 1], starts[j]:starts[j + 1]],
                                           rtol=1e-9, atol=1e-12)
    assert not columns.size


@pytest.mark.when_changed
@pytest.mark.parametrize("entry", [None, COUNTS / 2 - 1])
def test_a_cox_model_adds_residuals_scores_and_what_risk_sets_expect(entry):
    with jax.enable_x64(True):
        problem = CoxRegression(X, COUNTS, X[:, 0] > -0.5, [40], entry=entry, offsets=X[:, 1] / 3)  # with ties
        w = jnp.array([0.3, -0.2])
        sums = problem.oracle(jnp.array(0)).fit_sums(w)
        residuals, expected, scores = np.split(np.asarray(problem.answered_columns(w, True, True)), [1, 3], axis=1)
    x = X - X.mean(0)
    np.testing.assert_allclose(-x.T @ residuals[:, 0] / 40, sums.gradient, rtol=1e-9)
    np.testing.assert_allclose(x.T @ expected / 40, sums.hessian, rtol=1e-9)
    np.testing.assert_allclose(scores.T @ scores / 40, sums.scores, rtol=1e-9)
