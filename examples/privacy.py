"""What privacy costs

`DPSGD` clips each sample's gradient and adds noise, so that the models reveal little about a single record. More noise
is a smaller epsilon and a worse model. Needs the extra `privacy`. More: [differential privacy](privacy.md).

Picture: test accuracy of FedAvg and of training alone against the epsilon of the party that spends most
(delta = 1e-4).
"""

import jax
import matplotlib.pyplot as plt

import resolvent as rv

data, model = rv.datasets.digits(parties=5, classes_per_party=10, size_spread=0.0, seed=0), rv.models.logistic(64, 10)
w0 = model.init(jax.random.key(0))
rounds = 15

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for make, marker in {rv.fedavg: "o-", rv.local: "^-"}.items():
    epsilons, scores = [], []
    for noise in (1.0, 2.0, 4.0, 8.0):
        solver = rv.solvers.DPSGD(0.5, clip=1.0, noise_multiplier=noise, batch_size=32, steps=5)
        algorithm = make(solver)
        epsilons.append(max(rv.privacy.record_epsilons(algorithm, w0, data.sizes(), rounds=rounds, delta=1e-4)))
        result = rv.simulate(algorithm, model, data, rounds=rounds, evaluate_every=rounds, progress=False)
        scores.append(result.scores("test").iloc[-1].mean())
    assert scores[0] > scores[-1]
    axes.semilogx(epsilons, scores, marker, label=make.__name__)
axes.set(xlabel="epsilon", ylabel="test accuracy")
axes.legend()
