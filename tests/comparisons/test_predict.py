"""From a table of six sites to predictions for new rows at one site: the command line, and ``rv.load``."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from six_sites import SITES, visits

import resolvent as rv
from resolvent.comparisons.after.advised import models_of_sites
from resolvent.comparisons.after.predictions import write_predictions
from resolvent.comparisons.runs.record import read_record
from resolvent.data.files.digests import file_digests, read_sealed, write_sealed
from resolvent.data.images_text.array_encoding import ArrayEncoding, PixelScaling
from resolvent.simulator.record.model_folder import SavedModels, write_model_folder
from resolvent.tables.party_tables import from_frame


@pytest.fixture
def new_rows(tmp_path):
    """60 rows that the run has not used, as a file."""
    frame = visits(seed=1, rows=60)
    frame.to_csv(tmp_path / "new.csv", index=False)
    return frame


def predict(call, site_run, *arguments, cwd):
    return call("model", "predict", site_run.folder, "new.csv", *arguments, cwd=cwd)


def test_rows_of_one_site_are_predicted_with_its_model(site_run, call, new_rows, tmp_path):
    outcome = predict(call, site_run, "--method", "FedAvg+", "--site", "Essen", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    table = pd.read_csv(tmp_path / "predictions.csv")
    fitted = rv.load(site_run.folder, method="FedAvg+", site="Essen")
    with pytest.warns(rv.UnusualRowsWarning):
        expected = fitted.predict(new_rows)
    with pytest.warns(rv.UnusualRowsWarning):
        probabilities = fitted.predict_proba(new_rows)
    with pytest.warns(rv.UnusualRowsWarning):
        scores = fitted.evaluate(new_rows)
    assert list(table.columns) == ["row", "prediction", "probability ill", "probability well"]
    assert table["row"].tolist() == list(range(2, 62))  # lines of the file
    assert table["prediction"].tolist() == expected.tolist()
    np.testing.assert_allclose(table[["probability ill", "probability well"]], probabilities, rtol=1e-6)
    assert scores["accuracy"] == np.mean(expected == new_rows["outcome"])
    assert f"accuracy on 60 rows with labels: {scores['accuracy']:.1%}" in outcome.out
    missing = int(new_rows["pressure"].isna().sum())
    assert f"'pressure': {missing} of 60 values are missing and were imputed" in outcome.err
    assert "The model does not use the columns 'patient'" in outcome.err
    assert len(outcome.err.splitlines()) == 2


def test_rows_with_labels_are_evaluated(site_run, call, new_rows, tmp_path):
    outcome = call("model", "evaluate", site_run.folder, "new.csv", "--method", "FedAvg+", "--site", "Essen",
                   "--metrics", "roc_auc", "{name: f1, average: macro}",
                   "--set", "class_weight={ill: 2, well: 1}", "--format", "json",
                   cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    fitted = rv.load(site_run.folder, method="FedAvg+", site="Essen")
    with pytest.warns(rv.UnusualRowsWarning):
        expected = fitted.evaluate(new_rows, metrics=[rv.metrics.ROCAUC(), rv.metrics.F1(average="macro")],
                                   class_weight={"ill": 2, "well": 1})
    assert json.loads(outcome.out) == {"rows": 60, "scores": {
        name: pytest.approx(interval._asdict(), rel=1e-6) for name, interval in expected.intervals.items()}}
    table = call("model", "evaluate", site_run.folder, "new.csv", "--method", "FedAvg+", "--site", "Essen",
                 cwd=tmp_path)
    assert "60 rows with labels" in table.out
    assert f"{expected['accuracy']:.1%}" in table.out


@pytest.mark.parametrize(("arguments", "message"), [
    (("unlabelled.csv",), "'unlabelled.csv' has no column 'outcome', the label; its columns are 'patient', 'hospital'"),
    (("new.csv", "--metrics", "auc"), "there is no metric 'auc'"),
    (("new.csv", "--set", "class_weight={sick: 1}"), "there is no class 'sick'"),
    (("new.csv", "--set", "refit=no"), "--set 'refit=no': 'no' is not a valid value"),
])
def test_what_cannot_be_evaluated_is_refused(site_run, call, new_rows, tmp_path, arguments, message):
    new_rows.drop(columns="outcome").to_csv(tmp_path / "unlabelled.csv", index=False)
    outcome = call("model", "evaluate", site_run.folder, *arguments, "--method", "FedAvg+", "--site", "Essen",
                   cwd=tmp_path)
    assert outcome.code == 2
    assert message in outcome.err


def test_scores_on_the_test_rows_are_those_of_the_run(site_run):
    """The encoding and the model of each site are those with which the run evaluated it."""
    metrics = pd.read_parquet(site_run.folder / "metrics.parquet")
    final = metrics[(metrics["split"] == "test") & (metrics["metric"] == "accuracy") & (metrics["round"] == 10)]
    numbered = from_frame(site_run.table.assign(number=range(len(site_run.table))), "hospital", "outcome",
                          features=["number"], scale="none", test=0.3)
    for method in ("alone", "FedAvg+"):
        scores = final[final["method"] == method].set_index("party")["value"]
        for k, site in enumerate(SITES):
            rows = site_run.table.iloc[numbered.party(k, "test")[0][:, 0].astype(int)]
            fitted = rv.load(site_run.folder, method=method, site=site)
            outputs = fitted.outputs_of(fitted.encoding.encode(rows))
            accuracy = fitted.score(outputs, fitted.encoding.encode_labels(rows))["accuracy"]
            assert accuracy == pytest.approx(scores[k], abs=1e-6)


def test_without_a_site_the_shared_model_predicts(site_run, call, new_rows, tmp_path):
    assert predict(call, site_run, "--method", "FedAvg+", "--out", "p.parquet", cwd=tmp_path).code == 0
    fitted = rv.load(site_run.folder, method="FedAvg+")
    assert fitted.site is None
    with pytest.warns(rv.UnusualRowsWarning):
        assert pd.read_parquet(tmp_path / "p.parquet")["prediction"].tolist() == fitted.predict(new_rows).tolist()
    outcome = predict(call, site_run, "--method", "alone", cwd=tmp_path)
    assert outcome.code == 2
    assert "alone has no shared model: name a site, one of Bochum, Essen" in outcome.err


def test_rows_without_labels_and_party_are_predicted(site_run, call, new_rows, tmp_path):
    new_rows.drop(columns=["patient", "hospital", "outcome"]).to_csv(tmp_path / "new.csv", sep=";", index=False)
    outcome = predict(call, site_run, "--method", "alone", "--site", "Ulm", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    provenance, written, following = outcome.out.splitlines()
    assert provenance.startswith("The model: trained on 50 training rows of Ulm; accuracy")
    assert written == "Predictions for 60 rows: predictions.csv"
    command = f"resolvent model evaluate {site_run.folder} ROWS_WITH_LABELS.csv --method alone --site Ulm"
    assert following == f"Next: {command}"


def test_the_next_command_after_a_prediction_evaluates_rows_that_have_labels(site_run, call, new_rows, tmp_path):
    outcome = predict(call, site_run, "--site", "Ulm", cwd=tmp_path)
    command = outcome.out.splitlines()[-1].removeprefix("Next: resolvent ").split()
    assert command[:2] == ["model", "evaluate"]
    assert call(*command, cwd=tmp_path).code == 0


@pytest.mark.parametrize(("change", "message"), [
    (lambda f: f.drop(columns="age"), "the table has no column 'age'"),
    (lambda f: f.replace({"ward": {"intensive": "icu"}}), "'ward': the value is none of '01', '02', 'intensive'"),
    (lambda f: f.assign(age="old"), "column 'age' holds text"),
    (lambda f: f.assign(smoker=3), "column 'smoker' holds numbers other than 0 and 1"),
    (lambda f: f.assign(outcome="unsure"), "the label is 'unsure', which is not among the classes 'ill', 'well'"),
])
def test_a_table_that_does_not_fit_is_refused_and_no_file_is_written(change, message, site_run, call, new_rows,
                                                                     tmp_path):
    change(new_rows).to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "predictions.csv").write_text("of yesterday")
    outcome = predict(call, site_run, "--method", "alone", "--site", "Ulm", "--overwrite", cwd=tmp_path)
    assert outcome.code == 2
    assert message in outcome.err
    assert (tmp_path / "predictions.csv").read_text() == "of yesterday"
    assert {p.name for p in tmp_path.iterdir()} == {"new.csv", "predictions.csv"}


def test_another_unit_is_said(site_run, call, new_rows, tmp_path):
    new_rows.assign(age=new_rows["age"] * 12).to_csv(tmp_path / "new.csv", index=False)
    outcome = predict(call, site_run, "--method", "alone", "--site", "Ulm", cwd=tmp_path)
    assert outcome.code == 0
    assert "'age': 60 of 60 rows lie far outside the training rows' range" in outcome.err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--method", "FedAv"], "has no method 'FedAv'; there are alone, FedAvg, FedAvg+; did you mean 'FedAvg'?"),
    (["--method", "alone", "--site", "Esen"], "there is no site 'Esen'; there are Bochum, Essen, Fulda, Gera, Hagen, "
                                              "Ulm; did you mean 'Essen'?"),
    (["--method", "alone", "--site", "Ulm", "--out", "new.csv"], "new.csv exists: give --out another name, or "),
    (["--method", "alone", "--site", "Ulm", "--out", "new.txt"], "new.txt must end in .csv or .parquet"),
])
def test_wrong_arguments_are_refused(arguments, message, site_run, call, new_rows, tmp_path):
    outcome = predict(call, site_run, *arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert message in outcome.err
    assert [p.name for p in tmp_path.iterdir()] == ["new.csv"]


def test_without_a_method_the_advised_model_predicts(site_run, call, new_rows, tmp_path):
    advised = models_of_sites(read_record(site_run.folder))["Ulm"]
    assert not advised.against
    outcome = predict(call, site_run, "--site", "Ulm", cwd=tmp_path)
    assert outcome.code == 0
    assert json.loads((tmp_path / "predictions.csv.json").read_text())["method"] == advised.method
    other = "FedAvg" if advised.method == "alone" else "alone"
    named = predict(call, site_run, "--method", other, "--site", "Ulm", "--overwrite", cwd=tmp_path)
    assert f"the advice to Ulm is {advised.method}" in " ".join(named.out.split())


def test_a_folder_without_a_run_is_refused(call, new_rows, tmp_path):
    outcome = call("model", "predict", "runs/min", "new.csv", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err == ("error: runs/min: there is no finished run and no saved result: "
                           "name a folder that `resolvent run` or Result.save wrote\n")
    (tmp_path / "runs" / "min.partial").mkdir(parents=True)
    assert "the run is not finished: finish it with --resume" in call("model", "predict", "runs/min", "new.csv",
                                                                      cwd=tmp_path).err
    (tmp_path / "runs" / "mine").mkdir()
    with pytest.raises(rv.InputError, match=r"no finished run and no saved result: .*; did you mean 'mine'"):
        rv.load(tmp_path / "runs" / "mime", method="FedAvg")


@pytest.mark.parametrize("name", ["encoding.json", "parties.safetensors", "tree.json"])
def test_a_damaged_model_is_refused(name, site_run, call, new_rows, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(site_run.folder, run)
    path = run / "models" / "alone" / name
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    outcome = call("model", "predict", "run", "new.csv", "--method", "alone", "--site", "Ulm", cwd=tmp_path)
    assert outcome.code == 2
    assert "is damaged" in outcome.err
    assert not (tmp_path / "predictions.csv").exists()


def test_models_of_another_run_are_refused(site_run, call, new_rows, tmp_path):
    """They are whole by their own digests, but not those that this run wrote."""
    run = tmp_path / "run"
    shutil.copytree(site_run.folder, run)
    note = run / "models" / "alone" / "tree.json"
    write_sealed(note, read_sealed(note, "") | {"run": "another"})
    outcome = call("model", "predict", "run", "new.csv", "--method", "alone", "--site", "Ulm", cwd=tmp_path)
    assert outcome.code == 2
    assert "these are not the models that the run wrote" in outcome.err
    with pytest.raises(rv.InputError, match="these are not the models that the run wrote"):
        rv.load(run, method="FedAvg+", site="Ulm")


def test_predictions_name_their_run(site_run, call, new_rows, tmp_path):
    outcome = call("model", "predict", str(site_run.folder), "new.csv", "--method", "alone", "--site", "Ulm",
                   cwd=tmp_path)
    assert outcome.code == 0
    origin = read_sealed(tmp_path / "predictions.csv.json", "")
    assert origin["digest_of_run"] == read_record(site_run.folder).plain()["methods"]["alone"]["digest"]
    assert origin["files"] == file_digests(tmp_path, ["predictions.csv"])
    assert (origin["method"], origin["site"], origin["rows"]) == ("alone", "Ulm", "new.csv")


def test_the_models_of_one_method_need_no_other_file(site_run, new_rows, tmp_path):
    """A site can be sent the folder of a method alone."""
    shutil.copytree(site_run.folder / "models" / "FedAvg-plus", tmp_path / "models")
    alone, whole = rv.load(tmp_path / "models", site="Gera"), rv.load(site_run.folder, method="FedAvg+", site="Gera")
    with pytest.warns(rv.UnusualRowsWarning):
        assert alone.predict(new_rows).tolist() == whole.predict(new_rows).tolist()


def test_arrays_are_read_from_an_npy_file(call, tmp_path):
    """Images of 0 to 255, by the folder of one method."""
    model = rv.models.logistic(4, 3)
    params = {"weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 12, "bias": np.array([1, 0, -1], np.float32)}
    encoding = ArrayEncoding((2, 2), "classification", ("cat", "dog", "owl"), pixels=PixelScaling())
    stacked = {name: leaf[None] for name, leaf in params.items()}
    write_model_folder(tmp_path / "models", SavedModels("FedAvg", 1, ["north"], stacked, params, model, encoding))
    images = np.random.default_rng(0).integers(0, 256, (7, 2, 2), dtype=np.uint8)
    np.save(tmp_path / "new.npy", images)
    outcome = call("model", "predict", "models", "new.npy", "--site", "north", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    table = pd.read_csv(tmp_path / "predictions.csv")
    logits = images.reshape(7, 4) / 255 @ params["weight"].T + params["bias"]
    assert table["prediction"].tolist() == np.array(encoding.classes)[logits.argmax(axis=1)].tolist()
    assert table["row"].tolist() == list(range(7))
    np.save(tmp_path / "new.npy", images / 255)
    outcome = call("model", "predict", "models", "new.npy", "--overwrite", cwd=tmp_path)
    assert outcome.code == 2
    assert "the model needs integers of 0 to 255" in outcome.err
    (tmp_path / "new.npy").write_bytes(b"cut off")
    assert "cannot be read as .npy" in call("model", "predict", "models", "new.npy", "--overwrite", cwd=tmp_path).err


def test_a_run_folder_needs_a_method(site_run):
    with pytest.raises(rv.InputError, match=r"name a method, one of alone, FedAvg, FedAvg\+, and a site"):
        rv.load(site_run.folder)


def test_a_model_that_is_not_of_the_library_is_built_from_the_experiment_file(site_run, new_rows, tmp_path):
    """Its settings are not saved, as those of a model of the user."""
    run = tmp_path / "run"
    shutil.copytree(site_run.folder, run)
    note = run / "models" / "alone" / "tree.json"
    write_sealed(note, read_sealed(note, "") | {"model": None})
    summary = read_sealed(run / "summary.json", "")
    summary["files"] |= file_digests(run, ["models/alone/tree.json"])
    write_sealed(run / "summary.json", summary)
    fitted, expected = (rv.load(folder, method="alone", site="Ulm") for folder in (run, site_run.folder))
    with pytest.warns(rv.UnusualRowsWarning):
        assert fitted.predict(new_rows).tolist() == expected.predict(new_rows).tolist()
    with pytest.raises(rv.InputError, match="give it as the argument model"):
        rv.load(note.parent, site="Ulm")
    assert json.loads(note.read_text())["model"] is None


def test_a_text_that_a_spreadsheet_would_compute_is_quoted_unless_it_is_kept(tmp_path):
    """Names of classes and of columns are texts of others: a spreadsheet would run ``=...`` when the file is opened."""
    texts = ["=1+2", "+cmd", "-x", "@sum", "\tx", "ill", "-1", "+2.5e3", ""]
    frame = pd.DataFrame({"row": [*map(str, range(len(texts)))], "prediction": texts, "@p": np.linspace(-1, 1, 9)})
    for quotes, sign in ((True, "'"), (False, "")):
        write_predictions(tmp_path / "out.csv", frame, {}, quote_formulas=quotes)
        table = pd.read_csv(tmp_path / "out.csv", keep_default_na=False, dtype={"prediction": str})
        assert table["prediction"].tolist() == [f"{sign}{text}" for text in texts[:5]] + texts[5:]
        assert [*table] == ["row", "prediction", f"{sign}@p"]
        assert table[f"{sign}@p"].tolist() == frame["@p"].tolist()
    write_predictions(tmp_path / "numbers.csv", pd.DataFrame({"p": np.float32([0.1])}), {})
    assert (tmp_path / "numbers.csv").read_text() == "p\n0.1\n"  # not the digits of the same number as a float64
    write_predictions(tmp_path / "out.parquet", frame, {})
    assert pd.read_parquet(tmp_path / "out.parquet").equals(frame)
