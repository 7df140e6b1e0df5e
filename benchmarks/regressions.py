"""Regressions over sites next to statsmodels and lifelines on the pooled rows of real tables; and their speed.

    python benchmarks/tables/prepare.py FOLDER
    python benchmarks/regressions.py FOLDER --speed --out benchmarks/regressions.json

``--speed``: 100 sites of 10,000 rows with 100 columns, CPU and wall seconds.

Each row of the file has the largest difference of an estimate, and the largest relative difference of a standard error.
The packages of the extra ``test`` are needed, and lifelines and palmerpenguins, which need an older pandas.
"""

import argparse
import json
import resource
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf

import resolvent as rv
from records import as_json

_TABLES = {  # name -> (table, label, family, right side)
    "lung, logistic": ("lung", "y", "binomial", "age + sex + ph_karno"),
    "actg175, logistic": ("actg175", "y", "binomial", "age + wtkg + karnof + cd40 + treat"),
    "actg175, Poisson": ("actg175", "preanti", "poisson", "age + wtkg + karnof"),
    "diabetes, linear": ("diabetes", "target", "gaussian", "age + sex + bmi + bp"),
    "diabetes, gamma": ("diabetes", "target", "gamma", "age + bmi + bp"),
    "penguins, linear": ("penguins", "body_mass_g", "gaussian", "species + sex + bill_length_mm"),
    "randhie, logistic": ("randhie", "y", "binomial", "xage + educdec + linc + female + child"),
    "wine, linear": ("wine", "alcohol", "gaussian", "malic_acid + ash + magnesium"),
}
_LAWS = {"binomial": sm.families.Binomial(), "poisson": sm.families.Poisson(), "gaussian": sm.families.Gaussian(),
         "gamma": sm.families.Gamma(sm.families.links.Log())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="?", type=Path, help="the folder of prepare.py")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.tables is None and not options.speed:
        parser.error("name the folder of the tables, or give --speed")
    facts: dict[str, Any] = {"command": "python benchmarks/regressions.py FOLDER --out FILE --speed"}
    if options.speed:
        facts["speed"] = _speed()
        print(facts["speed"])
    rows = [] if options.tables is None else [*(_compare(name, options.tables) for name in _TABLES), *_cox()]
    for row in rows:
        print(json.dumps(row))
    if options.out is not None:
        options.out.write_text(as_json(facts, tables=rows))


def _compare(name: str, folder: Path) -> dict[str, Any]:
    """One fit, and the same from the pooled rows."""
    table, label, family, right = _TABLES[name]
    frame = pd.read_csv(folder / f"{table}.csv")
    frame.columns = [str(column).replace(".", "_").replace(" ", "_") for column in frame.columns]
    if label not in frame:
        last = frame.columns[-1]  # the label, yes or no
        frame["y"] = (frame[last] == "yes").astype(float)
    used = [column for column in frame.columns if column in f"{label} {right}".replace("+", " ").split()]
    frame = frame[["site", *used]].dropna()
    fit = rv.regress(frame, f"{label} ~ {right}", party="site", family=family)
    pooled = smf.glm(f"{label} ~ {right}", frame, family=_LAWS[family])
    reference = pooled.fit(tol=1e-15, maxiter=200)
    names = list(fit.names)
    clustered = pooled.fit(tol=1e-15, maxiter=200, cov_type="cluster",
                           cov_kwds={"groups": frame["site"].astype("category").cat.codes})
    difference = np.abs(fit.estimates - reference.params[names]) / np.maximum(1, np.abs(reference.params[names]))
    return {"fit": name, "rows": fit.count, "sites": len(fit.model.sites), "rounds": fit.rounds,
            "estimates": _largest(difference),
            "errors": _largest(fit.table["standard error"] / reference.bse[names] - 1),
            "clustered": _largest(fit.with_errors("clustered").table["standard error"] / clustered.bse[names] - 1)}


def _cox() -> list[dict[str, Any]]:
    """Cox models next to lifelines, stratified by site, and next to the digits that R's coxph prints for one site."""
    from lifelines import CoxPHFitter
    from lifelines.datasets import load_lung, load_rossi

    rossi = load_rossi().assign(state=lambda f: np.arange(len(f)) % 3)
    names = ["fin", "age", "race", "wexp", "mar", "paro", "prio"]
    fit = rv.regress(rossi, f"Surv(week, arrest) ~ {' + '.join(names)}", party="state")
    strata = CoxPHFitter().fit(rossi, "week", "arrest", strata=["state"], fit_options={"precision": 1e-13})
    lung = load_lung().dropna(subset=["ph.ecog"]).rename(columns={"ph.ecog": "ecog"}).assign(hospital="one")
    one_site = rv.regress(lung, "Surv(time, status) ~ age + sex + ecog", party="hospital")
    return [{"fit": "rossi, Cox, stratified, lifelines", "rows": fit.count, "sites": 3, "rounds": fit.rounds,
             "estimates": _largest(fit.estimates - strata.params_[names]),
             "errors": _largest(fit.table["standard error"] / strata.standard_errors_[names] - 1)},
            {"fit": "lung, Cox, one site, the six digits that R prints", "rows": one_site.count, "sites": 1,
             "rounds": one_site.rounds, "estimates": _largest(one_site.estimates - [0.011067, -0.552612, 0.463728]),
             "errors": _largest(one_site.table["standard error"] - [0.009267, 0.167739, 0.113577])}]


def _largest(difference: Any) -> float:
    return float(f"{float(np.max(np.abs(difference))):.1e}")


def _speed(sites: int = 100, rows: int = 10_000, columns: int = 100) -> dict[str, Any]:
    """The time of a logistic regression, from numbers in memory to estimates and standard errors."""
    from resolvent.comparisons.regression.model import RegressionModel
    from resolvent.comparisons.regression.regress import fit_rows
    from resolvent.comparisons.regression.rows import RegressionRows
    from resolvent.comparisons.regression.settings import RegressionSettings

    rng = np.random.default_rng(0)
    x = rng.normal(size=(sites * rows, columns))
    x[:, 0] = 1
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.1, columns)))).astype(float)
    names = ("Intercept", *(f"x{j}" for j in range(1, columns)))
    model = RegressionModel("y ~ x", names, "binomial", ("0", "1"), (int((1 - y).sum()), int(y.sum())), float(y.mean()),
                            tuple(f"site {k}" for k in range(sites)), (rows,) * sites, 0)
    data = RegressionRows(model, model.sizes, x, y)
    start, cpu = time.perf_counter(), time.process_time()
    fit = fit_rows(data, RegressionSettings(formula="y ~ x"))
    return {"sites": sites, "rows": rows, "columns": columns, "rounds": fit.rounds,
            "seconds": round(time.perf_counter() - start, 2), "cpu": round(time.process_time() - cpu, 2),
            "memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
