"""How much of the shared model?

FedMix (FLIX) mixes a shared model with each party's own optimum: alpha = 1 is the average loss, alpha = 0 training
alone. A smaller alpha also needs less communication. More: [explicit mixing](theory.md#explicit-mixing).

Picture: mean and worst test accuracy over the parties against alpha.
"""

import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

data = rv.datasets.digits(parties=10, classes_per_party=4, outliers=1, seed=0)
model, solver = rv.models.logistic(64, 10), rv.SGD(0.1, batch_size=20)
alphas = np.linspace(0, 1, 6)
runs = [rv.simulate(rv.fedmix(solver, alpha=float(alpha), inner=rv.fedavg(solver)), model, data, rounds=40,
                    evaluate_every=40).scores("test").iloc[-1] for alpha in alphas]
mean, worst = [run.mean() for run in runs], [run.min() for run in runs]

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes.plot(alphas, mean, "o-", label="mean over the parties")
axes.plot(alphas, worst, "^-", label="worst party")
axes.set(xlabel="alpha", ylabel="test accuracy")
axes.legend()
assert worst[-1] < max(worst)
