"""A fitted model: a model, its parameters and the encoding of its inputs, which predicts for new rows.

It needs no training data and no other party, so a party can use it where its own rows are.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

from resolvent.data.encoded_rows import EncodedRows, Encoding, Remarks, UnusualRowsWarning
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.errors import DivergedError, InputError, quote, shorten
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.metrics.metric import Metric, name_metrics
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy
from resolvent.problem.models.model import Model
from resolvent.problem.models.stateful import params_of
from resolvent.tables.drift import TrainingRows, with_drift

if TYPE_CHECKING:  # few programs calibrate
    from resolvent.predict.calibration import Calibration
    from resolvent.predict.evaluation import Evaluation
    from resolvent.predict.threshold import Threshold

ClassWeight: TypeAlias = Literal["balanced"] | Mapping[str, float]

_MAX_BLOCK = 1024  # rows that are predicted at a time


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model that can be used: it predicts for new rows as the data had them before the encoding.

    Rows that the encoding cannot represent (an absent column, a category without training rows, text for numbers) are
    refused. Rows that it can represent, but that differ from the training rows (values far outside their range,
    imputed values, columns that are not used or have drifted), are predicted with an ``UnusualRowsWarning``.

    A model whose training diverged can be read but not used: every method that needs its outputs raises a
    ``DivergedError``.

    Attributes:
        model: the predictor and its loss.
        params: the trained parameters, as NumPy arrays.
        encoding: how rows become inputs.
        method: name of the method that trained it.
        site: name of the party whose personal model it is; None for the shared model.
        rounds: number of rounds that it was trained for; None if it is not known.
        provenance: one line about the rows that the model has seen, and the score on rows that it, or models like it,
            had not seen; empty if it is not known.
        training: a summary of the training rows, with which new rows are compared; None if there is none.
        calibration: the map of its logits after which its probabilities are calibrated, see ``resolvent model
            calibrate``;
            None: they are as they were trained.
        threshold: the probability from which on a class is predicted; None: the most probable class is predicted.

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
    rounds: int | None = None
    provenance: str = ""
    training: TrainingRows | None = None
    calibration: "Calibration | None" = None
    threshold: "Threshold | None" = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", jax.tree.map(np.asarray, self.params))  # which keep their precision anywhere
        if isinstance(self.encoding, ArrayEncoding) and self.encoding.arrays:
            return  # the structure of the inputs is not stored
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

    @property
    def raw(self) -> "Fitted":
        """The same model without calibration and threshold."""
        return replace(self, calibration=None, threshold=None)

    @property
    def adjustments(self) -> tuple[str, ...]:
        """A sentence about the calibration, and one about the threshold, if there are any."""
        calibration, threshold = self.calibration, self.threshold
        return (*(() if calibration is None or calibration.kind == "none" else
                  (f"The probabilities are calibrated ({calibration.title})",)),
                *(() if threshold is None else (f"The prediction is {threshold}",)))

    def check(self, rows: Any) -> Remarks:
        """How rows differ from the training rows.

        Args:
            rows: the inputs, as for `predict`.

        Raises:
            InputError: the rows cannot be encoded.
        """
        return self.encode(rows).remarks

    def encode(self, rows: Any) -> EncodedRows:
        """The inputs of rows, and how the rows differ from the training rows.

        Columns that are distributed otherwise than in the training rows are reported from 20 rows on: those of the
        site, if the model is that of a site.

        Args:
            rows: the inputs, as for `predict`.

        Raises:
            InputError: the rows cannot be encoded.
        """
        return with_drift(self.encoding.encode(rows), self.encoding, self.training, self.site)

    def predict(self, rows: Any) -> NDArray[Any]:
        """[n] the predicted labels, as the label column has them; for regression, numbers: [n, d] for several targets.

        For structured labels they are the classes that the loss defines, such as one per token or 0/1 for each of
        several labels, which for a table are as its columns have them; otherwise the outputs of the model.

        Args:
            rows: a data frame with the columns of the table that the model was trained on, in any order; for other data
                an array [n, ...], images of 0 to 255, texts, or a dict or named tuple as that of the training rows.

        Raises:
            InputError: the rows cannot be encoded. The message names the row and the column.
        """
        return self.decode(self.outputs(rows))

    def predict_proba(self, rows: Any) -> NDArray[Any]:
        """[n, classes] the probability of each class of ``classes``.

        Args:
            rows: the inputs, as for `predict`.

        Raises:
            InputError: the rows cannot be encoded, or the model is for regression.
        """
        return self.probabilities(self.outputs(rows))

    def evaluate(self, rows: Any, labels: Any = None, *, metrics: Sequence[Metric] | Mapping[str, Metric] = (),
                 class_weight: ClassWeight | None = None) -> "Evaluation":
        """The mean loss, the mean score and further metrics on rows with known labels, with intervals.

        An interval has the level 0.95 and the form of those of comparisons: Wilson's for an accuracy, with DeLong's
        variance for `ROCAUC`, and otherwise by resampled rows. It is about this model and further rows like these.

        Args:
            rows: the inputs, as for `predict`.
            labels: [n] labels; default: the label column of the table.
            metrics: metrics of ``rv.metrics``, or a name for each.
            class_weight: weights of the classes in the loss: ``balanced``, with which every class that occurs counts
                the same, or a weight for each class. The score and the metrics count every row once.

        Returns:
            A dictionary with ``rows``, the number of rows; ``loss``; the score under its name, such as ``accuracy``;
            and the metrics. Its ``intervals`` and its ``table`` have the intervals.

        Raises:
            InputError: the rows cannot be encoded; there is no label column, a label is missing or is none of the
                classes; or a metric does not fit the model.

        Example:
            >>> data = rv.datasets.digits(parties=3, seed=0)
            >>> result = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(64, 10), data, rounds=2, progress=False)
            >>> x, y = data.party(0, "test")
            >>> scores = result.fitted().evaluate(x, y, metrics=[rv.metrics.LogLoss()])
            >>> list(scores)
            ['rows', 'loss', 'accuracy', 'log_loss']
            >>> low, high = scores.intervals["accuracy"][1:]
            >>> low <= scores["accuracy"] <= high
            True
        """
        y = self.encoding.encode_labels(rows, labels)
        return self.score(self.outputs(rows), y, metrics, class_weight)

    def score(self, outputs: NDArray[Any], y: NDArray[Any], metrics: Sequence[Metric] | Mapping[str, Metric] = (),
              class_weight: ClassWeight | None = None) -> "Evaluation":
        """The scores of outputs, as `evaluate` returns them.

        Args:
            outputs: [n, ...] outputs of the model.
            y: [n] class numbers or targets.
            metrics: the metrics, as for `evaluate`.
            class_weight: the weights of the classes, as for `evaluate`.
        """
        from resolvent.data.weights import weights_of_labels
        from resolvent.predict.evaluation import evaluate_outputs

        named = name_metrics(metrics, self.model.loss.score_name)
        weights = None if class_weight is None else weights_of_labels(y, self.classes, class_weight)
        predicted = None if self.threshold is None else self._class_numbers(outputs)
        with self._precision():
            return evaluate_outputs(self.model, self.encoding.task, len(self.classes), outputs, y, named, weights,
                                    predicted)

    def outputs(self, rows: Any) -> NDArray[Any]:
        """[n, ...] the outputs of the model: logits, which are calibrated if there is a calibration, or numbers.

        Args:
            rows: the inputs, as for `predict`.

        Raises:
            InputError: the rows cannot be encoded.
        """
        encoded = self.encode(rows)
        for message in encoded.remarks.messages():
            warnings.warn(message, UnusualRowsWarning, stacklevel=3)
        return self.outputs_of(encoded)

    def outputs_of(self, encoded: EncodedRows) -> NDArray[Any]:
        """[n, ...] the outputs for rows that were encoded."""
        return self.outputs_of_inputs(encoded.x)

    def outputs_of_inputs(self, x: PyTree[NDArray[Any]]) -> NDArray[Any]:
        """[n, ...] the outputs for inputs of the model.

        Raises:
            DivergedError: a parameter, or an output for one of these inputs, is not finite.
        """
        self.check_parameters()
        count = tree.count_rows(x)
        size = min(_MAX_BLOCK, 1 << (count - 1).bit_length())
        with self._precision():
            dtype = np.result_type(np.float16, *jax.tree.leaves(params_of(self.params)))  # a state can have counters
            blocks = []
            for start in range(0, count, size):
                block = tree.rows(x, np.minimum(np.arange(start, start + size), count - 1))  # repeats the last row
                filled = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype if leaf.dtype.kind == "f" else None), block)
                outputs = jax.tree.map(np.asarray, _apply(self.model, self.params, filled))
                blocks.append(tree.rows(outputs, slice(count - start)))
        outputs = tree.concatenate(blocks)
        is_finite = np.stack([np.isfinite(leaf).reshape(count, -1).all(axis=1) for leaf in jax.tree.leaves(outputs)])
        if not is_finite.all():
            row = int(np.argmin(is_finite.all(axis=0)))
            raise DivergedError(f"{self._title()} has outputs that are not finite, first for row {row + 1} of "
                                f"{count}: look for extreme values in this row, or train again with a smaller "
                                "learning rate")
        return outputs if self.calibration is None else self.calibration.apply(outputs)

    def check_parameters(self) -> None:
        """Refuse a model whose training diverged.

        Raises:
            DivergedError: a parameter is not finite.
        """
        for name, leaf in tree.named_leaves(self.params):
            if wrong := int(np.size(leaf) - np.isfinite(leaf).sum()):
                raise DivergedError(f"{self._title()} cannot be used, because its training diverged: {wrong} of the "
                                    f"{np.size(leaf)} numbers of {quote(name or 'its parameter')} are not finite. "
                                    "Train again with a smaller learning rate, look for extreme values in the training "
                                    "rows, or use another method")

    def _title(self) -> str:
        owner = "the shared model" if self.site is None else f"the model of {shorten(self.site)}"
        return f"{shorten(self.method)}: {owner}{'' if self.rounds is None else f' after round {self.rounds}'}"

    def probabilities(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """[n, classes] the probabilities of the classes from outputs of the model.

        Raises:
            InputError: the model is for regression, or its loss defines no probabilities.
        """
        with self._precision():
            return np.asarray(self.model.loss.probabilities(jax.tree.map(jnp.asarray, outputs)))

    def decode(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """[n] the predicted labels from outputs of the model.

        Raises:
            InputError: the loss does not define a label for these outputs.
        """
        if self.encoding.task == "classification":
            return self.encoding.decode_labels(self._class_numbers(outputs))
        if self.encoding.task == "structured":
            return self.encoding.decode_labels(self._predicted(outputs, None))
        numbers = self.encoding.outputs
        shape = jax.tree.map(np.shape, outputs)
        if not isinstance(outputs, np.ndarray) or outputs.size != len(outputs) * numbers:
            raise InputError(f"the model has outputs of shape {shorten(shape)}, and a prediction is "
                             f"{'one number' if numbers == 1 else f'{numbers} numbers'} per row: use the outputs")
        return outputs.reshape(len(outputs)) if numbers == 1 else outputs

    def _class_numbers(self, outputs: NDArray[Any]) -> NDArray[np.integer]:
        """[n] the predicted classes."""
        if self.threshold is not None:
            from resolvent.predict.calibration import probabilities_of

            positive = self.classes.index(self.threshold.positive)
            is_positive = self.threshold.is_positive(probabilities_of(outputs)[:, positive])
            return np.where(is_positive, positive, 1 - positive)
        return self._predicted(outputs, self.probabilities(outputs) if self.model.loss.has_probabilities else None)

    def _predicted(self, outputs: NDArray[Any], probabilities: NDArray[Any] | None) -> NDArray[Any]:
        from resolvent.predict.party_predictions import predicted_labels

        with self._precision():
            predicted: NDArray[Any] = predicted_labels(self.model.loss, outputs, probabilities, self.encoding.task,
                                                       len(self.classes))
        return predicted

    def to_onnx(self, path: Path | str, *, batch: int | None = None) -> None:
        """Write the model as an ONNX file, which other programs can use without this library.

        The input ``rows`` [n, features] has the numbers of the table as they are (NaN for a missing one), then 0/1 for
        every level of the categories and every mark, in the order of ``encoding.features``; scaling and imputation are
        part of the file. For images it has the pixels of 0 to 255, for sequences the tokens, for other data the array.
        The output is ``probabilities`` [n, classes], or ``prediction`` [n]. A temperature and Platt's calibration are
        part of the file; a threshold is not, because the file predicts no classes. The metadata ``resolvent.inputs``,
        ``resolvent.classes`` and ``resolvent.encoding`` hold the names and the encoding as JSON. Nothing is checked
        when the file is used: unknown levels and values far from the training rows are the caller's to detect.

        Args:
            path: path of the file.
            batch: the number of rows of every call of the file; default: any number. Some operations, such as the
                convolutions of the papers' networks, have a form in ONNX for a fixed number only.

        Raises:
            InputError: the packages of the extra ``onnx`` are not installed, an operation of the model has no form in
                ONNX, the calibration is isotonic, or the loss defines no probabilities.
            DivergedError: a parameter is not finite.
        """
        from resolvent.predict.onnx_export import write_onnx

        self.check_parameters()

        write_onnx(Path(path), self.model, self.params, self.encoding, batch, self.calibration)

    def to_torch(self) -> Any:
        """The trained PyTorch module, in evaluation mode, of a model that ``rv.models.from_torch`` made.

        Its inputs are rows that were encoded, as those of `outputs_of_inputs`. Its outputs have no calibration.
        ``torch.save(fitted.to_torch().state_dict(), "model.pt")`` writes its state dict.

        Raises:
            InputError: the model does not come from PyTorch.
            DivergedError: a parameter is not finite.
        """
        self.check_parameters()
        from resolvent.torch.torch_models import torch_module

        return torch_module(self.model, self.params)

    def _precision(self) -> Any:
        """A context with the precision of the parameters."""
        return jax.enable_x64(any(np.dtype(leaf.dtype) == np.float64 for leaf in jax.tree.leaves(self.params)))


@jax.jit
def _apply(model: Model, params: PyTree[Any], x: PyTree[Array]) -> Array:
    outputs: Array = model.rewritten(model.apply)(params, x)
    return outputs
