"""The command regress: a regression over sites, as statisticians read it."""

import sys
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from resolvent.cli.options import Changes, Format, OptionalPath, OptionalText, flat
from resolvent.cli.output import print_json

if TYPE_CHECKING:
    from resolvent.comparisons.regression.regression import Regression


def regress(
    rows: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS|FILE.yaml")],
    *,
    formula: OptionalText = None,
    party: OptionalText = None,
    family: Annotated[Literal["gaussian", "binomial", "multinomial", "ordinal", "poisson", "quasi_poisson",
                              "zero_inflated_poisson", "negative_binomial", "gamma", "cox"] | None,
                      tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None,
    set: Changes = (),
    out: OptionalPath = None,
    overwrite: bool = False,
    format: Format = "text",
) -> None:
    """Fit a regression over sites, exactly as from the pooled rows; prints the table, and writes a page with --out.

    resolvent regress visits.csv --party hospital --formula "ill ~ age + C(ward) + age:sex"
    resolvent regress mine.yaml --set regression.level=0.9 --out regression

    The sites send sums only. The page shows whether, where and by how much the coefficients differ between sites. A
    file has `data: {table: visits.csv, party: hospital}` and `regression: {formula: ill ~ age}`; `resolvent lead start`
    runs it between real sites.

    Args:
        rows: a .csv, .csv.gz, .tsv or .parquet file with a row for each subject; or the YAML file of a regression or
            an experiment, whose `data` names the table and the column of the site.
        formula: such as "ill ~ age + C(ward) + age:sex", or "Surv(days, died) ~ age" for times to an event. Text
            columns are categories; C(column) makes a number one.
        party: the column that names the site.
        family: distribution of the label: gaussian, binomial, multinomial, ordinal, poisson, quasi_poisson,
            zero_inflated_poisson, negative_binomial, gamma or cox; default: from the label, where it is certain.
        set: other settings, which docs/regression.md explains: regression.errors=robust or clustered; level, l1, l2;
            the columns offset, exposure, frequency_weights, sampling_weights and cluster; reference.ward=A for a base
            level; order=[low,high] of an ordinal label; site=fixed or random for the sites' intercepts;
            baseline_times=[90,365]; tests=[C(ward)], likelihood_tests=[C(ward)], profile=[age], firth=true;
            imputations=20 for missing values;
            data.separator, data.decimal and data.encoding of a text file; data.missing=[?,-999] for cells without a
            value, data.text=[icd] for columns that are categories.
        out: a folder for the page and the tables.
        overwrite: replace files in the folder.
        format: text or json.
    """
    from resolvent.cli.plan_files import plan_file
    from resolvent.comparisons.regression.regress import fit_tables
    from resolvent.comparisons.regression.regression_file import RegressionFile
    from resolvent.errors import InputError

    stated = {"formula": formula, "family": family}
    changes = [*flat(set), *(f"regression.{name}={dumps(value)}" for name, value in stated.items() if value)]
    if formula is None and not RegressionFile.is_in(rows) and not any(
            change.startswith("regression.formula=") for change in changes):
        raise InputError('--formula is missing: write such as --formula "ill ~ age + C(ward)"')
    file = plan_file(RegressionFile, rows, party, changes)
    fit = fit_tables(file.read_tables(), file.settings)
    if format == "json":
        estimates = fit.table.reset_index().to_json(orient="records", double_precision=15)
        print_json({**fit.facts(), "estimates": loads(estimates)})
    else:
        print_fit(fit)
    if out is not None:
        from resolvent.cli import terminal

        terminal.print_path("Report", fit.save(out, overwrite=overwrite))


def print_fit(fit: "Regression") -> None:
    """Print where the sites differ, and the fit, which is not wrapped: a table."""
    if fit.differences is not None and fit.differences.findings:
        from resolvent.cli import terminal

        for sentence in fit.differences.findings:
            terminal.print_line(sentence)
    sys.stdout.write(fit.summary() + "\n")
