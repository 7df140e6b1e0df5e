"""Malicious parties

Four of twenty parties send five times the opposite of their updates. FedAvg follows them; a geometric median (RFA) and
`robust_interpolation`, in which each party chooses on its own validation rows, do not. `attacked` works around any
algorithm. More: [defending a federation](defences.md).

Picture: mean test accuracy over the honest parties with and without the attack.
"""

import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

data, model = rv.datasets.digits(parties=20, classes_per_party=6, seed=0), rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20)
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver), "RFA": rv.rfa(solver),
           "robust interpolation": rv.robust_interpolation(solver)}
malicious = (0, 5, 10, 15)
honest = [k for k in range(20) if k not in malicious]

bars = {"no attack": [], "sign flip": []}
for algorithm in methods.values():
    under = rv.attacked(algorithm, rv.attacks.SignFlip(5.0), parties=malicious)
    for label, tried in zip(bars, (algorithm, under), strict=True):
        scores = rv.simulate(tried, model, data, rounds=50, evaluate_every=50).scores("test")
        bars[label].append(scores.iloc[-1].iloc[honest].mean())

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for i, (label, values) in enumerate(bars.items()):
    axes.barh(np.arange(len(methods)) + 0.4 * i, values, height=0.38, label=label)
axes.set_yticks(np.arange(len(methods)) + 0.2, list(methods))
axes.invert_yaxis()
axes.set(xlabel="test accuracy of honest parties", xlim=(0, 1))
axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
assert bars["sign flip"][1] < 0.7
assert bars["sign flip"][3] > bars["no attack"][0] - 0.01
