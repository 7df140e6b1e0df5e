"""Several labels for each image

Is the digit even, large, and made of closed loops? Labels are 0/1 arrays [n, 3], the loss is `multi_label`, and the
metrics count labels and whole samples. More: [samples of any structure](data.md#samples-of-any-structure).

Picture: accuracy of the labels, their F1 score and the share of samples with all labels right, over the rounds.
"""

import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

digits = rv.datasets.digits(parties=5, validation=0, test=0)
tags = np.array([[d % 2 == 0, d >= 5, d in (0, 6, 8, 9)] for d in range(10)], int)
x, y = zip(*(digits.party(k) for k in range(len(digits))), strict=True)
data = rv.FederatedData.from_arrays(x, [tags[labels] for labels in y], classes=["even", "large", "loops"])

model = rv.models.from_functions(rv.models.mlp(64, 3).init, rv.models.mlp(64, 3).apply, loss="multi_label")
result = rv.simulate(rv.fedavg(rv.SGD(0.1, batch_size=20)), model, data, rounds=20,
                     metrics=[rv.metrics.MultiLabelF1(), rv.metrics.ExactMatch()])
assert result.scores("test").mean(axis=1).iloc[-1] > 0.8
print(result.fitted().predict(data.party(0, "test")[0])[:5])

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for name, curve in result.metrics.query("split == 'test' and metric != 'loss'").groupby("metric"):
    if not name.startswith("global_"):
        axes.plot(curve.groupby("round")["value"].mean(), label=name.replace("_", " "))
axes.set(xlabel="round", ylabel="test, mean over the parties")
axes.legend()
