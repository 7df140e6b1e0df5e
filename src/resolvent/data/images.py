"""Image data sets: MNIST, Fashion-MNIST, EMNIST and CIFAR-10, dealt to parties by a partition of your choice."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.data import files
from resolvent.data.federated import FederatedData
from resolvent.data.partitions import IID, Partition, PowerLaw, divide
from resolvent.data.shifts import Shift
from resolvent.errors import InputError

__all__ = ["CIFAR_CLASSES", "FASHION_CLASSES", "cifar10", "emnist", "fashion_mnist", "mnist"]

Part = Literal["all", "train", "test"]
Scale = Literal["unit", "standard", "overall"]
Pixels = NDArray[np.uint8]
FASHION_CLASSES = ["T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
                   "ankle boot"]
CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
_DIGITS = [str(c) for c in range(10)]


def mnist(*, partition: Partition = PowerLaw(), shift: Shift | None = None, part: Part = "all",  # noqa: B008 - frozen
          scale: Scale = "unit", validation: float = 0.0, test: float = 0.2, seed: int = 0) -> FederatedData:
    """MNIST: 70,000 handwritten digits of 28x28 pixels.

    Read from ``mnist/train-images-idx3-ubyte`` and its three fellows, plain or gzipped. FedProx pools both parts,
    deals them by the default partition, and scales with ``standard``; the operator-splitting paper deals the training
    part by shards.

    Args:
        partition: who holds which images.
        shift: a change of some parties' images, such as inverting them.
        part: the 60,000 training images, the 10,000 test images, or all of them.
        scale: unit: pixels in [0, 1]; standard: (x - mean) / (deviation + 0.001) in each pixel, over all images and
            in the units of the file (FedProx; errata 7); overall: (x - mean) / deviation of all pixels of all images.
        validation: share of each party's images kept for validation.
        test: share of each party's images kept for testing.
        seed: of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or not what its name says.
    """
    x, y = _idx_parts("mnist", part)
    return _federate(x, y, _DIGITS, partition, shift, scale, validation, test, seed, "MNIST")


def fashion_mnist(*, partition: Partition = PowerLaw(), shift: Shift | None = None,  # noqa: B008 - frozen
                  part: Part = "all", scale: Scale = "unit", validation: float = 0.0, test: float = 0.2,
                  seed: int = 0) -> FederatedData:
    """Fashion-MNIST: 70,000 pictures of clothes, in the format of MNIST.

    Read from ``fashion_mnist/``, where the files have the names of MNIST's.

    Args:
        partition: who holds which images.
        shift: a change of some parties' images, such as inverting them.
        part: the 60,000 training images, the 10,000 test images, or all of them.
        scale: unit: pixels in [0, 1]; standard: mean 0 and deviation 1 in each pixel, overall: of all, as for mnist.
        validation: share of each party's images kept for validation.
        test: share of each party's images kept for testing.
        seed: of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or not what its name says.
    """
    x, y = _idx_parts("fashion_mnist", part)
    return _federate(x, y, FASHION_CLASSES, partition, shift, scale, validation, test, seed, "Fashion-MNIST")


def emnist(*, files: tuple[str, ...] = ("emnist-byclass-train", "emnist-byclass-test"),
           labels: tuple[int, ...] = tuple(range(36, 46)), classes: tuple[str, ...] = tuple("abcdefghij"),
           partition: Partition = PowerLaw(), shift: Shift | None = None,  # noqa: B008 - frozen
           scale: Scale = "unit", validation: float = 0.0, test: float = 0.2, seed: int = 0) -> FederatedData:
    """EMNIST: handwritten characters of 28x28 pixels; by default FedProx's ten lower-case letters a to j.

    Read from ``emnist/NAME-images-idx3-ubyte`` and ``emnist/NAME-labels-idx1-ubyte``, plain or gzipped; the images,
    which the files hold transposed, are put upright. FedProx has 200 parties of 5 classes: ``partition: {name:
    power_law, parties: 200, classes: 5, sigma: 1, total: 18345}``.

    Args:
        files: names of pairs of files.
        labels: the labels to keep, as the files number them: in byclass 0-9 digits, 10-35 upper case, 36-61 lower
            case; in letters 1-26.
        classes: what these labels are called.
        partition: who holds which images.
        shift: a change of some parties' images, such as inverting them.
        scale: unit: pixels in [0, 1]; standard: mean 0 and deviation 1 in each pixel, overall: of all, as for mnist.
        validation: share of each party's images kept for validation.
        test: share of each party's images kept for testing.
        seed: of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or not what its name says; no image has one of the labels.
    """
    if len(labels) != len(classes) or len(set(labels)) < len(labels):
        raise InputError(f"emnist: {len(labels)} labels and {len(classes)} classes: give each label once, and a name "
                         "for each")
    pairs = [_idx_pair(f"emnist/{name}", "emnist") for name in files]
    x, y = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])
    for label, name in zip(labels, classes, strict=True):
        if not (y == label).any():
            raise InputError(f"emnist: no image of {', '.join(files)} has the label {label} ({name}); labels there: "
                             f"{y.min()} to {y.max()}")
    kept = np.flatnonzero(np.isin(y, labels))
    number = np.full(max(labels) + 1, -1, np.int32)
    number[list(labels)] = np.arange(len(labels))
    return _federate(x[kept].transpose(0, 2, 1), number[y[kept]], list(classes), partition, shift, scale, validation,
                     test, seed, "EMNIST")


def cifar10(*, batches: tuple[int, ...] = (1, 2, 3, 4, 5), partition: Partition = IID(),  # noqa: B008 - frozen
            shift: Shift | None = None, part: Part = "train", scale: Scale = "unit", validation: float = 0.0,
            test: float = 0.2, seed: int = 0) -> FederatedData:
    """CIFAR-10: 60,000 colour pictures of 32x32 pixels in ten classes.

    Read from ``cifar-10-batches-bin/data_batch_1.bin`` and so on, or the Python batches in ``cifar-10-batches-py/``,
    in the data folder itself or in ``cifar10/``. The operator-splitting paper takes 20 %, which is one batch, in 100
    sorted shards: ``batches: [1], partition: {name: shards, parties: 10, per_party: 10, cut: sorted}``.

    Args:
        batches: which of the five training batches.
        partition: who holds which images.
        shift: a change of some parties' images, such as inverting them.
        part: the training batches, the test batch, or all of them.
        scale: unit: pixels in [0, 1]; standard: mean 0 and deviation 1 in each pixel, overall: of all, as for mnist.
        validation: share of each party's images kept for validation.
        test: share of each party's images kept for testing.
        seed: of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or not what its name says.
    """
    names = [f"data_batch_{i}" for i in batches] * (part != "test") + ["test_batch"] * (part != "train")
    if not names:
        raise InputError("cifar10: batches is empty: name some of 1 to 5")
    read = [files.cifar_batch(files.find(
        *(f"{folder}cifar-10-batches-{kind}" for folder in ("", "cifar10/")
          for kind in (f"bin/{name}.bin", f"py/{name}")), fetch="cifar10")) for name in names]
    x, y = np.concatenate([a for a, _ in read]), np.concatenate([b for _, b in read])
    return _federate(x, y, CIFAR_CLASSES, partition, shift, scale, validation, test, seed, "CIFAR-10")


def _idx_parts(folder: str, part: Part) -> tuple[Pixels, NDArray[Any]]:
    names = ["train"] * (part != "test") + ["t10k"] * (part != "train")
    pairs = [_idx_pair(f"{folder}/{name}", folder) for name in names]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def _idx_pair(prefix: str, fetch: str) -> tuple[Pixels, NDArray[Any]]:
    """Images and labels that belong together."""
    images = files.find(f"{prefix}-images-idx3-ubyte", fetch=fetch)
    x, y = files.idx(images), files.idx(files.find(f"{prefix}-labels-idx1-ubyte", fetch=fetch))
    if x.ndim != 3 or x.dtype != np.uint8 or y.shape != (len(x),):
        raise InputError(f"{images} holds {x.dtype} of shape {x.shape} and its labels have shape {y.shape}: expected "
                         "bytes [n, rows, columns] and one label per image")
    return x, y


def _federate(x: Pixels, y: NDArray[Any], classes: list[str], partition: Partition, shift: Shift | None, scale: Scale,
              validation: float, test: float, seed: int, name: str) -> FederatedData:
    """Dealt, in [0, 1], shifted and then standardised with the moments of all images as they were."""
    data = divide(x, y, partition, seed=seed, classes=classes, validation=validation, test=test, name=name)
    data = replace(data, x=np.divide(data.x, 255, dtype=np.float32))
    data = data if shift is None else shift(data, seed)
    if scale == "unit":
        return data
    mean, square = _moments(x)
    if scale == "overall":
        mean, square = mean.mean(), square.mean()
    deviation = np.sqrt(np.maximum(square - mean**2, 0)) + (0.001 if scale == "standard" else 0)
    scaled = np.subtract(data.x, mean / 255, dtype=np.float32)
    scaled /= (deviation / 255).astype(np.float32)
    return replace(data, x=scaled).noting("pixels standardised by the mean and deviation of all images, pooled")


def _moments(x: Pixels) -> NDArray[Any]:
    """Mean and mean square of each pixel, in blocks so that no second copy of all images is made."""
    total = np.zeros((2, *x.shape[1:]))
    for block in np.array_split(x, max(1, len(x) // 4096)):
        values = block.astype(np.float64)
        total += values.sum(axis=0), np.square(values).sum(axis=0)
    return total / len(x)
