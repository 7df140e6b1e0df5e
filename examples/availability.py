"""Parties that sleep at night

Phones of eight time zones train while their owners sleep, and each zone has its own labels. The shared model follows
whoever is awake. `mifa` steps with the last update of every party, present or not. More:
[availability](api/participation.md#availability), [sites that are often
absent](choosing.md#sites-that-are-often-absent).

Picture: above, the number of replies by hour; below, the distance of the shared model from the minimiser of the
average loss, which oscillates with the day for FedAvg.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

PARTIES = 48
zone = np.arange(PARTIES) % 8
targets = jnp.stack([jnp.cos(2 * jnp.pi * zone / 8) + 0.5, jnp.sin(2 * jnp.pi * zone / 8)], axis=1)
problem = rv.problems.QuadraticProblem(jnp.broadcast_to(jnp.eye(2), (PARTIES, 2, 2)), targets)  # |w - target_k|^2 / 2
asleep = rv.participation.DayNight(offsets=zone, day=14, by_day=0.02, by_night=0.5,
                                   inner=rv.participation.Full("uniform"))
solver = rv.solvers.GD(0.5, steps=1)

figure, (above, below) = plt.subplots(2, 1, figsize=(5.5, 4), sharex=True, layout="constrained", height_ratios=(1, 2))
distance = {}
for label, algorithm in {"FedAvg": rv.fedavg(solver), "MIFA": rv.mifa(solver, server_rate=0.2)}.items():
    centres: list[np.ndarray] = []
    result = rv.simulate(algorithm, problem, rounds=120, participation=asleep, evaluate_every=1,
                         on_evaluation=lambda event, to=centres: to.append(np.asarray(event.result().server_model)))
    distance[label] = np.linalg.norm(centres - np.asarray(targets.mean(axis=0)), axis=1)
    below.plot(distance[label], label=label)
replies = result.metrics.query("metric == 'replies'")
above.plot(replies["round"], replies["value"], color="grey")
above.set(ylabel="replies")
below.set(xlabel="hour (one round each)", ylabel="distance")
below.legend()
assert distance["MIFA"][-24:].mean() < 0.5 * distance["FedAvg"][-24:].mean()
