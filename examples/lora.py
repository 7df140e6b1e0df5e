"""Adapters of a large model

Every party has a network that was trained on the even digits. LoRA trains products of two small matrices instead of
its weights: fewer numbers are sent, and the mean over the parties is exact if one factor is a constant (FFA-LoRA).
More: [large pretrained models](scaling.md#pretrained-models).

Picture: accuracy on the test samples against the megabytes that were sent, for all weights and for adapters.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import resolvent as rv

x, y = load_digits(return_X_y=True)
network = rv.models.mlp(64, 10, width=128, depth=2)
even = rv.FederatedData.from_arrays([x[y % 2 == 0] / 16], [y[y % 2 == 0]], classes=[str(i) for i in range(10)])
solver = rv.SGD(0.1, batch_size=20, epochs=1)
weights = rv.simulate(rv.local(solver), network, even, rounds=8, progress=False).personal_model(0)

data = rv.datasets.digits(parties=8, seed=0)
models = {
    "all weights": network,
    "LoRA, rank 4": rv.models.lora(network, base=weights, rank=4, layers=["layer 0", "layer 1"], trained="layer 2"),
    "FFA-LoRA, rank 4": rv.models.lora(network, base=weights, rank=4, layers=["layer 0", "layer 1"], trained="layer 2",
                                       frozen_a=True),
}
figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
sent = {}
for name, model in models.items():
    start = weights if model is network else None
    result = rv.simulate(rv.fedavg(solver), model, data, rounds=12, start=start, progress=False)
    numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(result.server_model))
    accuracy = result.metrics.query("split == 'test' and metric == 'accuracy'").groupby("round")["value"].mean()
    sent[name] = 2 * 4 * numbers * len(data) / 1e6  # down and up, in a round
    axes.plot(sent[name] * accuracy.index, accuracy, marker=".", label=name)
assert sent["LoRA, rank 4"] < sent["all weights"] / 5
axes.set(xlabel="megabytes sent", ylabel="accuracy", xscale="log")
axes.legend()
