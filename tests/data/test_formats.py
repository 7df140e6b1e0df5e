"""LEAF's JSON and LIBSVM's text: read as they are, and refused if they are cut off or in another format."""

import gzip
import json

import numpy as np
import pytest
from file_samples import samples_of

from resolvent.data import datasets
from resolvent.data.partitions import IID
from resolvent.data.tokens import CHARACTERS
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
    assert data.notes == ("users with test samples only, left out: 1",)
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
    (b'{"users": ["a"], "num_sam', r"not JSON, or cut off"), (b"[1]", r"not a LEAF file: .* got list"),
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


def test_libsvms_text_is_read_into_a_dense_array(data_folder):
    (data_folder / "a.svm.gz").write_bytes(gzip.compress(b"-1 1:0.5 3:2\n+1 2:1\n-1 1:1\n"))
    data = datasets.libsvm(file="a.svm", partition=IID(1), test=0)
    assert data.classes == ("-1", "1")
    np.testing.assert_array_equal(samples_of(data), [[0, 1, 0, 1], [0.5, 0, 2, 0], [1, 0, 0, 0]])
    regression = datasets.libsvm(file="a.svm", partition=IID(1), task="regression", test=0)
    assert regression.y.dtype == np.float32
    for content, message in [(b"hello world\n", "not in LIBSVM's format"), (b"", "has no lines"),
                             (gzip.compress(b"-1 1:0.5\n" * 99)[:-20], "cut off or not in")]:
        (data_folder / "b.svm").write_bytes(content)
        with pytest.raises(InputError, match=rf"b.svm.*{message}"):
            datasets.libsvm(file="b.svm")
