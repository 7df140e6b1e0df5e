"""A figure for a paper

Five seeds, three methods, intervals over the seeds, the width of a column and letters that are readable in print. All
methods have the same cohorts, minibatches and splits. More: [seeds, intervals, decisions](decisions.md).

Picture: test accuracy of three methods over the rounds with 95 % intervals over five seeds, 3.3 inches wide.
"""

import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

model, solver = rv.models.logistic(64, 10), rv.SGD(0.1, batch_size=20)
methods = {"FedAvg": rv.fedavg(solver), "Scaffold": rv.scaffold(solver), "FedAvg+": rv.fedavg_plus(solver)}
curves = {label: [] for label in methods}
for seed in range(5):
    data = rv.datasets.digits(parties=10, classes_per_party=3, seed=seed)
    for label, algorithm in methods.items():
        result = rv.simulate(algorithm, model, data, rounds=40, evaluate_every=4, seed=seed, progress=False)
        curves[label].append(result.scores("test").mean(axis=1))

plt.rcParams.update({"font.size": 8, "axes.labelsize": 8, "legend.fontsize": 7, "pdf.fonttype": 42})
figure, axes = plt.subplots(figsize=(3.3, 2.4), layout="constrained")
for (label, runs), dashes in zip(curves.items(), ("-", "--", "-."), strict=True):
    mean, half = np.mean(runs, axis=0), 2.776 * np.std(runs, axis=0, ddof=1) / np.sqrt(5)  # Student, 4 degrees
    axes.plot(runs[0].index, mean, dashes, label=label)
    axes.fill_between(runs[0].index, mean - half, mean + half, alpha=0.2, linewidth=0)
axes.set(xlabel="round", ylabel="test accuracy")
axes.legend()
figure.savefig("figure.pdf")
assert np.mean(curves["FedAvg+"], axis=0)[-1] > np.mean(curves["FedAvg"], axis=0)[-1]
