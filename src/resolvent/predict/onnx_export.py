"""Fitted models as ONNX files, which other runtimes execute without Python. It needs the extra ``onnx``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from resolvent.data.encoded_rows import Encoding
from resolvent.data.files.atomic_files import write_atomically
from resolvent.data.files.folder_lock import check_names
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.errors import InputError, shorten
from resolvent.predict.calibration import Calibration
from resolvent.problem.models.model import Model
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import to_plain
from xla_cpu_rewrites.small_call import call_metadata

_INPUT = "rows"


def write_onnx(path: Path, model: Model, params: Any, encoding: Encoding, batch: int | None = None,
               calibration: Calibration | None = None) -> None:
    """Write a model with its parameters and the encoding of its rows as an ONNX file, see ``Fitted.to_onnx``."""
    if isinstance(encoding, ArrayEncoding) and encoding.arrays:
        raise InputError(f"the inputs are several arrays ({shorten(', '.join(name for name, *_ in encoding.arrays))}), "
                         "and the file has one: use Fitted.predict")
    try:
        from jax2onnx import to_onnx
    except ImportError as error:
        raise InputError("writing ONNX needs the packages of the extra onnx: pip install 'resolvent[onnx]'") from error
    output = "probabilities" if encoding.classes else "prediction"
    scale = _input_function(encoding)
    calibration = calibration or Calibration()
    if calibration.kind == "isotonic":
        raise InputError("an isotonic calibration has no form in ONNX: export fitted.raw, or calibrate with "
                         "temperature or platt")

    def predict_row(row: Array) -> Array:
        outputs = model.apply(jax.tree.map(jnp.asarray, params), scale(row[None]))
        # Of two logits, only that of class 1 is shifted.
        shift = jnp.asarray([0, calibration.intercept], outputs.dtype) if outputs.shape[-1] == 2 else (
            calibration.intercept)
        outputs = calibration.slope * outputs + shift if calibration.kind != "none" else outputs
        values: Array = model.loss.probabilities(outputs)[0] if encoding.classes else (
            outputs.reshape(()) if outputs.size == 1 else outputs[0])
        return values

    is_double = any(np.dtype(leaf.dtype) == np.float64 for leaf in jax.tree.leaves(params))
    shape = ("n" if batch is None else batch, *encoding.input_shape)
    dtype = np.int32 if encoding.vocabulary else np.float64 if is_double else np.float32
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(map(str, shape))), dtype)  # type: ignore[no-untyped-call]
    try:
        with jax.enable_x64(is_double), call_metadata(False):
            proto = to_onnx(jax.vmap(predict_row), [rows], model_name="resolvent", enable_double_precision=is_double,
                            input_names=[_INPUT], output_names=[output])
    except InputError:
        raise
    except Exception as error:  # of jax2onnx, for an operation that it does not know
        raise InputError(f"the model cannot be written as ONNX: {shorten(' '.join(str(error).split()))}: "
                         f"{'give a batch size' if batch is None else 'use Fitted.predict'}") from error
    for key, value in (("encoding", to_plain(encoding)), ("inputs", list(encoding.features)),
                       ("classes", list(encoding.classes))):
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"resolvent.{key}", json.dumps(value)

    def write(partial: Path) -> None:
        partial.write_bytes(proto.SerializeToString())

    check_names(path)
    write_atomically(path, write)


def _input_function(encoding: Encoding) -> Callable[[Array], Array]:
    """The scaling and the imputation of an encoding as a function of arrays: rows -> inputs of the model."""
    if isinstance(encoding, TableEncoding):
        further = len(encoding.features) - len(encoding.numbers)
        imputed = np.array([column.imputed for column in encoding.numbers] + [0.0] * further)
        mean = np.array([column.mean for column in encoding.numbers] + [0.0] * further)
        deviation = np.array([column.deviation for column in encoding.numbers] + [1.0] * further)
        return lambda rows: (jnp.where(jnp.isnan(rows), _like(imputed, rows), rows) - _like(mean, rows)) / _like(
            deviation, rows)
    if isinstance(encoding, ArrayEncoding) and encoding.pixels is not None:
        pixels = encoding.pixels
        if not pixels.mean:
            return lambda rows: rows / 255
        moments = (np.reshape(part, () if len(part) == 1 else encoding.shape) for part in (pixels.mean,
                                                                                            pixels.deviation))
        pixel_mean, pixel_deviation = moments
        return lambda rows: (rows - _like(pixel_mean, rows)) / _like(pixel_deviation, rows)
    return lambda rows: rows


def _like(values: Any, rows: Array) -> Array:
    return jnp.asarray(values, rows.dtype)
