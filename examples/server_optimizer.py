"""Another optimizer at the server

`ServerOptimizer` makes the server's step with any optimizer of optax: the mean of the updates takes the place of a
gradient. With few local steps and small cohorts, momentum helps. More: [combinators](api/combinators.md).

Picture: validation accuracy of FedAvg, with momentum and with Adam at the server; five of 50 parties in each round.
"""

import matplotlib.pyplot as plt
import optax

import resolvent as rv

data, model = rv.datasets.digits(parties=50, classes_per_party=3, seed=0), rv.models.logistic(64, 10)
solver = rv.SGD(0.02, batch_size=10)
optimizers = {"FedAvg": optax.sgd(1.0), "momentum 0.9": optax.sgd(1.0, momentum=0.9), "Adam": optax.adam(0.02)}

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
last = {}
for label, optimizer in optimizers.items():
    algorithm = rv.combinators.ServerOptimizer(rv.fedavg(solver), optimizer)
    result = rv.simulate(algorithm, model, data, rounds=80, evaluate_every=4,
                         participation=rv.participation.Uniform(5))
    accuracy = result.scores("validation").mean(axis=1)
    last[label] = accuracy.iloc[-5:].mean()
    axes.plot(accuracy, label=label)
axes.set(xlabel="round", ylabel="validation accuracy")
axes.legend()
assert last["momentum 0.9"] > last["FedAvg"]
