"""Sweep a parameter

`rv.sweep` runs one algorithm with several values of its hyperparameters; a number is an argument of the compiled
program, so that the values share one compilation. Here: how strongly should FedAvg+ pull a party's model to the centre?
More: [tuning](tuning.md).

Picture: mean and worst test accuracy over the parties against sigma, from training alone to one shared model.
"""

import matplotlib.pyplot as plt

import resolvent as rv

data = rv.datasets.digits(parties=10, classes_per_party=3, outliers=1, seed=0)
algorithm = rv.fedavg_plus(rv.SGD(0.1, batch_size=20), sigma=1.0, delta=1.0)
sigmas = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
swept = rv.sweep(algorithm, rv.models.logistic(64, 10), data, rounds=40, evaluate_every=40, sigma=sigmas)
print(swept.table)

mean, worst = swept.table.columns[1:3]
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes.semilogx(swept.table["sigma"], swept.table[mean], "o-", label="mean over the parties")
axes.semilogx(swept.table["sigma"], swept.table[worst], "^-", label="worst party")
axes.set(xlabel="sigma", ylabel="test accuracy")
axes.legend()
assert swept.table[worst].iloc[-1] < swept.table[worst].iloc[0]
