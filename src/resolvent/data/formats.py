"""Data sets from files of two common formats: LEAF's JSON by user, and LIBSVM's sparse text."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.data import files
from resolvent.data.federated import FederatedData
from resolvent.data.partitions import IID, Partition, divide
from resolvent.data.readers import read_leaf
from resolvent.data.tokens import CHARACTERS, encode_characters
from resolvent.errors import InputError

__all__ = ["leaf", "libsvm"]


def leaf(*, train: str, held_out: str | None = None, validation: float = 0.0, test: float = 0.2,
         seed: int = 0) -> FederatedData:
    """LEAF's JSON format (users, num_samples, user_data), gzipped or not. Its users are the parties.

    Inputs are numbers, or texts of equal length, such as LEAF's Shakespeare: then each character is a token, and the
    label is the next character. A user that is only in the test file has nothing to train on and is left out.

    Args:
        train: the training file, or a folder of such files. An absolute path, or one in a data folder.
        held_out: the file or folder with the test samples; None: a share of the training file's samples is for
            testing.
        validation: share of each user's training samples for validation.
        test: share of each user's samples for testing; not used with held_out.
        seed: of the split.

    Raises:
        InputError: a file is missing, cut off or not a LEAF file; its inputs are neither numbers nor text.
    """
    path = files.find(train)
    training = {user: samples for user, samples in read_leaf(path).items() if samples[1]}
    testing = {} if held_out is None else read_leaf(files.find(held_out))
    if not training:
        raise InputError(f"{path} has no user with a sample: choose another file")
    extra = [testing.get(user, ([], [])) for user in training]
    inputs = [x + more for (x, _), (more, _) in zip(training.values(), extra, strict=True)]
    labels = [np.array(y + more) for (_, y), (_, more) in zip(training.values(), extra, strict=True)]
    is_text = isinstance(inputs[0][0], str)
    try:
        xs = [np.stack(encode_characters(x)) if is_text else np.array(x, np.float32) for x in inputs]
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: the inputs are neither numbers nor text of one length: {error}") from error
    data = FederatedData.from_arrays(
        xs, _clean_labels(labels, is_text), parties=list(training), classes=list(CHARACTERS) if is_text else None,
        validation=validation, test=test if held_out is None else [len(y) for _, y in extra], seed=seed,
        name=path.name.split(".json")[0], vocabulary=tuple(CHARACTERS) if is_text else ())
    left_out = len(set(testing) - set(training))
    return data.with_notes(f"users with test samples only, left out: {left_out}") if left_out else data


def _clean_labels(labels: list[NDArray[Any]], is_text: bool) -> list[NDArray[Any]]:
    """Labels with characters of LEAF's alphabet only, or integers if all numbers are whole."""
    if is_text:
        return [np.array([c if c in CHARACTERS else " " for c in y.tolist()]) for y in labels]
    if all(np.issubdtype(y.dtype, np.floating) and (y == np.floor(y)).all() for y in labels):
        return [y.astype(int) for y in labels]  # the authors' programs write class numbers as 3.0
    return labels


def libsvm(*, file: str, features: int | None = None, task: Literal["classification", "regression"] = "classification",
           partition: Partition = IID(), validation: float = 0.0, test: float = 0.2,  # noqa: B008 - frozen
           seed: int = 0) -> FederatedData:
    """LIBSVM's text format, ``label index:value ...`` on each line, gzipped or not. Inputs are stored dense.

    Args:
        file: an absolute path, or one in a data folder.
        features: number of inputs; default: the largest index in the file.
        task: whether labels are classes or quantities.
        partition: how samples are distributed over parties.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or in another format.
    """
    from sklearn.datasets import load_svmlight_file  # here, because importing scikit-learn takes more than 1 s

    path = files.find(file)
    try:
        with files.open_unpacked(path) as lines:
            x, y = load_svmlight_file(lines, n_features=features, dtype=np.float32)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is cut off or not in LIBSVM's format, a label and index:value pairs on each line: "
                         f"{error}") from error
    if not len(y):
        raise InputError(f"{path} has no lines: expected a label and index:value pairs on each")
    dense: NDArray[Any] = x.toarray()
    if task == "regression":
        return divide(dense, y.astype(np.float32), partition, task=task, validation=validation, test=test, seed=seed,
                      name=path.stem)
    classes, numbers = np.unique(y, return_inverse=True)
    return divide(dense, numbers, partition, classes=[f"{c:g}" for c in classes], validation=validation, test=test,
                  seed=seed, name=path.stem)
