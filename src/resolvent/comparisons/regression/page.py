"""The page and the files of a regression."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resolvent.comparisons.pages import page_colours, svg_of, write_page
from resolvent.comparisons.regression.figures import estimates_figure
from resolvent.comparisons.regression.predictions import FILE
from resolvent.comparisons.regression.wording import (
    dashed,
    facts_in_words,
    number,
    probability,
    random_in_words,
    table_rows,
    tests_in_words,
)
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError

if TYPE_CHECKING:
    from resolvent.comparisons.regression.fit import Fit
    from resolvent.comparisons.regression.heterogeneity import Heterogeneity
    from resolvent.comparisons.regression.predictions import Predictor

_FORESTS = 12  # on a page


def write_regression(fit: "Fit", predictor: "Predictor", differences: "Heterogeneity | None", folder: Path, *,
                     overwrite: bool = False) -> Path:
    """Write the page and the tables; each file is written whole or not at all.

    Returns:
        The path of the page.
    """
    import pandas as pd

    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"{folder} has files: name another folder, or set overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "estimates.csv", fit.table.to_csv())
    write_text(folder / FILE, json.dumps(predictor.to_plain(), indent=1))
    names = list(fit.names)
    write_text(folder / "covariance.csv", pd.DataFrame(fit.covariance, index=names, columns=names).to_csv())
    facts = dict(fit.facts())
    if differences is not None:
        facts["heterogeneity"] = {name: _plain(value) for name, value in differences.test.items()}
        write_text(folder / "heterogeneity.csv", differences.table.to_csv())
        if fit.rows is not None:
            write_text(folder / "differences.csv", differences.differences.differences.to_csv())
    write_text(folder / "regression.json", json.dumps({name: _plain(value) for name, value in facts.items()}, indent=1))
    _write_page(fit, differences, folder / "report.html")
    return folder / "report.html"


def _write_page(fit: "Fit", differences: "Heterogeneity | None", path: Path) -> None:
    head, rows = table_rows(fit)
    with page_colours():
        estimates = svg_of(estimates_figure(fit), "Estimates with their intervals")
        forests, map_ = [], None
        if differences is not None:
            shown = [name for name in fit.names if not name.endswith("Intercept")][:_FORESTS]
            forests = [svg_of(differences.forest(name), f"Forest plot of {name}") for name in shown]
            if fit.rows is not None and differences.differences.differences.to_numpy().any():
                map_ = svg_of(differences.plot(), "Which coefficients differ at which site")
    findings = [*(differences.findings if differences is not None else ()), *fit.findings]
    write_page(path, "regression", fit=fit, findings=findings, facts=facts_in_words(fit), head=head, rows=rows,
               tests=[*tests_in_words(fit), *random_in_words(fit)[:1]],
               estimates=estimates, forests=forests, differences=differences, map=map_,
               sentence=_test_in_words(differences),
               table=[] if differences is None else [
                   [str(name), str(int(line["sites"])), dashed(line["Q"], ".2f"), probability(line["p"]),
                    dashed(line["I2"], ".0%"), number(line["tau"])] for name, line in differences.table.iterrows()])


def _test_in_words(differences: "Heterogeneity | None") -> str:
    if differences is None:
        return ""
    test = differences.test
    if np.isnan(test["p"]):
        return "The sites have too few rows for a test of common against site-wise coefficients."
    kind = "F" if "degrees of freedom of the rest" in test else "Likelihood-ratio"
    return (f"{kind} test of common against site-wise coefficients: {test['statistic']:.2f} with "
            f"{test['degrees of freedom']:.0f} degrees of freedom, p {probability(test['p'])}.")


def _plain(value: object) -> object:
    """A value for JSON, which has no NaN."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
