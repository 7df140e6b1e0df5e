"""A fair learning rate

A comparison is fair if each method had the same chance to find a good learning rate. `rv.tune` tries as many values for
each, on validation rows. More: [tuning](tuning.md).

Picture: what was tried: validation accuracy against the learning rate for two methods, with the best marked.
"""

import matplotlib.pyplot as plt

import resolvent as rv

data, model = rv.datasets.digits(parties=10, classes_per_party=4, seed=0), rv.models.logistic(64, 10)
makers = {"FedAvg": lambda learning_rate: rv.fedavg(rv.SGD(learning_rate, batch_size=20)),
          "FedProx, mu = 1": lambda learning_rate: rv.fedprox(rv.SGD(learning_rate, batch_size=20), mu=1.0)}
rates = {"learning_rate": [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]}
tuned = rv.tune(makers, dict.fromkeys(makers, rates), model, data, rounds=30, strategy="grid")

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for label, trials in tuned.trials.items():
    axes.semilogx(*zip(*sorted((trial.point["learning_rate"], trial.reading.score) for trial in trials), strict=True),
                  "o-", label=label)
    best = tuned.best[label]
    axes.plot(best.point["learning_rate"], best.reading.score, "k*", markersize=12)
    assert best.reading.score == max(trial.reading.score for trial in trials)
axes.set(xlabel="learning rate", ylabel="validation accuracy")
axes.legend()
