"""Columns of a table: which types are numbers, categories, classes or targets, and which are refused."""

import datetime

import numpy as np
import pandas as pd
import pytest
from table_samples import column, diabetes, people, wine

from resolvent.errors import InputError
from resolvent.tables.columns import MAX_CATEGORIES
from resolvent.tables.party_tables import from_frame

# Features


@pytest.mark.parametrize("kind", [bool, "boolean", object, "Int64", "uint8", "float16", "Float64"])
def test_numbers_and_true_false_of_any_type_are_the_same_numbers(kind):
    frame = people()
    typed = frame.astype({"smokes": kind})
    data = from_frame(typed, "hospital", "ill", features=["smokes", "id"], scale="none")
    assert data.features == ("smokes", "id")
    np.testing.assert_array_equal(data.x[:, 0], frame["smokes"][data.x[:, 1].astype(int)])


@pytest.mark.parametrize(("kind", "nothing"), [
    ("boolean", pd.NA), (object, None), ("Int64", pd.NA), (float, np.nan)])
def test_missing_values_of_any_type_are_imputed(kind, nothing):
    frame = people().astype({"smokes": kind})
    frame.loc[11, "smokes"] = nothing
    data = from_frame(frame, "hospital", "ill", features=["smokes", "id"], scale="none", missing="indicate")
    assert data.features == ("smokes", "id", "smokes missing")
    assert set(data.x[:, 0]) <= {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(column(data, "id")[column(data, "smokes missing") == 1], [11])


def test_dates_of_category_type_are_categories():
    dates = pd.Categorical(["2020-01-01", "2021-01-01"] * 30)
    data = from_frame(people().assign(date=dates), "hospital", "ill", features=["date"])
    assert data.features == ("date=2020-01-01", "date=2021-01-01")


def test_too_many_categories_are_refused_and_the_maximum_is_not():
    frame = pd.DataFrame({"p": "a", "y": [0, 1] * 101, "c": [f"c{i}" for i in range(202)]})
    with pytest.raises(InputError, match=r"column 'c' has 202 different values, .*at most 100.*exclude it"):
        from_frame(frame, "p", "y")
    frame["c"] = [f"c{i % MAX_CATEGORIES}" for i in range(202)]
    assert from_frame(frame, "p", "y").input_shape == (MAX_CATEGORIES,)


def test_a_word_that_makes_a_column_of_numbers_text_is_named():
    frame = pd.DataFrame({"p": "a", "y": [0, 1] * 101, "c": [*map(str, range(201)), "unknown"]})
    for rows in (frame, frame.tail(51)):
        with pytest.raises(InputError, match=rf"column 'c': {len(rows) - 1} of {len(rows)} values are numbers, and "
                                             r"'unknown' in row 201 is not: set missing: \['unknown'\]"):
            from_frame(rows, "p", "y")


@pytest.mark.parametrize("values", [
    pd.date_range("2020-01-01", periods=60, tz="UTC"), pd.timedelta_range("1D", periods=60),
    pd.period_range("2020-01", periods=60, freq="M"), [datetime.date(2020, 1, 1)] * 60, [datetime.time(1)] * 60,
    ["2020-01-01", "2021-7-13T10:00"] * 30, pd.Categorical(pd.to_datetime(["2020-01-01"] * 60)),
])
def test_dates_and_times_are_refused(values):
    with pytest.raises(InputError, match=r"column 'date' holds dates or times.*exclude it"):
        from_frame(people().assign(date=values), "hospital", "ill", missing="impute")


@pytest.mark.parametrize(("values", "kind"), [
    (["a", 1] * 30, "mixed-integer"), ([[1], [2]] * 30, "mixed"), ([1 + 2j] * 60, "complex"),
    ([b"a"] * 60, "bytes")])
def test_values_that_are_neither_numbers_nor_text_are_refused(values, kind):
    with pytest.raises(InputError, match=f"column 'odd' holds {kind} values .*convert it, or exclude it"):
        from_frame(people().assign(odd=pd.Series(values)), "hospital", "ill", missing="impute")


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_infinite_numbers_are_refused_by_party_row_and_column(value):
    frame = wine()
    frame.loc[30, "ash"] = value
    with pytest.raises(InputError, match=f"^party '{frame['site'][30]}', row 30, column 'ash': the value is infinite"):
        from_frame(frame, "site", "cultivar", missing="impute")


# Parties and labels


@pytest.mark.parametrize("missing", ["refuse", "impute", "indicate"])
def test_a_missing_label_or_party_is_always_refused(missing):
    frame = people()
    frame["ill"] = frame["ill"].astype("Int64")
    frame.loc[7, "ill"] = pd.NA
    with pytest.raises(InputError, match=f"^party '{frame['hospital'][7]}', row 7, column 'ill': the label is missing"):
        from_frame(frame, "hospital", "ill", missing=missing)
    frame.loc[9, "hospital"] = None
    with pytest.raises(InputError, match=r"^row 9, column 'hospital': the party is missing"):
        from_frame(frame, "hospital", "ill", missing=missing)


def test_an_infinite_label_is_refused():
    frame = diabetes()
    frame.loc[8, "target"] = np.inf
    for task in ("auto", "classification"):
        with pytest.raises(InputError, match=r"^party '3', row 8, column 'target': the value is infinite"):
            from_frame(frame, "clinic", "target", task=task)


@pytest.mark.parametrize(("values", "task", "classes", "kind"), [
    ([10, 2], "classification", ("2", "10"), "integer"),
    (pd.Series([10, 2], dtype="Int64"), "classification", ("2", "10"), "integer"),
    ([True, False], "classification", ("False", "True"), "boolean"),
    (pd.Series([True, False], dtype="boolean"), "classification", ("False", "True"), "boolean"),
    (["yes", "no"], "classification", ("no", "yes"), "text"),
    (pd.Categorical(["yes", "no"]), "classification", ("no", "yes"), "text"),
    (pd.Categorical([10, 2]), "classification", ("2", "10"), "integer"),
    (pd.Categorical([0.5, 0.25]), "classification", ("0.25", "0.5"), "decimal"),
    ([10.0, 2.0], "regression", (), "decimal"),
    (pd.Series([10, 2], dtype="Float64"), "regression", (), "decimal"),
])
def test_the_task_follows_from_the_type_of_the_label(values, task, classes, kind):
    frame = pd.DataFrame({"p": "a", "x": [1.0, 2.0], "y": values})
    data = from_frame(frame, "p", "y", validation=0, test=0, scale="none")
    assert (data.task, data.classes) == (task, classes)
    label, = data.encoding.labels
    assert (label.kind, label.task, label.classes) == (kind, task, classes)
    expected = [str(v) for v in values] if classes else [10.0, 2.0]
    label_of = {x: data.classes[y] if classes else y for x, y in zip(data.x[:, 0], data.y, strict=True)}
    assert [label_of[1.0], label_of[2.0]] == expected


def test_the_task_can_be_set():
    frame = diabetes().astype({"sex": int})
    assert from_frame(frame, "clinic", "sex", task="regression").task == "regression"
    assert from_frame(diabetes(), "clinic", "sex").task == "regression"
    assert from_frame(diabetes(), "clinic", "sex", task="classification").classes == ("1.0", "2.0")


@pytest.mark.parametrize(("values", "name"), [
    ("yes", "yes"), (1, "1"), (True, "True"),
    (pd.Categorical(["yes"] * 60, categories=["yes", "no"]), "yes")])
def test_a_label_of_one_class_is_refused(values, name):
    with pytest.raises(InputError, match=f"the label 'ill' has only one class, '{name}'.*name another label"):
        from_frame(people().assign(ill=values), "hospital", "ill", missing="impute")


def test_many_different_labels_are_classes_only_if_the_task_says_so_or_rows_repeat_them():
    frame = diabetes().astype({"target": int})
    count = frame["target"].nunique()
    message = rf"'target' has {count} different values in 442 rows.*task: regression .*or task: classification"
    with pytest.raises(InputError, match=message):
        from_frame(frame, "clinic", "target")
    assert from_frame(frame, "clinic", "target", task="regression").task == "regression"
    assert from_frame(frame, "clinic", "target", task="classification").outputs == count
    words = pd.DataFrame({"p": "a", "x": range(101), "y": [f"word {i}" for i in range(101)]})
    with pytest.raises(InputError, match=r"'y' has 101 different values in 101 rows, .*: set task: class"):
        from_frame(words, "p", "y")
    assert from_frame(words[1:], "p", "y").outputs == 100
    assert from_frame(pd.DataFrame({"p": "a", "x": 0.0, "y": np.arange(550) % 110}), "p", "y").outputs == 110
    with pytest.raises(InputError, match="110 different values in 549 rows"):
        from_frame(pd.DataFrame({"p": "a", "x": 0.0, "y": np.arange(549) % 110}), "p", "y")


@pytest.mark.parametrize(("label", "kind"), [("city", "text"), ("smokes", "boolean")])
def test_regression_needs_numbers(label, kind):
    with pytest.raises(InputError, match=f"'{label}' holds {kind} values: set task: classification"):
        from_frame(people().dropna(), "hospital", label, task="regression")


def test_a_label_of_dates_is_refused():
    frame = people().assign(ill=pd.date_range("2020-01-01", periods=60))
    with pytest.raises(InputError, match=r"the label 'ill' holds datetime64 values.*name another label"):
        from_frame(frame, "hospital", "ill")
