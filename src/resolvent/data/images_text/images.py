"""Image data sets, distributed over parties by a partition: MNIST, Fashion-MNIST, EMNIST and CIFAR-10."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.federated import FederatedData
from resolvent.data.files.data_files import find
from resolvent.data.images_text.array_encoding import ArrayEncoding, PixelScaling
from resolvent.data.images_text.formats import read_cifar_batch, read_idx
from resolvent.data.partition.partitions import IID, Partition, PowerLaw, divide
from resolvent.data.partition.shifts import Shift
from resolvent.errors import InputError, shorten

Part = Literal["all", "train", "test"]
Test = float | Literal["official"]
Scale = Literal["unit", "standard", "overall"]
FASHION_CLASSES = ["T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
                   "ankle boot"]
CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
_DIGITS = [str(c) for c in range(10)]
_DEVIATION_OFFSET = 0.001  # in the authors' program of FedProx; it also avoids division by 0 in constant pixels
_BLOCK = 4096  # images per block of a sum


class _Images(NamedTuple):
    """Images [n, rows, columns(, channels)] of 0 to 255.

    Attributes:
        y: [n] their class numbers.
        is_test: [n] whether an image is one of the official test set.
    """

    x: NDArray[np.uint8]
    y: NDArray[Any]
    is_test: NDArray[np.bool_]
    classes: list[str]
    name: str


@checked
def mnist(*, partition: Partition = PowerLaw(), shift: Shift | None = None, part: Part = "all",  # noqa: B008 - frozen
          scale: Scale = "unit", validation: float = 0.0, test: Test = 0.2, seed: int = 0) -> FederatedData:
    """MNIST: 70,000 handwritten digits of 28x28 pixels.

    The files are ``mnist/train-images-idx3-ubyte``, ``mnist/train-labels-idx1-ubyte`` and the same two with ``t10k``,
    plain or gzipped. FedProx pools both parts, distributes them by the default partition, and scales with
    ``standard``; the operator-splitting paper distributes the training part by shards.

    Args:
        partition: how images are distributed over parties.
        shift: a change of some parties' images, such as inverting them; None: no change.
        part: the 60,000 training images, the 10,000 test images, or all of them.
        scale: unit: pixels in [0, 1]; standard: (x - mean) / (deviation + 0.001) for each pixel, over all images and
            in the units of the file (FedProx; errata 7); overall: (x - mean) / deviation over all pixels of all images.
        validation: share of each party's images for validation.
        test: share of each party's images for testing; or ``official``: the images of the official test set, wherever
            they are distributed to.
        seed: seed of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or in another format.

    Example:
        >>> data = rv.datasets.mnist(partition=rv.partitions.Dirichlet(parties=100))  # doctest: +SKIP
    """
    return _federate(_read_idx_parts("mnist", part, _DIGITS, "MNIST"), partition, shift, scale, validation, test, seed)


@checked
def fashion_mnist(*, partition: Partition = PowerLaw(), shift: Shift | None = None,  # noqa: B008 - frozen
                  part: Part = "all", scale: Scale = "unit", validation: float = 0.0, test: Test = 0.2,
                  seed: int = 0) -> FederatedData:
    """Fashion-MNIST: 70,000 pictures of clothes, in the format of MNIST.

    The files are in ``fashion_mnist/`` and have the same names as MNIST's.

    Args:
        partition: how images are distributed over parties.
        shift: a change of some parties' images, such as inverting them; None: no change.
        part: the 60,000 training images, the 10,000 test images, or all of them.
        scale: unit, standard or overall, as for `mnist`.
        validation: share of each party's images for validation.
        test: share of each party's images for testing; or ``official``: the images of the official test set, wherever
            they are distributed to.
        seed: seed of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or in another format.

    Example:
        >>> data = rv.datasets.fashion_mnist(partition=rv.partitions.Dirichlet(parties=100))  # doctest: +SKIP
    """
    images = _read_idx_parts("fashion_mnist", part, FASHION_CLASSES, "Fashion-MNIST")
    return _federate(images, partition, shift, scale, validation, test, seed)


@checked
def emnist(*, files: tuple[str, ...] = ("emnist-byclass-train", "emnist-byclass-test"),
           labels: tuple[int, ...] = tuple(range(36, 46)), classes: tuple[str, ...] = tuple("abcdefghij"),
           partition: Partition = PowerLaw(), shift: Shift | None = None,  # noqa: B008 - frozen
           scale: Scale = "unit", validation: float = 0.0, test: Test = 0.2, seed: int = 0) -> FederatedData:
    """EMNIST: handwritten characters of 28x28 pixels; by default FedProx's ten lower-case letters a to j.

    The files are ``emnist/NAME-images-idx3-ubyte`` and ``emnist/NAME-labels-idx1-ubyte``, plain or gzipped. They store
    images transposed, which is undone. FedProx has 200 parties of 5 classes: ``partition: {name: power_law,
    parties: 200, classes: 5, sigma: 1, total: 18345}``.

    Args:
        files: the NAMEs of pairs of files.
        labels: the labels to use, as the files number them: in byclass 0-9 are digits, 10-35 upper-case and 36-61
            lower-case letters; in letters 1-26.
        classes: the names of these labels.
        partition: how images are distributed over parties.
        shift: a change of some parties' images, such as inverting them; None: no change.
        scale: unit, standard or overall, as for `mnist`.
        validation: share of each party's images for validation.
        test: share of each party's images for testing; or ``official``: the images of the official test set, wherever
            they are distributed to.
        seed: seed of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or in another format; no image has one of the labels.

    Example:
        >>> data = rv.datasets.emnist(partition=rv.partitions.IID(parties=100))  # doctest: +SKIP
    """
    if len(labels) != len(classes) or len(set(labels)) < len(labels):
        raise InputError(f"emnist: {len(labels)} labels and {len(classes)} classes: give each label once, and a name "
                         "for each")
    if not files:
        raise InputError("emnist(files=()) has no files: give at least one")
    x, y, is_test = _joined({name: _read_idx_pair(f"emnist/{name}", "emnist") for name in files})
    for label, name in zip(labels, classes, strict=True):
        if not (y == label).any():
            raise InputError(f"emnist: no image of {shorten(', '.join(files))} has the label {label} "
                             f"({shorten(name)}): their labels are {y.min()} to {y.max()}")
    rows = np.flatnonzero(np.isin(y, labels))
    number_of = np.full(max(labels) + 1, -1, np.int32)
    number_of[list(labels)] = np.arange(len(labels))
    images = _Images(x[rows].transpose(0, 2, 1), number_of[y[rows]], is_test[rows], list(classes), "EMNIST")
    return _federate(images, partition, shift, scale, validation, test, seed)


@checked
def cifar10(*, batches: tuple[int, ...] = (1, 2, 3, 4, 5), partition: Partition = IID(),  # noqa: B008 - frozen
            shift: Shift | None = None, part: Part = "train", scale: Scale = "unit", validation: float = 0.0,
            test: Test = 0.2, seed: int = 0) -> FederatedData:
    """CIFAR-10: 60,000 colour pictures of 32x32 pixels in ten classes.

    The files are the binary version: ``cifar-10-batches-bin/data_batch_1.bin`` to ``data_batch_5.bin`` and
    ``test_batch.bin``, in the data folder itself or in its subfolder ``cifar10/``. The operator-splitting paper uses
    20 %, which is one batch, in 100 sorted shards: ``batches: [1], partition: {name: shards, parties: 10, per_party:
    10, cut: sorted}``.

    Args:
        batches: the training batches to use, of 1 to 5.
        partition: how images are distributed over parties.
        shift: a change of some parties' images, such as inverting them; None: no change.
        part: the training batches, the test batch, or all of them.
        scale: unit, standard or overall, as for `mnist`.
        validation: share of each party's images for validation.
        test: share of each party's images for testing; or ``official``: the images of the official test set, wherever
            they are distributed to.
        seed: seed of the partition, the shift and the split.

    Raises:
        InputError: a file is missing, cut off or in another format.

    Example:
        >>> data = rv.datasets.cifar10(partition=rv.partitions.Dirichlet(parties=100))  # doctest: +SKIP
    """
    names = [f"data_batch_{i}" for i in batches] * (part != "test") + ["test_batch"] * (part != "train")
    if not names:
        raise InputError("cifar10: batches is empty: name some of 1 to 5")
    batches_of = {name: read_cifar_batch(find(*(f"{folder}cifar-10-batches-bin/{name}.bin"
                                                for folder in ("", "cifar10/")), fetch="cifar10")) for name in names}
    images = _Images(*_joined(batches_of), CIFAR_CLASSES, "CIFAR-10")
    return _federate(images, partition, shift, scale, validation, test, seed)


def _read_idx_parts(folder: str, part: Part, classes: list[str], name: str) -> _Images:
    prefixes = ["train"] * (part != "test") + ["t10k"] * (part != "train")
    parts = {prefix: _read_idx_pair(f"{folder}/{prefix}", folder) for prefix in prefixes}
    return _Images(*_joined(parts), classes, name)


def _joined(parts: Mapping[str, tuple[NDArray[np.uint8], NDArray[Any]]]
            ) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.bool_]]:
    """The images and labels of files one after the other, and whether an image is of a file of the test set."""
    is_test = [np.full(len(y), "test" in name or name.startswith("t10k")) for name, (_, y) in parts.items()]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts.values(), strict=True))
    return x, y, np.concatenate(is_test)


def _read_idx_pair(prefix: str, fetch: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images [n, rows, columns] and their labels [n]."""
    path = find(f"{prefix}-images-idx3-ubyte", fetch=fetch)
    x, y = read_idx(path), read_idx(find(f"{prefix}-labels-idx1-ubyte", fetch=fetch))
    if x.ndim != 3 or x.dtype != np.uint8 or y.shape != (len(x),):
        raise InputError(f"{path} holds {x.dtype} of shape {x.shape} and its labels have shape {y.shape}: expected "
                         "bytes [n, rows, columns] and one label per image: download both again")
    return x, y


def _federate(images: _Images, partition: Partition, shift: Shift | None, scale: Scale, validation: float, test: Test,
              seed: int) -> FederatedData:
    """Distribute images in [0, 1] over parties, shift and scale them.

    The moments for scaling are those of all images before the shift, so that a shift stays visible.
    """
    if test == "official" and (images.is_test.all() or not images.is_test.any()):
        raise InputError(f"test: official: the images are those of one part of {images.name}: use both parts, with "
                         "part: all")
    data = divide(images.x, images.y, partition, seed=seed, classes=images.classes, validation=validation,
                  test=images.is_test if isinstance(test, str) else test, name=images.name)
    scaling = _fit_scaling(images.x, scale)
    data = replace(data, x=scaling.to_unit(data.x))
    data = data if shift is None else shift(data, seed)
    data = replace(data, x=scaling.standardise(data.x), encoding=ArrayEncoding(
        data.input_shape, data.task, data.classes, pixels=scaling))
    if scale == "unit":
        return data
    return data.with_notes("Pixels are standardised by the mean and deviation of all images, pooled")


def _fit_scaling(pixels: NDArray[np.uint8], scale: Scale) -> PixelScaling:
    """The scaling of images of 0 to 255, by the moments of all of them."""
    if scale == "unit":
        return PixelScaling()
    mean, square = _moments(pixels)
    if scale == "overall":
        mean, square = mean.mean(), square.mean()
    deviation = np.sqrt(np.maximum(square - mean**2, 0)) + (_DEVIATION_OFFSET if scale == "standard" else 0)
    return PixelScaling(tuple(np.ravel(mean).tolist()), tuple(np.ravel(deviation).tolist()))


def _moments(x: NDArray[np.uint8]) -> NDArray[Any]:
    """[2, ...] mean and mean square of each pixel, summed in blocks so that no second copy of all images is made."""
    total = np.zeros((2, *x.shape[1:]))
    for block in np.array_split(x, max(1, len(x) // _BLOCK)):
        values = block.astype(np.float64)
        total += values.sum(axis=0), np.square(values).sum(axis=0)
    return total / len(x)
