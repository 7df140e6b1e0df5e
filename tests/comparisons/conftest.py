"""One small comparison that many tests read."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from six_sites import visits, write_run

from command_line import Outcome, call, call_command
from pictures import drawing, pictures
from resolvent.comparisons.judgement.verdict import finding, score_table
from resolvent.comparisons.runs.record import read_record
from resolvent.comparisons.runs.report import redraw_report
from resolvent.data.files.digests import file_digests, write_sealed

__all__ = ["call", "drawing"]

# The three federated methods are one algorithm under three names, so that only two programs are compiled.
SMALL = """\
title: A small comparison
data: {name: digits, parties: 5, classes_per_party: 5, outliers: 1, test: 0.5}
model: logistic
solver: {name: SGD, learning_rate: 0.05, batch_size: 20, epochs: 2}
algorithms:
  alone: local
  FedAvg+keep: {name: fedavg, stragglers: keep}
  FedProx 0: {name: fedprox, mu: 0}
  FedAvg once more: {name: fedavg, stragglers: keep}
participation: {name: stragglers, share: 0.5, inner: {name: uniform, cohort: 4}}
rounds: 4
evaluate_every: 2
seed: 7
"""


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    yaml: Path
    folder: Path
    outcome: Outcome


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The small comparison, run. Tests read it and never write to it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(SMALL)
    with pictures(is_drawn=False):
        outcome = call_command("run", "small.yaml", cwd=folder)
    assert outcome.code == 0, outcome.err
    return Finished(folder / "small.yaml", folder / "runs" / "small", outcome)


@pytest.fixture(scope="session")
def site_run(tmp_path_factory):
    """A finished run of three methods on a table of six sites. Tests read it and never write to it."""
    return write_run(tmp_path_factory.mktemp("site_run"), visits().drop(columns="patient"))


@pytest.fixture
def site_run_copy(site_run, tmp_path):
    """A copy of the run to which a test may write; its table is that of the original."""
    shutil.copytree(site_run.folder, tmp_path / "run")
    return site_run._replace(folder=tmp_path / "run")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write mine.yaml into an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "mine.yaml").write_text(text)
        return "mine.yaml"
    return write


@pytest.fixture(scope="session")
def made(finished, tmp_path_factory):
    """Write the files of a run folder from random scores: made(methods, parties, ...)."""
    def write(methods, parties, *, score="accuracy", alone=None, diverged=(), title="Random scores", notes=()):
        rng = np.random.default_rng(0)
        higher = score == "accuracy"
        rows = []
        for m, method in enumerate(methods):
            for round_ in range(0, 11, 2):
                for k in range(len(parties)):
                    value = rng.uniform(0.3, 0.9) + 0.01 * m * round_
                    value = np.nan if method in diverged and round_ > 4 and k % 2 == 0 else value
                    rows += [(method, round_, k, "test", f"{prefix}{score}", value)
                             for prefix in ("", *(["global_"] if method != alone else []))]
                    rows.append((method, round_, k, "train", "model_change", value / 2))
                    if round_ in (2, 10) and method != alone:
                        rows += [(method, round_, k, "train", f"line_{s / 10:.1f}", value + s) for s in range(11)]
                        rows.append((method, round_, k, "train", "line_previous", value))
        metrics = pd.DataFrame(rows, columns=["method", "round", "party", "split", "metric", "value"])
        metrics["party"] = metrics["party"].astype("Int64")
        table = score_table(metrics, list(methods), score, higher_is_better=higher, alone=alone)
        summary = json.loads((finished.folder / "summary.json").read_text())
        like = summary["methods"]["alone"]
        columns = [c for c in table.columns if c != "method"]
        summary |= {
            "title": title, "score": score, "higher_is_better": higher, "alone": alone,
            "sites": [], "means": None, "baseline": None, "level": None,  # scores of parties, without test rows
            "finding": finding(table, score, alone, higher_is_better=higher),
            "data": {"name": title, "parties": list(parties), "train": [3] * len(parties), "test": [2] * len(parties),
                     "notes": list(notes)},
            "methods": {row["method"]: like | {"final": {c: row[c] if np.isfinite(row[c]) else None for c in columns}}
                        for row in table.astype(object).to_dict("records")}}
        folder = tmp_path_factory.mktemp("made")
        (folder / "experiment.yaml").write_text(f"title: {json.dumps(title)}\n")
        metrics.to_parquet(folder / "metrics.parquet", index=False)
        files = file_digests(folder, ["experiment.yaml", "metrics.parquet"])
        write_sealed(folder / "summary.json", summary | {"files": files})
        write_sealed(folder / "summary.json", read_record(folder).plain())  # as a run writes it
        with pictures(is_drawn=True):
            redraw_report(folder, anyway=True)
        return folder
    return write


HOSTILE = ["<b>&\"'</b>", "</script><script>alert(1)</script>", "$x_1$ and $\\nope$", "url(#id=\"x\" href=\"#y\")",
           "#123456", "--> {{ 7 * 7 }} {% raw %}", "<!--", "&amp;lt;", "_ünder–" + "long" * 30]


@pytest.fixture(scope="session")
def hostile():
    """Names that HTML, SVG, JSON, Jinja, Matplotlib or our own substitutions could interpret."""
    return HOSTILE


@pytest.fixture(scope="session")
def reports(finished, made, tmp_path_factory):
    """Run folders with a report, by their special property; each is made when a test first reads it."""
    def redrawn():
        folder = tmp_path_factory.mktemp("redrawn") / "run"
        shutil.copytree(finished.folder, folder)
        with pictures(is_drawn=True):
            redraw_report(folder)
        return folder

    makers = {
        "a run": redrawn,
        "hostile names": lambda: made(["alone", *HOSTILE], HOSTILE, alone="alone", title=HOSTILE[1] + HOSTILE[-1],
                                      notes=HOSTILE),
        "many parties": lambda: made(["A", "alone", "B"], [f"party {k}" for k in range(41)], alone="alone"),
        "diverged": lambda: made(["alone", "A", "B"], list("abcde"), alone="alone", score="squared_error",
                                 diverged=["A"]),
        "all diverged": lambda: made(["alone", "A"], list("ab"), alone="alone", score="squared_error",
                                     diverged=["alone", "A"]),
        "without local training": lambda: made(["A", "B"], list("abc"), notes=["c is an outlier"]),
        "seventeen methods": lambda: made([f"method {i}" for i in range(17)], list("ab")),
        "one party": lambda: made(["alone", "A"], ["the only one"], alone="alone"),
    }

    class Reports(dict):
        def __missing__(self, kind):
            self[kind] = makers[kind]()
            return self[kind]

    return Reports()
