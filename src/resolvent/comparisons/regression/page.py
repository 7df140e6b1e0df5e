"""The page and the files of a regression."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resolvent.comparisons.pages import Section, page_colours, svg_of, write_sections
from resolvent.comparisons.plan_result import folder_to_write
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
from resolvent.comparisons.text_tables import plain_table
from resolvent.data.files.atomic_files import write_text

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

    folder = folder_to_write(folder, overwrite=overwrite)
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
    findings = [*(differences.findings if differences is not None else ()), *fit.findings]
    head, rows = table_rows(fit)
    tests = [*tests_in_words(fit), *random_in_words(fit)[:1]]
    with page_colours():
        sections = [Section(sentences=facts_in_words(fit)), Section("Read first", points=findings),
                    Section("Estimates", tables=plain_table(["coefficient", *head[1:]], rows, "html"),
                            pictures=[svg_of(estimates_figure(fit), "Estimates with their intervals")]),
                    Section("Tests", points=tests), *(() if differences is None else _of_differences(fit, differences))]
    write_sections(path, fit.model.formula, sections)


def _of_differences(fit: "Fit", differences: "Heterogeneity") -> Iterator[Section]:
    """Whether, where and by how much the sites differ."""
    rows = [[str(name), str(int(line["sites"])), dashed(line["Q"], ".2f"), probability(line["p"]),
             dashed(line["I2"], ".0%"), number(line["tau"])] for name, line in differences.table.iterrows()]
    note = ("Q and I² compare the sites' own estimates; tau is the standard deviation between sites. A site whose rows "
            "do not determine a coefficient is left out there.")
    yield Section("Do the sites differ?", [_test_in_words(differences), note],
                  tables=plain_table(["coefficient", "sites", "Q", "p", "I²", "tau"], rows, "html"))
    if fit.rows is not None:
        is_any = bool(differences.differences.differences.to_numpy().any())
        yield Section("Which coefficients differ where", [
            "Every site has coefficients of its own, and each of their differences from a common vector has a penalty"
            " (Fed+ with the L1 norm, its weight chosen by BIC), so that only differences that the rows demand are "
            "left.",
            *([] if is_any else ["No coefficient differs."])], pictures=[
                svg_of(differences.plot(), "Which coefficients differ at which site")] if is_any else [])
    shown = [name for name in fit.names if not name.endswith("Intercept")][:_FORESTS]
    yield Section("Forest plots", pictures=[svg_of(differences.forest(name), f"Forest plot of {name}")
                                            for name in shown])


def _test_in_words(differences: "Heterogeneity") -> str:
    test = differences.test
    if np.isnan(test["p"]):
        return "The sites have too few rows for a test of common against site-wise coefficients."
    kind = "F" if "degrees of freedom of the rest" in test else "Likelihood-ratio"
    return (f"{kind} test of common against site-wise coefficients: {test['statistic']:.2f} with "
            f"{test['degrees of freedom']:.0f} degrees of freedom, p {probability(test['p'])}.")


def _plain(value: object) -> object:
    """A value for JSON, which has no NaN."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
