"""A median from sums

A geometric median seems to need every reply. `CentreFromSums` computes it from weighted sums of bounded vectors, a few
per round, so that a server that sees sums only can be robust. More:
[the Moreau centre and the medians](theory.md#the-moreau-centre-and-the-medians).

Picture: distance of the server's model from that of RFA with all replies, over the rounds, with 1, 2 and 4 sums.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv
from resolvent.math import tree

data, model = rv.datasets.digits(parties=20, classes_per_party=6, seed=0), rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20)


def centres(algorithm):
    models = []
    rv.simulate(algorithm, model, data, rounds=30, evaluate_every=2, progress=False,
                on_evaluation=lambda event: models.append(event.result().server_model))
    return models


exact = centres(rv.rfa(solver))
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
last = []
for steps in (1, 2, 4):
    models = centres(rv.combinators.CentreFromSums(rv.rfa(solver), steps=steps))
    distance = [float(tree.norm(jax.tree.map(np.subtract, a, b))) for a, b in zip(models, exact, strict=True)]
    last.append(distance[-1])
    axes.plot(np.arange(len(distance)) * 2, np.maximum(distance, 1e-7), label=f"{steps} sum{'s' if steps > 1 else ''}")
axes.set(xlabel="round", ylabel="distance from RFA's model", yscale="log")
axes.legend()
assert last[2] < last[0]
