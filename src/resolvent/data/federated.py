"""Federated data: every party's samples packed one after the other, never padded.

Party sizes follow a power law, so one array with an offset and a length per party is the only layout whose
memory is that of the samples. Within a party the samples of each split lie side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resolvent.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SPLITS", "FederatedData", "Split", "Task", "check_party", "number_labels", "split_sizes"]

Task = Literal["classification", "regression"]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Where each party's samples of a split lie in the packed arrays: length[k] of them from offset[k] on."""

    offset: NDArray[np.integer]
    length: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The samples of all parties, packed.

    Attributes:
        x: [total, ...] inputs, party by party.
        y: [total] labels: class numbers 0..classes-1, or real targets.
        splits: ``train``, ``validation`` and ``test``: offset and length per party.
        parties: the parties' names, in order.
        task: ``classification`` or ``regression``.
        classes: the classes' names, in the order of their numbers; empty for regression.
        features: the names of the inputs' columns where they have names.
        name: what the data is, for reports.
        notes: facts that a reader of a report should know (which party is an outlier, what was imputed).
        vocabulary: what the tokens 0, 1, ... stand for, where inputs are sequences of tokens (integers): such inputs
            stay integers, all others become floating numbers.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    splits: Mapping[str, Split]
    parties: Sequence[str]
    task: Task
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    name: str = "data"
    notes: tuple[str, ...] = field(default=())
    vocabulary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.vocabulary:
            if self.x.dtype.kind not in "iu":
                raise InputError(f"inputs of type {self.x.dtype} cannot be tokens of a vocabulary: give integers")
            if self.x.size and not 0 <= int(self.x.min()) <= int(self.x.max()) < len(self.vocabulary):
                raise InputError(f"the inputs hold tokens {self.x.min()} to {self.x.max()}, but the vocabulary has "
                                 f"{len(self.vocabulary)}: they are numbered 0 to {len(self.vocabulary) - 1}")

    def __len__(self) -> int:
        """How many parties there are."""
        return len(self.parties)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def outputs(self) -> int:
        """How many classes there are; 1 for regression."""
        return len(self.classes) if self.task == "classification" else 1

    def sizes(self, split: str = "train") -> NDArray[np.int32]:
        """How many samples each party has in ``split``: [N]."""
        return self.splits[split].length

    def party(self, party: int | str, split: str = "train") -> tuple[NDArray[Any], NDArray[Any]]:
        """One party's inputs and labels, by number or name."""
        k = self.index(party)
        s = self.splits[split]
        rows = slice(int(s.offset[k]), int(s.offset[k] + s.length[k]))
        return self.x[rows], self.y[rows]

    def index(self, party: int | str) -> int:
        """The number of a party, from its name or its number."""
        if isinstance(party, str):
            if party not in self.parties:
                raise InputError(f"there is no party {party!r}{nearest(party, self.parties[:1000])}")
            return self.parties.index(party)
        if not 0 <= party < len(self):
            raise InputError(f"there is no party {party}: they are numbered 0 to {len(self) - 1}")
        return int(party)

    def summary(self) -> "pd.DataFrame":
        """A row per party: its samples in each split and, for classification, how many of each class."""
        import pandas as pd

        rows = []
        for k, name in enumerate(self.parties):
            row: dict[str, Any] = {"party": name, **{s: int(self.splits[s].length[k]) for s in self.splits}}
            if self.task == "classification":
                labels = np.concatenate([self.party(k, s)[1] for s in self.splits])
                counts = np.bincount(labels.astype(int), minlength=len(self.classes))
                row |= {f"class {c}": int(n) for c, n in zip(self.classes, counts, strict=True)}
            rows.append(row)
        return pd.DataFrame(rows)

    def noting(self, *notes: str) -> "FederatedData":
        """The same data with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    @classmethod
    def from_arrays(
        cls,
        x: Sequence[ArrayLike],
        y: Sequence[ArrayLike],
        *,
        parties: Sequence[str] | None = None,
        task: Task | Literal["auto"] = "auto",
        validation: float = 0.2,
        test: float | Sequence[int] = 0.2,
        seed: int = 0,
        name: str = "data",
        features: Sequence[str] = (),
        classes: Sequence[str] | None = None,
        vocabulary: tuple[str, ...] = (),
    ) -> "FederatedData":
        """Data from one array of inputs and one of labels per party, split at random within each party.

        Args:
            x: per party, inputs [n_k, ...] of one common shape.
            y: per party, labels [n_k].
            parties: names; default ``party 0``, ``party 1``, ...
            task: ``classification``, ``regression``, or ``auto``: classification where labels are integers,
                booleans or text.
            validation: share of each party's samples kept for validation.
            test: share of each party's samples kept for testing; or, where the data say which these are, how many of
                each party's last samples they are, and the rest is split between training and validation.
            seed: of the split; each party's depends on it, the party's number and size, and nothing else.
            name: what the data is, for reports.
            features: names of the inputs' columns.
            classes: the labels in the order of their class numbers; default: those that occur, sorted.
            vocabulary: what the tokens 0, 1, ... stand for, where inputs are sequences of tokens.

        Raises:
            InputError: shapes that differ, a party without samples, values that are missing or not finite;
                the message names the party and the row.
        """
        names = tuple(parties) if parties is not None else tuple(f"party {k}" for k in range(len(x)))
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise InputError(f"two parties are named {twice!r}: give each party a name of its own")
        if not len(x) == len(y) == len(names) or not names:
            raise InputError(f"there are inputs for {len(x)} parties, labels for {len(y)} and {len(names)} "
                             "names; give one of each per party, and at least one party")
        xs, ys = [np.asarray(a) for a in x], [np.asarray(a) for a in y]
        for party, a, b in zip(names, xs, ys, strict=True):
            check_party(party, a, b, xs[0].shape[1:])
        if features and xs[0].shape[1:] != (len(features),):
            raise InputError(f"there are {len(features)} names of features for inputs of shape "
                             f"{xs[0].shape[1:]}: give one name per column, or none")
        if seed < 0:
            raise InputError(f"seed={seed} must not be negative: use 0 or more")
        held_out = list(test) if isinstance(test, Sequence) else [0] * len(names)
        share = 0.0 if isinstance(test, Sequence) else test
        if len(held_out) != len(names) or any(not 0 <= h < len(a) for h, a in zip(held_out, xs, strict=False)):
            raise InputError(f"test={held_out} must be one number per party, and leave it a sample to train on")
        labels, task, class_names = number_labels(ys, task, classes, names)
        parts: list[NDArray[np.intp]] = []
        lengths = np.zeros((len(SPLITS), len(names)), np.int32)
        start = 0
        for k, a in enumerate(xs):
            order = np.random.default_rng([seed, k]).permutation(len(a) - held_out[k])
            lengths[:, k] = split_sizes(len(order), validation, share)
            lengths[2, k] += held_out[k]
            parts.append(start + np.concatenate([order, np.arange(len(order), len(a))]))
            start += len(a)
        order = np.concatenate(parts)
        begin = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))[:-1]])
        offsets = begin + np.cumsum(np.vstack([np.zeros_like(lengths[:1]), lengths[:-1]]), axis=0)
        splits = {s: Split(offsets[i].astype(np.int32), lengths[i]) for i, s in enumerate(SPLITS)}
        return cls(np.concatenate(xs)[order], labels[order], splits, names, task, class_names,
                   tuple(features), name, vocabulary=vocabulary)


def split_sizes(samples: int, validation: float, test: float) -> tuple[int, int, int]:
    """How many of a party's samples go to training, validation and test.

    Rounded to the nearest; training gets what is left and is never empty.
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise InputError(f"validation={validation} and test={test} must not be negative, and must sum "
                         "to less than 1, so that samples are left for training")
    of_validation, of_test = round(samples * validation), round(samples * test)
    while of_validation + of_test >= samples:
        if of_validation >= of_test:
            of_validation -= 1
        else:
            of_test -= 1
    return samples - of_validation - of_test, of_validation, of_test


def check_party(party: str, x: NDArray[Any], y: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Refuse a party's samples that nothing can be learned from; the message names the party and the row."""
    if len(x) == 0:
        raise InputError(f"party {party!r} has no samples: leave it out, or merge it with another")
    if y.shape != (len(x),):
        raise InputError(f"party {party!r} has {len(x)} inputs but labels of shape {y.shape}: "
                         "give one label per input")
    if x.shape[1:] != shape:
        raise InputError(f"party {party!r} has inputs of shape {x.shape[1:]}, the first party's are {shape}")
    if x.dtype.kind not in "biuf":
        raise InputError(f"party {party!r} has inputs of type {x.dtype}: inputs must be numbers")
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0, 0])
        raise InputError(f"party {party!r}, row {row}: the input has a value that is not finite")


def number_labels(
    ys: list[NDArray[Any]], task: str, classes: Sequence[str] | None, names: tuple[str, ...]
) -> tuple[NDArray[Any], Task, tuple[str, ...]]:
    """All labels in one array, as class numbers or as reals, with the task and the classes' names."""
    y = np.concatenate(ys)
    if task == "auto":
        task = "regression" if np.issubdtype(y.dtype, np.floating) else "classification"
    if task == "regression":
        if y.dtype.kind not in "iuf":
            raise InputError(f"regression needs labels that are numbers, got type {y.dtype}")
        for party, part in zip(names, ys, strict=True):
            if not np.isfinite(part.astype(float)).all():
                row = int(np.flatnonzero(~np.isfinite(part.astype(float)))[0])
                raise InputError(f"party {party!r}, row {row}: the label is not finite")
        return y.astype(np.result_type(y.dtype, np.float32)), "regression", ()
    if task != "classification":
        raise InputError(f"task={task!r} is not known: use 'classification', 'regression' or 'auto'")
    for party, part in zip(names, ys, strict=True):
        if (missing := _missing(part)).any():
            row = int(np.flatnonzero(missing)[0])
            raise InputError(f"party {party!r}, row {row}: the label is missing")
    if classes is None:
        found, numbers = np.unique(y, return_inverse=True)
        return numbers.astype(np.int32), "classification", tuple(str(c) for c in found)
    number = {str(c): i for i, c in enumerate(classes)}
    if len(number) < len(classes):
        raise InputError(f"the classes {list(map(str, classes))} name one twice: give each class once")
    for party, part in zip(names, ys, strict=True):
        unknown = [str(v) for v in part if str(v) not in number]
        if unknown:
            raise InputError(f"party {party!r} has label {unknown[0]!r}, which is not among the classes "
                             f"{list(number)}{nearest(unknown[0], list(number))}")
    return np.array([number[str(v)] for v in y], np.int32), "classification", tuple(number)


def _missing(part: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a label is nan, None or the like."""
    if part.dtype.kind in "biuSU":
        return np.zeros(part.shape, bool)
    import pandas as pd

    return np.asarray(pd.isna(part))
