"""What the limits of leverages do to ordinary plans: tables of statsmodels and scikit-learn, divided among sites.

    python benchmarks/leverage.py --out benchmarks/leverage.json

Each table is divided at random among 3, 4 and 5 sites; the span of a site has the columns of the design and the label,
as a site counts them. A row of the JSON has the number of rows of a site, the rank of the span, and the largest
leverage of all sites; and whether all sites take part at the default limits, plain and with secure sums. For an
experiment with these columns it has the same, plain, with one split of the rows and with five folds, whose answers
have the columns of the training rows of each fold; and with five folds in secure sums. Only the columns are judged
here, not what the other limits of a site say.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from numpy.typing import NDArray
from sklearn import datasets

from resolvent.comparisons.regression.formula import design_of, parse_formula
from resolvent.data.partition.folds import fold_of_party
from resolvent.data.samples import split_sizes
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.site.leverage import LeverageError, Span

_STATSMODELS = {  # table -> formulas
    "anes96": ["vote ~ age + educ + income + selfLR + TVnews", "PID ~ logpopul + selfLR + age + educ + income",
               "TVnews ~ age + C(educ) + income + C(PID)"],
    "fair": ["affairs ~ age + yrs_married + children + religious + educ + occupation + rate_marriage",
             "affairs ~ age * yrs_married + C(rate_marriage)"],
    "randhie": ["mdvis ~ lncoins + idp + lpi + fmde + physlm + disea + hlthg + hlthf + hlthp",
                "mdvis ~ log(disea + 1) + hlthp"],
    "star98": ["NABOVE ~ LOWINC + PERASIAN + PERBLACK + PERHISP + PERMINTE + AVYRSEXP + AVSALK + PERSPENK + PTRATIO + "
               "PCTAF + PCTCHRT + PCTYRRND", "NABOVE ~ LOWINC + PERASIAN + PERHISP"],
    "spector": ["GRADE ~ GPA + TUCE + PSI"],
    "ccard": ["AVGEXP ~ AGE + INCOME + INCOMESQ + OWNRENT", "AVGEXP ~ AGE + OWNRENT"],
    "copper": ["WORLDCONSUMPTION ~ COPPERPRICE + INCOMEINDEX + ALUMPRICE + INVENTORYINDEX + TIME"],
    "engel": ["foodexp ~ income", "foodexp ~ log(income)"],
    "heart": ["survival ~ age"],
    "modechoice": ["choice ~ ttme + invc + invt + gc + hinc + psize"],
    "cpunish": ["EXECUTIONS ~ INCOME + PERPOVERTY + PERBLACK + VC100k96 + SOUTH + DEGREE"],
    "cancer": ["cancer ~ population", "cancer ~ log(population)"],
    "scotland": ["YES ~ COUTAX + UNEMPF + MOR + ACT + GDP + AGE"],
    "statecrime": ["murder ~ urban + poverty + hs_grad + single"],
    "strikes": ["duration ~ iprod"],
    "macrodata": ["realcons ~ realgdp + realinv + unemp", "infl ~ unemp + tbilrate + log(m1)"],
}
_LEARN = {"diabetes": [4, 10], "breast_cancer": [5, 10, 30], "wine": [4, 13], "iris": [2, 4]}  # numbers of features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    rows = [measure(name, frame, formula, sites) for name, frame, formula in tables() for sites in (3, 4, 5)]
    out = parser.parse_args().out
    text = json.dumps(rows, indent=1)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n", "utf-8")
    for least, most in ((0, 20), (20, 50), (50, 100), (100, 200), (200, 10**6)):
        some = [row for row in rows if least <= row["rows"] < most]
        plain, sums, split, folds, in_sums = (sum(row[key] for row in some) for key in (
            "plain", "sums", "split", "folds", "folds_in_sums"))
        print(f"{least} to {most} rows a site: {len(some)} fits, {plain} plain, {sums} with secure sums; "
              f"experiments: {split} with one split, {folds} with five folds, {in_sums} with five in secure sums")
    ratios = [row["leverage_folds"] / row["leverage_split"] for row in rows if row["leverage_folds"] < 1]
    print(f"where five folds have a leverage below 1, it is {np.median(ratios):.1f} times that of one split (median)")


def tables() -> Any:
    """Name, frame and formula of each regression."""
    for name, formulas in _STATSMODELS.items():
        frame = getattr(sm.datasets, name).load_pandas().data
        yield from ((f"statsmodels {name}", frame, formula) for formula in formulas)
    for name, widths in _LEARN.items():
        loaded = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = loaded.data.set_axis([f"x{j}" for j in range(loaded.data.shape[1])], axis=1).assign(y=loaded.target)
        yield from ((f"scikit-learn {name}", frame, "y ~ " + " + ".join(f"x{j}" for j in range(width)))
                    for width in widths)


def measure(name: str, frame: pd.DataFrame, formula: str, sites: int) -> dict[str, Any]:
    """One row of the table."""
    parsed, limits = parse_formula(formula), Limits()
    frame = frame[[parsed.response.label, *parsed.variables]].dropna().astype(float).reset_index(drop=True)
    x, y = design_of(parsed, frame).x, frame[parsed.response.label].to_numpy()
    classes = np.unique(y)
    label = y[:, None] == classes if len(classes) <= 10 else y
    owners, spans = np.random.default_rng(0).permutation(len(frame)) % sites, dict[str, list[Span]]()
    takes_part = dict.fromkeys(("plain", "sums", "split", "folds", "folds_in_sums"), True)
    for site in range(sites):
        columns = {"label": label[owners == site], "design": x[owners == site]}
        first = Span.of_rows(int((owners == site).sum()))
        split, *folds = _training_rows(len(first.leverages))
        of_split, of_folds = _columns_of(columns, [split]), _columns_of(columns, folds)
        for key, asked in (("", columns), ("_split", of_split), ("_folds", of_folds)):
            spans.setdefault(key, []).append(first.extended(asked))
        for key, asked in (("plain", columns), ("sums", columns), ("split", of_split), ("folds", of_folds),
                           ("folds_in_sums", of_folds)):
            largest = limits.max_leverage_in_sums if key.endswith("sums") else limits.max_leverage
            try:
                first.extended(asked, largest, limits.max_parameters_per_row)
            except LeverageError:
                takes_part[key] = False
    return {"table": name, "formula": formula, "sites": sites, "rows": len(frame) // sites,
            "rank": max(span.rank for span in spans[""]),
            **{f"leverage{key}": round(max(span.largest for span in of_key), 3) for key, of_key in spans.items()},
            **takes_part}


def _training_rows(rows: int) -> list[NDArray[np.intp]]:
    """The training rows of one split, and of each of five folds, at the default shares of a site."""
    order, (train, validation, _) = np.random.default_rng(1).permutation(rows), split_sizes(
        rows, SiteFile.validation, SiteFile.test)
    folds = [fold_of_party(None, rows, train, validation, fold, 5, (0,)) for fold in range(5)]
    return [order[:train], *(fold.order[:fold.sizes[0]] for fold in folds)]


def _columns_of(columns: dict[str, NDArray[Any]], trained: list[NDArray[np.intp]]) -> dict[str, NDArray[Any]]:
    """The columns that an experiment answers about: 0 for the rows that do not train."""
    masks = [np.isin(np.arange(len(columns["label"])), rows).astype(float)[:, None] for rows in trained]
    values = {name: np.reshape(column, (len(column), -1)) for name, column in columns.items()}
    values["constant"] = np.ones((len(columns["label"]), 1))
    return {name: np.concatenate([mask * column for mask in masks], axis=1) for name, column in values.items()}


if __name__ == "__main__":
    main()
