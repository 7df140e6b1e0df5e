"""Hostile input for the data room: mutated LEAF documents, text tables and frames with odd content.

Each case is determined by the seed and its number, so that one case can be repeated. A case passes if it gives an
`InputError` with a short message of one line, or valid data. Run thousands of them with::

    python tests/data/hostile.py --cases 5000 --seed 1
"""

import argparse
import datetime
import decimal
import fractions
import gzip
import json
import re
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when this file is run as a script

import numpy as np
import pandas as pd

from mutations import choose, mutate_bytes
from resolvent.data.federated import SPLITS
from resolvent.data.images_text.formats import leaf
from resolvent.errors import InputError
from resolvent.tables.party_tables import from_frame, table

MAX_MESSAGE_LENGTH = 2500
LONG = "long " * 2000
# The file; and the field, or the reason why there are no fields.
_LEAF_MESSAGE = (r"^/.*(case|other)\.json\b.*(users|num_samples|user_data|not JSON, or cut off|cut off or damaged|"
                 r"no user with a sample|not a LEAF file)")
INSERTIONS = [b"\0", b"\xff\xfe", b'"', b"\xed\xa0\x80", b"[", b"}", b"1e999"]
ODD_VALUES = [None, True, False, -1, 0, 3, 2.5, 1e300, float("inf"), float("-inf"), float("nan"), 2**31, 2**63, 2**70,
              10**400, "", " ", "x", "7", "nan", "é", "\ud800", "\0", "a\nb", LONG, [], [[]], {}, [1, 2], ["a"],
              [[1, [2]]], {"x": [[1, 2]], "y": [0]}, {"x": None, "y": None}, [None], [[1, "a"]]]


# The three kinds of cases


def leaf_document(rng):
    """The bytes of a LEAF file with one to four mutations."""
    document = _whole_leaf_document(rng)
    for _ in range(rng.integers(1, 4)):
        _mutate_tree(document, rng)
    text = json.dumps(document, ensure_ascii=bool(rng.random() < 0.5))
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = mutate_bytes(data, rng, INSERTIONS)
    if rng.random() < 0.02:
        depth = 200_000
        data = data.replace(b"[", b"[" * depth, 1)
    return gzip.compress(data) if rng.random() < 0.1 else data


def text_table(rng):
    """The bytes of a text table, the ending of its name and the arguments of `table`."""
    odd = rng.random() < 0.3
    names = ["x", "age", "x y", "größe", "height", "1", *(["", "a;b", "a,b", "weight, kg", LONG, "x"] if odd else [])]
    names = ["p", *rng.permutation(names)[:3].tolist(), "y"]
    rows = int(rng.choice([0, 1, 2, 8, 60, 120]))
    columns = [rng.choice(["a", "b", "ü", "007", "7"], rows), *(_text_column(rng, rows) for _ in range(3)),
               rng.choice([["0", "1"], ["yes", "no"], ["1,5", "2,5"], ["1.5", "2"], ["3", "3"]][rng.integers(5)], rows)]
    cells = [names, *map(list, zip(*columns, strict=True))]
    for _ in range(rng.integers(4) if odd else 0):
        row = cells[rng.integers(len(cells))]
        row[rng.integers(len(row))] = str(choose(rng, [*ODD_VALUES, "1,5", "1.234,5", "'", '"', "#", "1e400"]))
    if odd and rng.random() < 0.2:
        cells[rng.integers(len(cells))].append("7")
    separator = str(rng.choice([",", ";", "\t", "|"], p=[0.5, 0.3, 0.1, 0.1]))
    is_quoted = rng.random() < 0.5
    text = str(rng.choice(["\n", "\r\n", "\r"])).join(
        separator.join('"' + c.replace('"', '""') + '"' if is_quoted or separator in c else c for c in row)
        for row in cells)
    text = str(rng.choice(["", "\ufeff", "\n\n", "sep=;\r\n"])) + text + str(rng.choice(["", "\n"]))
    encoding = str(rng.choice(["utf-8", "latin-1", "utf-16", "utf-16-le", "utf-32"], p=[0.7, 0.1, 0.1, 0.05, 0.05]))
    data = text.encode(encoding, "surrogatepass" if "utf" in encoding else "replace")
    if rng.random() < 0.1:
        data = mutate_bytes(data, rng, INSERTIONS)
    ending = str(rng.choice([".csv", ".csv", ".tsv", ".csv.gz", ".parquet"], p=[0.4, 0.3, 0.1, 0.15, 0.05]))
    options = _options(rng)
    if rng.random() < 0.1:
        options["separator"] = choose(rng, [";", ",", "auto", "", "ab", "\n", '"', "é", "."])
    if rng.random() < 0.1:
        options["decimal"] = choose(rng, [",", ".", "auto", ";"])
    if rng.random() < 0.1:
        options["encoding"] = choose(rng, ["latin-1", "cp1252", "utf-16", "hex", "rot13", "idna", "none", LONG])
    return gzip.compress(data) if ending == ".csv.gz" and rng.random() < 0.9 else data, ending, options


def frame(rng):
    """A frame and the arguments of `from_frame`."""
    rows = int(rng.choice([0, 1, 2, 8, 60, 120]))
    names = ["x", "z", 2.5]
    if rng.random() < 0.2:
        names[rng.integers(3)] = choose(rng, [1, ("a", "b"), None, "\ud800", "Unnamed: 0", LONG, "z", "p"])
    columns = [_frame_column(rng, rows) if rng.random() < 0.4 else rng.normal(size=rows) for _ in range(5)]
    if rng.random() < 0.8:
        columns[0] = pd.Series(rng.choice(["a", "b", "c"], rows))
        columns[4] = pd.Series(rng.choice([0, 1], rows))
    result = pd.concat([pd.Series(c) for c in columns], axis=1) if rows else pd.DataFrame(np.zeros((0, 5)))
    result = result.set_axis(pd.Index(["p", *names, "y"], dtype=object, tupleize_cols=False), axis=1)
    if rows and rng.random() < 0.2:
        labels = [choose(rng, [1, "row", "a\nb", "\ud800", LONG, None, (1, 2)]) for _ in range(rows)]
        result.index = pd.Index(labels, dtype=object, tupleize_cols=False)
    return result, _options(rng)


# Running them


def run_leaf_documents(cases, seed, folder):
    """The failures of LEAF documents, one text per failure."""
    def run(rng, path):
        is_held_out = rng.random() < 0.2
        path.with_suffix(".json").write_bytes(leaf_document(rng))
        other = path.with_name("other.json")
        other.write_text(json.dumps(_whole_leaf_document(rng)))
        names = (other, path.with_suffix(".json")) if is_held_out else (path.with_suffix(".json"), None)
        return leaf(train=str(names[0]), held_out=None if names[1] is None else str(names[1]), validation=0.2)
    return _run("LEAF documents", run, cases, seed, folder, _LEAF_MESSAGE)


def run_text_tables(cases, seed, folder):
    """The failures of text tables, one text per failure."""
    def run(rng, path):
        data, ending, options = text_table(rng)
        path = path.with_name(path.name + ending)
        path.write_bytes(data)
        return table(str(path), "p", "y", **options)
    return _run("text tables", run, cases, seed, folder)


def run_frames(cases, seed, folder):
    """The failures of frames, one text per failure."""
    def run(rng, path):
        rows, options = frame(rng)
        return from_frame(rows, "p", "y", **options)
    return _run("frames", run, cases, seed, folder)


def _run(title, run, cases, seed, folder, pattern=""):
    failures, accepted = [], 0
    for number in range(cases):
        rng = np.random.default_rng([seed, number])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", "column .* is encoded as")  # a word among numbers
                check_valid(run(rng, Path(folder) / "case"))
            accepted += 1
        except InputError as error:
            message = str(error)
            try:
                assert len(message) < MAX_MESSAGE_LENGTH, f"a message of {len(message)} characters"
                assert re.search(pattern, message), f"the message does not name the file and the field: {message}"
                assert message.isprintable(), f"a message that is not one line of text: {message!r}"
            except AssertionError as failure:
                failures.append(f"{title}, seed {seed}, case {number}: {failure}")
        except Exception:
            failures.append(f"{title}, seed {seed}, case {number}:\n{traceback.format_exc(limit=-6)}")
    print(f"{title}: seed {seed}, {cases} cases, {accepted} accepted, {cases - accepted - len(failures)} refused, "
          f"{len(failures)} failures")
    return failures


def check_valid(data):
    """Assert that data hold what `FederatedData` promises."""
    assert len(data.x) == len(data.y) == sum(int(data.sizes(s).sum()) for s in SPLITS)
    assert np.isfinite(data.x.astype(np.float32)).all()
    assert np.isfinite(data.y.astype(np.float32)).all()
    assert (data.sizes("train") >= 1).all()
    assert len(set(data.parties)) == len(data.parties) == len(data) > 0
    assert not data.features or data.input_shape == (len(data.features),)
    if data.task == "classification":
        assert data.y.min() >= 0
        assert data.y.max() < len(data.classes)
        assert len(set(data.classes)) == len(data.classes)
    for text in (*data.parties, *data.classes, *data.features, *data.notes):
        text.encode()
    assert len(data.summary()) == len(data)


# The parts of cases


def _options(rng):
    options = {"missing": choose(rng, ["refuse", "impute", "indicate", "impute"]),
               "task": choose(rng, ["auto", "auto", "classification", "regression"]),
               "scale": choose(rng, ["standard", "none"]), "test": choose(rng, [0.2, 0.0, 0.9])}
    options["validation"] = 0.0 if options["test"] == 0.9 else 0.2
    if rng.random() < 0.1:
        options["exclude"] = [choose(rng, ["x", "age", "nothing", "p", LONG])]
    return options


def _whole_leaf_document(rng):
    users = [f"user {k}" for k in range(rng.integers(1, 4))]
    counts = rng.integers(0, 4, len(users)) + (np.arange(len(users)) == 0)
    is_text = rng.random() < 0.3

    def samples(count):
        if is_text:
            return {"x": ["To be"] * count, "y": ["o"] * count}
        return {"x": rng.normal(size=(count, 3)).tolist(), "y": rng.integers(0, 2, count).astype(float).tolist()}
    return {"users": users, "num_samples": counts.tolist(),
            "user_data": {u: samples(int(c)) for u, c in zip(users, counts, strict=True)}}


def _mutate_tree(tree, rng):
    """Replace, remove or repeat one value at a random depth of nested lists and objects."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    if not keys:
        return
    key = choose(rng, keys)
    if isinstance(tree[key], list | dict) and tree[key] and rng.random() < 0.9:
        _mutate_tree(tree[key], rng)
        return
    change = rng.integers(4)
    if change == 0:
        del tree[key]
    elif change == 1 and isinstance(tree, list):
        tree.insert(key, tree[key])
    elif change == 2 and isinstance(tree, list):
        tree[key] = tree[key - 1]
    else:
        tree[key] = json.loads(json.dumps(choose(rng, [v for v in ODD_VALUES if v != 10**400])))


def _text_column(rng, rows):
    kinds = [*HOSTILE_CELLS] if rng.random() >= 0.6 else ["running numbers", "decimals", "levels", "true or false"]
    return [str(v) for v in (CELLS | HOSTILE_CELLS)[choose(rng, kinds)](rng, rows)]


def _with(word, rows_with=1):
    """Numbers with a word in some rows."""
    return lambda rng, rows: [word if row < rows_with else f"{v:.1f}"
                              for row, v in enumerate(rng.normal(40, 9, rows))]


# What people write into the cells of a column: kind -> function of the generator and the number of rows.
CELLS = {
    "decimals": lambda rng, rows: [f"{v:.2f}" for v in rng.normal(size=rows)],
    "whole numbers": lambda rng, rows: rng.integers(20, 90, rows),
    "exponents": lambda rng, rows: [f"{v:.3e}" for v in rng.normal(size=rows)],
    "numbers with blanks": lambda rng, rows: [f" {v}  " for v in rng.integers(20, 90, rows)],
    "empty cells": lambda rng, rows: ["" if v < 25 else v for v in rng.integers(20, 90, rows)],
    "words of missing values": lambda rng, rows: [choose(rng, ["NA", "na", "N/A", "NaN", "null"]) if v < 25 else v
                                                  for v in rng.integers(20, 90, rows)],
    "-999": lambda rng, rows: [-999 if v < 25 else v for v in rng.integers(20, 90, rows)],
    **{f"one {word}": _with(word) for word in ("?", ".", "-", "unknown", "<0.3", "1,5", "V45", "12 kg", "007")},
    "many ?": _with("?", 9),
    "decimal commas": lambda rng, rows: [f"{v:.2f}".replace(".", ",") for v in rng.normal(size=rows)],
    "thousands": lambda rng, rows: [f"{v:,d}" for v in rng.integers(1000, 10**6, rows)],
    "thousands and decimal comma": lambda rng, rows: [f"{v:,d}".replace(",", ".") + ",5"
                                                      for v in rng.integers(1000, 10**6, rows)],
    "percent": lambda rng, rows: [f"{v} %" for v in rng.integers(1, 99, rows)],
    "money": lambda rng, rows: [f"€ {v}" for v in rng.integers(1, 99, rows)],
    "units": lambda rng, rows: [f"{v} kg" for v in rng.integers(40, 99, rows)],
    "blood pressures": lambda rng, rows: [f"{v}/80" for v in rng.integers(100, 160, rows)],
    "days": lambda rng, rows: [f"2024-05-{v:02d}" for v in rng.integers(1, 29, rows)],
    "months": lambda rng, rows: [f"2024-{v:02d}" for v in rng.integers(1, 13, rows)],
    "German days": lambda rng, rows: [f"{v:02d}.05.2024" for v in rng.integers(1, 29, rows)],
    "minus of a printer": lambda rng, rows: [f"\u2212{v}" for v in rng.integers(1, 99, rows)],
    "a word in every eighth row": lambda rng, rows: [v if i % 8 else "no data" for i, v in enumerate(
        rng.integers(20, 90, rows))],
    "decimal commas and ?": lambda rng, rows: [f"{v:.2f}".replace(".", ",") if i % 9 else "?" for i, v in enumerate(
        rng.normal(5, 1, rows))],
    "signs of several kinds": lambda rng, rows: [f"{abs(v):.2f}".replace(".", ",") if v > 0 else f"\u2212{abs(v):.2f}"
                                                 for v in rng.normal(5, 5, rows)],
    "other units": lambda rng, rows: [f"{v} years old" for v in rng.integers(20, 90, rows)],
    "times": lambda rng, rows: [f"{v // 4:02d}:{v % 4 * 15:02d}" for v in rng.integers(0, 96, rows)],
    "names of months": lambda rng, rows: [f"{v} May 2024" for v in rng.integers(1, 29, rows)],
    "days and unknown": lambda rng, rows: [f"2024-05-{v:02d}" if v > 3 else "unknown"
                                           for v in rng.integers(1, 29, rows)],
    "signs before": lambda rng, rows: [f"R$ {v}" for v in rng.integers(1, 99, rows)],
    "words before": lambda rng, rows: [f"age {v:.1f}" for v in rng.normal(50, 9, rows)],
    "names with numbers": lambda rng, rows: [f"ward {v}" for v in rng.integers(1, 20, rows)],
    "base 16": lambda rng, rows: [hex(v) for v in rng.integers(1, 99, rows)],
    "points in the middle": lambda rng, rows: [f"{v:.1f}".replace(".", "\u00b7") for v in rng.normal(50, 9, rows)],
    "Arabic digits": lambda rng, rows: ["".join(chr(0x0660 + int(sign)) for sign in str(v))
                                        for v in rng.integers(20, 90, rows)],
    "days without a year": lambda rng, rows: [f"{v:02d}.05." for v in rng.integers(1, 29, rows)],
    "weeks": lambda rng, rows: [f"2024-W{v:02d}" for v in rng.integers(1, 53, rows)],
    "one 1e39": _with("1e39"), "one 041": _with("041"), "mostly pending": lambda rng, rows: [
        v if i % 3 == 0 else "pending" for i, v in enumerate(rng.integers(20, 90, rows))],
    "ja and no": lambda rng, rows: rng.choice(["ja", "no", "yes"], rows),
    "m and male": lambda rng, rows: rng.choice(["m", "f", "male"], rows),
    "Latin and Cyrillic": lambda rng, rows: rng.choice(["A", "\u0410", "B"], rows),
    "lines in cells": lambda rng, rows: rng.choice(["a\nb", "c"], rows),
    "yes, y and 1": lambda rng, rows: rng.choice(["yes", "y", "no", "1"], rows),
    "letters in two ways": lambda rng, rows: rng.choice(["Zürich", "Zu\u0308rich", "Bern", "Bern\u200b"], rows),
    "levels": lambda rng, rows: rng.choice(["Rome", "Oslo", "Zürich"], rows),
    "levels with blanks": lambda rng, rows: rng.choice(["Rome", "Oslo ", " Oslo", "Rome "], rows),
    "spellings": lambda rng, rows: rng.choice(["yes", "no", "Yes"], rows),
    "upper case": lambda rng, rows: rng.choice(["Nord", "NORD", "Süd"], rows),
    "levels and gaps": lambda rng, rows: rng.choice(["Rome", "Oslo", "", "NA"], rows),
    "true or false": lambda rng, rows: rng.choice(["True", "False"], rows),
    "TRUE, false and gaps": lambda rng, rows: rng.choice(["TRUE", "false", ""], rows, p=[0.5, 0.4, 0.1]),
    "codes": lambda rng, rows: rng.choice(["117", "0117", "007"], rows),
    "zeros": lambda rng, rows: rng.choice(["00", "01"], rows),
    "numbers and codes": lambda rng, rows: rng.choice(["117", "250", "V45", "E11"], rows),
    "a few numbers": lambda rng, rows: rng.choice([1, 2, 3], rows),
    "0 and 1": lambda rng, rows: rng.integers(0, 2, rows),
    "one level": lambda rng, rows: ["Rome"] * rows,
    "one number": lambda rng, rows: [5] * rows,
    "one level or none": lambda rng, rows: rng.choice(["x", ""], rows),
    "nothing": lambda rng, rows: [""] * rows,
}
HOSTILE_CELLS = {name: CELLS[name] for name in (
    "decimals", "decimal commas", "thousands", "thousands and decimal comma", "levels", "true or false", "days")} | {
    "running numbers": lambda rng, rows: np.arange(rows),
    "1, 2 or none": lambda rng, rows: rng.choice(["1", "2", "", "NA"], rows),
    "long": lambda rng, rows: [LONG] * rows,
    "large": lambda rng, rows: rng.choice(["1", "2", "inf", "1e39", "-1e300"], rows),
    "powers of ten": lambda rng, rows: [str(10**k) for k in range(rows)],
}
LABELS = ("decimals", "levels", "spellings", "zeros", "0 and 1", "true or false", "a few numbers", "-999", "one ?",
          "decimal commas", "levels and gaps", "numbers and codes", "units", "one level")
_SITES = (("aachen", "berlin", "kiel"), ("007", "7", "11"), ("1", "2", "10"), ("a b", "ä", "c"),
          ("Nord", "NORD", "Süd"))
_NAMES = (("age", "ward"), ("crp.mg", "blood pressure"), ("Größe (cm)", "C"), ("true", "a:b"), ("x1", "date"))


class Messy(NamedTuple):
    """A table of three sites as people write it.

    Attributes:
        cells: the kinds of cells of its two columns, see ``CELLS``.
        odd: the kind of cells of the first column at the last site, which may be another.
        label: the kind of cells of the label.
    """

    cells: tuple[str, str]
    odd: str
    label: str
    sites: tuple[str, ...] = _SITES[0]
    names: tuple[str, str] = _NAMES[0]
    separator: str = ","
    missing: object = "refuse"
    text: bool = False
    excluded: bool = False
    seed: int = 0

    def frame(self, rows=24):
        """The table; all cells are texts."""
        rng = np.random.default_rng(self.seed)
        site = np.repeat(self.sites, [rows, rows + 6, rows])
        first, second, y = (np.array([*map(str, CELLS[kind](rng, len(site)))], object)
                            for kind in (*self.cells, self.label))
        if self.odd != self.cells[0]:
            first[-rows:] = [*map(str, CELLS[self.odd](rng, rows))]
        return pd.DataFrame(dict(zip(("site", *self.names, "y"), (site, first, second, y), strict=True)))

    @property
    def options(self):
        """The settings of ``table``."""
        first = [self.names[0]]
        return {"missing": self.missing, "text": first if self.text else None,
                "exclude": first if self.excluded else None}

    @property
    def used(self):
        """The columns that are used."""
        return self.names[self.excluded:]


CHOICES = {"sites": _SITES, "names": _NAMES, "separator": (",", ";", "\t"), "text": (False, False, False, True),
            "excluded": (False, False, False, True),
            "missing": ("refuse", "impute", ["impute", "?", -999], ["?", -999, "."], {"*": ["indicate"]})}


def messy(rng):
    """A messy table; most of what may be odd is ordinary."""
    kinds, odd = [*CELLS], {name: choose(rng, values if rng.random() < 0.3 else values[:1])
                            for name, values in CHOICES.items()}
    cells = choose(rng, kinds), choose(rng, kinds if rng.random() < 0.5 else ["decimals", "levels"])
    return Messy(cells, choose(rng, kinds) if rng.random() < 0.3 else cells[0],
                 choose(rng, LABELS if rng.random() < 0.4 else ["decimals", "levels"]),
                 seed=int(rng.integers(2**31)), **odd)


def _frame_column(rng, rows):
    kinds = [lambda: rng.normal(size=rows), lambda: np.arange(rows), lambda: rng.random(rows) < 0.5,
             lambda: pd.Series(rng.integers(0, 3, rows), dtype="Int64").mask(rng.random(rows) < 0.2),
             lambda: pd.Series(rng.choice(["a", "b"], rows), dtype="category"),
             lambda: pd.Categorical(rng.choice([1.5, 2.5], rows), categories=[1.5, 2.5, 3.5]),
             lambda: pd.date_range("2020", periods=rows), lambda: pd.interval_range(0, rows, rows),
             lambda: rng.normal(size=rows) + 1j, lambda: rng.normal(size=rows).astype(np.float16),
             lambda: rng.integers(0, 2**63, rows).astype(np.uint64) * np.uint64(2),
             lambda: pd.arrays.SparseArray(rng.choice([0.0, 1.0], rows)),
             lambda: pd.Series(rng.choice(["a", "b"], rows), dtype="string[pyarrow]"),
             lambda: pd.Series(rng.normal(size=rows), dtype="double[pyarrow]"),
             lambda: [decimal.Decimal("1.5"), *[decimal.Decimal("NaN")] * rows][:rows],
             lambda: [decimal.Decimal("1e999")] * rows, lambda: [fractions.Fraction(1, 3)] * rows,
             lambda: [10**400] * rows, lambda: [2**70, 1, *[3] * rows][:rows],
             lambda: [datetime.date(2020, 1, 1)] * rows,
             lambda: [LONG] * rows, lambda: [f"{LONG}{k}" for k in range(rows)], lambda: ["\ud800"] * rows,
             lambda: [b"a"] * rows, lambda: [None] * rows, lambda: [np.nan] * rows, lambda: [pd.NaT] * rows,
             lambda: [np.inf] * rows, lambda: [1e300] * rows, lambda: [{"a": 1}] * rows, lambda: [[1, 2]] * rows,
             lambda: [np.zeros(2)] * rows, lambda: [object()] * rows,
             lambda: [choose(rng, ODD_VALUES) for _ in range(rows)]]
    values = choose(rng, kinds)()
    if isinstance(values, list):
        column = pd.Series([None] * rows, dtype=object)
        for row, value in enumerate(values):
            column.iat[row] = value
        return column
    return pd.Series(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="number of cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        failures = [failure for run in (run_leaf_documents, run_text_tables, run_frames)
                    for failure in run(arguments.cases, arguments.seed, folder)]
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
