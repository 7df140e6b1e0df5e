"""Matrix factorisation with private users

Each party is a user, whose vector never leaves it; the vectors of the items are shared. Inputs are a dict with the
number of the item, which stays an integer. More: [samples of any structure](data.md#samples-of-any-structure),
[personal layers](api/combinators.md).

Picture: the squared error on unseen ratings falls with private vectors, and stays with one vector for all users.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv

USERS, ITEMS, D = 60, 30, 2
rng = np.random.default_rng(0)
ratings = rng.normal(size=(USERS, D)) @ rng.normal(size=(D, ITEMS)) / np.sqrt(D) + 0.1 * rng.normal(size=(USERS, ITEMS))
rated = [rng.permutation(ITEMS)[:25] for _ in range(USERS)]
data = rv.FederatedData.from_arrays([{"item": items} for items in rated],
                                    [ratings[user, items] for user, items in enumerate(rated)])


def init(key):
    a, b = jax.random.split(key)
    return {"user": 0.3 * jax.random.normal(a, (D,)), "items": 0.3 * jax.random.normal(b, (ITEMS, D))}


def apply(p, x):
    return jnp.sum(p["items"][x["item"]] * p["user"], axis=-1)


model = rv.models.from_functions(init, apply, loss="squared_error")
solver = rv.SGD(0.3, batch_size=5, epochs=5)
algorithm = rv.combinators.PersonalLayers(rv.fedavg(solver), ("user",))
result = rv.simulate(algorithm, model, data, rounds=60)
shared = rv.simulate(rv.fedavg(solver), model, data, rounds=60)
assert result.scores("test").iloc[-1].mean() < 0.7 * shared.scores("test").iloc[-1].mean()

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for label, run in {"private vectors": result, "one vector for all users": shared}.items():
    axes.plot(run.scores("test").mean(axis=1), label=label)
axes.set(xlabel="round", ylabel="squared error, test")
axes.legend()
