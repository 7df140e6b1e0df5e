"""Packed data: every sample of a party is in exactly one split, and wrong samples are refused."""

import inspect

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, load_wine

from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.samples import split_sizes
from resolvent.errors import InputError

SHARES = st.tuples(st.floats(0, 0.95), st.floats(0, 0.95)).filter(lambda s: sum(s) < 1)


def make_parties(sizes, columns=2):
    """Inputs in which every sample has a different number, and labels that repeat it."""
    ends = np.cumsum(sizes)
    rows = [np.arange(e - n, e) for n, e in zip(sizes, ends, strict=True)]
    x = [np.column_stack([r + 0.5 * c for c in range(columns)]) for r in rows]
    return x, [r.astype(float) for r in rows]


def are_equal(a, b):
    """Whether two data sets hold the same arrays in the same splits."""
    return (np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y)
            and all(np.array_equal(a.splits[s].offset, b.splits[s].offset) for s in SPLITS)
            and all(np.array_equal(a.splits[s].length, b.splits[s].length) for s in SPLITS))


@given(st.integers(1, 5000), SHARES)
def test_split_sizes_add_up_and_are_the_nearest_that_leave_a_training_sample(samples, shares):
    train, validation, test = split_sizes(samples, *shares)
    assert train + validation + test == samples
    assert train >= 1
    assert validation >= 0
    assert test >= 0
    rounded = [round(samples * s) for s in shares]
    if sum(rounded) < samples:
        assert [validation, test] == rounded
    else:
        assert train == 1
        assert abs(validation - rounded[0]) + abs(test - rounded[1]) == 1 + sum(rounded) - samples


@pytest.mark.parametrize(("samples", "shares", "sizes"), [
    (1, (0.2, 0.2), (1, 0, 0)), (1, (0.49, 0.49), (1, 0, 0)), (2, (0.4, 0.4), (1, 0, 1)),
    (5, (0.2, 0.2), (3, 1, 1)), (10, (0.0, 0.0), (10, 0, 0)), (10, (0.3, 0.0), (7, 3, 0)),
    (3, (0.0, 0.9), (1, 0, 2)),
])
def test_split_sizes_of_small_parties(samples, shares, sizes):
    assert split_sizes(samples, *shares) == sizes


@pytest.mark.parametrize("shares", [(-0.1, 0.2), (0.2, -0.1), (0.5, 0.5), (1.0, 0.0), (float("nan"), 0.1)])
def test_shares_that_leave_no_training_sample_are_refused(shares):
    with pytest.raises(InputError, match=r"validation=.*must not be negative.*less than 1"):
        split_sizes(10, *shares)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), SHARES, st.integers(0, 2**31 - 1))
def test_splits_are_disjoint_and_exhaustive_within_each_party(sizes, shares, seed):
    x, y = make_parties(sizes)
    data = FederatedData.from_arrays(x, y, validation=shares[0], test=shares[1], seed=seed)
    assert len(data) == len(sizes)
    for k, n in enumerate(sizes):
        parts = [data.party(k, s) for s in SPLITS]
        assert tuple(len(part[0]) for part in parts) == split_sizes(n, *shares)
        rows = np.concatenate([part[1] for part in parts])
        assert sorted(rows) == sorted(y[k])  # each sample of the party once
        np.testing.assert_array_equal(np.concatenate([part[0][:, 0] for part in parts]), rows)
        np.testing.assert_array_equal([data.sizes(s)[k] for s in SPLITS], split_sizes(n, *shares))


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    x, y = make_parties([30, 50])
    assert are_equal(FederatedData.from_arrays(x, y, seed=3), FederatedData.from_arrays(x, y, seed=3))
    assert not are_equal(FederatedData.from_arrays(x, y, seed=3), FederatedData.from_arrays(x, y, seed=4))


def test_a_partys_split_does_not_depend_on_the_other_parties():
    x, y = make_parties([30, 50, 20])
    three = FederatedData.from_arrays(x, y)
    two = FederatedData.from_arrays([x[0][:7], x[1]], [y[0][:7], y[1]])
    for s in SPLITS:
        np.testing.assert_array_equal(three.party(1, s)[1], two.party(1, s)[1])
    equal = FederatedData.from_arrays([x[0], x[0]], [y[0], y[0]])
    assert not np.array_equal(equal.party(0)[1], equal.party(1)[1])  # but parties have different permutations


def test_a_party_with_one_sample_trains_on_it():
    x, y = make_parties([1, 12])
    data = FederatedData.from_arrays(x, y, validation=0.3, test=0.3)
    assert [int(data.sizes(s)[0]) for s in SPLITS] == [1, 0, 0]
    assert data.party(0, "test")[0].shape == (0, 2)
    np.testing.assert_array_equal(data.party(0)[0], x[0])


def test_wine_classes_are_numbered_and_counted():
    bunch = load_wine()
    names = bunch.target_names[bunch.target]
    cuts = [40, 90]
    data = FederatedData.from_arrays(np.split(bunch.data, cuts), np.split(names, cuts), name="wine",
                                     parties=["x", "y", "z"], features=bunch.feature_names)
    assert (data.task, data.outputs, data.input_shape, data.name) == ("classification", 3, (13,), "wine")
    assert data.classes == ("class_0", "class_1", "class_2")
    assert data.features == tuple(bunch.feature_names)
    assert data.y.dtype == np.int32
    summary = data.summary().set_index("party")
    for party, part in zip("xyz", np.split(bunch.target, cuts), strict=True):
        np.testing.assert_array_equal(summary.loc[party, ["class class_0", "class class_1", "class class_2"]],
                                      np.bincount(part, minlength=3))
        assert summary.loc[party, list(SPLITS)].sum() == len(part)
    original = pd.DataFrame(np.column_stack([bunch.data, bunch.target]))
    packed = pd.DataFrame(np.column_stack([data.x, data.y]))
    columns = list(original.columns)
    pd.testing.assert_frame_equal(packed.sort_values(columns, ignore_index=True),
                                  original.sort_values(columns, ignore_index=True))


def test_diabetes_is_a_regression():
    x, y = load_diabetes(return_X_y=True)
    data = FederatedData.from_arrays([x[:100], x[100:]], [y[:100], y[100:]])
    assert (data.task, data.outputs, data.classes) == ("regression", 1, ())
    assert sorted(data.y) == sorted(y)
    assert "class 0" not in data.summary()


@pytest.mark.parametrize(("labels", "task", "classes"), [
    ([0, 5, 5], "classification", ("0", "5")), ([True, False, True], "classification", ("False", "True")),
    (["b", "a", "b"], "classification", ("a", "b")), ([0.0, 1.0, 1.0], "regression", ()),
])
def test_the_task_follows_from_the_type_of_the_labels(labels, task, classes):
    data = FederatedData.from_arrays([np.zeros((3, 1))], [labels], validation=0, test=0)
    assert (data.task, data.classes) == (task, classes)


def test_integer_labels_can_be_regressed_and_decimal_ones_classified():
    x = [np.arange(3.0)[:, None]]
    assert sorted(FederatedData.from_arrays(x, [[1, 2, 3]], task="regression").y) == [1.0, 2.0, 3.0]
    assert FederatedData.from_arrays(x, [[0.5, 1.5, 0.5]], task="classification").classes == ("0.5", "1.5")


def test_classes_are_numbered_in_the_order_of_the_argument_also_if_some_do_not_occur():
    data = FederatedData.from_arrays([np.arange(3.0)[:, None]], [["low", "high", "low"]],
                                     classes=["low", "middle", "high"], validation=0, test=0)
    assert data.outputs == 3
    x, y = data.party(0)
    assert dict(zip(x[:, 0], y, strict=True)) == {0.0: 0, 1.0: 2, 2.0: 0}


def test_a_party_is_indexed_by_number_or_name():
    x, y = make_parties([4, 6])
    data = FederatedData.from_arrays(x, y, parties=["north", "south"])
    np.testing.assert_array_equal(data.party("south")[1], data.party(1)[1])
    assert (data.index("north"), data.index("south"), data.index(1)) == (0, 1, 1)
    with pytest.raises(InputError, match=r"no party 'sout'; did you mean 'south'\?"):
        data.party("sout")
    for number in (2, -1):
        with pytest.raises(InputError, match=rf"no party {number}: they are numbered 0 to 1"):
            data.party(number)
    assert FederatedData.from_arrays(x, y).parties == ("party 0", "party 1")


def test_one_array_with_a_leading_axis_of_parties_is_accepted():
    data = FederatedData.from_arrays(np.ones((3, 4, 2)), np.ones((3, 4)))
    assert (len(data), data.input_shape) == (3, (2,))


def test_with_notes_adds_notes_and_changes_nothing_else():
    x, y = make_parties([4])
    data = FederatedData.from_arrays(x, y)
    noted = data.with_notes("one").with_notes("two", "three")
    assert (data.notes, noted.notes) == ((), ("one", "two", "three"))
    assert are_equal(data, noted)


GOOD = {"x": [np.zeros((2, 3)), np.zeros((2, 3))], "y": [[0, 1], [1, 0]]}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("change", "message"), [
    ({"parties": ["a", "a"]}, r"two parties are named 'a'"),
    ({"parties": ["a"]}, r"inputs for 2 parties, labels for 2 and 1 names"),
    ({"y": [[0, 1]]}, r"inputs for 2 parties, labels for 1 and 2 names"),
    ({"x": [], "y": []}, r"at least one party"),
    ({"x": [np.zeros((2, 3)), np.zeros((0, 3))], "y": [[0, 1], []]}, r"party 'party 1' has no samples"),
    ({"y": [[0, 1], [1, 0, 1]]}, r"party 'party 1' has 2 inputs but labels of shape \(3,\)"),
    ({"y": [[0, 1], [[1], [0]]]}, r"party 'party 1' has 2 inputs but labels of shape \(2, 1\)"),
    ({"x": [np.zeros((2, 3)), np.zeros((2, 4))]}, r"party 'party 1' has inputs of shape \(4,\), .* \(3,\)"),
    ({"x": [np.zeros((2, 3)), np.full((2, 3), "a")]}, r"party 'party 1' has inputs of type <U1"),
    ({"x": [np.zeros((2, 3)), np.zeros((2, 3), "m8[s]")]}, r"party 'party 1' has inputs of type timedelta64"),
    ({"x": [np.zeros((2, 3)), np.zeros((2, 3), complex)]}, r"party 'party 1' has inputs of type complex128"),
    ({"x": [np.zeros((2, 3)), np.array([[0, 0, 0], [0, NAN, 0]])]}, r"'party 1', row 1: the input .*finite"),
    ({"y": [[0.0, 1.0], [INF, 0.0]]}, r"party 'party 1', row 0: the label is not finite"),
    ({"y": [[0.0, 1.0], [1.0, NAN]], "task": "classification"}, r"'party 1', row 1: the label is missing"),
    ({"y": [["a", "b"], np.array(["a", None], object)]}, r"'party 1', row 1: the label is missing"),
    ({"y": [["a", "b"], ["b", "a"]], "task": "regression"}, r"regression needs labels that are numbers"),
    ({"task": "ranking"}, r"from_arrays\(task='ranking'\) must be 'classification'"),
    ({"y": [["no", "yes"], ["no", "yess"]], "classes": ["no", "yes"]},
     r"party 'party 1' has label 'yess'.*\['no', 'yes'\]; did you mean 'yes'\?"),
    ({"classes": ["0", "1", "0"]}, r"\['0', '1', '0'\] name one twice"),
    ({"features": ["a", "b"]}, r"2 names of features for inputs of shape \(3,\)"),
    ({"seed": -1}, r"seed=-1\) must be an integer of at least 0"),
    ({"x": [np.zeros((2, 3)), np.ma.masked_array(np.zeros((2, 3)), mask=[[0, 0, 0], [0, 1, 0]])]},
     r"x=\.\.\.\): party 'party 1', row 1 has a masked value: fill it in"),
    ({"y": [np.ma.masked_array([0, 1], mask=[1, 0]), [0, 1]]}, r"y=.*party 'party 0', row 0 has a masked value"),
    ({"x": [np.zeros((2, 3)), np.array([[0, 0, 0], [0, -1e39, 0]])]},
     r"party 'party 1', row 1, column 1: the input -1e\+39 is infinite in float32, whose largest number is 3.4e\+38"),
    ({"y": [[0.0, 1e39], [0.0, 1.0]]}, r"party 'party 0', row 1: the label 1e\+39 is infinite in float32"),
    ({"weights": [[1, 1], [1, 1e300]], "validation": 0.5, "test": 0}, r"the weight of row \d, 1e\+300, is more than"),
    ({"test": [1, 3]}, r"test=\[1, 3\] must be one number per party, at most that of its samples"),
    ({"validation": [1, 1], "test": [0, 1]}, "party 'party 1' has 1 samples for validation, 1 for testing and none to"),
    ({"test": [2, 2]}, "all samples are for testing"),
    ({"test": [1]}, r"test=\[1\] must be one number per party"),
    ({"validation": 0.7, "test": 0.3}, r"validation=0.7 and test=0.3"),
])
def test_wrong_samples_are_refused_by_party_and_row(change, message):
    FederatedData.from_arrays(**GOOD)
    with pytest.raises(InputError, match=message):
        FederatedData.from_arrays(**{**GOOD, **change})


def test_large_numbers_are_accepted_in_double_precision_and_unmasked_arrays_as_they_are():
    with jax.enable_x64(True):
        assert FederatedData.from_arrays(**{**GOOD, "x": [np.full((2, 3), 1e39), np.zeros((2, 3))]}).x.max() == 1e39
    unmasked = FederatedData.from_arrays(**{**GOOD, "x": [np.ma.masked_array(np.ones((2, 3))), np.zeros((2, 3))]})
    assert unmasked.x.sum() == 6


WRONG = [None, 1, -0.5, "a", b"b", object(), {}, {"a": 1}, {1, 2}, [1], [[1]], [None, None], [1, 2], [[1, 2], [3]],
         np.zeros(2), np.zeros((2, 3)), np.float64("nan"), True, 10**400, 1j, len, iter([1, 2]), [object(), object()],
         pd.DataFrame({"a": [1]}), "\ud800", [["a", "b"], [1, 2]], [np.full(2, 1j), np.zeros(2)],
         [np.array([{}, {}]), np.zeros(2)], [[10**400, 0.5], [1, 2]], [scipy.sparse.eye(2).tocsr(), np.zeros((2, 2))],
         [np.zeros(2, "m8[D]"), np.zeros(2)], [pd.Series([0, pd.NA], dtype="Int64"), [0, 1]], [0.2, 0.2], 2**40]


@pytest.mark.parametrize("name", [*inspect.signature(FederatedData.from_arrays).parameters])
def test_every_wrong_call_is_accepted_or_refused_with_a_clear_error(name):
    """Every argument gets every value; what no argument can be is refused by its name or its party."""
    messages = [message for value in WRONG if (message := _refusal(name, value)) is not None]
    assert len(messages) >= len(WRONG) / 2
    assert max(map(len, messages)) < 1000


def _refusal(name, value):
    try:
        FederatedData.from_arrays(**{**GOOD, name: value})
    except InputError as error:
        return str(error)
