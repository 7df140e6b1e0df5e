"""Parties with different networks

Every party has a network of another depth, so that models cannot be averaged. FedProto shares what networks have in
common: the mean features of each class. One model holds all networks, and each party's samples say which one is its
own. The others get no gradient and stay at their first values. Here FedProto is no better than training alone, as in
the [reference](choosing.md#if-your-data-are-like-this); it sends 330 numbers where a network has thousands. More:
[parties differ](choosing.md#parties-differ).

Picture: accuracy of each party on its test samples, alone and with FedProto.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

networks = [rv.models.mlp(64, 10, width=32, depth=depth) for depth in (1, 2, 3)]


def apply(params, x):
    results = [network.apply_with_features(part, x["image"]) for network, part in zip(networks, params, strict=True)]
    is_own = [x["network"][:, None] == i for i in range(len(networks))]
    return jax.tree.map(lambda *leaves: jnp.select(is_own, leaves), *results)


digits = rv.datasets.digits(parties=9, classes_per_party=4, seed=0)
rows = [[np.concatenate(arrays) for arrays in zip(*(digits.party(k, s) for s in digits.splits), strict=True)]
        for k in range(9)]
data = rv.FederatedData.from_arrays(
    [{"image": x[:80].reshape(-1, 64), "network": np.full(len(x[:80]), k % 3)} for k, (x, _) in enumerate(rows)],
    [y[:80] for _, y in rows], classes=digits.classes, test=0.5, stratified=True)
model = rv.models.from_functions(lambda key: [network.init(key) for network in networks], apply, returns_features=True)

solver = rv.SGD(0.1, batch_size=10, epochs=2)
algorithms = {"alone": rv.local(solver), "FedProto": rv.fedproto(solver, lam=1.0, classes=10, features=32)}
results = {name: rv.simulate(algorithm, model, data, rounds=15, progress=False)
           for name, algorithm in algorithms.items()}
first, trained = model.init(jax.random.key(0)), results["FedProto"].personal_model(1)  # a party with the second network
assert [np.array_equal(a["layer 1"]["bias"], b["layer 1"]["bias"]) for a, b in zip(first, trained, strict=True)] == [
    True, False, True]

figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
for name, result in results.items():
    axes.plot(result.scores("test").iloc[-1], marker="o", linestyle="none", label=name)
axes.set(xlabel="party (networks with 1, 2 and 3 hidden layers in turn)", ylabel="accuracy on test samples")
axes.legend()
