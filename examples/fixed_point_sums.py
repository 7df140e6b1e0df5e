"""Replies as integers, whose sum can be hidden

A secure sum adds masks to the replies that cancel in the sum, modulo a power of two. Masks need integers, so
`FixedPointSums` makes replies fixed-point numbers, with a resolution that follows from the range, the number of parties
and the bits. The masks here are drawn by hand; between real sites they come from keys. More:
[secure sums](secure-sums.md), [combinators](api/combinators.md).

Picture: distance of the shared model from that of FedAvg with floating-point replies, with 32 and with 64 bits.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv
from resolvent.math import tree

# Three integers, each with masks that only its owner and one other party know: the sum is that of the integers.
values = np.array([5, 7, 11], np.uint64)
ab, ac, bc = np.random.default_rng(0).integers(0, 2**63, 3, dtype=np.uint64)
with np.errstate(over="ignore"):
    sent = values + np.array([ab + ac, bc - ab, np.uint64(0) - ac - bc])  # modulo 2^64
assert sent.sum() == 23
assert not np.isin(values, sent).any()

data, model = rv.datasets.digits(parties=10, classes_per_party=4, seed=0), rv.models.logistic(64, 10)
fedavg, everybody = rv.fedavg(rv.SGD(0.1, batch_size=20)), rv.participation.Full("uniform")


def centres(algorithm):
    models = []
    rv.simulate(algorithm, model, data, rounds=30, evaluate_every=2, participation=everybody, progress=False,
                on_evaluation=lambda event: models.append(event.result().server_model))
    return models


plain = centres(fedavg)
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for bits, style in {32: "o-", 64: "^-"}.items():
    summed = centres(rv.combinators.FixedPointSums(fedavg, weighting="uniform", bits=bits, largest=16.0, terms=10))
    distance = [float(tree.norm(jax.tree.map(np.subtract, a, b))) for a, b in zip(summed, plain, strict=True)]
    axes.plot(2 * np.arange(len(distance)), np.maximum(distance, 1e-9), style, label=f"{bits} bits")
axes.set(xlabel="round", ylabel="distance from FedAvg's model", yscale="log")
axes.legend()
assert distance[-1] < 1e-3
