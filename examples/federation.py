"""A federation inside one process

`run_in_process` has all parts of a federation except the network: every message is encoded, each party has its own
folder, and the models are those of the simulation to rounding. So traffic can be measured before any site is asked.
More: [the protocol](federation.md), [three hospitals](federation-tutorial.md).

Picture: kilobytes from the parties in 20 rounds with FedAvg, Scaffold and FedAvg with compressed replies.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import resolvent as rv
from resolvent.federation.engines.in_process import run_in_process

data, model = rv.datasets.digits(parties=4, seed=0), rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20)
methods = {"FedAvg": rv.fedavg(solver), "Scaffold": rv.scaffold(solver),
           "FedAvg, a quarter": rv.combinators.Compressed(rv.fedavg(solver), rv.codecs.RandK(share=0.25))}
sent = {}
for label, algorithm in methods.items():
    federated = run_in_process(algorithm, model, data, rounds=20, seed=1)
    simulated = rv.simulate(algorithm, model, data, rounds=20, seed=1, progress=False)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, atol=1e-4)), federated.shared,
                                            simulated.server_model)))
    sent[label] = federated.record.bytes_up / 1000

figure, axes = plt.subplots(figsize=(5.5, 2.2), layout="constrained")
axes.barh(list(sent), list(sent.values()))
axes.invert_yaxis()
axes.set(xlabel="kilobytes from four parties in 20 rounds")
assert sent["FedAvg, a quarter"] < sent["FedAvg"] < sent["Scaffold"]
