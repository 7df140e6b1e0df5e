"""Hidden groups of parties

Half of the parties number the ten classes in the opposite order, and the server does not know which. `ifca` has a model
for each group; a party uses the one with the smallest loss on its samples. More: [personal models](api/personal.md).

Picture: test accuracy of each party with FedAvg and with IFCA; the right half numbers the classes the other way.
"""

import matplotlib.pyplot as plt

import resolvent as rv

digits = rv.datasets.digits(parties=10, classes_per_party=10, size_spread=0.0, validation=0, test=0, seed=0)
x, y = zip(*(digits.party(k) for k in range(10)), strict=True)
data = rv.FederatedData.from_arrays(x, [9 - labels if k >= 5 else labels for k, labels in enumerate(y)], test=0.3)
model, solver = rv.models.mlp(64, 10), rv.SGD(0.1, batch_size=20, epochs=2)

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
means = {}
for (label, algorithm), marker in zip({"FedAvg": rv.fedavg(solver), "IFCA": rv.ifca(solver, clusters=2)}.items(), "o^",
                                      strict=True):
    scores = rv.simulate(algorithm, model, data, rounds=30, evaluate_every=30).scores("test").iloc[-1]
    means[label] = scores.mean()
    axes.plot(range(10), scores, marker, label=label)
axes.set(xlabel="party", ylabel="test accuracy", xticks=range(10))
axes.legend()
print(means)
assert means["IFCA"] > means["FedAvg"] + 0.2
