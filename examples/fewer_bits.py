"""Fewer bits: where plain compression stalls

Parties send gradients of which `RandK` leaves one entry in ten. Plain compression (DCGD) stalls at a distance from the
minimiser. DIANA sends the difference from a shift that both sides know, and converges. More:
[compression](theory.md#compression), [codecs](api/codecs.md).

Picture: optimality gap against the bits that a party has sent: gradients in full, DCGD and DIANA.
"""

import matplotlib.pyplot as plt

import resolvent as rv

problem = rv.problems.least_squares(parties=10, samples=50, features=20, heterogeneity=1.0, seed=0)
codec = rv.codecs.RandK(share=0.1)
methods = {"in full": (rv.dgd(learning_rate=0.004, alpha=1.0), 20 * 32),
           "DCGD": (rv.dcgd(learning_rate=0.004, codec=codec, alpha=1.0), codec.count(20, "float32")),
           "DIANA": (rv.diana(learning_rate=0.004, codec=codec, alpha=1.0), codec.count(20, "float32"))}

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
gaps = {}
for label, (algorithm, bits) in methods.items():
    result = rv.simulate(algorithm, problem, rounds=3000, evaluate_every=50)
    gap = result.metrics.query("metric == 'gap'").set_index("round")["value"]
    gaps[label] = gap.iloc[-1]
    axes.plot(gap.index * bits / 1000, gap, label=label)
axes.set(xlabel="kilobits sent by a party", ylabel="optimality gap", yscale="log", xlim=(0, 320))
axes.legend()
print(gaps)
assert gaps["DIANA"] < 0.01 * gaps["DCGD"]
