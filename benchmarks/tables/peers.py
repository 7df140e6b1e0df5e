"""Train the peers on the splits of a Resolvent run, for each site alone and on the rows of all sites together.

    python peers.py EXPERIMENT.yaml SPLITS.csv OUT.csv

Run it in the folder of the tables, with the Python of ``requirements.txt``. Every model has the defaults of its
package. A peer may use the rows that Resolvent keeps for validation as training rows. At a site whose training rows
have one class only, a classifier always predicts this class. ``OUT.csv`` has a row per seed, test row and method, with
its scores; the CPU seconds are printed as JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

_TEXT = make_column_selector(dtype_include=object)
_NUMBERS = make_column_selector(dtype_exclude=object)


def main() -> None:
    """Train all peers with all seeds, and write their predictions."""
    experiment, splits, out = map(Path, sys.argv[1:4])
    settings = yaml.safe_load(experiment.read_text())["data"]
    table = pd.read_csv(settings["table"], dtype={settings["party"]: str}, keep_default_na=True)
    y, classes = table[settings["label"]].to_numpy(), None
    if y.dtype.kind != "f":
        classes, y = np.unique(y, return_inverse=True)
    x = table.drop(columns=[settings["party"], settings["label"]])
    sites, rows, seconds = table[settings["party"]].to_numpy(), [], {}
    for name, make in peers(classes is not None).items():
        for training in ("alone", "pooled"):
            start = time.process_time()
            for seed, split in pd.read_csv(splits).groupby("seed"):
                for predictions in fit(make, training, x, y, sites, split, classes):
                    rows.append(predictions.assign(seed=seed, method=f"{name}, {training}"))
            seconds[f"{name}, {training}"] = round(time.process_time() - start, 2)
    pd.concat(rows).to_csv(out, index=False)
    print(json.dumps(seconds))


def peers(is_classification: bool) -> dict[str, Callable[[], Any]]:
    """The peers by name; each call makes a model that is not trained."""
    linear = LogisticRegression if is_classification else Ridge
    boosted = HistGradientBoostingClassifier if is_classification else HistGradientBoostingRegressor
    extreme = XGBClassifier if is_classification else XGBRegressor
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    scaled = make_column_transformer((numbers, _NUMBERS), (one_hot, _TEXT))
    # Trees take missing numbers as they are.
    plain = make_column_transformer(("passthrough", _NUMBERS), (one_hot, _TEXT))
    return {"logistic regression" if is_classification else "ridge": lambda: make_pipeline(scaled, linear()),
            "histogram boosting": lambda: make_pipeline(plain, boosted()),
            "XGBoost": lambda: make_pipeline(plain, extreme(n_jobs=1))}


def fit(make: Callable[[], Any], training: str, x: pd.DataFrame, y: np.ndarray, sites: np.ndarray, split: pd.DataFrame,
        classes: np.ndarray | None) -> Iterator[pd.DataFrame]:
    """The predictions for the test rows of one seed; ``split`` has the line, the row and the part of each row."""
    train, test = split[split["split"] != "test"], split[split["split"] == "test"]
    groups = [test.index] if training == "pooled" else test.groupby(sites[test["line"]]).groups.values()
    for index in groups:
        tested = test.loc[index]
        lines = train["line"].to_numpy()
        if training == "alone":
            lines = lines[sites[lines] == sites[tested["line"].iloc[0]]]
        # XGBoost needs classes 0, 1, ..., without gaps.
        labels, targets = np.unique(y[lines], return_inverse=True) if classes is not None else (None, y[lines])
        model = DummyClassifier() if labels is not None and len(labels) == 1 else make()
        # Histogram boosting refuses a column without any value, such as one that a site did not measure.
        columns = x.columns[x.iloc[lines].notna().any()]
        model.fit(x[columns].iloc[lines], targets)
        inputs = x[columns].iloc[tested["line"]]
        truth, frame = y[tested["line"]], tested[["row"]].reset_index(drop=True)
        if labels is None:
            yield frame.assign(squared_error=(model.predict(inputs) - truth) ** 2)
            continue
        probabilities = np.zeros((len(tested), len(classes)))
        probabilities[:, labels] = model.predict_proba(inputs)
        # The Brier score of Resolvent: for two classes that of one of them, for more the sum over all.
        brier = ((probabilities - np.eye(len(classes))[truth]) ** 2).sum(axis=1) / (2 if len(classes) == 2 else 1)
        yield frame.assign(brier_score=brier, accuracy=(probabilities.argmax(axis=1) == truth).astype(float))


if __name__ == "__main__":
    main()
