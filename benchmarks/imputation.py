"""Multiple imputation on tables whose truth is known: bias and coverage, beside complete cases and tables without gaps.

    python benchmarks/imputation.py [number of tables]        # writes imputation.json
    python benchmarks/imputation.py mice                      # adds R's mice on the same tables of the binomial label

Three sites have 150 rows each, with different means of the dose. The dose and the ward are missing at random: whether
they are depends on the label and the age, which are always there. So complete cases are not a random part of the rows.
The second command needs R with its package mice; ``imputation_mice.R`` imputes each site by itself, as is done here.
"""

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import statsmodels.api as sm
from statsmodels.duration.hazard_regression import PHReg

import resolvent as rv

SITES, ROWS, IMPUTATIONS = ("Bonn", "Essen", "Ulm"), 150, 5
TRUTH = {"age": 0.5, "dose": 0.5, "ward[T.B]": 0.7}
LABELS = {"binomial": "y", "cox": "Surv(time, y)"}
OUT = Path(__file__).with_suffix(".json")


def made_up(family: str, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table, and the same with gaps."""
    n = ROWS * len(SITES)
    site = np.repeat(np.arange(len(SITES)), ROWS)
    age = rng.normal(size=n)
    ward = rng.random(n) < 1 / (1 + np.exp(-0.5 * age))
    dose = 0.5 * age + 0.4 * ward + 0.5 * site + rng.normal(size=n)
    linear = 0.5 * age + 0.5 * dose + 0.7 * ward - 0.8
    frame = pd.DataFrame({"site": np.array(SITES)[site], "age": age, "dose": dose, "ward": np.where(ward, "B", "A")})
    if family == "binomial":
        frame["y"] = (rng.random(n) < 1 / (1 + np.exp(-linear))).astype(int)
    else:
        time, end = rng.exponential(np.exp(-linear)), rng.exponential(2.0, n)
        frame["time"], frame["y"] = np.minimum(time, end), (time <= end).astype(int)
    gappy = frame.copy()
    for name in ("dose", "ward"):
        gappy[name] = gappy[name].where(rng.random(n) > np.where((frame["y"] == 1) & (age > 0), 0.5, 0.1))
    return frame, gappy


def without_imputation(family: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The regression of complete rows by statsmodels, which compiles nothing for another number of rows."""
    x = pd.DataFrame({"Intercept": 1.0, "age": rows["age"], "dose": rows["dose"], "ward[T.B]": rows["ward"] == "B"})
    x = x.astype(float)
    if family == "binomial":
        fit = sm.GLM(rows["y"], x, family=sm.families.Binomial()).fit()
    else:
        fit = PHReg(rows["time"], x.drop(columns="Intercept"), rows["y"], strata=rows["site"], ties="efron").fit()
    ends = np.asarray(fit.conf_int())
    names = fit.model.exog_names
    table = pd.DataFrame({"estimate": np.asarray(fit.params), "low": ends[:, 0], "high": ends[:, 1]}, names)
    return table.loc[[*TRUTH]]


def measure(family: str, tables: int) -> dict[str, dict[str, dict[str, float]]]:
    """Way -> coefficient -> bias, with its Monte Carlo error, coverage of the 95 % intervals, and their mean length."""
    found: dict[str, list[pd.DataFrame]] = {}
    left_out = 0.0
    for seed in range(tables):
        frame, gappy = made_up(family, np.random.default_rng(seed))
        left_out += float(gappy.isna().any(axis=1).mean()) / tables
        fit = rv.regress(gappy, f"{LABELS[family]} ~ age + dose + ward", party="site", family=family,
                         imputations=IMPUTATIONS, seed=seed)
        for way, table in (("no gaps", without_imputation(family, frame)),
                           ("complete cases", without_imputation(family, gappy.dropna())), ("imputations", fit.table)):
            found.setdefault(way, []).append(table.loc[[*TRUTH], ["estimate", "low", "high"]])
    return {"rows left out": {"share": {"mean": round(left_out, 4)}}} | {
        way: summary(fits) for way, fits in found.items()}


def summary(fits: list[pd.DataFrame]) -> dict[str, dict[str, float]]:
    """Coefficient -> bias, its error, coverage and length, from the estimates and ends of each made-up table."""
    result = {}
    for name, truth in TRUTH.items():
        lines = pd.DataFrame([fit.loc[name] for fit in fits])
        result[name] = {
            "bias": round(float((lines["estimate"] - truth).mean()), 4),
            "error of the bias": round(float(lines["estimate"].std(ddof=1)) / len(fits)**0.5, 4),
            "coverage": round(float(((lines["low"] <= truth) & (truth <= lines["high"])).mean()), 4),
            "length": round(float((lines["high"] - lines["low"]).mean()), 4)}
    return result


def add_mice() -> None:
    """Impute the binomial tables of the file with R's mice."""
    content = json.loads(OUT.read_text())
    with TemporaryDirectory() as folder:
        for seed in range(content["tables"]):
            made_up("binomial", np.random.default_rng(seed))[1].to_csv(Path(folder) / f"{seed}.csv", index=False)
        ran = subprocess.run(["Rscript", OUT.with_name("imputation_mice.R"), folder], capture_output=True, text=True,
                             check=True)
        fits = [rows.set_index("term") for _, rows in pd.read_csv(Path(folder) / "mice.csv").groupby("table")]
    content["families"]["binomial"]["R's mice"] = summary(fits)
    content["mice"] = ran.stdout.strip()
    OUT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["mice"]:
        add_mice()
        sys.exit()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        families = dict(zip(LABELS, pool.map(measure, LABELS, [count] * len(LABELS)), strict=True))
    content = {"tables": count, "sites": len(SITES), "rows": ROWS, "imputations": IMPUTATIONS, "truth": TRUTH,
               "families": families}
    OUT.write_text(json.dumps(content, indent=1) + "\n")
