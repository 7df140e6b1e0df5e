"""Predictions of a fitted regression for new rows, with standard errors by the delta method."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.formula import parse_formula
from resolvent.comparisons.regression.imputation import pooled_freedom
from resolvent.comparisons.regression.label_numbers import offsets_of
from resolvent.comparisons.regression.laws import quantile
from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.rows import check_named, encode_features, read_columns
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError, alternatives, quote
from resolvent.tables.cells import read_cells, with_unique_names
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

FILE = "predictor.json"
_STEP = 1e-3  # of a column, relative to its size, for the derivatives of the design's columns
Scale = Literal["response", "link"]


@dataclass(frozen=True, eq=False)
class Predictor:
    """What predictions need of a regression, without its rows.

    Attributes:
        estimates: [P] the estimates; NaN for what the rows could not tell.
        covariance: [P, P] their covariance; NaN without standard errors.
        freedom: degrees of freedom of the t statistics, with imputations of a complete table; None: they are normal.
        level: level of the intervals.
        within: [P, P] with imputations, the mean of the covariances of the completed tables; otherwise None.
        imputations: the number of completed tables.
    """

    model: RegressionModel
    estimates: NDArray[np.float64]
    covariance: NDArray[np.float64]
    freedom: float | None
    level: float
    within: NDArray[np.float64] | None = None
    imputations: int = 0

    def predict(self, frame: "pd.DataFrame", scale: Scale = "response") -> "pd.DataFrame":
        """The predictions for rows, with standard errors and intervals of the mean, see ``Regression.predict``."""
        import pandas as pd

        if scale not in get_args(Scale):
            raise InputError(f"scale={quote(scale)} is not known{alternatives(scale, get_args(Scale))}")
        if self.model.keeps_intercepts and scale != "link":
            raise InputError("the intercepts are at the sites, so that there are no means: scale='link' gives the "
                             "linear predictors without them, whose differences compare rows of one site")
        x, offsets, is_complete = self._encode(frame)
        family, d = self.model.family, x.shape[1]
        predictors = 1 if family is None else family.predictors
        beta = self.estimates[:d * predictors].reshape(predictors, d)
        eta = x @ beta.T + offsets[:, None]
        extra = self.estimates[beta.size:]
        # The parameters of each row are its linear predictors and the further ones.
        z = np.concatenate([eta, np.broadcast_to(extra, (len(x), len(extra)))], axis=1)

        def variance_of_rows(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
            of_beta, across, of_extra = (covariance[rows, columns] for rows, columns in (
                (slice(beta.size), slice(beta.size)), (slice(beta.size), slice(beta.size, None)),
                (slice(beta.size, None), slice(beta.size, None))))
            variance = np.einsum("nj,ajbk,nk->nab", x, of_beta.reshape(predictors, d, predictors, d), x)
            across = np.einsum("nj,aje->nae", x, across.reshape(predictors, d, -1))
            return np.block([[variance, across], [across.transpose(0, 2, 1),
                                                  np.broadcast_to(of_extra, (len(x), *of_extra.shape))]])

        def of_predictors(variance: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.asarray(np.einsum("naa->na", variance)[:, :predictors])

        variance = variance_of_rows(self.covariance)
        deviation = np.sqrt(of_predictors(variance))
        quantile = self._quantiles(lambda covariance: of_predictors(variance_of_rows(covariance)))
        half = quantile * deviation
        names = [f" {name}" for name in self.model.classes[1:]] if predictors > 1 else [""]
        if scale == "link":
            values, errors, low, high = eta, deviation, eta - half, eta + half
        else:
            mean = jnp.exp if family is None else family.mean
            with jax.enable_x64(True):
                values, slopes = map(np.asarray, _means(mean, jnp.asarray(z)))
                errors = np.sqrt(np.einsum("nka,nab,nkb->nk", slopes, variance, slopes))
                if family is not None and family.is_logarithmic:  # log(mean) is symmetric
                    low, high = (values * np.exp(sign * quantile * errors / values) for sign in (-1, 1))
                elif values.shape[1] == 1:
                    low, high = (np.asarray(_means(mean, jnp.asarray(end))[0]) for end in (eta - half, eta + half))
                else:
                    names = [f" {name}" for name in self.model.classes]
                    logit = np.log(values) - np.log1p(-values)
                    width = quantile * errors / (values * (1 - values))
                    low, high = (1 / (1 + np.exp(-(logit + sign * width))) for sign in (-1, 1))
        columns: dict[str, NDArray[np.float64]] = {}
        for kind, numbers in {"prediction": values, "standard error": errors, "low": low, "high": high}.items():
            of_rows = np.full((len(frame), len(names)), np.nan)
            of_rows[is_complete] = numbers
            columns |= {f"{kind}{name}": of_rows[:, k] for k, name in enumerate(names)}
        return pd.DataFrame(columns, index=frame.index)

    def effects(self, name: str, frame: "pd.DataFrame") -> "pd.DataFrame":
        """The marginal effects of a column at the values of rows, see ``Regression.effects``."""
        import pandas as pd

        family, model = self.model.family, self.model
        if name not in parse_formula(model.formula).variables:
            raise InputError(f"{quote(name)} is no column of the formula{alternatives(name, self.columns)}")
        if model.keeps_intercepts or (family is not None and family.predictors > 1):
            raise InputError("marginal effects need a mean with one linear predictor and an intercept: compare "
                             "predictions (fit.predict) at two values instead")
        x, offsets, is_complete = self._encode(frame)
        d = x.shape[1]
        beta, rows = self.estimates[:d], frame[is_complete]

        def shape(values: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
            columns = self._encode(rows.assign(**{name: values}))[0]
            with jax.enable_x64(True):
                eta = jnp.asarray(columns @ beta + offsets)[:, None]
                mean, slope = map(np.asarray, _means(jnp.exp if family is None else family.mean, eta))
            return columns, mean[:, -1], slope[:, -1, 0]

        effects: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        if name in model.levels:
            base, *levels = model.levels[name]
            at_base = shape(base)
            for level in levels:
                columns, mean, slope = shape(level)
                effects[f" {level}"] = (mean - at_base[1],
                                        slope[:, None] * columns - at_base[2][:, None] * at_base[0])
        else:
            centre = np.asarray(rows[name], np.float64)
            step = _STEP * np.maximum(np.abs(centre), 1)
            # Exact for polynomials of degree 4; otherwise the error is of the order of step^4.
            parts = [(weight, self._encode(rows.assign(**{name: centre + k * step}))[0])
                     for k, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1))]
            derivative = sum(weight * part for weight, part in parts) / (12 * step[:, None])
            with jax.enable_x64(True):
                eta = jnp.asarray(x @ beta + offsets)
                mean_of = jnp.exp if family is None else family.mean
                slope, bend = (np.asarray(jax.vmap(f)(eta)) for f in _derivatives(mean_of))
            along = derivative @ beta
            effects[""] = slope * along, (bend * along)[:, None] * x + slope[:, None] * derivative
        columns_of = {}
        for level, (effect, gradient) in effects.items():
            def variance(covariance: NDArray[np.float64], g: NDArray[np.float64] = gradient) -> NDArray[np.float64]:
                return np.asarray(np.einsum("nj,jk,nk->n", g, covariance[:d, :d], g)[:, None])

            error = np.sqrt(variance(self.covariance)[:, 0])
            half = error * self._quantiles(variance)[:, 0]
            for kind, numbers in (("effect", effect), ("standard error", error), ("low", effect - half),
                                  ("high", effect + half)):
                columns_of[f"{kind}{level}"] = np.full(len(frame), np.nan)
                columns_of[f"{kind}{level}"][is_complete] = numbers
        return pd.DataFrame(columns_of, index=frame.index)

    def _quantiles(self, variances: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        """[n, 1] how many standard errors an interval reaches on each side.

        Args:
            variances: [P, P] a covariance -> [n, C] the variances of the C predictors of each row; of imputations, the
                predictor with the fewest degrees of freedom counts.
        """
        freedom: Any = self.freedom
        if self.within is not None and freedom is not None:
            freedom = pooled_freedom(variances(self.covariance), variances(self.within), self.imputations,
                                     freedom).min(axis=1, keepdims=True)
        return np.atleast_2d(quantile(self.level, freedom))

    def _encode(self, frame: "pd.DataFrame") -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """The columns and offsets of the complete rows, and which rows these are."""
        model, formula = self.model, parse_formula(self.model.formula)
        unknown = [name for name, value in zip(model.names, self.estimates, strict=True)
                   if np.isnan(value) and name not in model.extra]
        if unknown:
            raise InputError(f"the regression has no estimate of {', '.join(map(quote, unknown))}, so that it predicts "
                             "nothing: fit it without these columns")
        frame = with_unique_names(frame)
        for name in self.columns:
            check_named(frame, name, "of the formula, the offset or the exposure")
        frame = read_cells(frame, self.columns, model.cells)
        is_complete = np.asarray(frame[self.columns].notna().all(axis=1), bool)
        complete = frame[self.columns][is_complete].reset_index(drop=True)
        names, x = encode_features(complete, formula, model.levels, model.moments, has_baseline=model.has_baseline)
        if names != model.columns:
            raise InputError(f"the rows have the columns {', '.join(names)}, and the regression has "
                             f"{', '.join(model.columns)}: give each column the type that it had in the regression")
        offsets = offsets_of(complete, model.added)
        return x, np.zeros(len(x)) if offsets is None else offsets, is_complete

    @property
    def columns(self) -> list[str]:
        """The columns that new rows must have."""
        return [*dict.fromkeys([*parse_formula(self.model.formula).variables, *self.model.added.values()])]

    def to_plain(self) -> dict[str, Any]:
        """The predictor as values of JSON; NaN is null."""
        arrays = {"estimates": self.estimates[None], "covariance": self.covariance}
        if self.within is not None:
            arrays["within"] = self.within
        return {**asdict(self), **{name: [[None if np.isnan(x) else float(x) for x in row] for row in array]
                                   for name, array in arrays.items()}}

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The predictor of a folder that ``Regression.save`` wrote.

        Raises:
            InputError: the folder has none, or it is damaged.
        """
        try:
            content: Mapping[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
            numbers = {name: np.array(content[name], np.float64) for name in ("estimates", "covariance", "within")
                       if content.get(name) is not None}
            numbers["estimates"] = numbers["estimates"][0]
            model = read_plain(RegressionModel, content["model"], FILE)
            p = len(model.names)
            if numbers["estimates"].shape != (p,) or any(
                    array.shape != (p, p) for name, array in numbers.items() if name != "estimates"):
                raise ValueError("an array has another shape")
            return cls(**{**content, "model": model, **numbers})
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"{folder} has no regression that predicts, or it is damaged ({error}): save it "
                             "again") from error


def predict_file(folder: Path, rows: str, out: Path, text: TextFormat, scale: Scale = "response", *,
                 overwrite: bool = False, quote_formulas: bool = True) -> tuple[int, int]:
    """Predict the rows of a file, and write the predictions completely or not at all.

    Args:
        folder: a folder that ``Regression.save`` wrote.
        out: the file to write, ``.csv`` or ``.parquet``.
        overwrite: replace ``out`` if it exists.
        quote_formulas: see ``write_predictions``.

    Returns:
        The number of rows, and of those with missing values, which have no prediction.
    """
    from resolvent.comparisons.after.predictions import check_output, write_predictions

    check_output(out, overwrite=overwrite)
    predictor = Predictor.load(folder)
    frame = read_columns(rows, predictor.columns, text, predictor.model.cells)
    table = predictor.predict(frame, scale)
    table.insert(0, "row", [str(row) for row in frame.index])
    write_predictions(out, table, {"regression": str(folder), "formula": predictor.model.formula, "scale": scale,
                                   "level": predictor.level, "rows": rows}, quote_formulas=quote_formulas)
    return len(table), int(table.iloc[:, 1].isna().sum())


def _derivatives(mean: Any) -> tuple[Any, Any]:
    """The first and second derivative of the mean by a single linear predictor; for two classes, of the second."""
    def one(eta: jax.Array) -> jax.Array:
        last: jax.Array = mean(eta[None])[-1]
        return last

    return jax.grad(one), jax.grad(jax.grad(one))


@partial(jax.jit, static_argnums=0)
def _means(mean: Any, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[n, K] the means, and [n, K, C+E] their derivatives by the parameters of the rows."""
    return jax.vmap(mean)(z), jax.vmap(jax.jacfwd(mean))(z)
