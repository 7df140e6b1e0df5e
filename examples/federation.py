"""A federation inside one process

`run_in_process` has all parts of a federation except the network: every message is encoded, each party has its own
folder, and the models are those of the simulation to rounding. So traffic can be measured before any site is asked.
More: [the protocol](federation.md), [three hospitals](federation-tutorial.md).

Picture: kilobytes from the parties in 20 rounds with FedAvg, Scaffold and FedAvg with compressed replies.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv
from resolvent.federation.engines.in_process import run_in_process

random = np.random.default_rng(0)
problem = rv.problems.QuadraticProblem.least_squares(random.normal(size=(4, 30, 500)), random.normal(size=(4, 30)))
solver = rv.solvers.GD(0.001, steps=3)
methods = {"FedAvg": rv.fedavg(solver), "Scaffold": rv.scaffold(solver),
           "FedAvg, a quarter": rv.combinators.Compressed(rv.fedavg(solver), rv.codecs.RandK(share=0.25))}
sent = {}
for label, algorithm in methods.items():
    federated = run_in_process(algorithm, problem, rounds=20, seed=1)
    simulated = rv.simulate(algorithm, problem, rounds=20, seed=1, progress=False)
    assert jnp.allclose(federated.shared, simulated.server_model, atol=1e-5)
    sent[label] = federated.record.bytes_up / 1000

figure, axes = plt.subplots(figsize=(5.5, 2.2), layout="constrained")
axes.barh(list(sent), list(sent.values()))
axes.invert_yaxis()
axes.set(xlabel="kilobytes from four parties in 20 rounds")
assert sent["FedAvg, a quarter"] < sent["FedAvg"] < sent["Scaffold"]
