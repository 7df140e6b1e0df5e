"""A fitted model: a model, its parameters and the encoding of its inputs, which predicts for new rows.

It needs no training data and no other party, so a party can use it where its own rows are.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

from resolvent.data.encoded_rows import EncodedRows, Encoding, Remarks, UnusualRowsWarning
from resolvent.errors import InputError, shorten
from resolvent.math.tree import Vector
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy
from resolvent.problem.models.model import Model

__all__ = ["Fitted"]

_MAX_BLOCK = 1024  # rows that are predicted at a time


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model that can be used: it predicts for new rows as the data had them before the encoding.

    Rows that the encoding cannot represent (an absent column, a category without training rows, text for numbers) are
    refused. Rows that it can represent, but that differ from the training rows (values far outside their range,
    imputed values, columns that are not used), are predicted with an ``UnusualRowsWarning``.

    Attributes:
        model: the predictor and its loss.
        params: the trained parameters, as NumPy arrays.
        encoding: how rows become inputs.
        method: name of the method that trained it.
        site: name of the party whose personal model it is; None for the shared model.

    Raises:
        InputError: the model has another number of outputs than the data has classes.

    Example:
        >>> data = rv.datasets.synthetic(parties=2, features=3)
        >>> result = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.linear(3), data, rounds=2, progress=False)
        >>> result.fitted("party 1").predict(np.zeros((4, 3))).shape
        (4,)
    """

    model: Model
    params: Vector
    encoding: Encoding
    method: str = "run"
    site: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", jax.tree.map(np.asarray, self.params))  # which keep their precision anywhere
        x = jax.ShapeDtypeStruct((2, *self.encoding.input_shape),  # type: ignore[no-untyped-call]
                                 np.int32 if self.encoding.vocabulary else np.float32)
        with self._precision():
            outputs: Any = jax.eval_shape(self.model.apply, self.params, x)
        classes = len(self.encoding.classes)
        is_wrong = ((isinstance(self.model.loss, CrossEntropy) and outputs.shape[-1] != classes)
                    or (isinstance(self.model.loss, BinaryCrossEntropy) and classes != 2))
        if is_wrong:
            raise InputError(f"the model has outputs of shape {shorten(outputs.shape[1:])}, and the data have "
                             f"{classes} classes: build the model for that number of classes")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the columns of ``predict_proba``; empty for regression."""
        return self.encoding.classes

    def check(self, rows: Any) -> Remarks:
        """How rows differ from the training rows.

        Args:
            rows: as for `predict`.

        Raises:
            InputError: the rows cannot be encoded.
        """
        return self.encoding.encode(rows).remarks

    def predict(self, rows: Any) -> NDArray[Any]:
        """[n] the predicted labels, as the label column has them; for regression, numbers.

        Args:
            rows: a data frame with the columns of the table that the model was trained on, in any order; for other data
                an array [n, ...], images of 0 to 255, or texts.

        Raises:
            InputError: the rows cannot be encoded. The message names the row and the column.
        """
        return self.decode(self.outputs(rows))

    def predict_proba(self, rows: Any) -> NDArray[Any]:
        """[n, classes] the probability of each class of ``classes``.

        Args:
            rows: as for `predict`.

        Raises:
            InputError: the rows cannot be encoded, or the model is for regression.
        """
        return self.probabilities(self.outputs(rows))

    def evaluate(self, rows: Any, labels: Any = None) -> dict[str, float]:
        """The mean loss and the mean score on rows with known labels.

        Args:
            rows: as for `predict`.
            labels: [n] labels; default: the label column of the table.

        Returns:
            ``rows``, the number of rows; ``loss``; and the score under its name, such as ``accuracy``.

        Raises:
            InputError: the rows cannot be encoded; a label is missing or is none of the classes.
        """
        y = self.encoding.encode_labels(rows, labels)
        return self.score(self.outputs(rows), y)

    def score(self, outputs: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
        """The mean loss and the mean score of outputs, as `evaluate` returns them.

        Args:
            outputs: [n, ...] outputs of the model.
            y: [n] class numbers or targets.
        """
        with self._precision():
            loss, score = (float(np.mean(np.asarray(values), dtype=np.float64))
                           for values in _scores(self.model, jnp.asarray(outputs), jnp.asarray(y)))
        return {"rows": len(y), "loss": loss, self.model.loss.score_name: score}

    def outputs(self, rows: Any) -> NDArray[Any]:
        """[n, ...] the outputs of the model: logits, or predicted numbers.

        Args:
            rows: as for `predict`.

        Raises:
            InputError: the rows cannot be encoded.
        """
        encoded = self.encoding.encode(rows)
        for message in encoded.remarks.messages():
            warnings.warn(message, UnusualRowsWarning, stacklevel=3)
        return self.outputs_of(encoded)

    def outputs_of(self, encoded: EncodedRows) -> NDArray[Any]:
        """[n, ...] the outputs for rows that were encoded."""
        return self.outputs_of_inputs(encoded.x)

    def outputs_of_inputs(self, x: NDArray[Any]) -> NDArray[Any]:
        """[n, ...] the outputs for inputs of the model."""
        size = min(_MAX_BLOCK, 1 << (len(x) - 1).bit_length())
        with self._precision():
            dtype = x.dtype if self.encoding.vocabulary else np.result_type(*jax.tree.leaves(self.params))
            blocks = []
            for start in range(0, len(x), size):
                block = x[start:start + size]
                filled = np.concatenate([block, np.repeat(block[-1:], size - len(block), axis=0)])
                outputs = _apply(self.model, self.params, jnp.asarray(filled, dtype))
                blocks.append(np.asarray(outputs)[:len(block)])
        return np.concatenate(blocks)

    def probabilities(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """[n, classes] the probabilities that outputs mean.

        Raises:
            InputError: the model is for regression, or its loss defines no probabilities.
        """
        with self._precision():
            return np.asarray(self.model.loss.probabilities(jnp.asarray(outputs)))

    def decode(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """[n] the labels that outputs mean.

        Raises:
            InputError: the loss does not say what the outputs mean.
        """
        if self.encoding.task == "classification":
            if isinstance(self.model.loss, BinaryCrossEntropy):  # as its score: a logit of 0 is the first class
                return self.encoding.decode_labels((outputs.reshape(len(outputs)) > 0).astype(int))
            is_logits = isinstance(self.model.loss, CrossEntropy)
            return self.encoding.decode_labels(np.argmax(outputs if is_logits else self.probabilities(outputs), axis=1))
        if outputs.size != len(outputs):
            raise InputError(f"the model has outputs of shape {shorten(outputs.shape)}, and a prediction is one number "
                             "per row: use the outputs")
        return outputs.reshape(len(outputs))

    def to_onnx(self, path: Path | str, *, batch: int | None = None) -> None:
        """Write the model as an ONNX file, which other programs can use without this library.

        The input ``rows`` [n, features] has the numbers of the table as they are (NaN for a missing one), then 0/1 for
        every level of the categories and every mark, in the order of ``encoding.features``; scaling and imputation are
        part of the file. For images it has the pixels of 0 to 255, for sequences the tokens, for other data the array.
        The output is ``probabilities`` [n, classes], or ``prediction`` [n]. The metadata ``resolvent.inputs``,
        ``resolvent.classes`` and ``resolvent.encoding`` hold the names and the encoding as JSON. Nothing is checked
        when the file is used: unknown levels and values far from the training rows are the caller's to detect.

        Args:
            path: of the file.
            batch: the number of rows of every call of the file; default: any number. Some operations, such as the
                convolutions of the papers' networks, have a form in ONNX for a fixed number only.

        Raises:
            InputError: the packages of the extra ``onnx`` are not installed, an operation of the model has no form in
                ONNX, or the loss defines no probabilities.
        """
        from resolvent.problem.onnx_export import write_onnx

        write_onnx(Path(path), self, batch)

    def to_torch(self) -> Any:
        """The trained PyTorch module, in evaluation mode, of a model that ``rv.models.from_torch`` made.

        Its inputs are rows that were encoded, as those of `outputs_of_inputs`.
        ``torch.save(fitted.to_torch().state_dict(), "model.pt")`` writes its state dict.

        Raises:
            InputError: the model does not come from PyTorch.
        """
        from resolvent.problem.models.torch_models import torch_module

        return torch_module(self.model, self.params)

    def _precision(self) -> Any:
        """A context with the precision of the parameters."""
        return jax.enable_x64(any(np.dtype(leaf.dtype) == np.float64 for leaf in jax.tree.leaves(self.params)))


@jax.jit
def _scores(model: Model, outputs: Array, y: Array) -> tuple[Array, Array]:
    """[n] loss and score of each row."""
    return model.loss.loss(outputs, y), model.loss.score(outputs, y)


@jax.jit
def _apply(model: Model, params: PyTree[Any], x: Array) -> Array:
    outputs: Array = model.rewritten(model.apply)(params, x)
    return outputs
