"""Regressions over sites next to statsmodels and lifelines on the pooled rows of real tables; and their speed.

    python benchmarks/tables/prepare.py FOLDER
    python benchmarks/regressions.py FOLDER --only tables --out benchmarks/regressions.json
    python benchmarks/regressions.py FOLDER --only limits --out benchmarks/regressions.json
    python benchmarks/regressions.py --only speed --out benchmarks/regressions.json

``tables``: each row has the largest difference of an estimate, and the largest relative difference of a standard error;
for the digits that R prints both are differences. Those of lung are in the tutorials of R's package survival, those of
rossi in J. Fox, S. Weisberg, *An R Companion to Applied Regression*, appendix on Cox regression. ``limits``: the same
regressions in a federation within this process, at the default limits of a site, plain and with secure sums; who
refuses, and why. ``speed``: 100 sites of 10,000 rows with 100 columns, CPU and wall seconds.
A part replaces its own rows of the file.

The packages of the extras ``test`` and ``secure`` are needed, and lifelines and palmerpenguins, which need an older
pandas: ``pip install lifelines palmerpenguins 'pandas<3'`` in an environment of their own.
"""

import argparse
import json
import resource
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
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
    parser.add_argument("--only", choices=("tables", "limits", "speed"), required=True)
    options = parser.parse_args()
    if options.tables is None and options.only != "speed":
        parser.error("name the folder of the tables")
    rows = []
    for row in {"tables": lambda: (*(_compare(name, options.tables) for name in _TABLES), *_cox()),
                "limits": lambda: (_at_default_limits(name, options.tables) for name in _TABLES),
                "speed": lambda: (_speed(),)}[options.only]():
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.out is not None:
        file = json.loads(options.out.read_text("utf-8")) if options.out.is_file() else {}
        parts = {name: file.get(name, []) for name in ("tables", "limits", "speed")} | {options.only: rows}
        options.out.write_text(as_json({"command": "python benchmarks/regressions.py FOLDER --only PART --out FILE"},
                                       **parts))


def _rows(name: str, folder: Path) -> pd.DataFrame:
    """The rows of a fit: the site and the columns that are used."""
    table, label, _, right = _TABLES[name]
    frame = pd.read_csv(folder / f"{table}.csv")
    frame.columns = [str(column).replace(".", "_").replace(" ", "_") for column in frame.columns]
    if label not in frame:
        last = frame.columns[-1]  # the label, yes or no
        frame["y"] = (frame[last] == "yes").astype(float)
    used = [column for column in frame.columns if column in f"{label} {right}".replace("+", " ").split()]
    return frame[["site", *used]].dropna()


def _compare(name: str, folder: Path) -> dict[str, Any]:
    """One fit, and the same from the pooled rows."""
    _, label, family, right = _TABLES[name]
    frame = _rows(name, folder)
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
    rossi_as_one = rv.regress(rossi.assign(state="one"), f"Surv(week, arrest) ~ {' + '.join(names)}", party="state")
    printed = np.array([[-0.37942, -0.05744, 0.31390, -0.14980, -0.43370, -0.08487, 0.09150],
                        [0.19138, 0.02200, 0.30799, 0.21222, 0.38187, 0.19576, 0.02865]])
    return [{"fit": "rossi, Cox, one site, the five digits that R prints", "rows": rossi_as_one.count, "sites": 1,
             "rounds": rossi_as_one.rounds, "estimates": _largest(rossi_as_one.estimates - printed[0]),
             "errors": _largest(rossi_as_one.table["standard error"] - printed[1])},
            {"fit": "rossi, Cox, stratified, lifelines", "rows": fit.count, "sites": 3, "rounds": fit.rounds,
             "estimates": _largest(fit.estimates - strata.params_[names]),
             "errors": _largest(fit.table["standard error"] / strata.standard_errors_[names] - 1)},
            {"fit": "lung, Cox, one site, the six digits that R prints", "rows": one_site.count, "sites": 1,
             "rounds": one_site.rounds, "estimates": _largest(one_site.estimates - [0.011067, -0.552612, 0.463728]),
             "errors": _largest(one_site.table["standard error"] - [0.009267, 0.167739, 0.113577])}]


def _at_default_limits(name: str, folder: Path) -> dict[str, Any]:
    """The fit in a federation whose sites have the default limits, plain and with secure sums."""
    _, label, family, right = _TABLES[name]
    frame, row = _rows(name, folder), {"fit": name, "sites": 0}
    row |= {"sites": frame["site"].nunique(), "rows of the smallest site": int(frame["site"].value_counts().min())}
    fit = rv.regress(frame, f"{label} ~ {right}", party="site", family=family)
    for kind, privacy in (("plain", {}), ("secure", {"privacy": {"secure_sums": True}})):
        outcome, refusals, federated = _federate(frame, {"formula": f"{label} ~ {right}", "family": family}, privacy)
        row[kind] = outcome["status"]
        if federated is not None:
            row[f"{kind}, largest difference in standard errors"] = _largest(
                (federated.estimates - fit.estimates) / np.asarray(fit.table["standard error"]))
        elif refusals:
            row[f"{kind}, sites that refuse"] = len(refusals)
            row[f"{kind}, limits"] = dict(Counter(limit for limits in refusals.values() for limit in limits))
    return row


def _federate(frame: pd.DataFrame, regression: dict[str, Any],
              privacy: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]], Any]:
    """The outcome, site -> the limits by which it refuses, and the fit if there is one."""
    from resolvent.federation.engines.in_process import InProcess
    from resolvent.federation.protocol.files import SiteFile
    from resolvent.federation.protocol.fitted_regression import read_fit
    from resolvent.federation.protocol.job import FederationJob
    from resolvent.federation.protocol.limits import Limits
    from resolvent.federation.protocol.plan_files import plan_from_text
    from resolvent.federation.protocol.policy import REHEARSAL
    from resolvent.federation.secure.primitives import local_identities
    from resolvent.federation.server.serve import serve_federation
    from resolvent.federation.server.watch import Watch
    from resolvent.federation.site.site import Site

    text = json.dumps({"data": {"party": "site"}, "regression": regression} | privacy)
    refusals: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = {f"site-{number}": part.drop(columns="site") for number, (_, part) in enumerate(frame.groupby("site"))}
        identities, sites = local_identities(rows), {}
        for site, part in rows.items():
            part.to_csv(folder / f"{site}.csv", index=False)
            file = SiteFile(table=str(folder / f"{site}.csv"), limits=Limits())
            sites[site] = Site(site, folder / site, file, verify=lambda content, signature: "lead",
                               policy=REHEARSAL, identity=identities[site])

        def answer(site: str, message: bytes) -> bytes:
            reply = sites[site].handle(message)
            if reply[:1] == b"{" and (refused := json.loads(reply).get("refused")):
                refusals[site] = [*refused.get("limits", {refused["code"]: None})]
            return reply

        job = FederationJob("run-1", plan_from_text(text, "run-1").text, tuple(rows))
        plan = plan_from_text(job.experiment, job.run, policy=REHEARSAL)
        outcome = serve_federation(job, plan, InProcess({site: partial(answer, site) for site in rows}),
                                   folder / "server", folder / "out", Watch(lambda event: None))
        for of_site in sites.values():
            of_site.close()
        return outcome, refusals, read_fit(folder / "out").result if outcome["status"] == "complete" else None


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
