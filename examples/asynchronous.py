"""A server that does not wait

Parties differ in speed. A synchronous server waits for the slowest of each round; `fedbuff` makes a step whenever four
replies have arrived. Both run on one virtual clock. More: [asynchronous servers](api/asynchronous.md).

Picture: validation accuracy against simulated seconds, for FedAvg and for FedBuff.
"""

import matplotlib.pyplot as plt

import resolvent as rv

data, model = rv.datasets.digits(parties=20, classes_per_party=6, seed=0), rv.models.logistic(64, 10)
solver = rv.SGD(0.1, batch_size=20, epochs=1)
clock = rv.VirtualClock(speed=20.0, rate=1e5, speed_spread=1.5)

waiting = rv.simulate(rv.fedavg(solver), model, data, rounds=40, evaluate_every=1, clock=clock)
steps = -(-data.sizes() // 20)
seconds = clock.job_seconds(len(data), steps, message_bytes=2 * 4 * 650)
buffered = rv.simulate(rv.fedbuff(solver, buffer=4), model, data, rounds=2400, evaluate_every=60,
                       participation=rv.participation.Arrivals(seconds, jitter=0.2))

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
curves = {}
for label, result in {"FedAvg, waiting": waiting, "FedBuff": buffered}.items():
    clock_time = result.metrics.query("metric == 'simulated_seconds'").set_index("round")["value"].cumsum()
    accuracy = result.scores("validation").mean(axis=1)
    curves[label] = (clock_time.reindex(accuracy.index).fillna(0), accuracy)
    axes.plot(*curves[label], label=label)
end = min(time.iloc[-1] for time, _ in curves.values())
axes.set(xlabel="simulated seconds", ylabel="validation accuracy", xlim=(0, end))
axes.legend()
first_above = {label: time[accuracy > 0.75].min() for label, (time, accuracy) in curves.items()}
assert first_above["FedBuff"] < first_above["FedAvg, waiting"]
