"""The analyses of a registry, over four sites

Who the patients of the Stanford heart transplant programme are, how long they live, and how the hazard depends on their
age and its square, as R. Miller and J. Halpern ask in *Regression with censored data* (Biometrika, 1982). The rows are
the 69 patients of Miller's earlier table (1976), which statsmodels has, divided at random over four simulated sites.
All five analyses come from sums of the sites, and are compared with statsmodels on the pooled rows. Needs the extra
`statistics`, and statsmodels. More: [regression over sites](regression.md), [describe](describe.md).

Picture: survival after the transplant of patients below 48 years and of older ones, with 95 % intervals.
"""

import numpy as np
import pandas as pd
import statsmodels.api as sm

import resolvent as rv

heart = sm.datasets.heart.load_pandas().data
patients = pd.DataFrame({
    "days": heart["survival"], "died": heart["censors"].astype(int), "age": heart["age"],
    "group": np.where(heart["age"] < 48, "below 48", "48 and older"),
    "site": np.random.default_rng(0).permutation(np.resize(["Bonn", "Essen", "Fulda", "Ulm"], len(heart)))})
days, died, age = patients["days"], patients["died"], patients["age"]
differences = {}


def compare(analysis, ours, pooled):
    """Keep the largest difference between the numbers over sites and those of the pooled rows."""
    differences[analysis] = float(np.abs(np.asarray(ours) - np.asarray(pooled)).max())


# 1. The patients: number, mean and standard deviation.
lines = rv.describe(patients, party="site", columns=["age"], min_cell=1).table
lines = lines[(lines["site"] == "all sites") & (lines["column"] == "age")].set_index("statistic")["value"]
compare("1 age of the patients", lines[["n", "mean", "sd"]], [len(age), age.mean(), age.std()])

# 2. Survival by Kaplan and Meier, in the two groups of age.
curves = rv.survival(patients, time="days", event="died", by="group", party="site")
for name, rows in patients.groupby("group"):
    pooled = sm.SurvfuncRight(rows["days"], rows["died"])
    ours = curves.of_group(name)
    ours = ours[ours["events"] > 0]
    compare(f"2 survival, {name}", ours[["survival", "standard_error"]].iloc[:-1],
            np.column_stack([pooled.surv_prob, pooled.surv_prob_se])[:-1])

# 3. Whether the groups live equally long: the log-rank test, and the one that compares within each site.
for name, strata in {"3 log-rank": None, "3 log-rank within sites": patients["site"]}.items():
    test = curves.log_rank(stratified=strata is not None)
    compare(name, [test.statistic, test.p], sm.duration.survdiff(days, died, patients["group"], strata=strata))

# 4. The hazard by age, with a baseline hazard for each site.
cox = rv.regress(patients, "Surv(days, died) ~ age", party="site")
pooled = sm.PHReg(days, age, died, strata=patients["site"], ties="efron").fit()
compare("4 Cox, age", cox.table[["estimate", "standard error"]].iloc[0], [pooled.params[0], pooled.bse[0]])

# 5. By age and its square, with one baseline hazard for all sites, whose times are coarsened to six intervals.
ends = [30, 60, 120, 365, 730]
square = rv.regress(patients, "Surv(days, died) ~ I(age - 48) + I((age - 48)**2)", party="site", baseline_times=ends)
columns = np.column_stack([age - 48, (age - 48)**2])
pooled = sm.PHReg(np.searchsorted(ends, days) + 1, columns, died, ties="breslow").fit()
ours = square.table[square.table.index.str.startswith("I(")]
compare("5 Cox, age and its square", ours[["estimate", "standard error"]],
        np.column_stack([pooled.params, pooled.bse]))

print(cox.summary(), square.summary(), sep="\n\n")
print(pd.Series(differences, name="largest difference").map("{:.0e}".format))
assert max(differences.values()) < 1e-8
figure = curves.plot()
