"""A loss of your own

Two of ten parties measure with faults: a quarter of their labels is far off. The squared error follows them, log cosh
does not. A loss has a value for each sample; `check_*` functions test the other kinds of parts. More:
[parts of your own](api/own_parts.md).

Picture: absolute error of the shared model on clean test rows, for the squared error and for log cosh.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv


class LogCosh(rv.losses.Loss):
    """log cosh(output - y): quadratic near 0, linear far away."""

    score_name = "absolute_error"

    def loss(self, outputs, y):
        error = outputs.reshape(y.shape) - y
        return jnp.logaddexp(error, -error) - jnp.log(2)

    def score(self, outputs, y):
        return jnp.abs(outputs.reshape(y.shape) - y)


rng = np.random.default_rng(0)
x = [rng.normal(size=(60, 3)) for _ in range(10)]
y = [inputs @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=60) for inputs in x]
for k in range(2):
    y[k] = y[k] + 30 * (rng.random(60) < 0.25)
data = rv.FederatedData.from_arrays(x, y, test=0.3)


def model(loss):
    return rv.models.from_functions(lambda key: {"w": jnp.zeros(3), "b": jnp.zeros(())},
                                    lambda p, x: x @ p["w"] + p["b"], loss=loss)


solver = rv.SGD(0.05, batch_size=10)
fitted = {label: rv.simulate(rv.fedavg(solver), model(loss), data, rounds=60).server_model
          for label, loss in {"squared error": "squared_error", "log cosh": LogCosh()}.items()}
clean = np.concatenate([data.party(k, "test")[0] for k in range(2, 10)])
errors = {label: np.abs(clean @ np.asarray(w["w"]) + float(w["b"]) - clean @ [1.0, -2.0, 0.5])
          for label, w in fitted.items()}
assert errors["log cosh"].mean() < 0.2 * errors["squared error"].mean()

figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes.boxplot(list(errors.values()), tick_labels=list(errors), orientation="horizontal")
axes.set(xlabel="absolute error on clean rows", xscale="log")
