"""Where data files are searched for; image files: read as they are, and refused if they are damaged."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
from file_samples import samples_of

from resolvent import datasets
from resolvent.data.federated import SPLITS
from resolvent.data.files import data_files as files
from resolvent.data.images_text.formats import read_idx
from resolvent.data.partition.partitions import IID, Shards
from resolvent.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (50, 4, 3), np.uint8)
DIGITS = np.arange(50, dtype=np.uint8) % 10


def idx_bytes(array, code=8):
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder, images, labels, name="mnist/train"):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))


def sorted_samples(images, labels):
    """Pixels in [0, 1] and the label of each image, sorted."""
    return np.array(sorted(np.column_stack([images.reshape(len(images), -1) / np.float32(255), labels]), key=tuple))


def test_idx_files_plain_and_gzipped_are_read(data_folder):
    write_mnist(data_folder, IMAGES, DIGITS)
    data = datasets.mnist(part="train", partition=IID(3))
    np.testing.assert_allclose(samples_of(data), sorted_samples(IMAGES, DIGITS), rtol=1e-6)
    values = np.array([[1.5, -2.0]], ">f4")
    (data_folder / "floats").write_bytes(idx_bytes(values, 13))
    array = read_idx(data_folder / "floats")
    np.testing.assert_array_equal(array, values)
    assert array.dtype == np.dtype("=f4")


def test_the_official_test_images_stay_test_images(data_folder):
    write_mnist(data_folder, IMAGES, DIGITS)
    write_mnist(data_folder, IMAGES[:20] // 2, DIGITS[:20], "mnist/t10k")
    data = datasets.mnist(partition=IID(3), test="official")
    tested = np.concatenate([data.party(k, "test")[0] for k in range(3)])
    assert (data.sizes("train").sum(), len(tested), data.fixed) == (50, 20, ("test",))
    assert sorted(tested.sum(axis=(1, 2))) == pytest.approx(sorted((IMAGES[:20] // 2 / 255).sum(axis=(1, 2))), abs=1e-4)
    with pytest.raises(InputError, match="test: official: the images are those of one part of MNIST"):
        datasets.mnist(part="train", partition=IID(3), test="official")


def test_standardised_pixels_are_those_of_the_formula(data_folder):
    write_mnist(data_folder, IMAGES, DIGITS)
    unit, standard, overall = (datasets.mnist(part="train", partition=IID(1), scale=scale, test=0).x
                               for scale in ("unit", "standard", "overall"))
    x = IMAGES.astype(float)
    np.testing.assert_allclose(standard, (unit * 255.0 - x.mean(axis=0)) / (x.std(axis=0) + 0.001), atol=1e-4)
    np.testing.assert_allclose(overall, (unit * 255.0 - x.mean()) / x.std(), atol=1e-4)


@pytest.mark.parametrize(("change", "message"), [
    (lambda b: b[:-1], r"cut off: .* 50 x 4 x 3 values, so 616 bytes were expected, and there are 615"),
    (lambda b: b + b"x", r"is too long: .* 616 bytes"),
    (lambda b: b[:7], r"cut off in its header: 7 bytes"),
    (lambda b: b"<html>", r"not an IDX file: it begins with '3c 68 74 6d'"),
    (lambda b: b"", r"not an IDX file"),
    (lambda b: gzip.compress(b)[:-30], r"cut off or damaged"),
    (lambda b: idx_bytes(IMAGES[0]), r"holds uint8 of shape \(4, 3\).*expected bytes \[n, rows, columns\]"),
    (lambda b: idx_bytes(IMAGES[:7]), r"shape \(7, 4, 3\) and its labels have shape \(50,\)"),
])
def test_a_damaged_idx_file_is_named(data_folder, change, message):
    write_mnist(data_folder, IMAGES, DIGITS)
    path = data_folder / "mnist/train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=rf"train-images-idx3-ubyte.*{message}"):
        datasets.mnist(part="train", partition=IID(3))


def test_for_a_missing_file_the_error_names_the_folders_and_the_download(data_folder, monkeypatch):
    with pytest.raises(InputError, match=r"mnist/train-images-idx3-ubyte in .*cache.*resolvent data fetch mnist"):
        datasets.mnist()
    monkeypatch.delenv("RESOLVENT_DATA")
    with pytest.raises(InputError, match="the environment variable RESOLVENT_DATA is not set"):
        datasets.cifar10()
    cache = files.data_folders()[0]
    cache.mkdir(parents=True)
    write_mnist(cache, IMAGES, DIGITS)
    assert len(datasets.mnist(part="train", partition=IID(3))) == 3


def test_emnist_is_transposed_and_has_the_chosen_labels(data_folder):
    write_mnist(data_folder, IMAGES, DIGITS, "emnist/emnist-letters-test")
    data = datasets.emnist(files=("emnist-letters-test",), labels=(3, 7), classes=("c", "g"), partition=IID(2), test=0)
    assert data.classes == ("c", "g")
    rows = np.isin(DIGITS, [3, 7])
    expected = sorted_samples(IMAGES[rows].transpose(0, 2, 1), DIGITS[rows] == 7)
    np.testing.assert_allclose(samples_of(data), expected, rtol=1e-6)
    with pytest.raises(InputError, match=r"no image of emnist-letters-test has the label 30 \(x\)"):
        datasets.emnist(files=("emnist-letters-test",), labels=(30,), classes=("x",))


def write_cifar(folder):
    """A batch of 20 images in the binary format: its planes, labels and path."""
    rng = np.random.default_rng(3)
    planes, labels = rng.integers(0, 256, (20, 3072), np.uint8), np.arange(20) % 10
    path = folder / "cifar-10-batches-bin/data_batch_2.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(np.column_stack([labels.astype(np.uint8), planes]).tobytes())
    return planes, labels, path


@pytest.mark.parametrize("subfolder", ["", "cifar10"])
def test_cifar_has_red_green_blue_last(data_folder, subfolder):
    planes, labels, _ = write_cifar(data_folder / subfolder)
    data = datasets.cifar10(batches=(2,), partition=IID(2), test=0)
    assert data.input_shape == (32, 32, 3)
    assert data.classes[9] == "truck"
    expected = sorted_samples(planes.reshape(20, 3, 32, 32).transpose(0, 2, 3, 1), labels)
    np.testing.assert_allclose(samples_of(data), expected, rtol=1e-6)


def test_a_damaged_cifar_batch_is_named(data_folder):
    path = write_cifar(data_folder)[2]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data_batch_2.bin is not a whole CIFAR-10 batch: 61459 bytes, .* 3073"):
        datasets.cifar10(batches=(2,))
    path.write_bytes(b"\x0b" + bytes(3072))
    with pytest.raises(InputError, match=r"label 11, expected 0 to 9"):
        datasets.cifar10(batches=(2,))


@pytest.mark.when_changed
def test_real_cifar_in_the_binary_format(real_data, data_folder):
    subprocess.run([sys.executable, real_data / "unpack_cifar10.py", data_folder], check=True, capture_output=True)
    data = datasets.cifar10(batches=(1,), partition=Shards(10, 10, "sorted"), validation=0.1, test=0.1)
    # the operator-splitting paper, A.3: 1,000 samples per party, of which 10 % each are held out
    assert [set(data.sizes(s)) for s in SPLITS] == [{800}, {100}, {100}]
    test = datasets.cifar10(part="test", partition=IID(1), test=0)
    assert np.bincount(test.y).tolist() == [1000] * 10
