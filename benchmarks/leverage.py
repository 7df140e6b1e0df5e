"""What the limits of leverages do to ordinary regressions: tables of statsmodels and scikit-learn, divided among sites.

    python benchmarks/leverage.py --out benchmarks/leverage.json

Each table is divided at random among 3, 4 and 5 sites; the span of a site has the columns of the design and the label,
as a site counts them. A row of the JSON has the number of rows of a site, the rank of the span, and the largest
leverage of all sites; and whether all sites take part at the default limits, plain and with secure sums. Only the
columns are judged here, not what the other limits of a site say.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from sklearn import datasets

from resolvent.comparisons.regression.formula import design_of, parse_formula
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
    for least, most in ((0, 20), (20, 50), (50, 100), (100, 10**6)):
        some = [row for row in rows if least <= row["rows"] < most]
        plain, sums = (sum(row[key] for row in some) for key in ("plain", "sums"))
        print(f"{least} to {most} rows a site: {len(some)} fits, {plain} plain, {sums} with secure sums")


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
    owners, spans = np.random.default_rng(0).permutation(len(frame)) % sites, []
    takes_part = dict.fromkeys(("plain", "sums"), True)
    for site in range(sites):
        columns = {"label": label[owners == site], "design": x[owners == site]}
        first = Span.of_rows(int((owners == site).sum()))
        spans.append(first.extended(columns))
        for key, largest in (("plain", limits.max_leverage), ("sums", limits.max_leverage_in_sums)):
            try:
                first.extended(columns, largest, limits.max_parameters_per_row)
            except LeverageError:
                takes_part[key] = False
    return {"table": name, "formula": formula, "sites": sites, "rows": len(frame) // sites,
            "rank": max(span.rank for span in spans), "leverage": round(max(span.largest for span in spans), 3),
            **takes_part}


if __name__ == "__main__":
    main()
