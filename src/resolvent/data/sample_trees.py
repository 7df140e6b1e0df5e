"""Samples of any structure: pytrees of arrays with one leading axis, of which a single array is the simplest.

The inputs ``x`` of a party, and its labels ``y``, are an array [n, ...]; or a dict or a named tuple of such arrays, in
which others may be nested. ``y`` is None if there are no labels.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.samples import Task, array_of, check_representable, list_of, number_labels
from resolvent.errors import InputError, check_range, nearest, quote, shorten
from resolvent.math.tree import concatenate, count_rows, named_leaves

Labels = str | Callable[[Any, Any], Any]


def is_structure(values: Any) -> bool:
    """Whether values are a dict, a named tuple or a dataclass of JAX, and not something that NumPy makes an array of.

    A plain tuple or list is no structure, but the rows of an array.
    """
    return isinstance(values, Mapping) or hasattr(type(values), "_fields") or (
        dataclasses.is_dataclass(values) and not jax.tree_util.all_leaves([values]))


def sample_of(values: Any, title: str, party: str) -> Any:
    """One party's inputs or labels, whose leaves are NumPy arrays.

    Args:
        values: a structure of anything that NumPy makes an array of.
    """
    if not is_structure(values):
        return array_of(values, title, party)
    values = dict(values) if isinstance(values, Mapping) else values
    if isinstance(values, dict) and (wrong := [key for key in values if not isinstance(key, str)]):
        raise InputError(f"{title}: party {shorten(repr(party))} has a dict with the key {quote(wrong[0])}: use texts "
                         "as names of arrays")
    children, structure = jax.tree_util.tree_flatten_with_path(values, is_leaf=lambda v: v is not values)
    if not children:
        raise InputError(f"{title}: party {shorten(repr(party))} has an empty structure: give at least one array")
    leaves = [sample_of(leaf, f"{title}{jax.tree_util.keystr(path)}", party) for path, leaf in children]
    return jax.tree.unflatten(structure, leaves)


def check_samples(party: str, x: Any, y: Any, first_x: Any, first_y: Any) -> None:
    """Check one party's samples, if inputs or labels are not a single array of the usual kind.

    Args:
        x: its inputs, as ``sample_of`` returned them.
        y: its labels, in the same way; or None.
        first_x: the inputs of the first party, whose structure and shapes all parties share.
    """
    title = f"party {shorten(repr(party))}"
    rows = count_rows(x)
    if not rows:
        raise InputError(f"{title} has no samples: leave it out, or merge it with another")
    for kind, values, first in (("input", x, first_x), ("label", y, first_y)):
        structure: Any = jax.tree.structure(values)
        if structure != jax.tree.structure(first):
            raise InputError(f"{title} has {kind}s of another structure than the first party's: "
                             f"{_described(values)} instead of {_described(first)}")
        leaves: list[tuple[str, Any]] = named_leaves(values)
        for (name, leaf), like in zip(leaves, jax.tree.leaves(first), strict=True):
            of_leaf, suffix = f"the {kind}{f' {quote(name)}' if name else ''}", f" {quote(name)}" if name else ""
            if len(leaf) != rows or (kind == "label" and leaf.shape[1:] != like.shape[1:]):
                raise InputError(f"{title} has {rows} inputs but {kind}s{suffix} of shape {leaf.shape}: give one "
                                 f"{kind} per input{_first_shape(like)}")
            if leaf.shape[1:] != like.shape[1:]:
                raise InputError(f"{title} has inputs{suffix} of shape {leaf.shape[1:]}, the first party's inputs have "
                                 f"shape {like.shape[1:]}: give all inputs one shape")
            if kind == "label" and not name and leaf.ndim == 1:
                check_representable(party, leaf, of_leaf)
                continue  # class names or targets, which ``number_labels`` checks
            if leaf.dtype.kind not in "biuf":
                raise InputError(f"{title} has {kind}s{suffix} of type {shorten(leaf.dtype)}: {kind}s must be numbers")
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                row = int(np.argwhere(~np.isfinite(leaf))[0, 0])
                raise InputError(f"{title}, row {row}: {of_leaf} has a value that is not finite: correct it, or leave "
                                 "the row out")
            check_representable(party, leaf, of_leaf)


def _first_shape(like: NDArray[Any]) -> str:
    """The shape that the labels of the first party have, for errors; nothing for one number per sample."""
    return f", each of the first party's shape {like.shape[1:]}" if like.ndim > 1 else ""


def _described(values: Any) -> str:
    if values is None:
        return "none"
    return shorten(", ".join(name or "one array" for name, _ in named_leaves(values)))


def shapes_of_samples(values: Any) -> Any:
    """The shape of one sample without its leading axis: a tuple for an array, otherwise the structure with tuples."""
    return jax.tree.map(lambda leaf: tuple(leaf.shape[1:]), values)


def shape_text(values: Any) -> str:
    """The shape of one sample, such as ``[8, 8]`` or ``{age: [], image: [8, 8]}``."""
    if values is None:
        return "none"
    leaves = named_leaves(values)
    if len(leaves) == 1 and not leaves[0][0]:
        return str(list(leaves[0][1].shape[1:]))
    return "{" + shorten(", ".join(f"{name}: {list(leaf.shape[1:])}" for name, leaf in leaves)) + "}"


def of_parties(values: Any, name: str, parties: Sequence[str]) -> list[Any]:
    """The inputs, the labels or the weights of each party; ``name`` is the argument in errors."""
    return [sample_of(item, f"from_arrays({name}=...)", parties[k] if k < len(parties) else str(k))
            for k, item in enumerate(list_of(values, name))]


def weights_of_parties(weights: Any, parties: Sequence[str], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """The weights of each party's samples."""
    of_samples = of_parties(weights, "weights", parties)
    if [getattr(a, "shape", None) for a in of_samples] != [(n,) for n in sizes]:
        raise InputError("the parties' weights and samples differ in number: give each sample a weight")
    if any(a.dtype.kind not in "biufO" for a in of_samples):
        raise InputError("the parties' weights must be numbers")
    return of_samples


def label_arrays(ys: list[Any], task: Task | Literal["auto"], classes: Sequence[str] | None,
                  parties: Sequence[str]) -> tuple[Any, Task, tuple[str, ...]]:
    """All parties' labels, the task and the classes' names, see ``number_labels``."""
    if isinstance(ys[0], np.ndarray):
        return number_labels(ys, task, classes, parties)
    if task not in ("auto", "structured"):
        raise InputError(f"task={quote(task)} needs one array of labels, and there are "
                         f"{'no labels' if ys[0] is None else 'several'}: use task='structured', or leave it out")
    return concatenate(ys), "structured", () if classes is None else tuple(map(str, classes))


def is_in_memory(*values: Any) -> bool:
    """Whether all leaves are NumPy arrays, and none is on disk or of another process."""
    return all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(values))


def leaf_of(x: Any, y: Any, name: str) -> Any:
    """The leaf of a name, such as ``image`` or ``meta.age``; ``x`` and ``y`` are the inputs and the labels themselves.

    A name that inputs and labels share is written with ``x.`` or ``y.`` before it.
    """
    leaves = {f"{part}.{path}" if path else part: leaf
              for part, values in (("x", x), ("y", y)) for path, leaf in named_leaves(values)}
    chosen = [key for key in leaves if key == name or key.split(".", 1)[-1] == name]
    if len(chosen) != 1:
        names = ", ".join(leaves)
        problem = "there is no array" if not chosen else f"{' and '.join(chosen)} are both"
        raise InputError(f"{problem} {quote(name)}; there are {names}{nearest(name, leaves)}: use one of these names")
    return leaves[chosen[0]]


def labels_for(x: Any, y: Any, by: Labels | None) -> NDArray[Any] | None:
    """[n] what a partition reads as labels: a leaf, or the values of a function of the inputs and the labels.

    Args:
        by: name of a leaf, see ``leaf_of``, or a function (x, y) -> [n]; None: the labels, if they are one array [n].

    Returns:
        The labels; None if ``by`` is None, and the labels have another structure.
    """
    if by is None:
        return y if isinstance(y, np.ndarray) and y.ndim == 1 else None
    values = np.asarray(leaf_of(x, y, by) if isinstance(by, str) else by(x, y))
    if values.shape != (count_rows(x),):
        raise InputError(f"by={quote(by)} has the shape {values.shape} for {count_rows(x)} samples: give one value per "
                         "sample, such as a function that makes one")
    return values


@checked
def pad_sequences(sequences: Sequence[Any], length: int | None = None, *,
                  padding: float = 0) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Sequences of different length as one array, with a mask.

    Args:
        sequences: n sequences, each an array [length, ...].
        length: length of all rows, at least that of the longest sequence; default: that of the longest one.
        padding: the value after the end of a sequence.

    Returns:
        The sequences [n, length, ...], and the mask [n, length], which is true for their elements.

    Raises:
        InputError: there is no sequence, something is no sequence, or one is longer than ``length``.

    Example:
        >>> rows, mask = rv.datasets.pad_sequences([[1, 2, 3], [4]], padding=-1)
        >>> rows.tolist(), mask.sum(axis=1).tolist()
        ([[1, 2, 3], [4, -1, -1]], [3, 1])
    """
    arrays = [np.asarray(sequence) for sequence in sequences]
    if not arrays or any(array.ndim == 0 for array in arrays):
        raise InputError("pad_sequences(sequences=...) needs at least one sequence, each an array [length, ...]")
    check_range("pad_sequences", "[1, inf)", length=length)
    longest = max(map(len, arrays))
    length = longest if length is None else length
    if longest > length:
        raise InputError(f"pad_sequences: a sequence has {longest} elements, more than length={length}: cut it, or use "
                         "a larger length")
    dtype = np.result_type(*arrays) if isinstance(padding, int) else np.result_type(*arrays, np.float32)
    rows = np.full((len(arrays), length, *arrays[0].shape[1:]), padding, dtype)
    for row, sequence in zip(rows, arrays, strict=True):
        row[:len(sequence)] = sequence
    return rows, np.arange(length) < np.array([len(a) for a in arrays])[:, None]
