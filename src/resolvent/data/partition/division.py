"""Distribute samples over parties by a partition: the base class of partitions, and ``divide``."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import CheckedArguments, checked
from resolvent.data import sample_trees as trees
from resolvent.data.federated import FederatedData, Task, split_rows
from resolvent.data.samples import check_name, check_parties, check_trained, strata
from resolvent.errors import InputError, shorten
from resolvent.math.tree import count_rows
from resolvent.math.tree import rows as rows_of_tree

Rows = list[NDArray[np.intp]]
Labels = NDArray[Any]


@dataclass(frozen=True)
class Partition(CheckedArguments, ABC):
    """A rule that distributes samples over parties.

    Attributes:
        parties_are_users: whether each party is a user of the data, whose name it gets.
        needs_labels: whether the distribution depends on the samples' labels, and not on their number alone.
    """

    parties_are_users: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, labels: Labels, seed: int, users: Labels | None = None) -> Rows:
        """The rows of each party: disjoint, and at least one per party.

        Args:
            labels: [n] the samples' labels.
            seed: seed of all random numbers.
            users: [n] the user whom each sample is from, if the data have users.

        Raises:
            InputError: there are too few samples for this number of parties.
        """


@checked
def divide(x: Any, y: Any, partition: Partition, *, by: trees.Labels | None = None, users: Labels | None = None,
           names: Sequence[str] | None = None, seed: int = 0,
           task: Task | None = None, classes: list[str] | None = None,
           validation: float | NDArray[np.bool_] = 0.0, test: float | NDArray[np.bool_] = 0.2,
           stratified: bool = False, name: str = "data", vocabulary: tuple[str, ...] = ()) -> FederatedData:
    """Distribute samples over parties.

    Args:
        x: inputs, an array [n, ...] or a structure of them; they are copied once, in the order of the parties.
        y: labels as in ``FederatedData.from_arrays``; with ``classes`` and one label per sample, the numbers 0, 1, ...
            of these names.
        partition: how samples are distributed over parties.
        by: what the partition reads as labels: the name of an array, such as ``image`` or ``y.kind``, or a function
            (x, y) -> [n]; default: y, if it is one number per sample.
        users: [n] the user whom each sample is from, if the data have users.
        names: names of the users 0, 1, ..., if ``users`` are numbers.
        seed: seed of the partition and the split.
        task: classification, regression or structured; default: as ``FederatedData.from_arrays`` finds it, regression
            for floating numbers.
        classes: the classes' names; default: the labels that occur, sorted.
        validation: share of each party's samples for validation; or [n] whether the source of the data has chosen a
            sample for validation: a party's samples of these stay its validation samples.
        test: share of each party's samples for testing; or [n], likewise, as official test sets are. A party of which
            all samples are for testing has no part in the training, and a note names it.
        stratified: draw the splits so that each of them has its share of every class of a party.
        name: the name of the data set, for reports.
        vocabulary: the words or characters that the tokens 0, 1, ... stand for, if inputs are sequences of tokens.

    Raises:
        InputError: the partition cannot distribute these samples, or reads labels and there is not one per sample; a
            label is missing, or is not the number of a class.

    Example:
        >>> data = rv.partitions.divide(np.eye(60), np.arange(60) % 3, rv.partitions.IID(parties=4))
        >>> (data.sizes("train") + data.sizes("test")).tolist()
        [15, 15, 15, 15]
    """
    x, y = trees.sample_of(x, "divide(x=...)", name), None if y is None else trees.sample_of(y, "divide(y=...)", name)
    trees.check_samples(name, x, y, x, y)
    labels, total = trees.labels_for(x, y, by), count_rows(x)
    if labels is None and partition.needs_labels:
        raise InputError(f"{type(partition).__name__} distributes samples by one label of each, and the labels have "
                         "another structure: set by to the name of an array or to a function (x, y) -> [n]")
    rows = partition(np.zeros(total, np.int32) if labels is None else labels, seed, users)
    parties = tuple(f"party {k}" for k in range(len(rows)))
    if users is not None and partition.parties_are_users:
        parties = tuple(str(users[r[0]] if names is None else names[users[r[0]]]) for r in rows)
        check_parties(parties)
    kind: Task = "classification"
    if classes is not None and task in (None, "classification") and isinstance(y, np.ndarray) and y.ndim == 1:
        packed, class_names = _numbers_of(y, classes), tuple(map(str, classes))
    else:
        packed, kind, class_names = trees.label_arrays([y], task or "auto", classes, (name,))
    check_name(name, "the name of the data")
    for text in class_names:
        check_name(text, "the name of a class")
    fixed = {split: mask for split, mask in (("validation", validation), ("test", test))
             if isinstance(mask, np.ndarray)}
    rows, counts = _fixed_last(rows, fixed, parties, total)
    shares: dict[str, Any] = {"validation": validation, "test": test} | counts
    order, splits = split_rows(rows, **shares, seed=seed, classes=strata(packed, kind) if stratified else None)
    x, y = rows_of_tree((x, packed), order)  # the only copy of the inputs
    untrained = [party for party, size in zip(parties, splits["train"].length, strict=True) if not size]
    notes = (f"have test samples only: {shorten(', '.join(untrained))}",)
    return FederatedData(x, y, splits, parties, kind, class_names, name=name, vocabulary=vocabulary,
                         notes=notes if untrained else (), fixed=tuple(fixed))


def _fixed_last(rows: Rows, fixed: Mapping[str, NDArray[np.bool_]], parties: Sequence[str],
                total: int) -> tuple[Rows, dict[str, list[int]]]:
    """Each party's rows, those of fixed splits last, and the numbers of these.

    Args:
        fixed: for ``validation`` and ``test``, in this order, if fixed: [total] whether a sample is of the split.
    """
    place = np.zeros(total, np.intp)
    for i, (split, mask) in enumerate(fixed.items(), 1):
        if mask.shape != (total,) or mask.dtype != bool:
            raise InputError(f"divide({split}=...) is an array of shape {mask.shape} and type {mask.dtype} for {total} "
                             "samples: give a share, or true for each sample of the split and false for each other one")
        if (place[mask] > 0).any():
            raise InputError(f"divide(validation=..., test=...): sample {np.argmax(mask & (place > 0))} is in both")
        place[mask] = i
    ordered = [of_party[np.argsort(place[of_party], kind="stable")] for of_party in rows]
    counts = {split: [int(mask[of_party].sum()) for of_party in rows] for split, mask in fixed.items()}
    check_trained(parties, [len(of_party) for of_party in rows], counts.get("validation", 0), counts.get("test", 0))
    return ordered, counts


def _numbers_of(labels: NDArray[Any], classes: Sequence[str]) -> NDArray[np.int32]:
    """The labels, which are the numbers of these classes."""
    if labels.dtype.kind not in "iu":
        raise InputError(f"divide(y=...) has labels of type {shorten(labels.dtype)}: with classes, labels are the "
                         "numbers 0, 1, ... of these names")
    if (wrong := labels[(labels < 0) | (labels >= len(classes))]).size:
        raise InputError(f"divide(y=...) has the label {wrong[0]}, and classes has {len(classes)} names, with the "
                         f"numbers 0 to {len(classes) - 1}: correct the label, or name all classes")
    return labels.astype(np.int32)


def cut_points(sizes: NDArray[Any], samples: int) -> NDArray[np.intp]:
    """The rows at which ``samples`` rows are cut into parts whose lengths are proportional to ``sizes``."""
    return np.round(np.cumsum(sizes / sizes.sum())[:-1] * samples).astype(np.intp)


def partition_generator(seed: int) -> np.random.Generator:
    """The random numbers of a partition."""
    # The splits' generators are seeded by [seed, party]; the third number makes this one independent of them.
    return np.random.default_rng([seed, 0, 2**20])


def check_count(partition: Partition, samples: int, minimum: int) -> None:
    """Refuse fewer samples than a partition needs."""
    if samples < minimum:
        raise InputError(f"{partition}: {samples} samples are too few, it needs {minimum}: ask for fewer parties")
