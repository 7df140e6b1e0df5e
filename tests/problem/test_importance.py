"""Coefficients in the units of the table, and the coverage of intervals of permutation importance."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

import resolvent as rv
from resolvent.data.images_text.array_encoding import ArrayEncoding, PixelScaling
from resolvent.errors import InputError
from resolvent.predict.fitted import Fitted
from resolvent.predict.importance import (
    blocks_of_columns,
    coefficients,
    differing_sites,
    importance_values,
)
from resolvent.predict.intervals import Interval, mean_interval
from resolvent.tables.party_tables import from_frame


def frame(rows=200, seed=0):
    """A table with numbers of very different units, a category, true/false and missing values."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"site": rng.choice(["a", "b"], rows), "grams": rng.normal(5e4, 9e3, rows),
                          "share": rng.normal(0.002, 0.0004, rows), "ward": rng.choice(["n", "s", "w"], rows),
                          "smoker": rng.random(rows) < 0.4})
    table["y"] = table["grams"] / 1e4 - 800 * table["share"] + (table["ward"] == "s") + table["smoker"] + rng.normal(
        0, 0.3, rows)
    return table


def table_units(encoding, rows):
    """[n, inputs] the rows in the units of the table, as ``coefficients`` describes them."""
    columns = [rows[c.name].astype(float).fillna(c.imputed) for c in encoding.numbers]
    columns += [(rows[c.name].fillna(c.imputed) == level).astype(float) for c in encoding.categories
                for level in c.levels]
    return np.column_stack([*columns, *(rows[name].isna().astype(float) for name in encoding.marked)])


@pytest.mark.parametrize("label", ["regression", "two", "three"])
def test_predictions_from_coefficients_in_table_units_are_those_of_the_model(label):
    rows = frame()
    rows.loc[::7, "grams"] = np.nan
    if label != "regression":
        rows["y"] = np.where(rows["y"] > 4.5, "high", "low") if label == "two" else rows["ward"].to_numpy()
    data = from_frame(rows, "site", "y", missing="indicate")
    rng, size = np.random.default_rng(1), len(data.features)
    model = rv.models.linear(size) if label == "regression" else rv.models.logistic(size, 2 if label == "two" else 3)
    params = {name: rng.normal(0, 1, np.shape(leaf)) for name, leaf in model.init(np.zeros(2, np.uint32)).items()}
    fitted = Fitted(model, params, data.encoding)
    table = coefficients(fitted)
    assert list(table.columns) == {"regression": ["prediction"], "two": ["low"], "three": ["n", "s", "w"]}[label]
    outputs = table_units(data.encoding, rows) @ table.iloc[:-1].to_numpy() + table.loc["intercept"].to_numpy()
    expected = fitted.outputs_of(data.encoding.encode(rows)).reshape(outputs.shape)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_coefficients_are_those_of_a_fit_on_the_raw_columns():
    """Least squares on scaled columns, in the table's units, is least squares on the columns themselves."""
    rows = frame()[["site", "grams", "share", "smoker", "y"]]
    data = from_frame(rows, "site", "y", validation=0, test=0)
    x, y = (np.concatenate([data.party(k)[i] for k in range(2)]).astype(float) for i in (0, 1))
    on_scaled = LinearRegression().fit(x, y)
    fitted = Fitted(rv.models.linear(3), {"weight": on_scaled.coef_[None], "bias": np.array([on_scaled.intercept_])},
                    data.encoding)
    units = np.array([1e4, 1e-3, 1])  # without which scikit-learn takes the small column for rounding
    raw_columns = rows[["grams", "share", "smoker"]].astype(float) / units
    on_raw = LinearRegression().fit(raw_columns, rows["y"])
    np.testing.assert_allclose(coefficients(fitted)["prediction"], [*on_raw.coef_ / units, on_raw.intercept_],
                               rtol=1e-4)
    is_high = y > np.median(y)
    logistic = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, is_high)
    raw = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(raw_columns, rows["y"] > np.median(y))
    classes = from_frame(rows.assign(y=np.where(rows["y"] > np.median(y), "yes", "no")), "site", "y", validation=0,
                         test=0)
    fitted = Fitted(rv.models.logistic(3, 2), {"weight": logistic.coef_, "bias": logistic.intercept_},
                    classes.encoding)
    np.testing.assert_allclose(coefficients(fitted).loc[["grams", "share", "smoker"], "yes"],
                               raw.coef_[0] / units, rtol=2e-3)


def test_a_network_has_no_coefficients():
    data = from_frame(frame(), "site", "y")
    model = rv.models.mlp(len(data.features), 2, task="regression", width=2)
    assert coefficients(Fitted(model, model.init(np.zeros(2, np.uint32)), data.encoding)) is None


def test_the_inputs_of_a_column_are_exchanged_together():
    rows = frame()
    rows.loc[::7, ["grams", "ward"]] = None
    data = from_frame(rows, "site", "y", missing="indicate")
    blocks = blocks_of_columns(data.encoding)
    names = {column: [data.encoding.features[i] for i in block] for column, block in blocks.items()}
    assert names == {"grams": ["grams", "grams missing"], "share": ["share"], "smoker": ["smoker"],
                     "ward": ["ward=n", "ward=s", "ward=w", "ward missing"]}


def test_a_date_is_one_column():
    rows = frame(40).assign(seen=pd.date_range("2024-01-01", periods=40).astype(str))
    encoding = from_frame(rows, "site", "y", dates="days").encoding
    encoding = replace(encoding, dates=(replace(encoding.dates[0], parts=("days", "of grams")),),
                       numbers=tuple(replace(c, name="seen of grams") if c.name == "grams" else c
                                     for c in encoding.numbers))
    names = [encoding.features[i] for i in blocks_of_columns(encoding)["seen"]]
    assert set(names) == {"seen days", "seen of grams"}


def test_images_and_texts_have_no_columns():
    for encoding in (ArrayEncoding((300,), "regression"), ArrayEncoding((8, 8), "regression", pixels=PixelScaling()),
                     ArrayEncoding((20,), "regression", tokens=("a", "b"))):
        with pytest.raises(InputError, match="images, texts or more than 200 numbers"):
            blocks_of_columns(encoding)
    assert list(blocks_of_columns(ArrayEncoding((2,), "regression"))) == ["input 0", "input 1"]


def squared_losses(weights, y):
    def losses(x):
        return (np.tile(y, len(x) // len(y)) - x @ weights) ** 2
    return losses


def test_importance_is_the_mean_over_all_pairs():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(0, 1, (25, 3)), np.array([1.0, -2.0, 0.5])
    y = x @ weights + rng.normal(0, 0.5, 25)
    blocks = {"first": np.array([0]), "both": np.array([1, 2])}
    values = importance_values(squared_losses(weights, y), x, blocks)
    for name, block in blocks.items():
        total = 0.0
        for i in range(25):
            for j in set(range(25)) - {i}:
                row = x[i].copy()
                row[block] = x[j, block]
                total += (y[i] - row @ weights) ** 2 - (y[i] - x[i] @ weights) ** 2
        assert values[name].mean() == pytest.approx(total / (25 * 24))


def test_importance_of_a_linear_model_has_its_closed_form():
    """For independent columns the mean squared error grows by 2 w^2 Var(x)."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(0, [1, 2, 1], (4000, 3)), np.array([1.0, 0.5, 0.0])
    y = x @ weights + rng.normal(0, 1, 4000)
    values = importance_values(squared_losses(weights, y), x, {str(i): np.array([i]) for i in range(3)})
    for i, expected in enumerate((2.0, 2.0, 0.0)):
        interval = mean_interval(values[str(i)])
        assert interval.low <= expected <= interval.high
        assert interval.value == pytest.approx(expected, abs=0.2)


@pytest.mark.when_changed
@pytest.mark.parametrize(("rows", "draws"), [(30, 1000), *(pytest.param(n, 3000, marks=pytest.mark.nightly)
                                                           for n in (12, 100))])
def test_the_interval_of_a_column_without_influence_covers_zero(rows, draws):
    """The model uses a column on which nothing depends; of intervals of level 95 %, 95 % should cover zero."""
    weights, covered, detected = np.array([1.0, 0.4]), 0, 0
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        x = rng.normal(0, 1, (rows, 2))
        y = x[:, 0] + rng.normal(0, 1, rows)
        values = importance_values(squared_losses(weights, y), x, {"used": np.array([0]), "noise": np.array([1])},
                                   seed=seed)
        used, noise = (mean_interval(values[name]) for name in ("used", "noise"))
        covered += noise.low <= 0 <= noise.high
        detected += used.low > 0
    assert 0.93 <= covered / draws <= 0.97
    assert detected / draws > (0.9 if rows > 20 else 0.4)


def test_sites_that_differ_beyond_their_intervals():
    close, far = Interval(0.10, 0.05, 0.15), Interval(0.60, 0.50, 0.70)
    unknown = Interval(np.nan, np.nan, np.nan)
    assert differing_sites([close, close, far, unknown], 4) == [-1, -1, 1, 0]
    assert differing_sites([close, Interval(0.16, 0.1, 0.22), close], 3) == [0, 0, 0]
    assert differing_sites([far, unknown], 2) == [0, 0]


def test_few_sites_differ_by_chance():
    """Of 400 federations of 6 equal sites, at most about one in twenty has a site that is said to differ."""
    rng = np.random.default_rng(0)
    count = 0
    for _ in range(400):
        deviation = rng.uniform(0.5, 2, 6)
        values = rng.normal(1, deviation)
        intervals = [Interval(v, v - 1.96 * d, v + 1.96 * d) for v, d in zip(values, deviation, strict=True)]
        count += any(differing_sites(intervals, 6))
    assert count <= 32  # 20 are expected at most
