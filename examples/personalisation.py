"""A model for every party

Each party has five of the ten digits. FedAvg gives all of them one model. With robust interpolation, each party
chooses by its validation samples between its own model, a robust shared one, and mixtures. The comparison reads gains
party by party, not only on average. More: [parties differ](choosing.md#parties-differ).

Picture: gain in test accuracy over training alone for each of 30 parties, with FedAvg and with robust interpolation.
"""

import matplotlib.pyplot as plt

import resolvent as rv

data = rv.datasets.digits(parties=30, classes_per_party=5, outliers=1, size_spread=1.0, seed=0)
model, solver = rv.models.logistic(64, 10), rv.SGD(0.1, batch_size=20)
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver),
           "robust interpolation": rv.robust_interpolation(solver)}
scores = {label: rv.simulate(algorithm, model, data, rounds=60, evaluate_every=60).scores("test").iloc[-1]
          for label, algorithm in methods.items()}

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for label, marker in {"FedAvg": "o", "robust interpolation": "^"}.items():
    axes.plot(range(30), 100 * (scores[label] - scores["alone"]), marker, label=label)
axes.axhline(0, color="grey", linewidth=0.8)
axes.set(xlabel="party (one of them has inverted images)", ylabel="points gained")
axes.legend()
gains = {label: scores[label] - scores["alone"] for label in ("FedAvg", "robust interpolation")}
print({label: (gain.mean(), gain.min()) for label, gain in gains.items()})
assert gains["robust interpolation"].mean() > 0.03
assert gains["robust interpolation"].min() > gains["FedAvg"].min() + 0.2
