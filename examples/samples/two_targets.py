"""A table with two targets: upper and lower blood pressure from age, weight and dose. Labels have two numbers."""

import jax.numpy as jnp
import numpy as np
import pandas as pd

import resolvent as rv

rng = np.random.default_rng(0)
visits = pd.DataFrame({"clinic": rng.choice(["a", "b", "c"], 300), "age": rng.normal(50, 10, 300),
                       "weight": rng.normal(75, 12, 300), "dose": rng.uniform(0, 5, 300)})
visits["upper"] = 90 + 0.5 * visits.age + 0.2 * visits.weight - 3 * visits.dose + rng.normal(0, 4, 300)
visits["lower"] = 55 + 0.2 * visits.age + 0.15 * visits.weight - 2 * visits.dose + rng.normal(0, 3, 300)

inputs, targets = ["age", "weight", "dose"], ["upper", "lower"]
numbers = visits[inputs + targets]
scaled = (numbers - numbers.mean()) / numbers.std()
groups = dict(list(scaled.groupby(visits.clinic)))
data = rv.FederatedData.from_arrays([g[inputs].to_numpy(float) for g in groups.values()],
                                    [g[targets].to_numpy(float) for g in groups.values()],
                                    parties=list(groups), features=inputs)

model = rv.models.from_functions(lambda key: {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)},
                                 lambda p, x: x @ p["w"] + p["b"], loss="squared_error")
result = rv.simulate(rv.fedavg(rv.SGD(0.05, batch_size=16)), model, data, rounds=15, metrics=[rv.metrics.R2()])
print(result.scores("test").iloc[-1])
print(result.fitted("a").predict(scaled[inputs].iloc[:3]))
