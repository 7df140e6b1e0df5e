"""Data in two formats of the trade: LEAF's JSON, in which every user has samples, and LIBSVM's sparse text."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.data import files
from resolvent.data.federated import FederatedData
from resolvent.data.partitions import IID, Partition, divide
from resolvent.data.texts import CHARACTERS
from resolvent.errors import InputError

__all__ = ["leaf", "libsvm"]


def leaf(*, train: str, held_out: str | None = None, validation: float = 0.0, test: float = 0.2,
         seed: int = 0) -> FederatedData:
    """LEAF's JSON format (users, num_samples, user_data), gzipped or not; its users are the parties.

    Inputs are numbers, or text of equal length, such as the Shakespeare of LEAF: then each character is a token and the
    label is the character that follows. A user who is only in the test file has nothing to train on and is left out.

    Args:
        train: the training file, or a folder of them. Absolute, or in a data folder.
        held_out: the file or folder with the test samples; left out, a share of the others is kept.
        validation: share of each user's training samples kept for validation.
        test: share of each user's samples kept for testing; not used with held_out.
        seed: of the split.

    Raises:
        InputError: a file is missing, cut off or no LEAF file; its inputs are neither numbers nor text.
    """
    path = files.find(train)
    own = {user: samples for user, samples in files.leaf_json(path).items() if samples[1]}
    other = {} if held_out is None else files.leaf_json(files.find(held_out))
    extra = [other.get(user, ([], [])) for user in own]
    if not own:
        raise InputError(f"{path} has no user with a sample")
    inputs = [x + more for (x, _), (more, _) in zip(own.values(), extra, strict=True)]
    labels = [np.array(y + more) for (_, y), (_, more) in zip(own.values(), extra, strict=True)]
    text = isinstance(inputs[0][0], str)
    if text:
        labels = [np.array([c if c in CHARACTERS else " " for c in y.tolist()]) for y in labels]
    if not text and all(np.issubdtype(y.dtype, np.floating) and (y == np.floor(y)).all() for y in labels):
        labels = [y.astype(int) for y in labels]  # class numbers, which the authors' programs write as 3.0
    try:
        xs = [_characters(x) if text else np.array(x, np.float32) for x in inputs]
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: the inputs are neither numbers nor text of one length: {error}") from error
    data = FederatedData.from_arrays(
        xs, labels, parties=list(own), classes=list(CHARACTERS) if text else None, validation=validation,
        test=test if held_out is None else [len(y) for _, y in extra], seed=seed, name=path.name.split(".json")[0],
        vocabulary=tuple(CHARACTERS) if text else ())
    lost = len(set(other) - set(own))
    return data.noting(f"users with test samples only, left out: {lost}") if lost else data


def _characters(texts: list[str]) -> NDArray[np.uint8]:
    """[n, length] numbers of the characters; one that is not among LEAF's 80 is a space."""
    number = {c: i for i, c in enumerate(CHARACTERS)}
    return np.array([[number.get(c, 1) for c in text] for text in texts], np.uint8)


def libsvm(*, file: str, features: int | None = None, task: Literal["classification", "regression"] = "classification",
           partition: Partition = IID(), validation: float = 0.0, test: float = 0.2,  # noqa: B008 - frozen
           seed: int = 0) -> FederatedData:
    """LIBSVM's text format, ``label index:value ...`` a line, gzipped or not; read by scikit-learn, stored dense.

    Args:
        file: the file. Absolute, or in a data folder.
        features: how many inputs there are; left out, the largest index in the file.
        task: whether labels are classes or quantities.
        partition: who holds which samples.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or in another format.
    """
    from sklearn.datasets import load_svmlight_file  # takes seconds

    path: Path = files.find(file)
    try:
        with files.opened(path) as lines:
            x, y = load_svmlight_file(lines, n_features=features, dtype=np.float32)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is cut off or not in LIBSVM's format, a label and index:value pairs a line: "
                         f"{error}") from error
    if not len(y):
        raise InputError(f"{path} has no lines: expected a label and index:value pairs on each")
    dense: NDArray[Any] = x.toarray()
    if task == "regression":
        return divide(dense, y.astype(np.float32), partition, task=task, validation=validation, test=test, seed=seed,
                      name=path.stem)
    found, number = np.unique(y, return_inverse=True)
    return divide(dense, number, partition, classes=[f"{c:g}" for c in found], validation=validation, test=test,
                  seed=seed, name=path.stem)
