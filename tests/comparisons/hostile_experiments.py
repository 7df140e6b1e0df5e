"""Hostile experiment files: valid ones with mutated keys, values, bytes, anchors and ends.

Each case is determined by the seed and its number, so that one case can be repeated. A case passes if the file binds,
or if it is refused by an `InputError` with the file, the line and a short message of one line, within two seconds. Run
thousands of them with::

    python tests/comparisons/hostile_experiments.py --cases 3000 --seed 1
"""

import argparse
import re
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # also when this file is run as a script

import numpy as np

from mutations import choose, mutate_bytes
from resolvent.comparisons.experiment.experiment_file import ExperimentFile, experiments
from resolvent.errors import InputError

MAX_MESSAGE_LENGTH = 2000
MAX_SECONDS = 2
SMALL = """\
data: {name: digits, parties: 4}
model: mlp
solver: &sgd
  name: SGD
  learning_rate: 0.05
  epochs: 2
algorithms:
  alone: local
  FedAvg: fedavg
  FedProx: {name: fedprox, mu: 0.1, solver: *sgd}
  Fed+: {name: fedplus, penalty: {name: Scaled, penalty: L2Norm, scale: 2}, sigma: 0.1}
participation: {name: stragglers, parties: [1], inner: {name: uniform, cohort: 3}}
diagnostics: [line, steps]
rounds: 3
"""
LIST = """\
data: digits
model: logistic
solver: {name: GD, learning_rate: 0.1}
algorithms: [local, fedavg]
rounds: 2
"""
INSERTIONS = [b"\0", b"\xff\xfe", b'"', b"\xed\xa0\x80", b"[", b"}", b"\t", b"&a "]
ODD_VALUES = [
    "", "~", "null", "true", "no", "0", "-1", "010", "0o10", "0x10", "1_0", "2.5", "1e3", "1e400", ".nan", "-.inf",
    "9" * 25,
    "9" * 5000, "2147483648", "1:30", "2026-01-31", "x", "'7'", '""', "'a: b'",
    '"\\ud800"', '"\\0"', '"\\U0001F600"',
    "größe", "\u202e", "\ufeff", "\x85", "\u2028", "[]", "[[]]", "[1, two]", "{}", "{a: 1}", "{1: 2, '1': 3}",
    "{[a]: 1}",
    "? [a]", "!!set {a}", "!!python/object:os.system x", "!!binary aGk=", "!!float x", "!!int x", "!x y", "&a [*a]",
    "*a", "*sgd",
    "<<: *sgd", "{<<: *sgd}", "{<<: 3}", "|\n  text", ">-\n  text", "|9\n  x", "@x", "`x", "%x", "- x", "[", "{",
    "}",
    "'", '"', "\t", "...", "---", "# x", "{name: fedavg}", "{name: [x]}", "[fedavg, fedavg]", "SGD", "x" * 3000,
    "[" * 3000, "{a: " * 40 + "}" * 40, "[" + "x," * 3000 + "]", "*" + "a" * 500]
ODD_LINES = [
    "%YAML 9.9", "%YAML 1.1", "%TAG ! tag:x,2000:", "---", "...", "? ", ": ", "- x", "rounds: 3", "1: 2", "null: 3",
    "~: x",
    "[a, b]: c", "{a: b}: c", "<<: *sgd", "'': x", "\t", "\ttab: 1", "a" * 2000 + ": 1", "? |\n  key\n: value",
    "- - - -", "x: " + "&a " * 5,
    "bomb0: &b0 [x, x, x, x, x, x, x, x, x]", "bomb1: &b1 [*b0, *b0, *b0, *b0, *b0, *b0, *b0, *b0, *b0]"]


def mutated(rng):
    """The bytes of an experiment file with one to three mutations."""
    texts = [SMALL, LIST, *experiments().values()]
    lines = texts[rng.integers(len(texts))].splitlines()
    for _ in range(rng.integers(1, 4)):
        _mutate_lines(lines, rng)
    if rng.random() < 0.03:
        lines += [f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else 'x'] * 9)}]" for i in range(rng.integers(1, 9))]
    text = str(choose(rng, ["\n", "\n", "\n", "\r\n", "\r"])).join(lines) + "\n"
    if rng.random() < 0.05:
        text = text * int(rng.integers(2, 2000))
    data = text.encode(str(choose(rng, ["utf-8", "utf-8", "utf-8", "utf-8", "utf-16", "latin-1"])), "replace")
    return mutate_bytes(data, rng, INSERTIONS) if rng.random() < 0.25 else data


def _mutate_lines(lines, rng):
    if not lines:
        return
    row, change = rng.integers(len(lines)), rng.integers(10)
    match = re.match(r"(\s*(?:- )?)([^:#]+):(.*)", lines[row])
    if change == 0:
        del lines[row]
    elif change == 1:
        lines.insert(rng.integers(len(lines) + 1), lines[row])
    elif change == 2:
        lines[row] = " " * rng.integers(1, 4) + lines[row]
    elif change == 3:
        lines.insert(row, choose(rng, ODD_LINES))
    elif change == 4 and match:
        lines[row] = f"{match[1]}{choose(rng, [*ODD_VALUES, match[2] + 'x', match[2][:-1]])}:{match[3]}"
    elif change == 5:
        words = re.findall(r"[\w.+-]+", lines[row])
        lines[row] = lines[row].replace(choose(rng, words), choose(rng, ODD_VALUES), 1) if words else lines[row]
    elif match:
        lines[row] = f"{match[1]}{match[2]}: {choose(rng, ODD_VALUES)}"


def check_case(data, path):
    """The failure of one file as text, or None; and whether the file was accepted."""
    path.write_bytes(data)
    start, is_accepted = time.process_time(), False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ExperimentFile.load(str(path)).to_yaml()
        is_accepted = True
    except InputError as error:
        message = str(error)
        if not re.match(rf"{re.escape(str(path))}:\d+: ", message):
            return f"the message does not begin with the file and the line: {message[:300]}", False
        if len(message) > MAX_MESSAGE_LENGTH:
            return f"a message of {len(message)} characters: {message[:300]}", False
        if not message.isprintable():
            return f"a message that is not one line of text: {message!r}", False
    except Exception:
        return traceback.format_exc(limit=-6), False
    seconds = time.process_time() - start
    return (f"{seconds:.1f} seconds" if seconds > MAX_SECONDS else None), is_accepted


def run(cases, seed, folder):
    """The failures of mutated experiment files, one text per failure."""
    failures, accepted = [], 0
    for number in range(cases):
        data = mutated(np.random.default_rng([seed, number]))
        failure, is_accepted = check_case(data, Path(folder) / "case.yaml")
        accepted += is_accepted
        if failure is not None:
            failures.append(f"experiment files, seed {seed}, case {number}: {failure}")
    print(f"experiment files: seed {seed}, {cases} cases, {accepted} accepted, "
          f"{cases - accepted - len(failures)} refused, {len(failures)} failures")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        failures = run(arguments.cases, arguments.seed, folder)
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
