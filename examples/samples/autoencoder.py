"""An autoencoder of digits: no labels, and the inputs are what the outputs are compared with."""

import jax
import jax.numpy as jnp

import resolvent as rv

digits = rv.datasets.digits(parties=5, classes_per_party=3, validation=0, test=0)
data = rv.FederatedData.from_arrays([digits.party(k)[0] for k in range(len(digits))], name="digits without labels")


def init(key):
    a, b = jax.random.split(key)
    return {"encode": jax.random.normal(a, (64, 12)) / 8, "decode": jax.random.normal(b, (12, 64)) / 4,
            "bias": jnp.zeros(64)}


def apply(p, x):
    return jnp.tanh(x.reshape(len(x), 64) @ p["encode"]) @ p["decode"] + p["bias"]


model = rv.models.from_functions(init, apply, loss="reconstruction")
result = rv.simulate(rv.fedavg(rv.SGD(0.5, batch_size=20)), model, data, rounds=20)
print(data)
print(result.scores("test").mean(axis=1))
