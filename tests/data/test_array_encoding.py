"""The encoding of arrays, images and texts: new rows get the inputs that the training rows have."""

import gzip
import json
import struct

import numpy as np
import pandas as pd
import pytest

from resolvent import datasets
from resolvent.data.federated import FederatedData
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.data.partition.partitions import IID
from resolvent.errors import InputError
from resolvent.tables.encoding_files import encoding_of, read_encoding, write_encoding


@pytest.fixture
def mnist_images(data_folder):
    """60 images of 4x4 pixels in the files of MNIST, and the images."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 4, 4), dtype=np.uint8), np.arange(60, dtype=np.uint8) % 10
    images[:, 0, 0] = 7  # a constant pixel
    (data_folder / "mnist").mkdir()
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (data_folder / f"mnist/train-{kind}-ubyte").write_bytes(header + array.tobytes())
    return images


def rows_of(x):
    return {row.tobytes() for row in np.ascontiguousarray(x)}


@pytest.mark.parametrize("scale", ["unit", "standard", "overall"])
def test_images_of_0_to_255_become_the_inputs_of_the_training_images(scale, mnist_images, tmp_path):
    data = datasets.mnist(part="train", scale=scale, partition=IID(parties=2))
    write_encoding(tmp_path / "encoding.json", data.encoding)
    again = read_encoding(tmp_path / "encoding.json")
    assert again == data.encoding
    assert rows_of(again.transform(mnist_images)) == rows_of(data.x)


def test_images_in_other_units_or_shapes_are_refused(mnist_images):
    encoding = datasets.mnist(part="train", partition=IID(parties=2)).encoding
    with pytest.raises(InputError, match=r"type float64, and the model needs integers of 0 to 255"):
        encoding.encode(mnist_images / 255)
    with pytest.raises(InputError, match=r"shape \(60, 16\), and the model was fitted to numbers of shape \[n, 4, 4\]"):
        encoding.encode(mnist_images.reshape(60, 16))
    with pytest.raises(InputError, match=r"row 0: the value 256 is not allowed; allowed are 0 to 255"):
        encoding.encode(mnist_images.astype(int) + 249)


def test_texts_become_the_tokens_of_the_training_texts(data_folder):
    (data_folder / "shakespeare").mkdir()
    line = json.dumps({"play": "Hamlet", "role": "HAMLET", "text": "To be, or not to be: that is the question"})
    (data_folder / "shakespeare/plays_by_role.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    data = datasets.shakespeare(length=5, test=0, stride=5)
    texts = ["To be", ", or ", "not t"]
    assert rows_of(data.encoding.transform(texts).astype(data.x.dtype)) <= rows_of(data.x)
    np.testing.assert_array_equal(data.encoding.transform(data.x), data.x)
    assert data.encoding.encode(["To b\u00eb"]).remarks.unknown == 1
    with pytest.raises(InputError, match=r"row 1: the text has 2 characters, .* texts of 5"):
        data.encoding.encode(["To be", "To"])
    with pytest.raises(InputError, match=r"row 0: the value 80 is not allowed; allowed are 0 to 79"):
        data.encoding.encode(np.full((1, 5), 80))


def test_words_become_the_tokens_of_the_training_messages(data_folder):
    (data_folder / "s.csv").write_text("user_id,polarity,text\n" + "".join(
        f"u{i % 2},{i % 2 * 4},{'good film' if i % 2 else 'a very bad film'}\n" for i in range(12)))
    data = datasets.sentiment(file="s.csv", words=3, vocabulary=5, test=0)
    tokens = data.encoding.transform(["a very bad film", "good film"])
    assert rows_of(tokens) == rows_of(data.x)
    encoded = data.encoding.encode(["good book"])
    assert encoded.remarks.messages() == ("Words or characters are not in the vocabulary (1)",)
    assert [data.vocabulary[i] for i in encoded.x[0]] == ["<pad>", "good", "<unknown>"]


def test_arrays_are_checked_and_a_range_far_from_the_training_range_is_said():
    x = [np.linspace(0, 1, 12).reshape(6, 2)] * 2
    encoding = encoding_of(FederatedData.from_arrays(x, [[0, 1] * 3] * 2, features=["a", "b"], test=0, validation=0))
    assert encoding.encode(x[0]).remarks.messages() == ()
    [(name, far)] = encoding.encode(1000 * x[0]).remarks.far
    assert (name, far.rows, far.low, far.high) == ("input", 6, 0, 1)
    frame = pd.DataFrame({"b": [0.2], "extra": [1.0], "a": [0.1]}, index=["patient 7"])
    encoded = encoding.encode(frame)
    np.testing.assert_array_equal(encoded.x, np.float32([[0.1, 0.2]]))
    assert (encoded.remarks.unused, list(encoded.names)) == (("extra",), ["patient 7"])
    with pytest.raises(InputError, match=r"no column 'a', .*did you mean"):
        encoding.encode(frame.rename(columns={"a": "aa"}))
    with pytest.raises(InputError, match=r"row 0: the value nan is not allowed; allowed are finite numbers"):
        encoding.encode(np.full((1, 2), np.nan))
    with pytest.raises(InputError, match=r"the rows have type <U1, and the model needs numbers"):
        encoding.encode(np.array([["a", "b"]]))


def test_labels_of_arrays_are_the_names_of_classes():
    encoding = ArrayEncoding((2,), "classification", ("cat", "owl"))
    rows = np.zeros((2, 2))
    np.testing.assert_array_equal(encoding.encode_labels(rows, ["owl", "cat"]), [1, 0])
    np.testing.assert_array_equal(encoding.decode_labels(np.array([1, 0])), ["owl", "cat"])
    with pytest.raises(InputError, match=r"row 1: the label '0' is not among the classes 'cat', 'owl'"):
        encoding.encode_labels(rows, ["cat", 0])
    with pytest.raises(InputError, match=r"arrays have no label column: give the labels"):
        encoding.encode_labels(rows)
    with pytest.raises(InputError, match=r"labels have shape \(1,\) for 2 rows"):
        encoding.encode_labels(rows, ["cat"])
