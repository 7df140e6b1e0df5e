"""LEAF's JSON and LIBSVM's text: read as they are, and refused if they are cut off or in another format."""

import gzip
import json

import numpy as np
import pytest
from file_samples import samples_of

from resolvent import datasets
from resolvent.data.images_text.tokens import CHARACTERS
from resolvent.data.partition.partitions import IID
from resolvent.errors import InputError


def write_leaf(path, samples):
    content = {"users": list(samples), "num_samples": [len(y) for _, y in samples.values()],
               "user_data": {u: {"x": x, "y": y} for u, (x, y) in samples.items()}}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


def test_leafs_users_and_test_samples_are_those_of_its_files(data_folder):
    write_leaf(data_folder / "train.json.gz",
               {"u1": ([[1, 2], [3, 4], [5, 6]], [0.0, 1.0, 0.0]), "u2": ([[7, 8]], [1.0])})
    write_leaf(data_folder / "test.json.gz",
               {"u2": ([[9, 9]], [1.0]), "u3": ([[0, 0]], [0.0]), "u1": ([[2, 2]], [1.0])})
    data = datasets.leaf(train="train.json", held_out="test.json")
    assert data.parties == ("u1", "u2")
    assert (data.task, data.classes) == ("classification", ("0", "1"))
    np.testing.assert_array_equal(data.party("u1", "test")[0], [[2, 2]])
    np.testing.assert_array_equal(data.party("u2", "test")[0], [[9, 9]])
    assert sorted(data.party("u1")[0][:, 0]) == [1, 3, 5]
    assert data.notes == ("Users that have test samples only are left out (users: 1)",)
    assert sum(datasets.leaf(train="train.json", test=0.4).sizes("test")) == 1


def test_leafs_texts_become_characters(data_folder):
    write_leaf(data_folder / "text.json.gz",
               {"HAMLET": (["To be, ", "o be, o"], ["o", "r"]), "GHOST": (["Adieu% "], ["a"])})
    data = datasets.leaf(train="text.json", test=0)
    assert data.vocabulary == tuple(CHARACTERS) == data.classes
    # % is not among the 80 characters
    assert ["".join(CHARACTERS[i] for i in x) for x in data.party("GHOST")[0]] == ["Adieu  "]


def test_the_authors_synthetic_files_are_read(real_data):
    data = datasets.leaf(train="fedprox_synthetic/synthetic_1_1_mytest.json")
    assert (len(data), data.input_shape, len(data.x), data.outputs) == (30, (60,), 1084, 10)


@pytest.mark.parametrize(("content", "message"), [
    (b'{"users": ["a"], "num_sam', r"not JSON, or cut off"), (b"[1]", r"not a LEAF file"),
    (b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
     r"user 'a' should have 2 samples, but there are 1 inputs and 1 labels"),
    (b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 1]}}}',
     r"neither numbers nor text of one length"),
    (b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": ["ab", "abc"], "y": ["c", "d"]}}}',
     r"neither numbers nor text of one length"),
    (b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": ["ab", [1]], "y": ["c", "d"]}}}',
     r"neither numbers nor text of one length"),
    (b'{"users": ["a"], "num_samples": [0], "user_data": {"a": {"x": [], "y": []}}}', r"no user with a sample"),
])
def test_a_file_that_is_not_leafs_is_refused(data_folder, content, message):
    (data_folder / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        datasets.leaf(train="a.json")


def one_user(**fields):
    """A LEAF document of one user with one sample, in which some fields are other ones."""
    content = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1.0, 2.0]], "y": [0]}}} | fields
    return json.dumps(content)


def with_data(**fields):
    return one_user(user_data={"a": {"x": [[1.0, 2.0]], "y": [0]} | fields})


@pytest.mark.parametrize(("content", "message"), [
    (one_user(users="a"), r"users: Input should be a valid list, got 'a'"),
    (one_user(users=[5]), r"users.0: Input should be a valid string, got 5"),
    (one_user(users=["\ud800"]), r"users: a name, '\\ud800', cannot be written in UTF-8"),
    (one_user(users=["a", "a"], num_samples=[1, 1]), r"users: 'a' occurs twice"),
    (one_user(num_samples=None), r"num_samples: Input should be a valid list, got None"),
    (one_user(num_samples=[1, 2]), r"num_samples has 2 numbers for 1 users"),
    (one_user(num_samples=["1"]), r"user_data: user 'a' should have '1' samples"),
    (one_user(user_data=[]), r"user_data: Input should be a valid dictionary, got \[\]"),
    (one_user(user_data={}), r"user_data: user 'a' should have 1 samples, but there are 0 inputs"),
    (one_user(user_data={"a": [1]}), r"user_data.a"),
    (with_data(x=5), r"user_data.a.x: Input should be a valid list, got 5"),
    (with_data(y={}), r"user_data.a.y: Input should be a valid list"),
    (with_data(x=[["1", "2"]]), r"user 'a': x: the inputs are neither numbers nor text"),
    (with_data(x=[[2**70]]), r"user 'a': x: the inputs are neither numbers nor text"),
    (with_data(x=[[]]), r"user 'a': x: the inputs hold no value"), (with_data(x=[""]), r"user 'a': x: the inputs are"),
    (with_data(x=[[float("inf"), 0]]), r"user 'a': x: sample 0 has a value that is not finite"),
    (with_data(x=[[1e300, 0]]), r"user 'a': x: sample 0 has a value .* too large for a 32-bit float"),
    (with_data(y=[float("nan")]), r"user 'a': y: sample 0 has a value that is not finite"),
    (with_data(y=[[0]]), r"user 'a': y: the labels must be all numbers"), (with_data(y=[None]), r"'a': y: the labels"),
    (with_data(y=["\ud800"]), r"user 'a': y: a label, '\\ud800', cannot be written in UTF-8"),
    (with_data(x=["To be"], y=[3]), r"user 'a': y: the label of a text must be one character, got 3"),
    (with_data(x=["To be"], y=["or"]), r"user 'a': y: the label of a text must be one character, got 'or'"),
    ("[" * 200_000, r"nested too deeply"),
])
def test_an_error_in_a_leaf_file_names_the_file_and_the_field(data_folder, content, message):
    (data_folder / "a.json").write_text(content)
    with pytest.raises(InputError, match=rf"/a.json\b.*{message}"):
        datasets.leaf(train="a.json", test=0)


@pytest.mark.parametrize(("second", "message"), [
    (([[1]], [0]), r"user 'b': x: the inputs are numbers of shape \(1,\), the first user's numbers of shape \(2,\)"),
    ((["ab"], ["c"]), r"user 'b': x: the inputs are texts of shape"),
    (([[1, 2]], ["c"]), r"user 'b': y: the first user"),
])
def test_users_of_a_leaf_file_must_have_samples_of_one_shape_and_type(data_folder, second, message):
    write_leaf(data_folder / "train.json.gz", {"a": ([[1, 2]], [0]), "b": second})
    write_leaf(data_folder / "whole.json.gz", {"a": ([[1, 2]], [0])})
    write_leaf(data_folder / "test.json.gz", {"b": second})
    with pytest.raises(InputError, match=rf"/train.json.gz: user_data: {message}"):
        datasets.leaf(train="train.json", test=0)
    with pytest.raises(InputError, match=rf"/test.json.gz: user_data: {message}"):
        datasets.leaf(train="whole.json", held_out="test.json")


def test_a_user_in_two_files_of_a_folder_is_refused(data_folder):
    (data_folder / "parts").mkdir()
    for name in ("1", "2"):
        write_leaf(data_folder / f"parts/{name}.json.gz", {"a": ([[1, 2]], [0])})
    with pytest.raises(InputError, match=r"parts/2.json.gz: users: 'a' is also in another file"):
        datasets.leaf(train="parts")


def test_whole_and_decimal_class_numbers_of_a_leaf_file_are_the_same_classes(data_folder):
    write_leaf(data_folder / "a.json.gz", {"a": ([[1], [2]], [0, 1]), "b": ([[3], [4]], [1.0, 0.0])})
    data = datasets.leaf(train="a.json", test=0)
    assert (data.task, data.classes) == ("classification", ("0", "1"))


def test_libsvms_text_is_read_into_a_dense_array(data_folder):
    (data_folder / "a.svm.gz").write_bytes(gzip.compress(b"-1 1:0.5 3:2\n+1 2:1\n-1 1:1\n"))
    data = datasets.libsvm(file="a.svm", partition=IID(1), test=0)
    assert data.classes == ("-1", "1")
    np.testing.assert_array_equal(samples_of(data), [[0, 1, 0, 1], [0.5, 0, 2, 0], [1, 0, 0, 0]])
    regression = datasets.libsvm(file="a.svm", partition=IID(1), task="regression", test=0)
    assert regression.y.dtype == np.float32
    for content, message in [(b"hello world\n", "not in LIBSVM's format"), (b"", "has no lines"),
                             (gzip.compress(b"-1 1:0.5\n" * 99)[:-20], "cut off or not in"),
                             (b"-1 1:nan\n", "a value that is not finite")]:
        (data_folder / "b.svm").write_bytes(content)
        with pytest.raises(InputError, match=rf"b.svm.*{message}"):
            datasets.libsvm(file="b.svm")
