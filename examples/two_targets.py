"""A table with two targets

Upper and lower blood pressure from age, weight and dose. Labels have two numbers, and R2 is the mean over both. More:
[several labels](data.md#several-labels).

Picture: predicted against measured pressure, both in standard deviations, on the test rows of one clinic.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import resolvent as rv

rng = np.random.default_rng(0)
visits = pd.DataFrame({"clinic": rng.choice(["a", "b", "c"], 300), "age": rng.normal(50, 10, 300),
                       "weight": rng.normal(75, 12, 300), "dose": rng.uniform(0, 5, 300)})
visits["upper"] = 90 + 0.5 * visits.age + 0.2 * visits.weight - 3 * visits.dose + rng.normal(0, 4, 300)
visits["lower"] = 55 + 0.2 * visits.age + 0.15 * visits.weight - 2 * visits.dose + rng.normal(0, 3, 300)

targets = ["upper", "lower"]
visits[targets] = (visits[targets] - visits[targets].mean()) / visits[targets].std()
data = rv.datasets.from_frame(visits, "clinic", targets)

model = rv.models.linear(len(data.features), targets=2)
result = rv.simulate(rv.fedavg(rv.SGD(0.05, batch_size=16)), model, data, rounds=15, metrics=[rv.metrics.R2()])
error = result.scores("test").mean(axis=1)
assert error.iloc[-1] < 0.8 * error.iloc[0]
print(result.fitted("a").predict(visits.iloc[:3]))

inside, measured = data.party("a", "test")
predicted = model.apply(result.server_model, inside)
figure, axes = plt.subplots(figsize=(4.2, 3.6), layout="constrained")
for target, marker in zip(range(2), "o^", strict=True):
    axes.scatter(measured[:, target], predicted[:, target], marker=marker, label=targets[target])
axes.axline((0, 0), slope=1, color="grey", linewidth=0.8)
axes.set(xlabel="measured", ylabel="predicted")
axes.legend()
