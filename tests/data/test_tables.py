"""Data from frames: parties, splits and the choice of columns."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from table_samples import column, diabetes, digest, people, wine

from resolvent.data.federated import SPLITS
from resolvent.errors import InputError
from resolvent.tables.party_tables import from_frame


def test_wine():
    frame = wine()
    data = from_frame(frame, "site", "cultivar", name="wine")
    assert data.parties == ("Site 1", "site 2", "site 10", "site 33")
    assert data.classes == ("class_0", "class_1", "class_2")
    assert data.features == tuple(load_wine().feature_names)
    assert (data.name, data.task) == ("wine", "classification")
    assert (data.x.dtype, data.x.shape) == (np.float32, (178, 13))
    assert data.notes == ("Numbers are scaled to mean 0 and deviation 1 over the pooled training rows",)
    total = np.sum([data.sizes(s) for s in SPLITS], axis=0)
    np.testing.assert_array_equal(total, [(frame["site"] == p).sum() for p in data.parties])
    counts = data.summary().set_index("party")[[f"class {c}" for c in data.classes]]
    expected = pd.crosstab(frame["site"], frame["cultivar"]).loc[list(data.parties), list(data.classes)]
    np.testing.assert_array_equal(counts, expected)


def test_each_sample_has_the_party_and_the_label_of_its_row():
    frame = diabetes().assign(row=lambda f: np.arange(len(f)))
    data = from_frame(frame, "clinic", "target", scale="none")
    assert (data.task, data.parties, data.notes) == ("regression", tuple("01234"), data.notes)
    assert [n.split(" looks")[0] for n in data.notes] == ["Column 'row'"]
    all_rows = []
    for k in range(len(data)):
        for s in SPLITS:
            x, y = data.party(k, s)
            rows = x[:, data.features.index("row")].astype(int)
            all_rows += rows.tolist()
            assert set(frame["clinic"].iloc[rows]) <= {k}
            np.testing.assert_array_equal(y, frame["target"].iloc[rows])
            np.testing.assert_array_equal(x, frame[list(data.features)].iloc[rows].astype(np.float32))
    assert sorted(all_rows) == list(range(len(frame)))


def test_the_splits_have_the_shares_that_were_asked_for():
    data = from_frame(wine().assign(site="only"), "site", "cultivar", validation=0.1, test=0.4)
    assert [int(data.sizes(s)[0]) for s in SPLITS] == [89, 18, 71]


def test_a_party_with_one_sample_trains_on_it():
    frame = wine()
    frame.loc[0, "site"] = "single"
    data = from_frame(frame, "site", "cultivar", validation=0.4, test=0.4)
    assert [int(data.sizes(s)[data.index("single")]) for s in SPLITS] == [1, 0, 0]


def test_the_frame_is_not_changed():
    frame = people()
    before = frame.copy(deep=True)
    from_frame(frame, "hospital", "ill", missing="indicate").encoding.transform(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_the_same_seed_gives_the_same_data_and_another_seed_another_split():
    data = [from_frame(wine(), "site", "cultivar", seed=seed) for seed in (5, 5, 6)]
    assert digest(data[0]) == digest(data[1])
    assert digest(data[0]) != digest(data[2])


# Parties

def test_parties_are_in_natural_order():
    names = ["site 10", "Site 9", "site 2", "b", "site 010", "site", "2", "10", "-3", "2.5"]
    frame = pd.DataFrame({"p": names * 2, "x": range(20), "y": [0, 1] * 10})
    assert from_frame(frame, "p", "y").parties == (
        "-3", "2", "2.5", "10", "b", "site", "site 2", "Site 9", "site 010", "site 10")


@pytest.mark.parametrize("values", [[10, 2, 10, 2], pd.Series([10, 2, 10, 2], dtype="Int64"),
                                    pd.Categorical([10, 2, 10, 2]), [10.0, 2.0, 10.0, 2.0]])
def test_party_names_are_text(values):
    frame = pd.DataFrame({"p": values, "x": [1.0, 2, 3, 4], "y": [0, 1, 1, 0]})
    assert from_frame(frame, "p", "y").parties == ("2", "10")


def test_grouping_the_rows_by_party_changes_nothing():
    frame = people()
    grouped = frame.sort_values("hospital", kind="stable")
    assert list(grouped["id"]) != list(frame["id"])
    options = {"party": "hospital", "label": "ill", "missing": "indicate"}
    assert digest(from_frame(frame, **options)) == digest(from_frame(grouped, **options))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_in_any_order_of_rows_parties_have_the_same_samples(seed):
    frame = people()
    options = {"missing": "impute", "features": ["id", "city"], "scale": "none"}
    data = from_frame(frame, "hospital", "ill", **options)
    other = from_frame(frame.sample(frac=1, random_state=seed), "hospital", "ill", **options)
    assert (other.parties, other.classes, other.features) == (data.parties, data.classes, data.features)
    for k in range(len(data)):
        assert [data.sizes(s)[k] for s in SPLITS] == [other.sizes(s)[k] for s in SPLITS]
        ids = [np.concatenate([d.party(k, s)[0][:, 0] for s in SPLITS]) for d in (data, other)]
        np.testing.assert_array_equal(np.sort(ids[0]), np.sort(ids[1]))


# The choice of columns

def test_features_are_in_the_order_of_the_argument_and_excluded_columns_are_absent():
    frame = wine()
    assert from_frame(frame, "site", "cultivar", features=["hue", "ash"]).features == ("hue", "ash")
    features = from_frame(frame, "site", "cultivar", exclude=["ash", "site"]).features
    assert features == tuple(f for f in load_wine().feature_names if f != "ash")


def test_column_names_that_are_not_text_become_text():
    frame = pd.DataFrame(np.arange(30.0).reshape(10, 3)).assign(p="a", y=[0, 1] * 5)
    data = from_frame(frame, "p", "y", scale="none")
    assert data.features == ("0", "1", "2")
    np.testing.assert_array_equal(np.sort(column(data, "1")), np.arange(1.0, 30, 3))


@pytest.mark.parametrize(("options", "message"), [
    ({"party": "sit"}, r"party names the column 'sit'.*; did you mean 'site'\?"),
    ({"label": "cultivars"}, r"label names the column 'cultivars'.*did you mean 'cultivar'\?"),
    ({"features": ["ash", "hues"]}, r"features names the column 'hues'.*did you mean 'hue'\?"),
    ({"exclude": ["Ash"]}, r"exclude names the column 'Ash'.*did you mean 'ash'\?"),
    ({"label": "site"}, r"'site' is named twice, as party and label"),
    ({"features": ["ash", "cultivar"]}, r"'cultivar' is named twice, as label and features"),
    ({"features": ["ash", "ash"]}, r"'ash' is named twice, as features"),
    ({"features": ["ash"], "exclude": ["ash"]}, r"'ash' is named twice, as features and exclude"),
    ({"features": []}, r"no column is left"),
    ({"exclude": load_wine().feature_names}, r"no column is left"),
    ({"task": "regresion"}, r"task='regresion'.*'auto', 'classification' or 'regression'"),
    ({"missing": "drop"}, r"missing='drop'.*'refuse', 'impute' or 'indicate'"),
    ({"scale": "minmax"}, r"scale='minmax'.*'standard' or 'none'"),
    ({"validation": 0.5, "test": 0.5}, r"validation=0.5 and test=0.5"),
])
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        from_frame(wine(), **{"party": "site", "label": "cultivar", **options})


def test_long_values_in_errors_are_shortened():
    frame = wine().rename(columns={"hue": "h" * 5000})
    with pytest.raises(InputError, match="characters in all") as caught:
        from_frame(frame, "site", "cultivars")
    assert len(str(caught.value)) < 1000


def test_a_table_without_rows_is_refused():
    with pytest.raises(InputError, match="'empty' has no rows"):
        from_frame(wine()[:0], "site", "cultivar", name="empty")


def test_two_columns_of_one_name_are_refused():
    frame = wine().rename(columns={"hue": "ash"})
    with pytest.raises(InputError, match="two columns are named 'ash'"):
        from_frame(frame, "site", "cultivar")


# Identifiers


def test_a_column_that_looks_like_an_identifier_is_pointed_out():
    notes = from_frame(people(), "hospital", "ill", missing="impute").notes
    assert notes[-1] == ("Column 'id' looks like an identifier, because its 60 values are whole numbers that all "
                         "differ: if it is one, leave it out with exclude: [id]")
    chosen = from_frame(people(), "hospital", "ill", features=["id"])
    assert chosen.notes[-1].endswith("if it is one, remove it from features")
    texts = from_frame(people().assign(id=lambda f: "nr " + f["id"].astype(str)), "hospital", "ill", features=["id"])
    assert "Column 'id' looks like an identifier, because its 60 values are texts" in texts.notes[-1]
    frame = people()
    frame.loc[4, "id"] = np.nan
    gap = from_frame(frame, "hospital", "ill", features=["id"], missing="impute")
    assert "its 59 values are whole numbers" in gap.notes[-1]


def test_other_columns_are_not_taken_for_identifiers():
    frame = people().assign(half=np.arange(60) + 0.5, repeated=np.minimum(np.arange(60), 58))
    data = from_frame(frame, "hospital", "ill", features=["height", "half", "repeated", "smokes"])
    few = from_frame(people()[:49], "hospital", "ill", features=["id"])
    assert not any("identifier" in note for d in (data, few) for note in d.notes)
