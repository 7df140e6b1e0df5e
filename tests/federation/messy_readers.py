"""One messy table through every reader: check, run, regress and the sites of a federation.

A table that one of them refuses and another reads is a failure, unless the refusal is of a kind that is listed here.
What is read is compared with the cells as pandas returns them, read by hand. ``tests/torture`` runs thousands of
tables; this file writes the summary by kinds of cells::

    python tests/federation/messy_readers.py --cases 500 --seeds 1 2 3 4 > tests/federation/messy_tables.md
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import asdict
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when this file is run as a script

import numpy as np
import pandas as pd

from data.hostile import CELLS, messy
from federation.schema_tables import agreed
from resolvent.comparisons.experiment.data_check import check_source
from resolvent.comparisons.regression.agreement import RowsReport, agree_on_rows, describe_rows
from resolvent.comparisons.regression.regress import check_rows, fit_rows
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.comparisons.regression.rows import complete_rows, encode_rows
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.site.read_rows import read_site_rows, site_cells
from resolvent.federation.site.table import read_site_table
from resolvent.tables.owners import natural_order
from resolvent.tables.party_tables import table
from resolvent.tables.table_options import TableOptions

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"", "NA", "na", "N/A", "NaN", "null"}
# Why a regression refuses a table that an experiment reads, or the other way round.
_ONLY_EXPERIMENT = ("missing", "label is missing", "holds dates", "no row has values", "no value in any training row",
                    "set task", "only one class", "has no value", "levels in the", "missing in")
_ONLY_REGRESSION = ("whole numbers, which can be counts", "in all rows that have values", "cannot determine",
                    "no value in any row", "no row has values", "nothing to explain", "has up to", "cannot be read",
                    "constant term", "number of classes")
# Why sites refuse a table that is read as a whole, beside a column that must be named in ``text``: one site has dates,
# or another decimal mark, a level is absent elsewhere, or all of its cells are numbers, one of them too large.
_TRAINED = 20  # of so many tables one is fitted
_ONLY_SITES = ("holds dates", "looks like dates", "one decimal mark", "too large")


def outcome(read):
    """What a reader returns, and None or its refusal; a traceback is raised."""
    try:
        return read(), None
    except InputError as error:
        message = str(error)
        assert message.isprintable(), f"a message that is not one line of text: {message!r}"
        return None, message


def by_hand(path, messy, name):
    """The column of a file: numbers, or texts, with NaN for missing values."""
    texts = pd.read_csv(path, sep=messy.separator, dtype=str, keep_default_na=False)[name].str.strip()
    codes = messy.missing if isinstance(messy.missing, list) else []
    missing = {*_WORDS, *map(str, codes)} - {"impute", "indicate"}
    is_named = messy.text and name == messy.names[0]
    if not is_named and messy.separator != "," and all(
            re.fullmatch(r"[+-]?\d+,\d+", text) for text in texts if text not in missing):
        texts = texts.str.replace(",", ".")
    present = [text for text in texts if text not in missing]
    is_text = is_named or any(re.match(r"0\d", text) for text in present)
    if not is_text and all(map(_NUMBER.fullmatch, present)):
        return np.array([np.nan if text in missing else float(text) for text in texts])
    if not is_text and {text.casefold() for text in present} <= {"true", "false"}:
        return np.array([np.nan if text in missing else float(text.casefold() == "true") for text in texts])
    return np.array([np.nan if text in missing else text for text in texts], object)


def expected_inputs(column, name):
    """The inputs of a column, or None for rows without a value: name -> [n]."""
    if column.dtype != object:
        return {name: column}
    return {f"{name}={level}": np.array([np.nan if isinstance(v, float) else float(v == level) for v in column])
            for level in sorted({v for v in column if isinstance(v, str)})}


class Readers:
    """Every reader of one table.

    Attributes:
        problems: sentences about what differs.
        accepted: whether an experiment and a regression read the table.
    """

    def __init__(self, messy, folder):
        self.messy, self.folder, self.problems = messy, Path(folder), []
        self.frame = messy.frame()
        self.path = self.folder / "messy.csv"
        self.frame.to_csv(self.path, index=False, sep=messy.separator)
        for name in messy.sites:
            rows = self.frame[self.frame["site"] == name].drop(columns="site")
            rows.to_csv(self.folder / f"{messy.sites.index(name)}.csv", index=False, sep=messy.separator)
        names = " + ".join(name if name.isidentifier() else f"`{name}`" for name in messy.used)
        options = {key: value for key, value in messy.options.items() if value is not None}
        self.experiment = {"data": {"table": str(self.path), "party": "site", "label": "y", "scale": "none", **options},
                           "model": "linear", "algorithms": {"FedAvg": "fedavg"}, "rounds": 1,
                           "solver": {"name": "GD", "learning_rate": 0.1, "steps": 1}}
        options = {key: value for key, value in options.items() if key == "text" or (
            key == "missing" and not isinstance(value, str))}
        self.regression = {"data": {"table": str(self.path), "party": "site", **options},
                           "regression": {"formula": f"y ~ {names}"}}

    def file(self, name, settings):
        path = self.folder / name
        path.write_text(json.dumps(settings))
        return str(path)

    def compare(self, *, trains=False):
        """Read the table by every reader; returns the sentences about differences.

        Args:
            trains: whether the regression is fitted.
        """
        data, refusal = outcome(lambda: table(str(self.path), "site", "y", scale="none", **self.messy.options))
        self.check("run", self.file("run.yaml", self.experiment), refusal)
        rows, not_fitted = outcome(self.read_regression)
        self.check("regress", self.regression_file(), not_fitted)
        if data is not None:
            self.compare_with_hand(data)
        self.compare_both(data, refusal, rows, not_fitted)
        self.compare_sites(data, refusal, *outcome(self.federate))
        self.compare_regressions(rows, not_fitted, *outcome(self.federate_regression))
        self.accepted = data is not None, rows is not None
        if trains and rows is not None:
            fit_rows(rows, RegressionFile.load(self.regression_file()).settings).summary()
        return self.problems

    def check(self, command, file, refusal):
        """A check has errors if the command refuses the table."""
        checked, unread = outcome(lambda: check_source(file))
        errors = [unread] if checked is None else [f.line for f in checked.findings if f.severity == "error"]
        if bool(errors) != (refusal is not None):
            self.problems.append(f"check says {errors or 'no error'}, and {command} {refusal or 'accepts'}")

    def regression_file(self, text=()):
        content = {**self.regression, "data": {**self.regression["data"]}}
        content["data"]["text"] = [*dict.fromkeys([*content["data"].get("text", []), *text])]
        return self.file("regress.yaml", content)

    def read_regression(self, text=()):
        file = RegressionFile.load(self.regression_file(text))
        rows = next(file.read_tables())
        check_rows(rows.model, file.settings)
        return rows

    def compare_with_hand(self, data):
        """The inputs of an experiment are those of the cells, as they are read by hand."""
        order = np.argsort([data.parties.index(str(site)) for site in self.frame["site"]], kind="stable")
        expected = {}
        for name in self.messy.used:
            expected |= expected_inputs(by_hand(self.path, self.messy, name), name)
        features = [name for name in data.features if not name.endswith(" missing")]
        if sorted(features) != sorted(expected):
            self.problems.append(f"the inputs are {features}, by hand {sorted(expected)}")
            return
        for name in features:
            of_rows = np.sort(data.x[:, data.features.index(name)])
            by_hand_ = expected[name][order].astype(np.float32)
            gaps = np.isnan(by_hand_)
            known = np.sort(by_hand_[~gaps])
            # In every row with a value it is this one; the others have one imputed value.
            left = [*of_rows]
            with contextlib.suppress(ValueError):
                for value in known:
                    left.remove(value)
            if len(left) != gaps.sum() or len({*left}) > 1:
                self.problems.append(f"{name}: other values than by hand")

    def compare_both(self, data, refusal, rows, not_fitted):
        """An experiment and a regression read the same columns."""
        if data is None and rows is not None and not any(word in refusal for word in _ONLY_EXPERIMENT):
            self.problems.append(f"regress reads what run refuses: {refusal}")
        if rows is None and data is not None and not any(word in not_fitted for word in _ONLY_REGRESSION):
            self.problems.append(f"run reads what regress refuses: {not_fitted}")
        if data is None or rows is None:
            return
        texts = {name for name in self.messy.used if any(f.startswith(f"{name}=") for f in data.features)}
        if texts != {*rows.levels}:
            self.problems.append(f"text in run: {sorted(texts)}, in regress: {sorted(rows.levels)}")

    def site_file(self, number):
        return SiteFile(table=str(self.folder / f"{number}.csv"), limits=NO_LIMITS)

    def federate(self, text=()):
        """The inputs and labels of all sites in the encoding on which they agree."""
        options = {**self.messy.options, "text": [*dict.fromkeys([*(self.messy.options["text"] or []), *text])] or None}
        settings = TableOptions("site", "y", scale="none", **options)
        sites = sorted(self.messy.sites, key=natural_order)
        tables = {name: read_site_table(self.site_file(self.messy.sites.index(name)), settings, name, k)
                  for k, name in enumerate(sites)}
        encoding, conflicts = agreed(tables, settings)
        if conflicts:
            raise InputError(conflicts[0])
        parts = [table.encode(encoding) for table in tables.values()]
        return encoding, np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])

    def federate_regression(self, text=()):
        """The rows of all sites of a regression, in the agreement that they make."""
        plan = FederatedRegression(RegressionFile.load(self.regression_file(text)))
        frames, reports = [], {}
        for name in sorted(self.messy.sites, key=natural_order):
            site = self.site_file(self.messy.sites.index(name))
            frame, _ = read_site_rows(site, plan.table)
            complete = complete_rows(frame, plan.formula, plan.settings,
                                     cells=site_cells(site, plan.table))
            report = describe_rows(complete, plan.formula, plan.settings, len(frame) - len(complete))
            reports[name] = read_plain(RowsReport, json.loads(json.dumps(asdict(report))), name)
            frames.append(complete)
        agreement = agree_on_rows(reports, plan.formula, plan.settings, plan.table.cells)
        parts = [encode_rows(frame, plan.formula, plan.settings, agreement, [len(frame)]) for frame in frames]
        check_rows(parts[0].model, plan.settings)
        return parts

    def follow(self, title, refused, read_sites, read_all):
        """What sites and a simulation read with the columns as ``text`` that the refusals of the sites ask for."""
        names = []
        while refused is not None:
            asked = re.search(r"set text: \[(.+?)\]", refused)
            if asked is None or asked[1].strip("'") in names:
                if not any(word in refused for word in _ONLY_SITES):
                    self.problems.append(f"sites refuse what {title} reads with text {names}: {refused}")
                return None, None
            names.append(asked[1].strip("'"))
            federated, refused = outcome(lambda: read_sites(names))
        return federated, outcome(lambda: read_all(names))[0]

    def compare_sites(self, data, refusal, federated, refused):
        """Sites agree on the encoding of the simulation."""
        if data is not None and federated is None:
            federated, data = self.follow("run", refused, self.federate, lambda names: table(
                str(self.path), "site", "y", scale="none", **{**self.messy.options, "text": names}))
        elif data is None and federated is not None:
            self.problems.append(f"sites read what run refuses: {refusal}")
        if federated is None or data is None:
            return
        encoding, x, y = federated
        if encoding.features != data.features or encoding.classes != data.classes:
            self.problems.append(f"sites: {encoding.features} {encoding.classes}, run: {data.features} {data.classes}")
        elif self.messy.missing == "refuse":  # sites impute the mean, a simulation the median
            np.testing.assert_allclose(np.sort(x, axis=0), np.sort(data.x, axis=0), rtol=1e-6)
            np.testing.assert_allclose(np.sort(y), np.sort(data.y), rtol=1e-6)

    def compare_regressions(self, rows, not_fitted, federated, refused):
        """Sites have the rows and the columns of the simulation."""
        if rows is not None and federated is None:
            federated, rows = self.follow("regress", refused, self.federate_regression, self.read_regression)
        elif rows is None and federated is not None:
            self.problems.append(f"sites read what regress refuses: {not_fitted}")
        if federated is None or rows is None:
            return
        if federated[0].model.columns != rows.model.columns or federated[0].model.classes != rows.model.classes:
            self.problems.append(f"columns at sites {federated[0].model.columns}, in regress {rows.model.columns}")
            return
        np.testing.assert_array_equal(np.concatenate([part.x for part in federated]), rows.x)
        np.testing.assert_array_equal(np.concatenate([part.y for part in federated]), rows.y)


def read_case(seed, number, folder):
    """The table of a case, what differs, and whether an experiment and a regression read it."""
    case = messy(np.random.default_rng([seed, number]))
    with tempfile.TemporaryDirectory(dir=folder) as own, warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            readers = Readers(case, own)
            return case, readers.compare(trains=number % _TRAINED == 0), readers.accepted
        except Exception:
            return case, [traceback.format_exc(limit=-6)], (False, False)


def run_messy(cases, seed, folder):
    """The failures of messy tables, one text per failure."""
    read = [read_case(seed, number, folder) for number in range(cases)]
    failures = [f"messy tables, seed {seed}, case {number}, {case}: {problem}"
                for number, (case, problems, _) in enumerate(read) for problem in problems]
    right = [any(of_case) for _, problems, of_case in read if not problems]
    print(f"messy tables: seed {seed}, {cases} cases, {sum(right)} accepted, {len(right) - sum(right)} refused")
    return failures


def summary(cases, seeds, folder):
    """Lines of Markdown: for each kind of cells in the first column, how many tables were read, and the failures."""
    totals, runs, fits, failures = Counter(), Counter(), Counter(), []
    for seed, number in product(seeds, range(cases)):
        case, problems, accepted = read_case(seed, number, folder)
        failures += [f"seed {seed}, case {number}: {problem}" for problem in problems]
        kind = case.cells[0]
        if case.odd == kind and not case.excluded and not case.text:
            totals[kind] += 1
            runs[kind] += accepted[0]
            fits[kind] += accepted[1]
    yield f"# {cases * len(seeds)} messy tables: {cases} of each seed: {', '.join(map(str, seeds))}"
    yield f"\n{len(failures)} failures: tracebacks, and differences between check, run, regress, sites and the cells."
    yield "\nKinds of cells of a column at all sites. The other columns, the label and the sites may be refused too.\n"
    yield "| cells | tables | read by run | read by regress |\n|---|---:|---:|---:|"
    yield from (f"| {kind} | {totals[kind]} | {runs[kind]} | {fits[kind]} |" for kind in CELLS)
    refused = [kind for kind in CELLS if totals[kind] and not runs[kind] + fits[kind]]
    yield f"\nRefused in every table: {', '.join(refused)}."
    yield from failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(summary(arguments.cases, arguments.seeds, folder)))


if __name__ == "__main__":
    main()
