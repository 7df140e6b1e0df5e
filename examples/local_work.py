"""More local work, fewer rounds?

More local epochs need fewer rounds and more seconds per round, and let the parties drift apart. The virtual clock
counts the seconds and bytes that a round would take with parties of given speeds and links. More: [little bandwidth,
few rounds](choosing.md#little-bandwidth-few-rounds).

Picture: simulated seconds until the mean test accuracy is 85 %, for 1, 5 and 20 local epochs, on a fast and a slow
link.
"""

import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

data, model = rv.datasets.digits(parties=10, classes_per_party=5, seed=0), rv.models.logistic(64, 10)
links = {"10 kB/s": 1e4, "1 MB/s": 1e6}
epochs = [1, 5, 20]
seconds = {link: [] for link in links}
for count in epochs:
    for link, rate in links.items():
        clock = rv.VirtualClock(speed=200.0, rate=rate, latency=0.1)
        result = rv.simulate(rv.fedavg(rv.SGD(0.05, batch_size=20, epochs=count)), model, data, rounds=150,
                             evaluate_every=1, clock=clock)
        reached = result.scores("test").mean(axis=1)
        target = reached.index[reached > 0.85][0]
        used = result.metrics.query("metric == 'simulated_seconds' and round <= @target")["value"].sum()
        seconds[link].append(used)

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for i, (link, values) in enumerate(seconds.items()):
    axes.bar(np.arange(3) + 0.4 * i, values, width=0.38, label=link)
axes.set_xticks(np.arange(3) + 0.2, [f"{count} epoch{'s' if count > 1 else ''}" for count in epochs])
axes.set(ylabel="simulated seconds to 85 %")
axes.legend()
assert seconds["10 kB/s"][1] < seconds["10 kB/s"][0]
