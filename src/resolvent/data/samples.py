"""Checks, labels and splits of parties' samples, for data in memory and on disk alike."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, nearest, quote, shorten

Task = Literal["classification", "regression", "structured"]


def split_sizes(samples: int, validation: float, test: float) -> tuple[int, int, int]:
    """The numbers of a party's samples for training, validation and testing.

    Validation and test are rounded to the nearest integer; training gets the remainder and at least one sample.

    >>> split_sizes(10, validation=0.2, test=0.3)
    (5, 2, 3)
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise InputError(f"validation={validation} and test={test} must not be negative, and must sum "
                         "to less than 1, so that samples are left for training")
    n_validation, n_test = round(samples * validation), round(samples * test)
    while n_validation + n_test >= samples:
        if n_validation >= n_test:
            n_validation -= 1
        else:
            n_test -= 1
    return samples - n_validation - n_test, n_validation, n_test


def split_order(samples: int, party: int, seed: int) -> NDArray[np.intp]:
    """The random order in which a party's samples are split: training first, then validation, then test.

    It depends on the seed, the party's number and its size alone, so that no party's split depends on another party.
    """
    return np.random.default_rng([seed, party]).permutation(samples)


def split_by_class(classes: NDArray[np.integer], sizes: tuple[int, int, int], party: int,
                   seed: int) -> NDArray[np.intp]:
    """The order of ``split_order`` in which every split has its share of each class.

    Of the samples that are left, each held-out split takes those at equal distances in the order of the classes, from a
    random start. So n test samples of N hold floor or ceil of n N_c / N samples of a class with N_c.

    Args:
        classes: [N] class of each of the party's samples.
        sizes: numbers of samples for training, validation and testing.

    >>> classes = np.array([0, 0, 0, 1, 1, 1])
    >>> classes[split_by_class(classes, (2, 2, 2), party=0, seed=0)].reshape(3, 2).sum(axis=1).tolist()
    [1, 1, 1]
    """
    rng = np.random.default_rng([seed, party])
    rest = rng.permutation(len(classes))
    rest = rest[np.argsort(classes[rest], kind="stable")]
    parts: list[NDArray[np.intp]] = []
    for size in reversed(sizes[1:]):
        steps = np.floor(np.arange(len(rest) + 1) * size / len(rest) + rng.random())
        is_chosen = np.diff(steps) > 0
        parts.insert(0, rng.permutation(rest[is_chosen]))
        rest = rest[~is_chosen]
    return np.concatenate([rng.permutation(rest), *parts])


def strata(labels: NDArray[Any], task: str) -> NDArray[np.integer]:
    """The classes of which stratified splits have their shares.

    Raises:
        InputError: the labels are no classes.
    """
    if task != "classification":
        raise InputError(f"stratified=True: each split gets its share of every class, and the labels are for {task}: "
                         "leave it out")
    return labels


def check_fixed(split: str, counts: Sequence[int], sizes: Sequence[int]) -> None:
    """Refuse numbers of fixed samples that are not one for each party, or more than it has."""
    if len(counts) != len(sizes) or any(not 0 <= m <= n for m, n in zip(counts, sizes, strict=True)):
        raise InputError(f"{split}={shorten(list(counts))} must be one number per party, at most that of its samples")


def check_trained(parties: Sequence[str], sizes: Sequence[int], validation: float | Sequence[int],
                  test: float | Sequence[int]) -> None:
    """Refuse a party without a sample to train on, unless all of its samples are for testing.

    Args:
        validation: a share, or numbers that were checked.
        test: likewise.
    """
    chosen, tested = ([0] * len(sizes) if isinstance(of_split, float | int) else of_split
                      for of_split in (validation, test))
    for party, size, m, n in zip(parties, sizes, chosen, tested, strict=True):
        if m + n >= size and n < size:
            raise InputError(f"party {shorten(repr(party))} has {m} samples for validation, {n} for testing and none "
                             "to train on: leave it one, or make all of them test samples")
    if all(n == size for n, size in zip(tested, sizes, strict=True)):
        raise InputError("all samples are for testing: leave at least one party samples to train on")


def check_name(text: str, title: str) -> None:
    """Raise an error if a name has a control character, which a terminal would obey, or half of a surrogate pair.

    A line break alone, or a tabulator alone, is a class of models of characters.
    """
    if text not in ("\n", "\t") and any(unicodedata.category(character) == "Cc" for character in text):
        raise InputError(f"{title}, {shorten(repr(text))}, has a control character: correct it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{title}, {shorten(repr(text))}, cannot be written in UTF-8: correct it") from error


def check_parties(names: Sequence[str]) -> None:
    """Raise an error if two parties have one name."""
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"two parties are named {shorten(repr(name))}: give each party a different name")


def list_of(values: Any, name: str) -> list[Any]:
    """The items of an argument that has one for each party."""
    is_list = hasattr(values, "__getitem__") and hasattr(values, "__len__") and getattr(values, "ndim", 1) > 0
    if not is_list or isinstance(values, str | bytes | Mapping) or hasattr(values, "columns"):
        raise InputError(f"from_arrays({name}={quote(values)}) must be a list with an item for each party")
    return list(values)


def plain_counts(samples: Any) -> Any:
    """A share as it is, and an array or a range of counts as a list."""
    return np.asarray(samples).tolist() if isinstance(samples, np.ndarray | range) else samples


def texts_of(values: Any, name: str) -> tuple[str, ...]:
    """The names of an argument, such as those of parties."""
    names = list_of(values, name)
    if wrong := [item for item in names if not isinstance(item, str)]:
        raise InputError(f"from_arrays({name}=...) must be a list of texts, and {quote(wrong[0])} is none: use "
                         "str(name)")
    for text in names:
        check_name(text, f"from_arrays({name}=...): the name")
    return tuple(map(str, names))


def array_of(values: Any, title: str, party: str) -> NDArray[Any]:
    """One party's array.

    Args:
        values: anything that NumPy makes an array of.
    """
    party = shorten(repr(party))
    if np.ma.is_masked(values):
        row = int(np.argwhere(np.ma.getmaskarray(values))[0, 0])
        raise InputError(f"{title}: party {party}, row {row} has a masked value: fill it in with array.filled(value), "
                         "or leave the row out")
    if hasattr(values, "toarray"):
        raise InputError(f"{title}: party {party} has a sparse matrix: use its toarray()")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{title}: the items of party {party} are no array: "
                         f"{shorten(' '.join(str(error).split()))}. Give all its rows one shape") from error
    if array.ndim == 0:
        raise InputError(f"{title} has {quote(values)} for party {party}: give an array with a row for each sample")
    return array


def check_representable(party: str, values: NDArray[Any], name: str) -> None:
    """Refuse finite numbers that are infinite in JAX's precision: single, unless double precision is enabled.

    Args:
        values: [n, ...] numbers.
        name: what they are, such as ``the input``.
    """
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
    if values.dtype.kind != "f" or values.dtype.itemsize <= dtype.itemsize or not values.size:
        return
    largest = float(np.finfo(dtype).max)
    if max(float(values.max()), -float(values.min())) <= largest:
        return
    too_large = np.argwhere(np.isfinite(values) & (np.abs(values) > largest))
    if not len(too_large):  # NaN and infinity are the concern of other checks
        return
    row, *columns = too_large[0].tolist()
    column = f", column {', '.join(map(str, columns))}" if columns else ""
    raise InputError(f"party {shorten(repr(party))}, row {row}{column}: {name} {values[(row, *columns)]:g} is infinite "
                     f"in {dtype}, whose largest number is {largest:.3g}: scale it, correct it, or enable double "
                     "precision first, with jax.config.update('jax_enable_x64', True)")


def number_labels(
    ys: list[NDArray[Any]], task: str, classes: Sequence[str] | None, parties: Sequence[str]
) -> tuple[NDArray[Any], Task, tuple[str, ...]]:
    """All parties' labels in one array.

    Args:
        ys: [n_k] labels of each party.
        task: ``classification``, ``regression``, or ``auto``: regression if the labels are floating numbers, of which a
            label may have several. Other labels of more than one number are ``structured``.
        classes: the classes' names in the order of their numbers; None: the labels that occur, sorted.

    Returns:
        [total] class numbers (int32) or real targets; the task; the classes' names.
    """
    try:
        y = np.concatenate(ys)
    except TypeError as error:
        kinds = ", ".join(dict.fromkeys(str(labels.dtype) for labels in ys))
        raise InputError(f"the parties' labels are of types that do not fit together, {shorten(kinds)}: use one type "
                         "for all") from error
    if task == "auto":
        task = ("regression" if np.issubdtype(y.dtype, np.floating) else
                "classification" if y.ndim == 1 else "structured")
    if task == "regression":
        _check_targets(ys, y.dtype, parties)
        return y.astype(np.result_type(y.dtype, np.float32)), "regression", ()
    if task == "structured":
        return y, "structured", () if classes is None else tuple(map(str, classes))
    if task != "classification":
        raise InputError(f"task={shorten(repr(task))} is not known: use 'classification', 'regression', 'structured' "
                         "or 'auto'")
    if y.ndim != 1:
        raise InputError(f"task='classification' needs one class per sample, and labels have the shape {y.shape[1:]}: "
                         "use task='structured' for several")
    for party, labels in zip(parties, ys, strict=True):
        if (missing := _missing(labels)).any():
            row = int(np.flatnonzero(missing)[0])
            raise InputError(f"party {shorten(repr(party))}, row {row}: the label is missing: fill it in, or leave the "
                             "row out")
    if y.dtype.kind not in "biufSUOmM":
        raise InputError(f"labels of type {shorten(y.dtype)} are no classes: use numbers or texts")
    if classes is None:
        try:
            values, numbers = np.unique(y, return_inverse=True)
        except TypeError as error:
            raise InputError(f"the labels cannot be sorted, because they are of different kinds "
                             f"({shorten(error)}): use texts, or numbers") from error
        return numbers.astype(np.int32), "classification", tuple(str(c) for c in values)
    number_of = _class_numbers(ys, classes, parties)
    return np.array([number_of[str(v)] for v in y], np.int32), "classification", tuple(number_of)


def _check_targets(ys: list[NDArray[Any]], dtype: np.dtype[Any], parties: Sequence[str]) -> None:
    if dtype.kind not in "iuf":
        raise InputError(f"regression needs labels that are numbers, got type {shorten(dtype)}: convert them, or set "
                         "task: classification")
    for party, labels in zip(parties, ys, strict=True):
        finite = np.isfinite(labels.astype(float))
        if not finite.all():
            row = int(np.argwhere(~finite)[0, 0])
            raise InputError(f"party {shorten(repr(party))}, row {row}: the label is not finite: correct it, or leave "
                             "the row out")


def _class_numbers(ys: list[NDArray[Any]], classes: Sequence[str], parties: Sequence[str]) -> dict[str, int]:
    """The number of each class, after a check that every label is a class."""
    number_of = {str(c): i for i, c in enumerate(classes)}
    if len(number_of) < len(classes):
        raise InputError(f"the classes {shorten(list(map(str, classes)))} name one twice: give each class once")
    for party, labels in zip(parties, ys, strict=True):
        unknown = next((str(v) for v in labels if str(v) not in number_of), None)
        if unknown is not None:
            raise InputError(f"party {shorten(repr(party))} has label {shorten(repr(unknown))}, which is not among the "
                             f"classes {shorten(list(number_of))}{nearest(unknown, number_of)}")
    return number_of


def one_per_sample(values: Any, title: str) -> NDArray[Any]:
    """[n] one value of each sample, of which none is missing or a text of blanks.

    Raises:
        InputError: the values are no array [n], or one is missing.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{title} have the shape {list(array.shape)}: give one for each sample")
    is_empty = _missing(array) | np.array([isinstance(v, str) and not v.strip() for v in array], bool)
    if is_empty.any():
        raise InputError(f"{title}: sample {int(np.argmax(is_empty))} has none: fill it in, or leave the sample out")
    return array


def _missing(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each label is NaN, None or another missing value of pandas."""
    if labels.dtype.kind in "biuSU":
        return np.zeros(labels.shape, bool)
    import pandas as pd

    return np.asarray(pd.isna(labels))
