"""Odds ratios over sites

A logistic regression over the rows of all sites, from sums alone: the estimates and standard errors are those of the
pooled rows. The forest plot asks whether sites differ. Needs the extra `statistics`. More:
[regression over sites](regression.md).

Picture: the coefficient of age at each site and over all sites, with 95 % intervals.
"""

import numpy as np
import pandas as pd

import resolvent as rv

rng = np.random.default_rng(0)
visits = pd.DataFrame({"age": rng.normal(50, 10, 900), "ward": rng.choice(["A", "B"], 900),
                       "hospital": rng.choice(["Bonn", "Essen", "Fulda", "Gera", "Ulm"], 900)})
slope = visits["hospital"].map({"Bonn": 0.0, "Essen": 0.05, "Fulda": 0.05, "Gera": 0.07, "Ulm": 0.12})
risk = 1 / (1 + np.exp(0.5 - slope * (visits["age"] - 50) - 0.5 * (visits["ward"] == "B")))
visits["ill"] = np.where(rng.random(900) < risk, "yes", "no")

fit = rv.regress(visits, "ill ~ age + ward", party="hospital")
print(fit.summary())
heterogeneity = fit.heterogeneity()
print(heterogeneity.table, heterogeneity.test)
figure = heterogeneity.forest("age")
assert heterogeneity.table.loc["age", "p"] < 0.05
