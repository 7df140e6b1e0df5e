"""The command regress: a regression over sites, as statisticians read it."""

import sys
from json import loads
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from resolvent.cli.options import OptionalPath, OptionalText, TextOptions, Texts
from resolvent.cli.output import print_json

__all__ = ["regress"]


def regress(
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS|FILE.yaml")],
    *,
    formula: str,
    party: OptionalText = None,
    family: Literal["auto", "gaussian", "binomial", "multinomial", "poisson", "negative_binomial", "gamma",
                    "cox"] = "auto",
    errors: Literal["model", "robust", "clustered"] = "model",
    level: float = 0.95,
    l1: float = 0.0,
    l2: float = 0.0,
    offset: OptionalText = None,
    exposure: OptionalText = None,
    reference: Texts = (),
    out: OptionalPath = None,
    overwrite: bool = False,
    json: bool = False,
    text: TextOptions = TextOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Fit a regression over sites, exactly as from the pooled rows; prints the table, and writes a page with --out.

    Try `resolvent regress visits.csv --party hospital --formula "ill ~ age + C(ward) + age:sex" --out regression`.

    The sites send sums only. The page shows whether, where and by how much the coefficients differ between sites.

    Args:
        rows: a .csv, .csv.gz, .tsv or .parquet file with a row for each subject; or an experiment's YAML file, whose
            `data` names the table and the column of the site.
        formula: such as "ill ~ age + C(ward) + age:sex", or "Surv(days, died) ~ age" for times to an event. Text
            columns are categories; C(column) makes a number one.
        party: the column that names the site; an experiment's file has it.
        family: distribution of the label. auto: from the label, where it is certain.
        errors: standard errors from the model, robust to a wrong variance (HC1), or clustered by site.
        level: level of the intervals.
        l1: weight of the absolute values of the coefficients (lasso); then there are no standard errors.
        l2: weight of half their squares (ridge); then there are no standard errors.
        offset: a column that is added to the linear predictor.
        exposure: a column whose logarithm is added, such as person-years.
        reference: base levels, such as ward=A ill=no.
        out: a folder for the page and the tables.
        overwrite: replace files in the folder.
        json: print JSON instead of the table.
    """
    from resolvent.cli import terminal
    from resolvent.comparisons.regression.regress import regress as fit_regression

    path, column = _table_of(rows, party)
    fit = fit_regression(path, formula, party=column, family=family, errors=errors, level=level, l1=l1, l2=l2,
                         offset=offset, exposure=exposure, reference=_levels(reference), text_format=text.format)
    if json:
        estimates = fit.table.reset_index().to_json(orient="records", double_precision=15)
        print_json({**fit.facts(), "estimates": loads(estimates)})
    else:
        sys.stdout.write(fit.summary() + "\n")  # not wrapped: a table
    if out is not None:
        terminal.print_path("Report", fit.save(out, overwrite=overwrite))


def _table_of(rows: str, party: str | None) -> tuple[str, str]:
    """The table and the column of the site.

    Raises:
        InputError: neither the file nor the option names the column, or the file's data are no table.
    """
    from resolvent.comparisons.experiment.binding import Bound
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.data.tables.party_tables import table
    from resolvent.errors import InputError

    if Path(rows).suffix.lower() not in (".yaml", ".yml"):
        if party is None:
            raise InputError(f"--party names the column of {rows} that says which site a row is from, such as --party "
                             "hospital")
        return rows, party
    part = ExperimentFile.load(rows).bound.parts.get("data")
    if not isinstance(part, Bound) or part.function is not table:
        raise InputError(f"the data of {rows} are no table: name a .csv or .parquet file")
    return str(part.values["table"]), party or str(part.values["party"])


def _levels(reference: tuple[str, ...]) -> dict[str, Any]:
    """Such as ("ward=A",) as {"ward": "A"}.

    Raises:
        InputError: a part has no equals sign.
    """
    from resolvent.errors import InputError, quote

    for part in reference:
        if "=" not in part:
            raise InputError(f"--reference {quote(part)} is no COLUMN=LEVEL, such as ward=A")
    return {name: level for name, _, level in (part.partition("=") for part in reference)}
