# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # From a table to a decision and a model in use
#
# Six hospitals have a table of visits. Should a hospital train with the others, and with which method? This notebook
# compares training alone with two federated methods, reads the decision for each hospital, and predicts for new visits
# at one of them.

# %%
import numpy as np
import pandas as pd

import resolvent as rv

ROUNDS = 40
SEEDS = 3

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
# All methods have the same minibatches and cohorts. With several seeds the split into training, validation and test
# rows varies too, so that the intervals include it.

# %%
solver = rv.SGD(0.1, batch_size=20, epochs=1)
methods = {"alone": rv.local(solver), "FedAvg": rv.fedavg(solver), "FedAvg+": rv.fedavg_plus(solver)}
model = rv.models.logistic(len(data.features), len(data.classes))
comparison = rv.compare(methods, model, data, rounds=ROUNDS, seeds=SEEDS)
comparison

# %% [markdown]
# What each hospital should use. The method is chosen on validation rows and judged on test rows; where the gain over
# training alone cannot be distinguished from zero, the answer is to train alone.

# %%
decisions = comparison.recommend()
decisions

# %%
comparison.results["FedAvg+"].plot()

# %% [markdown]
# ## The model in use
#
# A fitted model has the encoding of the training table, so it takes new rows as they are.

# %%
fitted = comparison.results["FedAvg+"].fitted("Essen")
new_visits = pd.DataFrame({"age": [41.0, 77.0], "pressure": [118.0, 151.0], "smoker": [False, True]})
pd.DataFrame(fitted.predict_proba(new_visits), columns=fitted.classes).assign(predicted=fitted.predict(new_visits))
