"""A model for every party

Each party has three of the ten digits. FedAvg gives all of them one model; FedAvg+ keeps a model of each party near the
mean. The comparison reads gains party by party, not only on average. More:
[parties differ](choosing.md#parties-differ), [Fed+](theory.md#fed).

Picture: gain in test accuracy over training alone for each of ten parties, with FedAvg and with FedAvg+.
"""

import matplotlib.pyplot as plt

import resolvent as rv

data = rv.datasets.digits(parties=10, classes_per_party=3, outliers=1, seed=0)
model, solver = rv.models.logistic(64, 10), rv.SGD(0.1, batch_size=20)
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver), "FedAvg+": rv.fedavg_plus(solver)}
scores = {label: rv.simulate(algorithm, model, data, rounds=60, evaluate_every=60).scores("test").iloc[-1]
          for label, algorithm in methods.items()}

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for label, marker in {"FedAvg": "o", "FedAvg+": "^"}.items():
    axes.plot(range(10), 100 * (scores[label] - scores["alone"]), marker, label=label)
axes.axhline(0, color="grey", linewidth=0.8)
axes.set(xlabel="party (one of them has inverted images)", ylabel="points gained", xticks=range(10))
axes.legend()
assert (scores["FedAvg+"] - scores["alone"]).min() > (scores["FedAvg"] - scores["alone"]).min() + 0.2
