"""The encoding of rows that are not a table: arrays, images of 0 to 255, texts and sequences of tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.data.encoded_rows import EncodedRows, Encoding, Remarks, RowNames, check_once, count_far, is_far
from resolvent.data.images_text.tokens import UNKNOWN, split_words
from resolvent.data.sample_trees import sample_of
from resolvent.data.samples import Task
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.math.tree import count_rows, named_leaves

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ArrayEncoding", "PixelScaling"]

TextUnit = Literal["characters", "words"]
_WHITE = 255


@dataclass(frozen=True)
class PixelScaling:
    """How images of 0 to 255 become inputs: p/255, or (p - mean) / deviation, both in units of p.

    Attributes:
        mean: mean of each pixel, or one number for all pixels; empty: inputs are p/255.
        deviation: standard deviation of each pixel, or one number for all pixels; empty: inputs are p/255.
    """

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def to_unit(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """Pixels from 0 (black) to 255 (white) as numbers in [0, 1]: p/255."""
        unit: NDArray[np.float32] = np.divide(pixels, _WHITE, dtype=np.float32)
        return unit

    def standardise(self, unit: NDArray[np.float32]) -> NDArray[np.float32]:
        """(u - mean/255) / (deviation/255) for each pixel u in [0, 1]; unchanged without mean and deviation."""
        if not self.mean:
            return unit
        shape = () if len(self.mean) == 1 else unit.shape[1:]
        mean, deviation = (np.reshape(part, shape) for part in (self.mean, self.deviation))
        scaled: NDArray[np.float32] = np.subtract(unit, mean / _WHITE, dtype=np.float32)
        scaled /= (deviation / _WHITE).astype(np.float32)
        return scaled


@dataclass(frozen=True)
class ArrayEncoding(Encoding):
    """How arrays, images or texts become inputs; inputs of several arrays, such as a dict, stay as they are.

    Attributes:
        shape: shape of one input.
        label_task: classification or regression.
        class_names: the classes' names, in the order of their numbers.
        names: the names of the inputs, if they have names.
        tokens: the texts of the tokens 0, 1, ..., if inputs are sequences of tokens.
        low: smallest training input; None if it is not known.
        high: largest training input; None if it is not known.
        pixels: how images of 0 to 255 are scaled; None if inputs are not made from such images.
        text: what a token stands for, if texts can be encoded; None if only sequences of tokens can.
        targets: number of real targets of a row, for regression.
        arrays: of inputs of several arrays, the path, the shape and the kind of each: ``floating`` or ``integer``.
    """

    shape: tuple[int, ...]
    label_task: Task
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    pixels: PixelScaling | None = None
    text: TextUnit | None = None
    targets: int = 1
    arrays: tuple[tuple[str, tuple[int, ...], str], ...] = ()

    @property
    @override
    def outputs(self) -> int:
        return len(self.classes) if self.task == "classification" else self.targets

    @property
    @override
    def task(self) -> Task:
        return self.label_task

    @property
    @override
    def classes(self) -> tuple[str, ...]:
        return self.class_names

    @property
    @override
    def features(self) -> tuple[str, ...]:
        return self.names

    @property
    @override
    def input_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    @override
    def vocabulary(self) -> tuple[str, ...]:
        return self.tokens

    @override
    def encode(self, rows: Any) -> EncodedRows:
        """Encode arrays, images or texts.

        Args:
            rows: [n, ...] numbers; of images with a ``PixelScaling`` integers of 0 to 255; of data with a vocabulary
                the tokens, or a list of n texts; of inputs with names also a data frame with these columns; of inputs
                of several arrays a structure as that of the training rows.

        Raises:
            InputError: the rows have another shape or type, or a number is not finite or not a token.
        """
        import pandas as pd

        if self.arrays:
            x = self._checked_structure(rows)
            return EncodedRows(x, pd.RangeIndex(count_rows(x)), Remarks(count_rows(x)))
        index: pd.Index[Any] = pd.RangeIndex(len(rows))
        unused: tuple[str, ...] = ()
        if isinstance(rows, pd.DataFrame):
            index = rows.index
            rows, unused = self._from_frame(rows)
        unknown = 0
        if self.text is not None and not isinstance(rows, np.ndarray) and all(isinstance(r, str) for r in rows):
            values, unknown = self._from_texts(rows, RowNames(index))
        else:
            values = np.asarray(rows)
        self._check(values, RowNames(index))
        if self.pixels is not None:
            x = self.pixels.standardise(self.pixels.to_unit(values))
        else:
            x = values if self.tokens else values.astype(np.float32)
        far = count_far(is_far(x, self.low, self.high), x, self.low, self.high)
        remarks = Remarks(len(x), unused=unused, far=() if far is None else (("input", far),), unknown=unknown)
        return EncodedRows(x, index, remarks)

    def _checked_structure(self, rows: Any) -> Any:
        """Several arrays, with floating numbers in single precision."""
        x = sample_of(rows, "the rows", "of new rows")
        leaves = dict(named_leaves(x))
        expected = {name: (shape, kind) for name, shape, kind in self.arrays}
        if leaves.keys() != expected.keys():
            names = ", ".join(name or "without a name" for name in leaves)
            raise InputError(f"the rows have the arrays {shorten(names)}, and the model was fitted to "
                             f"{shorten(', '.join(expected))}: give these")
        count = len(next(iter(leaves.values())))
        for name, leaf in leaves.items():
            shape, kind = expected[name]
            if leaf.shape != (count, *shape) or not count:
                raise InputError(f"{quote(name)} has shape {list(leaf.shape)}, and the model was fitted to "
                                 f"[n{''.join(f', {size}' for size in shape)}], with n at least 1 and the same for all "
                                 "arrays")
            if leaf.dtype.kind not in ("biuf" if kind == "floating" else "biu"):
                raise InputError(f"{quote(name)} has type {shorten(leaf.dtype)}, and the model needs "
                                 f"{'numbers' if kind == 'floating' else 'integers'}: convert it")
            if not np.isfinite(leaf).all():
                raise InputError(f"{quote(name)} has a value that is not finite: correct it, or leave the row out")
        is_floating = [expected[name][1] == "floating" for name in leaves]
        return jax.tree.unflatten(jax.tree.structure(x), [
            leaf.astype(np.float32) if of_floats else leaf
            for leaf, of_floats in zip(leaves.values(), is_floating, strict=True)])

    def _from_frame(self, frame: "pd.DataFrame") -> tuple[NDArray[Any], tuple[str, ...]]:
        """The columns that have the names of the inputs, and the names of the other columns."""
        columns = [str(c) for c in frame.columns]
        if not self.names:
            raise InputError("the rows are a table, and the model was fitted to arrays without names: give an array "
                             f"[n, {', '.join(map(str, self.shape))}]")
        counts = Counter(columns)
        for name in self.names:
            check_once(name, counts, "which the model needs once")
        positions = [columns.index(name) for name in self.names]
        unused = tuple(c for c in columns if c not in set(self.names))
        return frame.iloc[:, positions].to_numpy(), unused

    def _from_texts(self, texts: Sequence[str], rows: RowNames) -> tuple[NDArray[np.int32], int]:
        """[n, length] the tokens of texts, and the number of those that are not in the vocabulary."""
        number_of = {text: i for i, text in enumerate(self.tokens)}
        substitute = number_of.get(UNKNOWN if self.text == "words" else " ", -1)
        length, unknown = self.shape[0], 0
        values = np.zeros((len(texts), length), np.int32)  # words are padded in front by token 0
        for i, text in enumerate(texts):
            units = split_words(text)[:length] if self.text == "words" else list(text)
            if self.text == "characters" and len(units) != length:
                raise InputError(f"row {rows.index[i]}: the text has {len(units)} characters, and the model was fitted "
                                 f"to texts of {length}: give its last {length} characters")
            missing = sum(unit not in number_of for unit in units)
            if missing and substitute < 0:
                raise InputError(f"row {rows.index[i]}: the text has characters that are not in the vocabulary: remove "
                                 "them")
            unknown += missing
            values[i, length - len(units):] = [number_of.get(unit, substitute) for unit in units]
        return values, unknown

    def _check(self, values: NDArray[Any], rows: RowNames) -> None:
        kind = "tokens" if self.tokens else "numbers"
        if values.dtype.kind not in ("iu" if self.tokens or self.pixels is not None else "biuf"):
            wanted = "integers of 0 to 255, as image files have" if self.pixels is not None else (
                "integers" if self.tokens else "numbers")
            raise InputError(f"the rows have type {shorten(values.dtype)}, and the model needs {wanted}: convert them")
        if values.shape[1:] != self.shape or not len(values):
            shape = f"[n, {', '.join(map(str, self.shape))}]"
            raise InputError(f"the rows have shape {shorten(values.shape)}, and the model was fitted to {kind} of "
                             f"shape {shape}, with n at least 1: give one input per row")
        largest = len(self.tokens) - 1 if self.tokens else _WHITE if self.pixels is not None else None
        wrong = ~np.isfinite(values) if largest is None else (values < 0) | (values > largest)
        if wrong.any():
            i = int(np.argwhere(wrong)[0, 0])
            allowed = "finite numbers" if largest is None else f"0 to {largest}"
            raise InputError(f"row {rows.index[i]}: the value {values[wrong][0]} is not allowed; allowed are "
                             f"{allowed}: correct it, or leave the row out")

    @override
    def encode_labels(self, rows: Any, labels: Any = None) -> NDArray[Any]:
        if labels is None:
            raise InputError("arrays have no label column: give the labels, one per row")
        if self.task == "structured":
            structured: NDArray[Any] = sample_of(labels, "the labels", "of the rows")
            return structured
        values, count = np.asarray(labels), count_rows(rows) if self.arrays else len(rows)
        if values.shape != (count,) and (self.targets == 1 or values.shape != (count, self.targets)):
            raise InputError(f"the labels have shape {shorten(values.shape)} for {count} rows: give one per row")
        if self.task == "regression":
            if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
                raise InputError("the labels must be finite numbers: correct them")
            return values.astype(float)
        number_of = {name: i for i, name in enumerate(self.classes)}
        for i, label in enumerate(values):
            if str(label) not in number_of:
                raise InputError(f"row {i}: the label {shorten(repr(str(label)))} is not among the classes "
                                 f"{shorten(', '.join(map(repr, self.classes)))}{nearest(str(label), self.classes)}: "
                                 "give the names of classes")
        return np.array([number_of[str(label)] for label in values], np.int32)

    @override
    def decode_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        return np.array(self.classes)[y] if self.task == "classification" else y
