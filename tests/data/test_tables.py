"""A person's own table: what it becomes, that nothing leaks from test rows, and every refusal."""

import datetime
import gzip
import hashlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_wine

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.tables import MAX_CATEGORIES, from_frame, table
from resolvent.errors import InputError

SITES = np.array(["site 10", "site 2", "Site 1", "site 33"])


def wine():
    bunch = load_wine()
    frame = pd.DataFrame(bunch.data, columns=bunch.feature_names)
    frame["cultivar"] = bunch.target_names[bunch.target]
    frame["site"] = SITES[np.random.default_rng(0).choice(4, len(frame), p=[0.4, 0.3, 0.2, 0.1])]
    return frame


def diabetes():
    frame = load_diabetes(as_frame=True, scaled=False).frame
    return frame.assign(clinic=np.arange(len(frame)) % 5)


def people():
    """Numbers, true/false, text and categories, of which some are missing."""
    rng = np.random.default_rng(1)
    n = 60
    frame = pd.DataFrame({
        "id": np.arange(n),
        "age": rng.integers(20, 80, n).astype(float),
        "height": rng.normal(1.7, 0.1, n),
        "smokes": rng.random(n) < 0.3,
        "city": rng.choice(["Rome", "Oslo", "Bern"], n),
        "hospital": rng.choice(["b", "a"], n),
        "ill": rng.integers(0, 2, n),
    })
    frame.loc[[3, 17, 40], "age"] = np.nan
    frame.loc[[5, 17], "city"] = None
    return frame


def digest(data):
    """All that a computation could see of data."""
    arrays = [data.x, data.y, *(a for s in SPLITS for a in (data.splits[s].offset, data.splits[s].length))]
    kinds = [(a.dtype.str, a.shape) for a in arrays]
    words = repr((kinds, data.parties, data.task, data.classes, data.features, data.notes)).encode()
    return hashlib.sha256(words + b"".join(a.tobytes() for a in arrays)).hexdigest()


def rows_of(data, split):
    """All parties' samples of one split."""
    return np.concatenate([data.party(k, split)[0] for k in range(len(data))])


def column(data, name):
    return data.x[:, data.features.index(name)]


# What a table becomes.

def test_wine():
    frame = wine()
    data = from_frame(frame, "site", "cultivar", name="wine")
    assert isinstance(data, FederatedData)
    assert data.parties == ("Site 1", "site 2", "site 10", "site 33")
    assert data.classes == ("class_0", "class_1", "class_2")
    assert data.features == tuple(load_wine().feature_names)
    assert (data.name, data.task) == ("wine", "classification")
    assert (data.x.dtype, data.x.shape) == (np.float32, (178, 13))
    assert data.notes == ("numbers scaled to mean 0 and deviation 1 over the pooled training rows",)
    total = np.sum([data.sizes(s) for s in SPLITS], axis=0)
    np.testing.assert_array_equal(total, [(frame["site"] == p).sum() for p in data.parties])
    counts = data.summary().set_index("party")[[f"class {c}" for c in data.classes]]
    expected = pd.crosstab(frame["site"], frame["cultivar"]).loc[list(data.parties), list(data.classes)]
    np.testing.assert_array_equal(counts, expected)


def test_each_sample_keeps_its_party_and_its_label():
    frame = diabetes().assign(row=lambda f: np.arange(len(f)))
    data = from_frame(frame, "clinic", "target", scale="none")
    assert (data.task, data.parties, data.notes) == ("regression", tuple("01234"), ())
    seen = []
    for k in range(len(data)):
        for s in SPLITS:
            x, y = data.party(k, s)
            rows = x[:, data.features.index("row")].astype(int)
            seen += rows.tolist()
            assert set(frame["clinic"].iloc[rows]) <= {k}
            np.testing.assert_array_equal(y, frame["target"].iloc[rows])
            np.testing.assert_array_equal(x, frame[list(data.features)].iloc[rows].astype(np.float32))
    assert sorted(seen) == list(range(len(frame)))


def test_numbers_have_mean_0_and_deviation_1_over_the_training_rows():
    train = rows_of(from_frame(wine(), "site", "cultivar"), "train").astype(float)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-5)


def test_all_rows_are_scaled_by_the_training_rows():
    raw = from_frame(wine(), "site", "cultivar", scale="none")
    train = rows_of(raw, "train").astype(float)
    scaled = from_frame(wine(), "site", "cultivar")
    np.testing.assert_allclose(scaled.x, (raw.x - train.mean(axis=0)) / train.std(axis=0), atol=1e-4)


def test_the_shares_of_the_splits_are_those_asked_for():
    data = from_frame(wine().assign(site="one"), "site", "cultivar", validation=0.1, test=0.4)
    assert [int(data.sizes(s)[0]) for s in SPLITS] == [89, 18, 71]


def test_a_constant_column_becomes_0():
    data = from_frame(wine().assign(same=7.0), "site", "cultivar")
    np.testing.assert_array_equal(column(data, "same"), 0)


def test_the_frame_is_not_changed():
    frame = people()
    before = frame.copy(deep=True)
    from_frame(frame, "hospital", "ill", missing="indicate")
    pd.testing.assert_frame_equal(frame, before)


def test_features_are_taken_in_the_order_given_and_exclude_leaves_out():
    frame = wine()
    assert from_frame(frame, "site", "cultivar", features=["hue", "ash"]).features == ("hue", "ash")
    left = from_frame(frame, "site", "cultivar", exclude=["ash", "site"]).features
    assert left == tuple(f for f in load_wine().feature_names if f != "ash")


def test_column_names_that_are_not_text_are_known_by_their_text():
    frame = pd.DataFrame(np.arange(30.0).reshape(10, 3)).assign(p="a", y=[0, 1] * 5)
    assert from_frame(frame, "p", "y").features == ("0", "1", "2")


# Parties.

def test_parties_are_sorted_as_a_person_would():
    names = ["site 10", "Site 9", "site 2", "b", "site 010", "site", "2", "10", "-3"]
    frame = pd.DataFrame({"p": names * 2, "x": range(18), "y": [0, 1] * 9})
    assert from_frame(frame, "p", "y").parties == (
        "2", "10", "-3", "b", "site", "site 2", "Site 9", "site 010", "site 10")


@pytest.mark.parametrize("values", [[10, 2, 10, 2], np.array([10, 2, 10, 2], np.int8), ["10", "2", "10", "2"],
                                    pd.Series([10, 2, 10, 2], dtype="Int64"), pd.Categorical([10, 2, 10, 2])])
def test_party_names_are_text(values):
    frame = pd.DataFrame({"p": values, "x": [1.0, 2, 3, 4], "y": [0, 1, 1, 0]})
    assert from_frame(frame, "p", "y").parties == ("2", "10")


def test_a_party_with_one_sample_trains_on_it():
    frame = wine()
    frame.loc[0, "site"] = "alone"
    data = from_frame(frame, "site", "cultivar", validation=0.4, test=0.4)
    assert [int(data.sizes(s)[data.index("alone")]) for s in SPLITS] == [1, 0, 0]


def test_mixing_the_parties_rows_changes_nothing():
    frame = people()
    grouped = frame.sort_values("hospital", kind="stable")
    assert list(grouped["id"]) != list(frame["id"])
    of = {"party": "hospital", "label": "ill", "missing": "indicate"}
    assert digest(from_frame(frame, **of)) == digest(from_frame(grouped, **of))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_the_order_of_rows_changes_no_party_and_loses_no_sample(seed):
    frame = people()
    data = from_frame(frame, "hospital", "ill", missing="impute", features=["id", "city"], scale="none")
    other = from_frame(frame.sample(frac=1, random_state=seed), "hospital", "ill", missing="impute",
                       features=["id", "city"], scale="none")
    assert (other.parties, other.classes, other.features) == (data.parties, data.classes, data.features)
    for k in range(len(data)):
        for s in SPLITS:
            assert data.sizes(s)[k] == other.sizes(s)[k]
        mine, theirs = (np.concatenate([d.party(k, s)[0][:, 0] for s in SPLITS]) for d in (data, other))
        np.testing.assert_array_equal(np.sort(mine), np.sort(theirs))


def test_the_same_seed_gives_the_same_data_and_another_seed_another_split():
    assert digest(from_frame(wine(), "site", "cultivar", seed=5)) == digest(
        from_frame(wine(), "site", "cultivar", seed=5))
    assert digest(from_frame(wine(), "site", "cultivar", seed=5)) != digest(
        from_frame(wine(), "site", "cultivar", seed=6))


@pytest.mark.parametrize("seed", range(8))
def test_the_seed_does_not_change_which_columns_there_are(seed):
    frame = people()
    frame.loc[0, "city"] = "Ulm"  # in one row only, which some seeds hold out for testing
    data = from_frame(frame, "hospital", "ill", missing="indicate", exclude=["id"], seed=seed)
    assert data.features == ("age", "height", "smokes", "city=Bern", "city=Oslo", "city=Rome", "city=Ulm",
                             "age missing", "city missing")


# Nothing leaks.

@pytest.mark.parametrize("held_out", ["validation", "test"])
def test_held_out_rows_change_nothing_of_the_training_rows(held_out):
    frame = people()
    of = {"party": "hospital", "label": "ill", "missing": "indicate", "exclude": ["id"], "seed": 2}
    which = from_frame(frame, "hospital", "ill", features=["id"], scale="none", seed=2)
    data = from_frame(frame, **of)

    def altered(split):
        rows = rows_of(which, split)[:, 0].astype(int)
        other = frame.copy()
        other.loc[rows, "age"] = 1e6 + rows
        other.loc[rows[::2], "age"] = np.nan
        other.loc[rows, "height"] *= -50
        other.loc[rows, "smokes"] = True
        other.loc[rows, "city"] = "Oslo"
        return from_frame(other, **of)

    changed = altered(held_out)
    assert changed.features == data.features
    np.testing.assert_array_equal(rows_of(changed, "train"), rows_of(data, "train"))
    assert not np.array_equal(rows_of(changed, held_out), rows_of(data, held_out))
    assert not np.array_equal(rows_of(altered("train"), held_out), rows_of(data, held_out))


def test_imputed_values_are_the_training_rows_own():
    frame = people()
    raw = from_frame(frame, "hospital", "ill", features=["id"], scale="none")
    train = frame.iloc[rows_of(raw, "train")[:, 0].astype(int)]
    rest = frame.drop(index=train.index)
    frame.loc[rest.index, "age"] += 500
    frame.loc[rest.index, "city"] = "Rome"
    assert train["city"].value_counts().idxmax() != "Rome"
    frame.loc[rest.index[:3], ["age", "city"]] = [np.nan, None]
    data = from_frame(frame, "hospital", "ill", missing="impute", scale="none")
    place = {int(row): i for i, row in enumerate(column(data, "id"))}
    gone = [place[i] for i in frame.index[frame["age"].isna()]]
    assert len(gone) >= 5
    np.testing.assert_array_equal(column(data, "age")[gone], np.float32(train["age"].median()))
    gone = [place[i] for i in frame.index[frame["city"].isna()]]
    np.testing.assert_array_equal(column(data, f"city={train['city'].value_counts().idxmax()}")[gone], 1)


# Missing values.

def test_imputing_changes_missing_values_only_and_says_so():
    frame = people()
    data = from_frame(frame, "hospital", "ill", missing="impute", scale="none")
    assert data.features == ("id", "age", "height", "smokes", "city=Bern", "city=Oslo", "city=Rome")
    assert data.notes[0] == "missing values imputed from the pooled training rows: 5 (columns: 2)"
    order = column(data, "id").astype(int)
    present = frame["age"].notna()[order].to_numpy()
    assert (~present).sum() == 3
    np.testing.assert_array_equal(column(data, "age")[present], frame["age"][order][present])
    assert np.isfinite(data.x).all()


def test_indicating_adds_a_mark_for_each_column_with_missing_values():
    frame = people()
    imputed = from_frame(frame, "hospital", "ill", missing="impute")
    data = from_frame(frame, "hospital", "ill", missing="indicate")
    assert data.features == (*imputed.features, "age missing", "city missing")
    np.testing.assert_array_equal(data.x[:, :-2], imputed.x)
    order = column(from_frame(frame, "hospital", "ill", features=["id"], scale="none"), "id").astype(int)
    np.testing.assert_array_equal(column(data, "age missing"), frame["age"].isna()[order])
    np.testing.assert_array_equal(column(data, "city missing"), frame["city"].isna()[order])


@pytest.mark.parametrize("missing", ["impute", "indicate"])
def test_a_table_without_missing_values_is_the_same_either_way(missing):
    refused = from_frame(wine(), "site", "cultivar")
    assert digest(from_frame(wine(), "site", "cultivar", missing=missing)) == digest(refused)


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, "", "  "])
def test_a_missing_value_is_refused_by_party_row_and_column(nothing):
    frame = people().dropna().reset_index(drop=True).astype({"city": object})
    frame.loc[4, "city"] = nothing
    frame.index = [f"patient {i}" for i in range(len(frame))]
    message = (rf"^party '{frame['hospital'].iloc[4]}', row patient 4, column 'city': the value is missing "
               r"\(.*: 1, .*: 1\): set missing: impute, or indicate .* exclude the column$")
    with pytest.raises(InputError, match=message):
        from_frame(frame, "hospital", "ill")
    assert from_frame(frame, "hospital", "ill", missing="impute").notes[0].endswith(": 1 (columns: 1)")
    assert "city" not in from_frame(frame, "hospital", "ill", exclude=["city"]).features


def test_the_first_missing_value_is_named_and_all_are_counted():
    with pytest.raises(InputError, match=r"row 3, column 'age': .*missing values: 5, columns with any: 2\)"):
        from_frame(people(), "hospital", "ill")


@pytest.mark.parametrize("missing", ["refuse", "impute", "indicate"])
def test_a_missing_label_or_party_is_always_refused(missing):
    frame = people()
    frame["ill"] = frame["ill"].astype("Int64")
    frame.loc[7, "ill"] = pd.NA
    message = f"^party '{frame['hospital'][7]}', row 7, column 'ill': the label is missing"
    with pytest.raises(InputError, match=message):
        from_frame(frame, "hospital", "ill", missing=missing)
    frame.loc[9, "hospital"] = None
    with pytest.raises(InputError, match=r"^row 9, column 'hospital': the party is missing"):
        from_frame(frame, "hospital", "ill", missing=missing)


@pytest.mark.parametrize("empty", [np.nan, None, pd.NA])
def test_a_column_without_a_training_value_cannot_be_imputed(empty):
    frame = people().assign(blank=empty)
    for typed in ({"blank": object}, {"blank": "str"}):
        with pytest.raises(InputError, match=r"column 'blank' has no value in any training row.*exclude it"):
            from_frame(frame.astype(typed), "hospital", "ill", missing="impute")


def test_a_value_in_a_held_out_row_only_cannot_impute_the_training_rows():
    frame = people()
    held_out = rows_of(from_frame(frame, "hospital", "ill", features=["id"], scale="none"), "test")[:, 0]
    frame["rare"] = np.where(frame["id"] == held_out[0], 3.0, np.nan)
    with pytest.raises(InputError, match="column 'rare' has no value in any training row"):
        from_frame(frame, "hospital", "ill", missing="impute")


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_infinite_numbers_are_refused_by_party_row_and_column(value):
    frame = wine()
    frame.loc[30, "ash"] = value
    message = f"^party '{frame['site'][30]}', row 30, column 'ash': the value is infinite, or too large"
    with pytest.raises(InputError, match=message):
        from_frame(frame, "site", "cultivar", missing="impute")


def test_an_infinite_label_is_refused():
    frame = diabetes()
    frame.loc[8, "target"] = np.inf
    for task in ("auto", "classification"):
        with pytest.raises(InputError, match=r"^party '3', row 8, column 'target': the value is infinite"):
            from_frame(frame, "clinic", "target", task=task)


def test_a_value_that_scaling_makes_too_large_is_refused():
    frame = wine().assign(still=1e-6 * np.arange(178))
    row = int(np.flatnonzero(frame["site"] == "site 2")[0])
    for seed in range(20):
        numbered = frame.assign(row=range(178))
        place = from_frame(numbered, "site", "cultivar", features=["row"], scale="none", seed=seed)
        if row in rows_of(place, "test"):
            break
    frame.loc[row, "still"] = 1e38
    message = rf"^party 'site 2', row {row}, column 'still': once scaled, .* scale: none"
    with pytest.raises(InputError, match=message):
        from_frame(frame, "site", "cultivar", seed=seed)
    assert from_frame(frame, "site", "cultivar", seed=seed, scale="none").x.max() == np.float32(1e38)


# Categories.

@pytest.mark.parametrize("kind", ["str", "object", "category", "string"])
def test_text_is_encoded_as_pandas_would(kind):
    frame = people().assign(city=lambda f: f["city"].fillna("Rome").astype(kind))
    data = from_frame(frame, "hospital", "ill", features=["city", "id"], scale="none")
    dummies = pd.get_dummies(frame[["city"]], prefix_sep="=", dtype=np.float32)
    assert data.features == ("id", *dummies.columns)
    np.testing.assert_array_equal(data.x[:, 1:], dummies.iloc[data.x[:, 0].astype(int)])
    assert data.notes == ("columns one-hot encoded: 1 (as 0/1 columns: 3)",)


def test_numbers_of_category_type_are_categories_and_unused_ones_are_left_out():
    grade = pd.Categorical(np.arange(60) % 3, categories=[0, 1, 2, 7])
    data = from_frame(people().assign(grade=grade), "hospital", "ill", features=["grade", "id"], scale="none")
    assert data.features == ("id", "grade=0", "grade=1", "grade=2")
    np.testing.assert_array_equal(np.argmax(data.x[:, 1:], axis=1), data.x[:, 0].astype(int) % 3)


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


def test_dates_in_text_that_is_said_to_be_a_category_are_categories():
    when = pd.Categorical(["2020-01-01", "2021-01-01"] * 30)
    data = from_frame(people().assign(when=when), "hospital", "ill", features=["when"])
    assert data.features == ("when=2020-01-01", "when=2021-01-01")


def test_too_many_categories_are_refused_and_the_most_allowed_is_not():
    frame = pd.DataFrame({"p": "a", "y": [0, 1] * 101, "c": [f"c{i}" for i in range(202)]})
    with pytest.raises(InputError, match=r"column 'c' has 202 different values, .*at most 100.*exclude it"):
        from_frame(frame, "p", "y")
    frame["c"] = [f"c{i % MAX_CATEGORIES}" for i in range(202)]
    assert from_frame(frame, "p", "y").input_shape == (MAX_CATEGORIES,)


def test_numbers_read_as_text_because_of_one_word_are_told_the_word():
    frame = pd.DataFrame({"p": "a", "y": [0, 1] * 101, "c": [*map(str, range(201)), "unknown"]})
    with pytest.raises(InputError, match=r"column 'c' .*most of them numbers but 'unknown' not"):
        from_frame(frame, "p", "y")


@pytest.mark.parametrize("values", [
    pd.date_range("2020-01-01", periods=60), pd.date_range("2020-01-01", periods=60, tz="UTC"),
    pd.timedelta_range("1D", periods=60), pd.period_range("2020-01", periods=60, freq="M"),
    [datetime.date(2020, 1, 1)] * 60, [datetime.time(1)] * 60, ["2020-01-01", "2021-7-13T10:00"] * 30,
    pd.Categorical(pd.to_datetime(["2020-01-01"] * 60)),
])
def test_dates_and_times_are_refused(values):
    with pytest.raises(InputError, match=r"column 'when' holds dates or times.*exclude it.*days since"):
        from_frame(people().assign(when=values), "hospital", "ill", missing="impute")


@pytest.mark.parametrize(("values", "kind"), [
    (["a", 1] * 30, "mixed-integer"), ([[1], [2]] * 30, "mixed"), ([1 + 2j] * 60, "complex"),
    ([b"a"] * 60, "bytes")])
def test_values_that_are_neither_numbers_nor_text_are_refused(values, kind):
    with pytest.raises(InputError, match=f"column 'odd' holds {kind} values .*convert it, or exclude it"):
        from_frame(people().assign(odd=pd.Series(values)), "hospital", "ill", missing="impute")


# Labels.

@pytest.mark.parametrize(("values", "task", "classes"), [
    ([10, 2], "classification", ("2", "10")),
    (np.array([10, 2], np.uint8), "classification", ("2", "10")),
    (pd.Series([10, 2], dtype="Int64"), "classification", ("2", "10")),
    ([True, False], "classification", ("False", "True")),
    (pd.Series([True, False], dtype="boolean"), "classification", ("False", "True")),
    (["yes", "no"], "classification", ("no", "yes")),
    (pd.Categorical(["yes", "no"]), "classification", ("no", "yes")),
    (pd.Categorical([10, 2]), "classification", ("2", "10")),
    (pd.Categorical([0.5, 0.25]), "classification", ("0.25", "0.5")),
    ([10.0, 2.0], "regression", ()),
    (pd.Series([10, 2], dtype="Float64"), "regression", ()),
])
def test_the_task_follows_from_the_type_of_the_label(values, task, classes):
    frame = pd.DataFrame({"p": "a", "x": [1.0, 2.0], "y": values})
    data = from_frame(frame, "p", "y", validation=0, test=0, scale="none")
    assert (data.task, data.classes) == (task, classes)
    meant = [str(v) for v in values] if classes else [10.0, 2.0]
    found = {x: data.classes[y] if classes else y for x, y in zip(data.x[:, 0], data.y, strict=True)}
    assert [found[1.0], found[2.0]] == meant


def test_the_task_can_be_said():
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


def test_a_number_with_very_many_values_is_not_taken_for_classes_unasked():
    frame = diabetes().astype({"target": int})
    many = frame["target"].nunique()
    message = rf"'target' has {many} different values in 442 rows.*task: regression .*or task: classification"
    with pytest.raises(InputError, match=message):
        from_frame(frame, "clinic", "target")
    assert from_frame(frame, "clinic", "target", task="regression").task == "regression"
    assert from_frame(frame, "clinic", "target", task="classification").outputs == many


def test_very_many_classes_are_taken_for_classes_where_most_rows_repeat_them():
    of = {"party": "p", "label": "y"}
    assert from_frame(pd.DataFrame({"p": "a", "x": 0.0, "y": np.arange(550) % 110}), **of).outputs == 110
    with pytest.raises(InputError, match="110 different values in 549 rows"):
        from_frame(pd.DataFrame({"p": "a", "x": 0.0, "y": np.arange(549) % 110}), **of)


def test_very_many_words_are_not_taken_for_classes_unasked():
    frame = pd.DataFrame({"p": "a", "x": range(101), "y": [f"word {i}" for i in range(101)]})
    with pytest.raises(InputError, match=r"'y' has 101 different values in 101 rows, .*: set task: class"):
        from_frame(frame, "p", "y")
    assert from_frame(frame[1:], "p", "y").outputs == 100


@pytest.mark.parametrize(("label", "kind"), [("city", "string"), ("smokes", "boolean")])
def test_regression_on_what_is_no_number_is_refused(label, kind):
    with pytest.raises(InputError, match=f"'{label}' holds {kind} values: set task: classification"):
        from_frame(people().dropna(), "hospital", label, task="regression")


def test_a_label_of_dates_is_refused():
    frame = people().assign(ill=pd.date_range("2020-01-01", periods=60))
    with pytest.raises(InputError, match=r"the label 'ill' holds datetime64 values.*name another label"):
        from_frame(frame, "hospital", "ill")


# Options and columns.

@pytest.mark.parametrize(("options", "message"), [
    ({"party": "sit"}, r"party names the column 'sit', which the table does not have: its columns are "
                       r"'alcohol', .*'site'; did you mean 'site'\?"),
    ({"label": "cultivars"}, r"label names the column 'cultivars'.*did you mean 'cultivar'\?"),
    ({"features": ["ash", "hues"]}, r"features names the column 'hues'.*did you mean 'hue'\?"),
    ({"exclude": ["Ash"]}, r"exclude names the column 'Ash'.*did you mean 'ash'\?"),
    ({"label": "site"}, r"the column 'site' is named twice, as party and label"),
    ({"features": ["ash", "cultivar"]}, r"the column 'cultivar' is named twice, as label and features"),
    ({"features": ["site"]}, r"the column 'site' is named twice, as party and features"),
    ({"features": ["ash", "ash"]}, r"the column 'ash' is named twice, as features"),
    ({"features": ["ash"], "exclude": ["ash"]}, r"the column 'ash' is named twice, as features and exclude"),
    ({"features": []}, r"no column is left to predict from"),
    ({"exclude": load_wine().feature_names}, r"no column is left to predict from"),
    ({"task": "regresion"}, r"task='regresion' is not known: use one of auto, classification, regression"),
    ({"missing": "drop"}, r"missing='drop' is not known: use one of refuse, impute, indicate"),
    ({"scale": "minmax"}, r"scale='minmax' is not known: use one of standard, none"),
    ({"validation": 0.5, "test": 0.5}, r"validation=0.5 and test=0.5 must not be negative"),
])
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        from_frame(wine(), **{"party": "site", "label": "cultivar", **options})


def test_a_table_without_rows_is_refused():
    with pytest.raises(InputError, match="the table 'empty' has no rows"):
        from_frame(wine()[:0], "site", "cultivar", name="empty")


def test_two_columns_of_one_name_are_refused():
    frame = wine().rename(columns={"hue": "ash"})
    with pytest.raises(InputError, match="two columns are named 'ash'"):
        from_frame(frame, "site", "cultivar")


# Files.

@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".CSV"])
@pytest.mark.parametrize("missing", ["impute", "indicate"])
def test_a_file_of_any_kind_gives_what_the_frame_gives(tmp_path, ending, missing):
    frame = people()
    path = tmp_path / f"clinic.v2{ending}"
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    data = table(str(path), "hospital", "ill", missing=missing, seed=4)
    assert data.name == "clinic.v2"
    assert digest(data) == digest(from_frame(frame, "hospital", "ill", missing=missing, seed=4))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_decimal_numbers_survive_the_round_trip_to_the_last_digit(tmp_path, ending):
    frame = diabetes()
    frame["bmi"] = np.random.default_rng(0).normal(size=len(frame)) * 1e-7
    path = tmp_path / f"diabetes{ending}"
    frame.to_parquet(path, index=False) if ending == ".parquet" else frame.to_csv(path, index=False)
    options = {"features": ["bmi", "age"], "validation": 0.1, "test": 0.3, "scale": "none"}
    data = table(str(path), "clinic", "target", **options)
    assert digest(data) == digest(from_frame(frame, "clinic", "target", **options))
    sexes = table(str(path), "clinic", "sex", task="classification", exclude=["bp"])
    assert digest(sexes) == digest(from_frame(frame, "clinic", "sex", task="classification", exclude=["bp"]))
    assert data.features == ("bmi", "age")


def write(tmp_path, text, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_leading_zeros_of_a_partys_name_are_kept(tmp_path):
    data = table(write(tmp_path, "p,x,y\n007,1,0\n7,2,1\n007,3,1\n"), "p", "y")
    assert data.parties == ("007", "7")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert table(write(tmp_path, "p,x,y\na,1,0\na,2,1\n", encoding="utf-8-sig"), "p", "y").features == ("x",)


def test_true_and_false_with_gaps_are_numbers(tmp_path):
    data = table(write(tmp_path, "p,x,y\na,True,0\na,,1\na,False,1\n"), "p", "y", missing="indicate", test=0,
                 validation=0, scale="none")
    assert sorted(map(tuple, data.x.tolist())) == [(0.0, 0.0), (0.5, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize(("text", "row"), [
    ("p,x,z,y\na,1,1,0\na,,1,1\nb,2,2,1\n", 3),
    ("p,x,z,y\na,1,1,0\na,,1,1\nb,2,2,1", 3),
    ("p,x,z,y\r\na,1,1,0\r\na,,1,1\r\n", 3),
    ("p,x,z,y\ra,1,1,0\ra,,1,1\r", 3),
    ("p,x,z,y\n\na,1,1,0\n  \n\nb,2,2,1\na,,1,1\n", 7),
    ('p,x,z,y\n"a\nb",1,1,0\na,,1,1\nb,2,2,1\n', 4),
    ("\n\np,x,z,y\na,,1,0\na,1,1,1\n", 4),
    ("\ufeffp,x,z,y\na,NA,1,0\na,1,1,1\n", 2),
])
@pytest.mark.parametrize("packed", [False, True])
def test_the_row_of_an_error_is_the_line_of_the_file(tmp_path, text, row, packed):
    path = write(tmp_path, text)
    if packed:
        path += ".gz"
        (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match=f"^party 'a', row {row}, column 'x': the value is missing"):
        table(path, "p", "y")


def test_the_row_of_an_error_in_a_last_column_is_the_line_of_the_file(tmp_path):
    text = "p,y,x\na,1,1\n\na,0,2\nb,1,\n"
    with pytest.raises(InputError, match=r"^party 'b', row 5, column 'x': the value is missing"):
        table(write(tmp_path, text), "p", "y")


def test_the_row_of_an_error_in_parquet_is_the_index_of_the_frame(tmp_path):
    frame = people().set_index(pd.Index([f"patient {i}" for i in range(60)]))
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="row patient 3, column 'age'"):
        table(str(tmp_path / "t.parquet"), "hospital", "ill")


@pytest.mark.parametrize(("text", "message"), [
    ("p,x,y\na,1,0\na,2\nb,3,1\n", r"'t.csv', row 3 is cut off, with 2 values for 3 columns: complete it"),
    ("p,x,y\na,1,0\nb,3,1\na,2", r"'t.csv', row 4 is cut off"),
    ("p,x,y\na,1,0\na,2,1,7\n", r"cannot be read as .csv: .*line 3, saw 4"),
    ("p,x,y\na,1,0,\na,2,1,\n", r"'t.csv' has rows with more values than the header's 3 names"),
    ('p,x,y\na,1,0\na,"2,1\n', r"cannot be read as .csv: .*EOF inside string.*It may be cut off"),
    ("", r"cannot be read as .csv: No columns to parse"),
    (" \n\n", r"cannot be read as .csv: No columns to parse"),
    ("p,x,y\n", r"the table 't' has no rows"),
    ("p;x;y\na;1;0\na;2;1\n", r"party names the column 'p', .*its columns are 'p;x;y'"),
    ("p,x,x,y\na,1,2,0\na,2,3,1\n", r"two columns are named 'x'"),
    (",p,x,y\n0,a,1,0\n1,a,2,1\n", r"column 1 has no name .*exclude 'Unnamed: 0', or give it a name"),
    ("p,x,y\na,1,0\n,2,1\n", r"^row 3, column 'p': the party is missing"),
    ("p,x,y\na,1,0\na,2,\n", r"^party 'a', row 3, column 'y': the label is missing"),
    ("p,x,y\na,1,0\na,inf,1\n", r"^party 'a', row 3, column 'x': the value is infinite"),
    ("p,x,y\na,2020-01-01,0\na,2020-01-02,1\n", r"column 'x' holds dates or times"),
])
def test_a_text_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        table(write(tmp_path, text), "p", "y")


def test_a_column_without_a_name_can_be_excluded(tmp_path):
    path = tmp_path / "t.csv"
    wine().to_csv(path)
    assert digest(table(str(path), "site", "cultivar", exclude=["Unnamed: 0"])) == digest(
        from_frame(wine(), "site", "cultivar"))


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = write(tmp_path, "p,x,y\nZürich,1,0\nZürich,2,1\n", encoding="latin-1")
    with pytest.raises(InputError, match=r"cannot be read as .csv: .*utf-8.*text in UTF-8"):
        table(path, "p", "y")


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz"])
@pytest.mark.parametrize("share", [0, 0.5, 0.95])
def test_a_file_that_is_cut_off_is_refused(tmp_path, ending, share):
    path = tmp_path / f"wine{ending}"
    wine().to_parquet(path) if ending == ".parquet" else wine().to_csv(path, index=False)
    whole = path.read_bytes()
    assert len(table(str(path), "site", "cultivar")) == 4
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=rf"wine{ending}' cannot be read as {ending}: .*It may be cut off"):
        table(str(path), "site", "cultivar")


def test_a_packed_file_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "wine.csv.gz"
    wine().to_csv(path, index=False)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 64] = b"\xff" * 64
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"cannot be read as .csv.gz: Error -3 .*It may be cut off"):
        table(str(path), "site", "cultivar")


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz", ".csv"])
def test_a_file_that_is_something_else_is_refused(tmp_path, ending):
    path = tmp_path / f"t{ending}"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(InputError, match=f"cannot be read as {ending}"):
        table(str(path), "p", "y")


def test_a_file_that_is_not_there_is_refused_and_a_near_name_told(tmp_path):
    write(tmp_path, "p,x,y\na,1,0\n", name="patients.csv")
    with pytest.raises(InputError, match=r"no file '/.*/patient.csv'.*did you mean 'patients.csv'\?"):
        table(str(tmp_path / "patient.csv"), "p", "y")
    with pytest.raises(InputError, match=r"there is no file '/.*/nowhere/t.csv'"):
        table(str(tmp_path / "nowhere" / "t.csv"), "p", "y")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"there is no file '/.*/folder.csv'"):
        table(str(tmp_path / "folder.csv"), "p", "y")


@pytest.mark.parametrize("name", ["t.xlsx", "t.csv.zip", "t", "csv", "t.json"])
def test_other_kinds_of_files_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"cannot be read: name a \.csv, \.csv\.gz, \.tsv or \.parquet file"):
        table(write(tmp_path, "p,x,y\na,1,0\n", name=name), "p", "y")
