"""Calibrated probabilities

Of the rows with a probability of 80 %, are 80 % ill? A network that was trained for long is too sure. `calibrate`
fits a map of its probabilities on the validation rows of each site. Here it is judged on rows that came later. More:
[calibrate and explain a model](predict.md#calibrate).

Picture: observed frequency against predicted probability on the later rows, before and after the calibration.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import resolvent as rv

rng = np.random.default_rng(0)
columns = [f"lab {i}" for i in range(20)]
everybody = pd.DataFrame(rng.normal(size=(4400, 20)), columns=columns)
everybody["hospital"] = rng.choice(["Bochum", "Essen", "Fulda", "Ulm"], 4400)
everybody["outcome"] = np.where(everybody[columns[:3]].sum(axis=1) + rng.normal(0, 1.5, 4400) > 0, "ill", "well")
frame, later = everybody[:2400], everybody[2400:]
data = rv.datasets.from_frame(frame, "hospital", "outcome", validation=0.3)
comparison = rv.compare({"alone": rv.local(rv.SGD(0.2)), "FedAvg": rv.fedavg(rv.SGD(0.2, batch_size=20, epochs=3))},
                        rv.models.mlp(20, 2), data, rounds=40, folds=1)  # one split: the later rows judge
calibrated = comparison.calibrate("FedAvg", positive="ill")
print(calibrated.table)

figure, axes = plt.subplots(figsize=(4.2, 3.8), layout="constrained")
errors = {}
for label in ("before", "after"):
    probabilities, ill = [], []
    for site in data.parties:
        fitted, rows = calibrated.fitted(site), later[later["hospital"] == site]
        probabilities.append((fitted.raw if label == "before" else fitted).predict_proba(rows[columns])[:, 0])
        ill.append(rows["outcome"] == "ill")
    p, happened = np.concatenate(probabilities), np.concatenate(ill)
    groups = np.array_split(np.argsort(p), 8)
    means = np.array([[p[group].mean(), happened[group].mean()] for group in groups])
    errors[label] = np.abs(means[:, 0] - means[:, 1]).mean()
    axes.plot(*means.T, "o-", label=label)
axes.axline((0, 0), slope=1, color="grey", linewidth=0.8)
axes.set(xlabel="predicted probability of ill", ylabel="share of ill rows")
axes.legend()
assert errors["after"] < errors["before"]
