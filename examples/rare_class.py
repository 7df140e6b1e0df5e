"""A rare class

Six of 100 patients are ill, so that "nobody is ill" is right in 94 % of the rows. Class weights make both classes count
the same in the loss, and balanced accuracy is measured as well. More: [metrics and weights](tuning.md).

Picture: accuracy, balanced accuracy and area under the ROC curve on test rows, without and with class weights.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import resolvent as rv

rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.normal(size=(3000, 4)), columns=["age", "pressure", "weight", "dose"])
frame["hospital"] = rng.choice(["Bochum", "Essen", "Ulm"], 3000)
frame["outcome"] = np.where(frame["age"] + frame["pressure"] + rng.normal(0, 1, 3000) > 2.7, "ill", "well")
plain = rv.datasets.from_frame(frame, "hospital", "outcome", test=0.4)
metrics = [rv.metrics.BalancedAccuracy(), rv.metrics.ROCAUC()]
names = ["accuracy", "balanced_accuracy", "roc_auc"]

bars = {}
for label, data in {"without weights": plain, "balanced": plain.with_class_weights("balanced")}.items():
    result = rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=20)), rv.models.logistic(4, 2), data, rounds=20,
                         metrics=metrics)
    rows = result.metrics.query("split == 'test' and round == 20")
    bars[label] = [rows.query("metric == @name")["value"].mean() for name in names]

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for i, (label, values) in enumerate(bars.items()):
    axes.bar(np.arange(3) + 0.4 * i, values, width=0.38, label=label)
axes.set_xticks(np.arange(3) + 0.2, [name.replace("_", " ") for name in names])
axes.set(ylim=(0.4, 1), ylabel="test, mean over the sites")
axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
assert bars["balanced"][1] > bars["without weights"][1] + 0.05
