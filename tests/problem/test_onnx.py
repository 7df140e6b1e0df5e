"""Models as ONNX files: another runtime predicts from raw rows the same as the fitted model."""

import json
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

import resolvent as rv
from resolvent.data.images_text.array_encoding import ArrayEncoding, PixelScaling
from resolvent.predict.calibration import Calibration
from resolvent.predict.fitted import Fitted

RNG = np.random.default_rng(0)


def with_random_parameters(model, encoding):
    leaves, structure = jax.tree.flatten(model.init(jax.random.key(0)))
    return Fitted(model, jax.tree.unflatten(structure, [0.3 * RNG.normal(size=leaf.shape).astype(leaf.dtype)
                                                        for leaf in leaves]), encoding)


def run(path, rows):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)
    return session.get_modelmeta().custom_metadata_map, session.run(None, {"rows": rows})[0]


def test_a_table_is_predicted_from_its_own_numbers(tmp_path):
    pytest.importorskip("jax2onnx")
    import pandas as pd

    frame = pd.DataFrame({"site": "a", "age": RNG.normal(60, 10, 30), "pressure": RNG.normal(130, 15, 30),
                          "ward": np.array(["x", "y", "z"])[np.arange(30) % 3],
                          "ill": np.array(["no", "yes"])[np.arange(30) % 2]})
    frame.loc[3, "age"] = np.nan
    encoding = rv.datasets.from_frame(frame, "site", "ill", missing="indicate").encoding
    fitted = with_random_parameters(rv.models.logistic(6, 2), encoding)
    fitted.to_onnx(tmp_path / "model.onnx")
    raw = np.column_stack([frame["age"], frame["pressure"], *(frame["ward"] == level for level in "xyz"),
                           frame["age"].isna()]).astype(np.float32)
    metadata, probabilities = run(tmp_path / "model.onnx", raw)
    np.testing.assert_allclose(probabilities, fitted.probabilities(fitted.outputs_of(encoding.encode(frame))),
                               atol=1e-5)
    assert json.loads(metadata["resolvent.inputs"]) == list(encoding.features)
    assert json.loads(metadata["resolvent.classes"]) == ["no", "yes"]
    assert json.loads(metadata["resolvent.encoding"])["kind"] == "table"


@pytest.mark.parametrize(("model", "encoding", "rows", "batch"), [
    (rv.models.linear(3), ArrayEncoding((3,), "regression"), RNG.normal(size=(5, 3)).astype(np.float32), None),
    (rv.models.mlp(3, 4, width=5), ArrayEncoding((3,), "classification", tuple("abcd")),
     RNG.normal(size=(5, 3)).astype(np.float32), None),
    (rv.models.mnist_cnn((16, 16), 10),
     ArrayEncoding((16, 16), "classification", tuple("0123456789"), pixels=PixelScaling((30.0,), (70.0,))),
     RNG.integers(0, 256, (3, 16, 16)), 3),
    (rv.models.char_lstm(3, ("a", "b", "c"), width=4), ArrayEncoding((6,), "classification", tuple("abc"),
                                                                     tokens=("a", "b", "c")),
     RNG.integers(0, 3, (4, 6)).astype(np.int32), None),
], ids=["linear", "mlp", "cnn", "lstm"])
def test_other_models_are_predicted_by_another_runtime(model, encoding, rows, batch, tmp_path):
    pytest.importorskip("jax2onnx")
    fitted = with_random_parameters(model, encoding)
    fitted.to_onnx(tmp_path / "model.onnx", batch=batch)
    _, outputs = run(tmp_path / "model.onnx", rows if encoding.vocabulary else rows.astype(np.float32))
    expected = fitted.predict_proba(rows) if encoding.classes else fitted.predict(rows)
    np.testing.assert_allclose(outputs, expected, atol=1e-4)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("calibration", [Calibration("temperature", slope=0.4),
                                         Calibration("platt", slope=0.4, intercept=1.2)], ids=lambda c: c.kind)
def test_a_calibration_is_part_of_the_file(calibration, outputs, tmp_path):
    pytest.importorskip("jax2onnx")
    model = rv.models.logistic(3, 2) if outputs == 1 else rv.models.from_functions(
        lambda key: jax.numpy.zeros((2, 3)), lambda w, x: x @ w.T)
    fitted = with_random_parameters(model, ArrayEncoding((3,), "classification", ("no", "yes")))
    fitted = replace(fitted, calibration=calibration)
    fitted.to_onnx(tmp_path / "model.onnx")
    rows = RNG.normal(size=(5, 3)).astype(np.float32)
    _, probabilities = run(tmp_path / "model.onnx", rows)
    np.testing.assert_allclose(probabilities, fitted.predict_proba(rows), atol=1e-5)
    assert np.abs(probabilities - fitted.raw.predict_proba(rows)).max() > 0.01


def test_an_isotonic_calibration_has_no_form_in_onnx(tmp_path):
    pytest.importorskip("jax2onnx")
    fitted = with_random_parameters(rv.models.logistic(3, 2), ArrayEncoding((3,), "classification", ("no", "yes")))
    isotonic = replace(fitted, calibration=Calibration("isotonic", points=(-1.0, 1.0), values=(0.2, 0.7)))
    with pytest.raises(rv.InputError, match=r"export fitted\.raw"):
        isotonic.to_onnx(tmp_path / "model.onnx")


def test_without_the_packages_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    fitted = with_random_parameters(rv.models.linear(3), ArrayEncoding((3,), "regression"))
    with pytest.raises(rv.InputError, match=r"needs the packages of the extra onnx: pip install 'resolvent\[onnx\]'"):
        fitted.to_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
