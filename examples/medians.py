"""From the mean to the geometric median

The server of Fed+ computes a centre of the parties' models. With the penalty `L2Norm` and smoothing delta it is the
geometric median for a small delta and the mean for a large one. An outlier moves the mean, and hardly the median. More:
[the Moreau centre and the medians](theory.md#the-moreau-centre-and-the-medians).

Picture: seven points in the plane, one far away, and the centre for values of delta from 0.01 to 100.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import resolvent as rv
from resolvent.math.centres import geometric_median, moreau_centre

points = np.random.default_rng(1).normal(size=(7, 2))
points[0] = [9.0, 4.0]
deltas = np.geomspace(0.01, 100, 60)
path = jax.vmap(lambda d: moreau_centre(jnp.array(points), jnp.ones(7), rv.penalties.L2Norm(), d)[0])(jnp.array(deltas))
median = geometric_median(jnp.array(points), jnp.ones(7))[0]
assert np.allclose(path[0], median, atol=0.02)
assert np.allclose(path[-1], points.mean(axis=0), atol=0.02)

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes.scatter(*points.T, color="grey", label="models of parties")
line = axes.scatter(*path.T, c=np.log10(deltas), cmap="viridis", s=14)
figure.colorbar(line, label="log10 of delta")
axes.plot(*median, "k^", label="geometric median")
axes.plot(*points.mean(axis=0), "ks", label="mean")
axes.legend()
