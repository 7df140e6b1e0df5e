"""Operator splitting, plain and accelerated

Four methods on a least-squares problem whose minimiser is known. FedAvg and FedProx converge to other points, FedPi to
the minimiser, and `Anderson` around it arrives much earlier; nothing more is sent. More:
[operator splitting](theory.md#operator-splitting), [Anderson acceleration](theory.md#anderson-acceleration).

Picture: optimality gap of the shared model over the rounds, in float64.
"""

import jax
import matplotlib.pyplot as plt

import resolvent as rv

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
with jax.enable_x64(True):
    problem = rv.problems.least_squares(parties=10, samples=50, features=20, heterogeneity=1.0, seed=0)
    exact, eta = rv.solvers.ClosedForm(), 0.02
    methods = {"FedAvg": rv.fedavg(rv.solvers.GD(0.002, steps=10)), "FedProx": rv.fedprox(exact, mu=1 / eta),
               "FedPi": rv.fedpi(exact, eta=eta), "FedPi + Anderson": rv.combinators.Anderson(rv.fedpi(exact, eta=eta))}
    gaps = {}
    for label, algorithm in methods.items():
        result = rv.simulate(algorithm, problem, rounds=100, evaluate_every=2)
        gaps[label] = result.metrics.query("metric == 'gap'").set_index("round")["value"].clip(lower=1e-15)
        axes.plot(gaps[label], label=label)
axes.set(xlabel="round", ylabel="optimality gap", yscale="log")
axes.legend()
assert gaps["FedPi + Anderson"][40] < 1e-3 * gaps["FedPi"][40]
assert gaps["FedAvg"].iloc[-1] > 1e-4
