"""Federated data: every party's samples packed one after the other, without padding.

Party sizes follow a power law. One array with an offset and a length per party therefore needs only the memory of the
samples, whereas padding needs that of the largest party for each party. Within a party the samples of each split are
contiguous.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from resolvent.arguments import check_arguments
from resolvent.data import sample_trees as trees
from resolvent.data.samples import (
    Task,
    check_fixed,
    check_name,
    check_parties,
    check_trained,
    list_of,
    plain_counts,
    split_by_class,
    split_order,
    split_sizes,
    strata,
    texts_of,
)
from resolvent.data.weights import ClassWeights, class_weights, normalized_weights
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.math.tree import concatenate, count_rows
from resolvent.math.tree import rows as rows_of_tree

if TYPE_CHECKING:
    import pandas as pd

    from resolvent.data.encoded_rows import Encoding, UnencodedRows

__all__ = ["SPLITS", "FederatedData", "Split", "Task", "consecutive_splits", "split_rows"]

SPLITS = ("train", "validation", "test")
_MAX_HTML_ROWS = 20


@dataclass(frozen=True)
class Split:
    """The rows of a split in the packed arrays: party k has ``length[k]`` rows from ``offset[k]`` on.

    Attributes:
        offset: [N] first row of each party.
        length: [N] number of rows of each party.
    """

    offset: NDArray[np.integer]
    length: NDArray[np.int32]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of all parties' samples, party by party."""
        return np.concatenate([np.arange(first, first + n) for first, n in zip(self.offset, self.length, strict=True)])


def consecutive_splits(lengths: NDArray[np.int32], dtype: type[np.integer] = np.int32) -> dict[str, Split]:
    """The splits of samples that are stored party by party: training, then validation, then test samples.

    Args:
        lengths: [splits, N] number of samples of each party in each split.
    """
    ends = np.cumsum(lengths.T, dtype=np.int64).reshape(-1, len(SPLITS)).T
    return {s: Split((ends[i] - lengths[i]).astype(dtype), lengths[i]) for i, s in enumerate(SPLITS)}


class SplitRows(NamedTuple):
    """Rows in the order in which they are packed.

    Attributes:
        order: [total] the row that each packed sample is.
        splits: ``train``, ``validation`` and ``test``: offset and length per party.
    """

    order: NDArray[np.intp]
    splits: dict[str, Split]


def split_rows(members: Sequence[NDArray[np.integer]], *, validation: float | Sequence[int],
               test: float | Sequence[int], seed: int, classes: NDArray[np.integer] | None = None) -> SplitRows:
    """Split the rows of each party at random.

    Args:
        members: the rows of each party.
        validation: share of each party's rows for validation; or the number of each party's rows that are for
            validation, the last ones before those for testing.
        test: share of each party's rows for testing; or the number of each party's last rows that are.
        seed: seed of the split. A party's split depends only on the seed, the party's number and its size.
        classes: [total] class of each row, of which every drawn split gets its share; None: rows are drawn regardless.

    Example:
        >>> order, splits = split_rows([np.arange(5), np.arange(5, 9)], validation=0, test=0.4, seed=0)
        >>> order.tolist(), splits["test"].length.tolist()
        ([2, 4, 3, 0, 1, 8, 5, 7, 6], [2, 2])
    """
    orders: list[NDArray[np.intp]] = []
    lengths = np.zeros((len(SPLITS), len(members)), np.int32)
    for k, rows in enumerate(members):
        fixed = [0 if isinstance(of_split, float | int) else of_split[k] for of_split in (validation, test)]
        drawn, chosen, tested = np.split(rows, np.cumsum([len(rows) - sum(fixed), fixed[0]]))
        shares = [of_split if isinstance(of_split, float | int) else 0.0 for of_split in (validation, test)]
        sizes = split_sizes(len(drawn), *shares) if len(drawn) else (0, 0, 0)
        order = drawn[split_order(len(drawn), k, seed) if classes is None else
                      split_by_class(classes[drawn], sizes, k, seed)]
        train, for_validation, for_test = np.split(order, np.cumsum(sizes[:-1]))
        lengths[:, k] = np.add(sizes, (0, *fixed))
        orders.append(np.concatenate([train, for_validation, chosen, for_test, tested]))
    return SplitRows(np.concatenate(orders), consecutive_splits(lengths))


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The samples of N parties, packed.

    Attributes:
        x: inputs, party by party: an array [total, ...], or a dict or a named tuple of such arrays.
        y: labels of the same form, such as class numbers 0..classes-1 or real targets [total]; None if there are none.
        splits: ``train``, ``validation`` and ``test``: offset and length per party.
        parties: the parties' names, in order.
        task: ``classification``: one class number per sample; ``regression``: real targets [total] or [total, d];
            ``structured``: labels of another structure, such as tokens, several 0/1 labels or none. Only the loss knows
            what they mean.
        classes: the classes' names, in the order of their numbers; empty for regression.
        features: the names of the inputs' columns; empty if they have no names.
        name: the name of the data set, for reports.
        notes: facts for the reader of a report, such as which party is an outlier or what was imputed.
        vocabulary: the words or characters that the tokens 0, 1, ... stand for, if inputs are sequences of tokens.
            Such inputs stay integers; all others become floating numbers.
        encoding: how the inputs were made, fitted to the training rows; None for plain arrays, see `encoding_of`.
        weights: [total] weight of each sample in the loss, with the mean 1 over all training samples; None: all 1.
        fixed: the splits whose samples were chosen by the source of the data and not drawn.
        unencoded: the columns of a table, from which another split is encoded again; None for plain arrays.

    Raises:
        InputError: there is a vocabulary, and inputs are not integers of its range.

    Example:
        >>> data = rv.FederatedData.from_arrays([np.zeros((10, 4)), np.ones((20, 4))], [[0, 1] * 5, [0, 1] * 10])
        >>> len(data), data.input_shape, data.sizes().tolist()
        (2, (4,), [6, 12])
    """

    x: Any
    y: Any
    splits: Mapping[str, Split]
    parties: Sequence[str]
    task: Task
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    name: str = "data"
    notes: tuple[str, ...] = field(default=())
    vocabulary: tuple[str, ...] = ()
    encoding: "Encoding | None" = None
    weights: NDArray[np.float32] | None = None
    fixed: tuple[str, ...] = ()
    unencoded: "UnencodedRows | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.vocabulary:
            if not hasattr(self.x, "dtype"):
                raise InputError("a vocabulary is for inputs that are one array: leave it out, because integers of a "
                                 "structure stay integers")
            if self.x.dtype.kind not in "iu":
                raise InputError(f"inputs of type {shorten(self.x.dtype)} cannot be tokens of a vocabulary: "
                                 "give integers")
            if self.x.size and not 0 <= int(self.x.min()) <= int(self.x.max()) < len(self.vocabulary):
                raise InputError(f"the inputs hold tokens {self.x.min()} to {self.x.max()}, but the vocabulary has "
                                 f"{len(self.vocabulary)}: they are numbered 0 to {len(self.vocabulary) - 1}")

    def __repr__(self) -> str:
        return (f"FederatedData({quote(self.name)}, {len(self)} parties, {sum(self.sizes())} training samples, "
                f"inputs {trees.shape_text(self.x)}, {self._kind()})")

    def _kind(self) -> str:
        """The task and the labels in a few words."""
        if self.task == "classification":
            return f"{len(self.classes)} classes"
        return self.task if self.label_shape == () else f"{self.task}, labels {trees.shape_text(self.y)}"

    def _repr_html_(self) -> str:
        from resolvent.data.html_tables import html_facts, html_table  # for notebooks

        facts = {"parties": len(self), "task": self.task, "inputs": trees.shape_text(self.x),
                 **({} if self.label_shape == () else {"labels": trees.shape_text(self.y)}),
                 **({"classes": shorten(", ".join(self.classes))} if self.classes else {})}
        rows = [[name, *(int(split.length[k]) for split in self.splits.values())]
                for k, name in enumerate(self.parties[:_MAX_HTML_ROWS + 1])]
        more = f"<p>The first of {len(self)} parties.</p>" if len(self) > _MAX_HTML_ROWS else ""
        return (html_facts(self.name, facts) + html_table(["party", *self.splits], rows[:_MAX_HTML_ROWS]) + more)

    def __len__(self) -> int:
        return len(self.parties)

    @property
    def total(self) -> int:
        """The number of samples of all parties and splits."""
        return count_rows(self.x)

    @property
    def is_in_memory(self) -> bool:
        """Whether all samples are in the memory of this process, and not on the disk or in another process."""
        return trees.is_in_memory(self.x, self.y)

    @property
    def input_shape(self) -> Any:
        """The shape of one input, without the axis of the samples; for structures, the structure with tuples."""
        return trees.shapes_of_samples(self.x)

    @property
    def label_shape(self) -> Any:
        """The shape of one label, as ``input_shape``; None if there are no labels."""
        return trees.shapes_of_samples(self.y)

    @property
    def outputs(self) -> int:
        """The number of outputs that a model needs: one per class or per target.

        For structured labels it is the number of classes if they have names, and otherwise of the numbers in a label.
        """
        if self.classes or self.task == "classification":
            return len(self.classes)
        return sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(self.y)) or 1

    def sizes(self, split: str = "train") -> NDArray[np.int32]:
        """[N] number of samples of each party in ``split``."""
        return self.splits[split].length

    @property
    def is_train(self) -> NDArray[np.bool_]:
        """[total] whether a sample is for training."""
        is_train = np.zeros(self.total, bool)
        is_train[self.splits["train"].rows] = True
        return is_train

    def rows_of(self, k: int, *splits: str) -> NDArray[np.intp]:
        """The rows of party k's samples in these splits, one split after the other; default: in all splits."""
        chosen = [self.splits[s] for s in splits or SPLITS]
        return np.concatenate([np.arange(s.offset[k], s.offset[k] + s.length[k]) for s in chosen])

    def party(self, party: int | str, split: str = "train") -> tuple[Any, Any]:
        """One party's inputs and labels in ``split``, by its number or name.

        Raises:
            InputError: there is no such party.
        """
        k = self.index(party)
        start, length = int(self.splits[split].offset[k]), int(self.splits[split].length[k])
        x, y = rows_of_tree((self.x, self.y), slice(start, start + length))
        return x, y

    def index(self, party: int | str) -> int:
        """The number of a party, from its name or its number.

        Raises:
            InputError: there is no such party.
        """
        if isinstance(party, str):
            if party not in self.parties:
                raise InputError(f"there is no party {shorten(repr(party))}{nearest(party, self.parties[:1000])}")
            return self.parties.index(party)
        if not 0 <= party < len(self):
            raise InputError(f"there is no party {party}: they are numbered 0 to {len(self) - 1}")
        return int(party)

    def summary(self) -> "pd.DataFrame":
        """A row per party with its number of samples in each split and, for classification, of each class."""
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

    def with_notes(self, *notes: str) -> "FederatedData":
        """The same data with these notes added."""
        return replace(self, notes=(*self.notes, *notes))

    def reordered(self, rows: NDArray[np.intp], splits: Mapping[str, Split] | None = None) -> "FederatedData":
        """The same samples in another order, whose weights have the mean 1 over the new training samples.

        Args:
            rows: [total] the row that each sample has now.
            splits: the splits in the new order; None: offsets and lengths stay.
        """
        unencoded = None if self.unencoded is None else self.unencoded.reordered(rows)
        x, y = rows_of_tree((self.x, self.y), rows)
        data = replace(self, x=x, y=y, splits=self.splits if splits is None else splits, weights=None,
                       unencoded=unencoded)
        return data if self.weights is None else data.with_weights(self.weights[rows])

    def with_weights(self, weights: ArrayLike) -> "FederatedData":
        """The same data with a weight of each sample in the loss, as if sample i occurred weights[i] times.

        Every party's objective is f_k(w) = (1/n_k) sum_i s_i loss_i(w), and s are the weights divided by their mean
        over all training samples. Scores and metrics count every sample once.

        Args:
            weights: [total] not negative, in the order of the rows of ``x``.

        Raises:
            InputError: a weight is negative or not finite, or their number is wrong.
        """
        return replace(self, weights=normalized_weights(weights, self.total, self.splits["train"].rows))

    def with_class_weights(self, weights: ClassWeights) -> "FederatedData":
        """The same data with a weight of each sample in the loss that depends on its class.

        Weights that the data have already are multiplied.

        Args:
            weights: ``balanced``: n / (K n_c) with the n_c training samples of class c in all parties, so that every
                class counts the same in the federation. ``balanced_per_party``: the same with the numbers of each
                party, so that every class counts the same in each party. Or the weight of each class by name.

        Raises:
            InputError: the data are for regression or on the disk, or a class does not exist or has no weight.

        Example:
            >>> data = FederatedData.from_arrays([np.eye(4)], [["a", "a", "a", "b"]], validation=0, test=0)
            >>> data.with_class_weights("balanced").weights[data.y == 1].tolist()
            [2.0]
        """
        if self.task != "classification" or not isinstance(self.y, np.ndarray):
            kind = "on the disk" if self.task == "classification" else f"for {self.task}"
            raise InputError(f"class_weight: it is for classes of data in memory, and the data {quote(self.name)} are "
                             f"{kind}: use weights of samples, or leave it out")
        labels = self.y.astype(np.int64)
        parties = np.zeros(len(labels), np.int64)
        for split in self.splits.values():
            parties[split.rows] = np.repeat(np.arange(len(self)), split.length)
        samples = np.ones(len(labels)) if self.weights is None else self.weights.astype(np.float64)
        return self.with_weights(class_weights(labels, self.classes, samples, parties, self.splits["train"].rows,
                                               weights))

    @classmethod
    def from_arrays(
        cls,
        x: Sequence[Any],
        y: Sequence[Any] | None = None,
        *,
        parties: Sequence[str] | None = None,
        task: Task | Literal["auto"] = "auto",
        validation: float | Sequence[int] = 0.2,
        test: float | Sequence[int] = 0.2,
        stratified: bool = False,
        seed: int = 0,
        name: str = "data",
        features: Sequence[str] = (),
        classes: Sequence[str] | None = None,
        vocabulary: tuple[str, ...] = (),
        weights: Sequence[ArrayLike] | None = None,
    ) -> "FederatedData":
        """Data from the inputs and the labels of each party, split at random within each party.

        Args:
            x: inputs of each party, of one common shape: an array [n_k, ...], or a dict or named tuple of such arrays.
                Floating numbers of a structure become those of the training; its integers and booleans stay.
            y: labels of each party: [n_k], or several numbers per sample, or a structure as for x; None: no labels.
            parties: the parties' names; default ``party 0``, ``party 1``, ...
            task: ``classification``, ``regression``, ``structured``, or ``auto``: regression if labels are one array of
                floating numbers, classification if they are one integer, boolean or text per sample, and structured
                otherwise.
            validation: share of each party's samples for validation. Or one number per party, if the samples are fixed:
                this many, the last ones before those for testing.
            test: share of each party's samples for testing. Or one number per party, if the samples are fixed: this
                many of its last samples are for testing. A party of which all are, such as a central test set or a new
                party, does not train: it has the weight 0 by size, and every evaluation has its score. Put such
                parties last if cohorts are drawn, with ``rv.participation.Uniform(cohort, among=)``.
            stratified: draw the splits so that each of them has its share of every class of a party.
            seed: seed of the split. A party's split depends only on the seed, the party's number and its size.
            name: the name of the data set, for reports.
            features: names of the inputs' columns.
            classes: the labels in the order of their class numbers; default: the labels that occur, sorted.
            vocabulary: the words or characters that the tokens 0, 1, ... stand for, if inputs are sequences of tokens.
            weights: weights [n_k] of each party's samples in the loss, see ``with_weights``; default: all equal.

        Raises:
            InputError: an argument is of a wrong kind, shapes differ, a party has no samples, or a value is missing,
                masked, not finite, or infinite in the precision of the training. The message names the party and the
                row.

        Example:
            >>> data = FederatedData.from_arrays([np.eye(3), np.ones((5, 3))], [[0, 1, 0], [1, 1, 0, 1, 0]], test=0.4)
            >>> len(data), data.sizes("train").tolist(), data.sizes("test").tolist()
            (2, [1, 2], [1, 2])
            >>> FederatedData.from_arrays([{"a": np.zeros((5, 8, 8)), "b": np.zeros(5)}], [np.eye(5, dtype=int)])
            FederatedData('data', 1 parties, 3 training samples, inputs {a: [8, 8], b: []}, structured, labels [5])
        """
        validation, test = plain_counts(validation), plain_counts(test)
        check_arguments(cls.from_arrays, (), {"task": task, "validation": validation, "test": test,
                                              "stratified": stratified, "seed": seed, "name": name,
                                              "vocabulary": vocabulary})
        check_name(name, "the name of the data")
        names = (tuple(f"party {k}" for k in range(len(list_of(x, "x")))) if parties is None else
                 texts_of(parties, "parties"))
        xs = trees.of_parties(x, "x", names)
        ys = [None] * len(xs) if y is None else trees.of_parties(y, "y", names)
        feature_names = texts_of(features, "features")
        classes = None if classes is None else list_of(classes, "classes")
        if names:
            check_parties(names)
        if not len(xs) == len(ys) == len(names) or not names:
            raise InputError(f"from_arrays(x, y): there are inputs for {len(xs)} parties, labels for {len(ys)} and "
                             f"{len(names)} names; give one of each per party, and at least one party")
        for party, inputs, labels in zip(names, xs, ys, strict=True):
            trees.check_samples(party, inputs, labels, xs[0], ys[0])
        shape = trees.shapes_of_samples(xs[0])
        if feature_names and shape != (len(feature_names),):
            raise InputError(f"there are {len(feature_names)} names of features for inputs of shape {shape}: give one "
                             "name per column, or none")
        sizes = [count_rows(a) for a in xs]
        fixed = {split: counts for split, counts in (("validation", validation), ("test", test))
                 if isinstance(counts, Sequence)}
        for split, counts in fixed.items():
            check_fixed(split, counts, sizes)
        check_trained(names, sizes, validation, test)
        packed, class_task, class_names = trees.label_arrays(ys, task, classes, names)
        for text in class_names:
            check_name(text, "the name of a class")
        members = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        order, splits = split_rows(members, validation=validation, test=test, seed=seed,
                                   classes=strata(packed, class_task) if stratified else None)
        x, y = rows_of_tree((concatenate(xs), packed), order)
        data = cls(x, y, splits, names, class_task, class_names, feature_names, name, vocabulary=vocabulary,
                   fixed=tuple(fixed))
        if weights is None:
            return data
        of_samples = trees.weights_of_parties(weights, names, sizes)
        return data.with_weights(np.concatenate(of_samples)[order])
