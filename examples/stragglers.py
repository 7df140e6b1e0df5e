"""Slow parties: drop their work, or keep it?

Nine of ten parties of each cohort do not finish in time. FedAvg here drops their work, as in the FedProx paper; FedProx
keeps it, with a proximal term that limits how far it goes. This is Figure 1 of the FedProx paper in small. More:
[stragglers and effort](theory.md#stragglers-and-effort), [research](research.md#do-the-papers-claims-hold).

Picture: training loss of FedAvg, of FedProx without a proximal term and of FedProx with mu = 1.
"""

import matplotlib.pyplot as plt

import resolvent as rv

data = rv.datasets.fedprox_synthetic(alpha=1.0, beta=1.0, seed=0)
model = rv.models.logistic(60, 10)
solver = rv.SGD(0.01, batch_size=10, epochs=20)
slow = rv.participation.Stragglers(share=0.9, inner=rv.participation.Uniform(10))
methods = {"FedAvg, drops": rv.fedavg(solver, stragglers="drop"), "FedProx, mu = 0": rv.fedprox(solver, mu=0.0),
           "FedProx, mu = 1": rv.fedprox(solver, mu=1.0)}

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
last = {}
for label, algorithm in methods.items():
    result = rv.simulate(algorithm, model, data, rounds=100, evaluate_every=2, participation=slow)
    losses = result.metrics.query("metric == 'loss' and split == 'train'").groupby("round")["value"].mean()
    last[label] = losses.iloc[-10:].mean()
    axes.plot(losses, label=label)
axes.set(xlabel="round", ylabel="training loss, mean over the parties")
axes.legend()
assert last["FedProx, mu = 1"] < last["FedAvg, drops"]
