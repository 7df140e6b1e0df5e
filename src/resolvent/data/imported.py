"""Data from other libraries' data sets, and from arrays whose rows are already sorted by party."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.federated import SPLITS, FederatedData, Task, consecutive_splits
from resolvent.data.partition.partitions import ByUser, Partition, divide
from resolvent.data.samples import number_labels, one_per_sample, split_sizes
from resolvent.errors import InputError, nearest, quote, shorten


@checked
def from_dataset(dataset: Any, partition: Partition | None = None, *, inputs: str | Sequence[str] | None = None,
                 label: str | None = None, party: str | None = None, validation: float = 0.2, test: float = 0.2,
                 seed: int = 0, name: str = "data") -> FederatedData:
    """Data from a data set of Hugging Face (``datasets``), or a map-style data set of PyTorch.

    All samples are read into memory. Images become numbers of 0 to 1.

    Args:
        dataset: a ``datasets.Dataset``; a ``datasets.DatasetDict`` of the parts ``train`` and ``test``, and perhaps
            ``validation``, whose samples stay validation and test samples; or an object with ``len(dataset)`` and
            ``dataset[i]``, a pair of an input and a label, as a ``torch.utils.data.Dataset`` has.
        partition: how samples are distributed over parties; default: one party for each value of ``party``.
        inputs: the column of the inputs, or several columns of numbers, of a Hugging Face data set; default: the only
            other column.
        label: the column of the labels; default: ``label``.
        party: the column that names the party, or the user, of each sample.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the partition and of the split.
        name: the name of the data set, for reports.

    Raises:
        InputError: a column does not exist, samples differ in shape, or neither ``partition`` nor ``party`` is set.

    Example:
        >>> pairs = [(np.full(4, i / 60), i % 3) for i in range(60)]
        >>> data = rv.datasets.from_dataset(pairs, rv.partitions.IID(parties=4), test=0)
        >>> len(data), data.input_shape, data.classes
        (4, (4,), ('0', '1', '2'))
    """
    users: Any = None
    splits: dict[str, Any] = {"validation": validation, "test": test}
    if isinstance(columns := getattr(dataset, "column_names", None), Mapping) and {"train", "test"} <= {*columns} <= {
            *SPLITS}:
        parts = {part: _read_columns(dataset[part], inputs, label or "label", party) for part in SPLITS
                 if part in columns}
        x, labels = (np.concatenate([part[i] for part in parts.values()]) for i in (0, 1))
        names, users = parts["train"][2], None if party is None else np.concatenate([p[3] for p in parts.values()])
        of_part = np.repeat([*parts], [len(part[1]) for part in parts.values()])
        splits |= {part: of_part == part for part in parts if part != "train"}
    elif hasattr(dataset, "column_names"):
        x, labels, names, users = _read_columns(dataset, inputs, label or "label", party)
    elif party is not None or inputs is not None or label is not None:
        raise InputError("inputs, label and party name columns, which only a data set of Hugging Face has: leave them "
                         "out, and set a partition")
    else:
        x, labels, names = *_read_pairs(dataset), None
    if partition is None and users is None:
        raise InputError("from_dataset needs to know which party has which sample: set party to a column, or partition "
                         "to a rule, such as rv.partitions.Dirichlet(parties=10)")
    packed, task, classes = number_labels([labels], "auto", names, (name,))
    return divide(x, packed, ByUser() if partition is None else partition, users=users, seed=seed, task=task,
                  classes=list(classes) if task == "classification" else None, name=name, **splits)


@checked
def from_consecutive(x: Any, y: Any, sizes: Sequence[int], *, parties: Sequence[str] | None = None,
                     task: Task | Literal["auto"] = "auto", validation: float = 0.2, test: float = 0.2,
                     name: str = "data") -> FederatedData:
    """Data from arrays whose rows are sorted by party. The inputs are neither copied nor read.

    Therefore ``x`` can be a ``numpy.memmap`` that is larger than the memory: with ``simulate(memory="host")`` only the
    rows of a cohort are read. The first rows of a party are for training, the next for validation and the last for
    testing: give them in random order, or in temporal order to test on the most recent rows.

    Args:
        x: [total, ...] inputs, finite numbers, party by party.
        y: [total] labels.
        sizes: number of rows of each party.
        parties: the parties' names; default ``party 0``, ``party 1``, ...
        task: ``classification``, ``regression``, or ``auto``: classification if labels are integers, booleans or text.
        validation: share of each party's rows for validation.
        test: share of each party's rows for testing.
        name: the name of the data set, for reports.

    Raises:
        InputError: the numbers of rows, labels and names do not fit together, or a label is missing.

    Example:
        >>> rows = np.arange(20.0).reshape(10, 2)
        >>> data = rv.datasets.from_consecutive(rows, np.arange(10) % 2, sizes=[4, 6], validation=0, test=0.5)
        >>> np.shares_memory(data.x, rows), data.sizes("test").tolist()
        (True, [2, 3])
    """
    array, labels = np.asanyarray(x), np.asarray(y)
    names = tuple(parties) if parties is not None else tuple(f"party {k}" for k in range(len(sizes)))
    if array.dtype.kind not in "iufb":
        raise InputError(f"the inputs are of type {shorten(array.dtype)}: give numbers")
    if not sum(sizes) == len(array) == len(labels) or min(sizes, default=0) < 1 or len(names) != len(sizes):
        raise InputError(f"sizes={quote(list(sizes))} must be one positive number per party with the sum {len(array)}, "
                         f"the number of rows; there are {len(labels)} labels and {len(names)} names of parties")
    packed, class_task, classes = number_labels(np.split(labels, np.cumsum(sizes)[:-1]), task, None, names)
    lengths = np.array([split_sizes(size, validation, test) for size in sizes], np.int32).T
    return FederatedData(array, packed, consecutive_splits(lengths, np.int64), names, class_task, classes, name=name,
                         fixed=("test",))


def _read_columns(dataset: Any, inputs: str | Sequence[str] | None, label: str,
                  party: str | None) -> tuple[NDArray[Any], NDArray[Any], list[str] | None, NDArray[Any] | None]:
    """Inputs, labels, names of the classes and users of a data set of Hugging Face."""
    columns = dataset.column_names
    if isinstance(columns, Mapping):
        raise InputError(f"the data set has the parts {', '.join(columns)}: give one of them, such as "
                         f"dataset[{next(iter(columns))!r}], or datasets.concatenate_datasets([...])")
    if inputs is None:
        others = [column for column in columns if column not in (label, party)]
        if len(others) != 1:
            raise InputError(f"the data set has the columns {shorten(', '.join(columns))}: set inputs to the column, "
                             "or the columns, of the inputs")
        inputs = others
    chosen = [inputs] if isinstance(inputs, str) else list(inputs)
    for column in (*chosen, label, *(() if party is None else (party,))):
        if column not in columns:
            raise InputError(f"there is no column {quote(column)}; there are {shorten(', '.join(columns))}"
                             f"{nearest(column, columns)}")
    parts = [_stack([np.asarray(value) for value in dataset[column]], column) for column in chosen]
    x = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
    names = getattr(dataset.features[label], "names", None)
    labels = np.asarray(dataset[label])
    if names is not None:
        unknown = labels[(labels < 0) | (labels >= len(names))]
        if len(unknown):
            raise InputError(f"column {quote(label)} has {len(unknown)} rows with the label {unknown[0]}, which is not "
                             f"one of the {len(names)} classes; -1 marks rows without a label: leave them out")
        labels = np.asarray(names)[labels]
    return x, labels, names, None if party is None else one_per_sample(
        dataset[party], f"column {quote(party)}: the names of the parties").astype(str)


def _read_pairs(dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and labels of a map-style data set."""
    try:
        pairs = [dataset[i] for i in range(len(dataset))]
        rows = [(np.asarray(x), np.asarray(y)) for x, y in pairs]
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"dataset must have a length and return a pair of an input and a label for each index: "
                         f"{shorten(error)}") from error
    if not rows:
        raise InputError("the data set has no samples")
    return _stack([x for x, _ in rows], "input"), _stack([y for _, y in rows], "label")


def _stack(values: list[NDArray[Any]], column: str) -> NDArray[Any]:
    """[n, ...] the values; bytes of images become numbers of 0 to 1."""
    if len(shapes := {value.shape for value in values}) > 1:
        raise InputError(f"the values of {quote(column)} differ in shape: {shorten(sorted(shapes))}. Resize images, "
                         "and pad or cut sequences, before you give the data set")
    stacked = np.stack(values)
    if stacked.dtype.kind not in "iufb":
        raise InputError(f"the values of {quote(column)} are of type {shorten(stacked.dtype)}, and numbers are needed: "
                         "encode them first")
    return stacked.astype(np.float32) / 255 if stacked.dtype == np.uint8 and stacked.ndim > 2 else stacked
