"""Fine-tune a shared model

Train one model for all, and let every party train it further on its own rows before use: the simplest personal model,
and hard to beat. `FineTuned` is a combinator, so it works around any algorithm with a shared model. More:
[different labels](choosing.md#different-labels), [combinators](api/combinators.md).

Picture: test accuracy of the parties with training alone, FedAvg and FedAvg with fine-tuning, sorted for each method.
"""

import matplotlib.pyplot as plt

import resolvent as rv

images = rv.datasets.digits(parties=1, classes_per_party=10, validation=0, test=0)
data = rv.partitions.divide(images.x.reshape(-1, 64), images.y, rv.partitions.Dirichlet(20, 0.3, min_samples=20),
                            test=0.3, name="digits")
model, solver = rv.models.mlp(64, 10), rv.SGD(0.1, batch_size=20)
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver),
           "fine-tuned": rv.combinators.FineTuned(rv.fedavg(solver), rv.SGD(0.05, batch_size=20, epochs=5))}

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
means = {}
for label, algorithm in methods.items():
    scores = rv.simulate(algorithm, model, data, rounds=30, evaluate_every=30).scores("test").iloc[-1]
    means[label] = scores.mean()
    axes.plot(sorted(scores), "o-", label=f"{label}: mean {scores.mean():.3f}")
axes.set(xlabel="parties, sorted", ylabel="test accuracy")
axes.legend()
assert means["fine-tuned"] > means["FedAvg"]
