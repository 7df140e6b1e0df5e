"""From a table to a decision, and a model in use

Six hospitals have a table of visits. Should a hospital train with the others, and with which method? Training alone is
compared with two federated methods, the decision for each hospital is read, and the model of one of them predicts new
visits. More: [your data](data.md), [read the advice](decisions.md), [use a model](predict.md).

Picture: the gain over training alone that each hospital can expect, with its interval.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import resolvent as rv

ROUNDS = 40

# %% [markdown]
# ## The table
#
# One row per visit. One column names the hospital, one is the outcome to predict. Here the numbers are random; with a
# file of your own, use `rv.datasets.table("visits.csv", party="hospital", label="outcome")`.

# %%
rng = np.random.default_rng(0)
hospitals = ["Bochum", "Essen", "Fulda", "Gera", "Hagen", "Ulm"]
visits = pd.DataFrame({
    "hospital": np.array(hospitals)[rng.choice(6, 900, p=[0.3, 0.25, 0.2, 0.12, 0.08, 0.05])],
    "age": rng.normal(60, 12, 900).clip(20, 95).round(1),
    "pressure": rng.normal(130, 15, 900).round(),
    "smoker": rng.random(900) < 0.3,
})
risk = (visits["age"] - 60) / 12 + (visits["pressure"] - 130) / 15 + visits["smoker"] + rng.normal(0, 0.7, 900)
visits["outcome"] = np.where(risk > 0.3, "ill", "well")
visits.head()

# %%
data = rv.datasets.from_frame(visits, "hospital", "outcome", name="visits")
data

# %% [markdown]
# ## The comparison
#
# All methods have the same minibatches and cohorts. A table with fewer than 20,000 rows has five folds: each visit is
# tested once, by models that were trained without its fold.

# %%
solver = rv.SGD(0.1, batch_size=20, epochs=1)
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver),
           "robust interpolation": rv.robust_interpolation(solver)}
model = rv.models.logistic(len(data.features), len(data.classes))
comparison = rv.compare(methods, model, data, rounds=ROUNDS)
comparison

# %% [markdown]
# What each hospital should use: it joins, stays alone, or its advice is unclear, which means alone for now.

# %%
decisions = comparison.recommend()
decisions

# %% [markdown]
# ## The model in use
#
# A fitted model has the encoding of the training table, so it takes new rows as they are.

# %%
fitted = comparison.results["robust interpolation"].fitted("Essen")
new_visits = pd.DataFrame({"age": [41.0, 77.0], "pressure": [118.0, 151.0], "smoker": [False, True]})
pd.DataFrame(fitted.predict_proba(new_visits), columns=fitted.classes).assign(predicted=fitted.predict(new_visits))

# %%
figure, axes = plt.subplots(figsize=(5.5, 3), layout="constrained")
gains = 100 * decisions.set_index("site")[["expected", "expected_low", "expected_high"]]
middle, low, high = gains.to_numpy().T
axes.errorbar(middle, gains.index, xerr=[middle - low, high - middle], fmt="o")
axes.axvline(0, color="grey", linewidth=0.8)
axes.set(xlabel="points of skill gained over training alone")
