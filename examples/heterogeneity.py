"""How different are the parties?

Two diagnostics measure it during a run: the dissimilarity of the FedProx paper, which is 1 if all gradients are
equal, and the variance of the gradients. More: [diagnostics](research.md#8-diagnostics).

Picture: gradient variance over the rounds for four synthetic federations, from identical parties to very different
ones.
"""

import matplotlib.pyplot as plt

import resolvent as rv

federations = {"the same model for all": {"iid": True}, "Synthetic(0, 0)": {"alpha": 0.0, "beta": 0.0},
               "Synthetic(0.5, 0.5)": {"alpha": 0.5, "beta": 0.5}, "Synthetic(1, 1)": {"alpha": 1.0, "beta": 1.0}}
solver = rv.SGD(0.01, batch_size=10, epochs=5)

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
variances = {}
for label, settings in federations.items():
    result = rv.simulate(rv.fedprox(solver, mu=1.0), rv.models.logistic(60, 10),
                         rv.datasets.fedprox_synthetic(seed=0, **settings), rounds=60, evaluate_every=3,
                         diagnostics=["dissimilarity"])
    variance = result.metrics.query("metric == 'gradient_variance'").set_index("round")["value"]
    variances[label] = variance.iloc[-1]
    axes.plot(variance, label=label)
axes.set(xlabel="round", ylabel="gradient variance", yscale="log")
axes.legend()
assert variances["the same model for all"] < variances["Synthetic(1, 1)"]
