"""The encoding of a table: scaling, missing values, categories; that no held-out row leaks; and new rows."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from table_samples import column, diabetes, digest, inputs_of, people, wine

from resolvent.data.files.digests import DamagedFileError
from resolvent.errors import InputError
from resolvent.tables.column_encodings import CategoryColumn, LabelEncoding, NumberColumn, fit_numbers
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import encoding_of, from_plain, read_encoding, to_plain, write_encoding
from resolvent.tables.new_rows import read_rows
from resolvent.tables.party_tables import from_frame, table

# Scaling


def test_numbers_are_scaled_by_the_moments_of_the_training_rows():
    raw = from_frame(wine(), "site", "cultivar", scale="none")
    scaled = from_frame(wine(), "site", "cultivar")
    train = inputs_of(raw, "train").astype(float)
    np.testing.assert_allclose(scaled.x, (raw.x - train.mean(axis=0)) / train.std(axis=0), atol=1e-4)
    np.testing.assert_allclose(inputs_of(scaled, "train").mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(inputs_of(scaled, "train").std(axis=0), 1, atol=1e-5)


def test_a_constant_column_becomes_0():
    data = from_frame(wine().assign(constant=7.0), "site", "cultivar")
    np.testing.assert_array_equal(column(data, "constant"), 0)


def test_a_value_that_scaling_makes_too_large_is_refused():
    frame = wine().assign(constant=1e-6 * np.arange(178))
    row = int(np.flatnonzero(frame["site"] == "site 2")[0])
    for seed in range(20):
        numbered = from_frame(frame.assign(row=range(178)), "site", "cultivar", features=["row"], scale="none",
                              seed=seed)
        if row in inputs_of(numbered, "test"):
            break
    frame.loc[row, "constant"] = 1e38
    with pytest.raises(InputError, match=rf"'site 2', row {row}, column 'constant': once scaled, .* scale: none"):
        from_frame(frame, "site", "cultivar", seed=seed)
    assert from_frame(frame, "site", "cultivar", seed=seed, scale="none").x.max() == np.float32(1e38)


# No held-out row changes the training rows.


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_rows_change_no_training_row(split):
    frame = people()
    options = {"party": "hospital", "label": "ill", "missing": "indicate", "exclude": ["id"], "seed": 2}
    ids = from_frame(frame, "hospital", "ill", features=["id"], scale="none", seed=2)
    data = from_frame(frame, **options)

    def change_rows(changed_split):
        rows = inputs_of(ids, changed_split)[:, 0].astype(int)
        changed = frame.copy()
        changed.loc[rows, "age"] = 1e6 + rows
        changed.loc[rows[::2], "age"] = np.nan
        changed.loc[rows, "height"] *= -50
        changed.loc[rows, "smokes"] = True
        changed.loc[rows, "city"] = "Oslo"
        return from_frame(changed, **options)

    changed = change_rows(split)
    assert changed.encoding == data.encoding
    np.testing.assert_array_equal(inputs_of(changed, "train"), inputs_of(data, "train"))
    assert not np.array_equal(inputs_of(changed, split), inputs_of(data, split))
    assert not np.array_equal(inputs_of(change_rows("train"), split), inputs_of(data, split))


def test_the_seed_does_not_change_the_columns():
    frame = people()
    frame.loc[0, "city"] = "Ulm"  # in one row only, which is held out with some seeds
    features = {from_frame(frame, "hospital", "ill", missing="indicate", exclude=["id"], seed=seed).features
                for seed in range(6)}
    assert features == {("age", "height", "smokes", "city=Bern", "city=Oslo", "city=Rome", "city=Ulm",
                         "age missing", "city missing")}


def test_imputed_values_are_those_of_the_training_rows():
    frame = people()
    raw = from_frame(frame, "hospital", "ill", features=["id"], scale="none")
    train = frame.iloc[inputs_of(raw, "train")[:, 0].astype(int)]
    held_out = frame.drop(index=train.index).index
    frame.loc[held_out, "age"] += 500
    frame.loc[held_out, "city"] = "Rome"
    most_frequent = train["city"].value_counts().idxmax()
    assert most_frequent != "Rome"
    frame.loc[held_out[:3], ["age", "city"]] = [np.nan, None]
    data = from_frame(frame, "hospital", "ill", missing="impute", scale="none")
    row_of = {int(id_): i for i, id_ in enumerate(column(data, "id"))}
    rows = [row_of[i] for i in frame.index[frame["age"].isna()]]
    assert len(rows) >= 5
    np.testing.assert_array_equal(column(data, "age")[rows], np.float32(train["age"].median()))
    rows = [row_of[i] for i in frame.index[frame["city"].isna()]]
    np.testing.assert_array_equal(column(data, f"city={most_frequent}")[rows], 1)


# Missing values


def test_imputing_changes_missing_values_only_and_notes_it():
    frame = people()
    data = from_frame(frame, "hospital", "ill", missing="impute", scale="none")
    assert data.features == ("id", "age", "height", "smokes", "city=Bern", "city=Oslo", "city=Rome")
    assert data.notes[0] == "Missing values are imputed from the pooled training rows (values: 5, columns: 2)"
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
def test_without_missing_values_the_option_changes_no_number(missing):
    refusing, data = (from_frame(wine(), "site", "cultivar", missing=m) for m in ("refuse", missing))
    unset = [dataclasses.replace(d, encoding=None) for d in (refusing, data)]
    assert digest(unset[0]) == digest(unset[1])


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, "", "  "])
def test_a_missing_value_is_refused_by_party_row_and_column(nothing):
    frame = people().dropna().reset_index(drop=True).astype({"city": object})
    frame.loc[4, "city"] = nothing
    frame.index = [f"patient {i}" for i in range(len(frame))]
    message = (rf"^party '{frame['hospital'].iloc[4]}', row patient 4, column 'city': the value is missing "
               r"\(.*: 1, .*: 1\): set missing: impute, or indicate .* exclude the column$")
    with pytest.raises(InputError, match=message):
        from_frame(frame, "hospital", "ill")
    assert from_frame(frame, "hospital", "ill", missing="impute").notes[0].endswith("(values: 1, columns: 1)")
    assert "city" not in from_frame(frame, "hospital", "ill", exclude=["city"]).features


def test_the_first_missing_value_is_named_and_all_are_counted():
    with pytest.raises(InputError, match=r"column 'age': .*missing values: 5, columns with any: 2\)"):
        from_frame(people(), "hospital", "ill")


@pytest.mark.parametrize("empty", [np.nan, None])
def test_a_column_without_a_value_in_a_training_row_cannot_be_imputed(empty):
    frame = people().assign(blank=empty)
    for dtype in (object, "str"):
        with pytest.raises(InputError, match=r"column 'blank' has no value in any training row.*exclude it"):
            from_frame(frame.astype({"blank": dtype}), "hospital", "ill", missing="impute")
    rows = inputs_of(from_frame(people(), "hospital", "ill", features=["id"], scale="none"), "test")[:, 0]
    frame["blank"] = np.where(frame["id"] == rows[0], 3.0, np.nan)  # a value in a test row only
    with pytest.raises(InputError, match="column 'blank' has no value in any training row"):
        from_frame(frame, "hospital", "ill", missing="impute")


# Categories


@pytest.mark.parametrize("kind", ["str", "object", "category", "string"])
def test_text_is_one_hot_encoded_as_pandas_does(kind):
    frame = people().assign(city=lambda f: f["city"].fillna("Rome").astype(kind))
    data = from_frame(frame, "hospital", "ill", features=["city", "id"], scale="none")
    dummies = pd.get_dummies(frame[["city"]], prefix_sep="=", dtype=np.float32)
    assert data.features == ("id", *dummies.columns)
    np.testing.assert_array_equal(data.x[:, 1:], dummies.iloc[data.x[:, 0].astype(int)])
    assert data.notes[0] == "Columns of text are one-hot encoded (columns: 1, 0/1 inputs: 3)"


def test_numbers_of_category_type_are_categories_and_unused_levels_are_left_out():
    grade = pd.Categorical(np.arange(60) % 3, categories=[0, 1, 2, 7])
    data = from_frame(people().assign(grade=grade), "hospital", "ill", features=["grade", "id"], scale="none")
    assert data.features == ("id", "grade=0", "grade=1", "grade=2")
    np.testing.assert_array_equal(np.argmax(data.x[:, 1:], axis=1), data.x[:, 0].astype(int) % 3)


# The fitted object and new rows


def test_the_fitted_encoding_states_its_columns():
    frame = pd.DataFrame({"p": "a", "y": ["no", "yes", "no", "yes"], "n": [1.0, 2.0, np.nan, 6.0],
                          "c": ["u", "v", "v", None], "b": [True, False, True, True]})
    data = from_frame(frame, "p", "y", missing="indicate", validation=0, test=0)
    assert data.encoding == TableEncoding(
        party="p", labels=(LabelEncoding("y", "text", "classification", ("no", "yes")),),
        numbers=(NumberColumn("n", 2.0, 2.75, pytest.approx(np.std([1, 2, 2, 6])), 1.0, 6.0),
                 NumberColumn("b", 1.0, 0.75, pytest.approx(np.sqrt(3) / 4), 0.0, 1.0, is_boolean=True)),
        categories=(CategoryColumn("c", "v", ("u", "v")),), marked=("n", "c"), missing="indicate")
    assert data.encoding.features == data.features == ("n", "b", "c=u", "c=v", "n missing", "c missing")


def test_an_encoding_survives_its_file(tmp_path):
    encoding = from_frame(people(), "hospital", "ill", missing="indicate").encoding
    write_encoding(tmp_path / "encoding.json", encoding)
    again = read_encoding(tmp_path / "encoding.json")
    assert again == encoding
    np.testing.assert_array_equal(again.transform(people()), encoding.transform(people()))


def test_a_damaged_encoding_or_one_of_another_version_is_refused(tmp_path):
    path = tmp_path / "encoding.json"
    write_encoding(path, from_frame(wine(), "site", "cultivar").encoding)
    path.write_text(path.read_text().replace("alcohol", "alcohal", 1))
    with pytest.raises(DamagedFileError, match=r"encoding.json is damaged.*: write it again"):
        read_encoding(path)
    with pytest.raises(InputError, match=r"version 99, .* reads 2: install the version that wrote it"):
        from_plain(to_plain(from_frame(wine(), "site", "cultivar").encoding) | {"version": 99})
    with pytest.raises(DamagedFileError, match=r"is not an encoding"):
        from_plain({"version": 2, "kind": "table"})


@pytest.mark.parametrize("scale", ["standard", "none"])
@pytest.mark.parametrize("missing", ["impute", "indicate"])
def test_transforming_the_fitted_rows_gives_their_inputs(missing, scale):
    frame = people()
    data = from_frame(frame, "hospital", "ill", missing=missing, scale=scale)
    order = column(from_frame(frame, "hospital", "ill", features=["id"], scale="none"), "id").astype(int)
    np.testing.assert_array_equal(data.encoding.transform(frame)[order], data.x)


def test_new_rows_are_encoded_one_by_one_whatever_else_the_table_holds():
    frame = people()
    encoding = from_frame(frame, "hospital", "ill", missing="indicate").encoding
    whole = encoding.transform(frame)
    bare = frame[["city", "smokes", "height", "age", "id"]]  # in another order, without party and label
    np.testing.assert_array_equal(encoding.transform(bare), whole)
    for row in (0, 5, 17):  # 5 and 17 have missing values
        np.testing.assert_array_equal(encoding.transform(bare[row:row + 1])[0], whole[row])


def test_levels_that_look_like_numbers_are_encoded_from_numbers():
    frame = people().assign(grade=pd.Categorical(np.arange(60) % 3))
    encoding = from_frame(frame, "hospital", "ill", features=["grade"]).encoding
    np.testing.assert_array_equal(encoding.transform(pd.DataFrame({"grade": [2, 0]})), [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(("change", "message"), [
    (lambda f: f.drop(columns="age"), "no column 'age'"),
    (lambda f: f.rename(columns={"age": "agee"}), "no column 'age'.*did you mean 'agee'"),
    (lambda f: pd.concat([f, f[["age"]]], axis=1), "more than one column 'age'"),
    (lambda f: f.assign(age="old"), "column 'age' holds text"),
    (lambda f: f.assign(city="Ulm"), r"^party 'a', row 8, column 'city': the value is none of 'Bern', 'Oslo', 'Rome'"),
    (lambda f: f.assign(age=np.inf), r"row 8, column 'age': the value is infinite"),
    (lambda f: f.assign(age=np.nan), r"row 8, column 'age': the value is missing"),
])
def test_new_rows_that_do_not_fit_are_refused(change, message):
    fitted = from_frame(people().dropna(), "hospital", "ill").encoding
    rows = people()[8:9].assign(hospital="a")
    assert fitted.transform(rows).shape == (1, 7)
    with pytest.raises(InputError, match=message):
        fitted.transform(change(rows))


def test_true_and_false_are_not_mixed_with_numbers():
    frame = people().dropna()
    encoding = from_frame(frame, "hospital", "ill").encoding
    assert encoding.transform(frame.assign(smokes=frame["smokes"].astype(int))).shape == (len(frame), 7)
    with pytest.raises(InputError, match=r"'smokes' holds numbers other than 0 and 1.* true/false"):
        encoding.transform(frame.assign(smokes=2))
    with pytest.raises(InputError, match=r"'age' holds true/false, and the encoding was fitted to numbers"):
        encoding.transform(frame.assign(age=True))


# Other rows by a fitted encoding


def test_other_rows_get_the_inputs_of_the_fitted_encoding_and_not_one_of_their_moments():
    """Rows of one site: their own moments would give other inputs."""
    frame = wine()
    fitted = from_frame(frame, "site", "cultivar").encoding
    rows = frame[frame["site"] == "Site 1"]
    data = from_frame(rows, "site", "cultivar", encoding=fitted, validation=0, test=0.5)
    expected = {tuple(x) for x in fitted.transform(rows)}
    assert {tuple(x) for x in data.x} == expected
    assert (data.encoding, data.classes, data.parties) == (fitted, fitted.classes, ("Site 1",))
    order = {tuple(x): y for x, y in zip(fitted.transform(rows), rows["cultivar"], strict=True)}
    assert [data.classes[y] for y in data.y] == [order[tuple(x)] for x in data.x]
    estimated = from_frame(rows, "site", "cultivar", validation=0, test=0.5)
    assert np.abs(estimated.x - data.x).max() > 0.1


def test_targets_of_other_rows_are_unchanged():
    fitted = from_frame(diabetes(), "clinic", "target").encoding
    rows = diabetes().iloc[:40]
    data = from_frame(rows, "clinic", "target", encoding=fitted, validation=0, test=0)
    assert (data.task, data.classes) == ("regression", ())
    np.testing.assert_array_equal(np.sort(data.y), np.sort(rows["target"]))
    np.testing.assert_array_equal(fitted.decode_labels(fitted.encode_labels(rows)), rows["target"])


def test_the_names_of_party_and_label_may_differ_at_a_site():
    fitted = from_frame(wine(), "site", "cultivar").encoding
    rows = wine().rename(columns={"site": "clinic", "cultivar": "kind"})
    data = from_frame(rows, "clinic", "kind", encoding=fitted)
    assert (data.encoding.party, data.encoding.labels[0].name) == ("clinic", "kind")
    assert data.encoding.numbers == fitted.numbers


@pytest.mark.parametrize("option", [{"scale": "none"}, {"missing": "impute"}, {"features": ["alcohol"]},
                                    {"task": "classification"}, {"exclude": ["ash"]}])
def test_options_that_the_encoding_determines_are_refused(option):
    fitted = from_frame(wine(), "site", "cultivar").encoding
    with pytest.raises(InputError, match=rf"^{next(iter(option))}: the encoding determines it: leave it out"):
        from_frame(wine(), "site", "cultivar", encoding=fitted, **option)


def test_labels_of_other_rows_are_classes_of_the_fitted_table():
    frame = wine()
    fitted = from_frame(frame, "site", "cultivar").encoding
    np.testing.assert_array_equal(fitted.decode_labels(fitted.encode_labels(frame)), frame["cultivar"])
    np.testing.assert_array_equal(fitted.encode_labels(frame.iloc[:2], ["class_1", "class_0"]), [1, 0])
    frame.loc[5, "cultivar"] = "class_11"
    with pytest.raises(InputError, match=r"row 5, column 'cultivar': the label is 'class_11'.*did you mean 'class_1"):
        fitted.encode_labels(frame)
    with pytest.raises(InputError, match=r"the label is '1', which is not among the classes 'class_0'"):
        fitted.encode_labels(frame.assign(cultivar=1))
    frame.loc[5, "cultivar"] = None
    with pytest.raises(InputError, match=r"row 5, column 'cultivar': the label is missing"):
        fitted.encode_labels(frame)
    with pytest.raises(InputError, match=r"no column 'cultivar', the label"):
        fitted.encode_labels(frame.drop(columns="cultivar"))


@pytest.mark.parametrize("labels", [[True, False], [3, -7], [0.5, 2.0], ["yes", "no"]])
def test_labels_keep_their_kind(labels):
    frame = wine().assign(y=np.array(labels)[np.arange(178) % 2])
    fitted = from_frame(frame, "site", "y", exclude=["cultivar"], task="classification").encoding
    decoded = fitted.decode_labels(fitted.encode_labels(frame))
    assert decoded.tolist() == frame["y"].tolist()
    assert type(decoded.tolist()[0]) is type(labels[0])


# What differs from the training rows is counted and said.


def test_rows_of_the_training_table_give_no_remark():
    frame = people().dropna()
    remarks = from_frame(frame, "hospital", "ill", validation=0, test=0).encoding.encode(frame).remarks
    assert remarks.messages() == ()


def test_another_unit_is_counted_and_said():
    frame = people().dropna()
    encoding = from_frame(frame, "hospital", "ill", validation=0, test=0).encoding
    low, high = frame["age"].min(), frame["age"].max()
    in_months = frame.assign(age=frame["age"] * 12)
    [(name, far)] = encoding.encode(in_months).remarks.far
    is_far = in_months["age"] > 2 * high - low
    assert name == "age"
    assert far == (is_far.sum(), low, high, in_months["age"][is_far].iloc[0])
    [message] = encoding.encode(in_months).remarks.messages()
    assert message == (f"'age': {is_far.sum()} of {len(frame)} rows lie far outside the training rows' range, "
                       f"{low:g} to {high:g}, such as {far.example:g}: check the unit")


def test_columns_without_use_and_imputed_values_are_said():
    encoding = from_frame(people(), "hospital", "ill", missing="impute", exclude=["id"]).encoding
    remarks = encoding.encode(people().assign(extra=0)).remarks
    assert (remarks.unused, remarks.imputed) == (("id", "extra"), (("age", 3), ("city", 2)))
    assert remarks.messages() == ("'age': 3 of 60 values are missing and were imputed",
                                  "'city': 2 of 60 values are missing and were imputed",
                                  "The model does not use the columns 'id', 'extra'")
    data = from_frame(people().assign(extra=0), "hospital", "ill", encoding=encoding)
    assert data.notes == ("The inputs are made by a fitted encoding", *remarks.messages())


def test_new_rows_are_read_from_a_file_as_the_training_table_was(tmp_path):
    """Levels such as 007 stay text, with and without the columns of the party and the label, for every separator."""
    frame = wine().assign(ward=np.array(["007", "7", "x"])[np.arange(178) % 3])
    frame.to_csv(tmp_path / "old.csv", index=False)
    data = table(str(tmp_path / "old.csv"), "site", "cultivar")
    rows = frame[frame["ward"] != "x"].drop(columns=["site", "cultivar"])
    rows.to_csv(tmp_path / "new.csv", sep=";", index=False)
    rows.to_parquet(tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        read = read_rows(str(tmp_path / name), data.encoding)
        np.testing.assert_array_equal(data.encoding.transform(read), data.encoding.transform(rows))
    assert list(read_rows(str(tmp_path / "new.csv"), data.encoding).index[:2]) == [2, 3]  # lines of the file


def test_arrays_have_an_encoding_of_their_shape_and_range():
    from resolvent.data.generators import synthetic

    data = synthetic(parties=2, features=3)
    assert data.encoding is None
    encoding = encoding_of(data)
    train = inputs_of(data, "train")
    assert (encoding.shape, encoding.task, encoding.low, encoding.high) == (
        (3,), "regression", train.min(), train.max())


def test_the_moments_are_those_of_scikit_learn_to_the_bit():
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    values = rng.normal(size=(57, 40)) * 10.0 ** rng.integers(-6, 7, 40) + 100 * rng.normal(size=40)
    values[:4, 3], values[:, 5], values[:, 6] = np.nan, 0.1, 1e12 + 1e-5 * rng.random(57)
    columns = {f"x{i}": values[:, i].copy() for i in range(40)}
    fitted = fit_numbers(columns, np.arange(57), "standard", frozenset())
    imputer = SimpleImputer(strategy="median")
    scaler = StandardScaler().fit(imputer.fit_transform(values))
    assert [column.imputed for column in fitted] == imputer.statistics_.tolist()
    assert [column.mean for column in fitted] == scaler.mean_.tolist()
    assert [column.deviation for column in fitted] == scaler.scale_.tolist()


@pytest.mark.when_changed
def test_columns_of_numbers_are_read_together(tmp_path, monkeypatch):
    """A table of genes has 100,000 of them: a table of 60 rows and 9,000 numbers reads three columns one by one."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 9000)), columns=[f"ENSG{i:011d}.12" for i in range(9000)])
    frame = frame.assign(site=np.repeat(["a", "b", "c"], 20), sex=np.tile(["f", "m"], 30), ill=np.tile([0, 1, 1], 20))
    frame.to_csv(tmp_path / "genes.csv", index=False)
    reads = []
    monkeypatch.setattr(pd.DataFrame, "__getitem__", lambda self, key, get=pd.DataFrame.__getitem__: (
        reads.append(key) if isinstance(key, str) else None, get(self, key))[1])
    data = table(str(tmp_path / "genes.csv"), "site", "ill")
    assert data.x.shape == (60, 9002)
    assert set(reads) <= {"site", "sex", "ill"}
    reads.clear()
    np.testing.assert_array_equal(np.sort(data.encoding.encode(frame).x, axis=0), np.sort(data.x, axis=0))
    assert set(reads) <= {"site", "sex", "ill"}
