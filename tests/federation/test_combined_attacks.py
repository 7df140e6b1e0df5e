"""Attacks that combine two features, each of which is allowed: what a server or a lead reads, by the real messages."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from federation.harness import Consortium
from federation.hospitals import Hospitals, table
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.names import VERSIONS
from resolvent.federation.protocol.policy import FEDERATION
from resolvent.federation.protocol.wire import decode, encode, identity_of_message
from resolvent.federation.site import regression_guard, site_run
from resolvent.federation.site.table_versions import TableVersions
from resolvent.math.fixed_point import fractions_of_limbs

LIMBS = 5  # integers of each number of a regression
FRACTIONS = fractions_of_limbs(145, 1024, 64, LIMBS)
ROUNDS, STEEP, RATE = 40, 4000.0, 10.0
EXPERIMENT = f"""
data: {{label: ill, features: [age, crp], levels: {{ill: ["no", "yes"]}}}}
model: logistic
solver: {{name: GD, learning_rate: {RATE}, steps: 1}}
algorithms: {{FedAvg: fedavg}}
rounds: {ROUNDS}
evaluate_every: {ROUNDS}
privacy: {{secure_sums: true, min_sites: 2, threshold: 1}}
"""


class MadeUp(InProcess):
    """A server that sends models of its own making, the same to all sites, and adds up the masked replies."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.sums, self.refusals = {}, []

    def arrays(self, message):
        raise NotImplementedError

    def broadcast(self, messages, **times):
        originals = {name: bytes(message) for name, message in messages.items()}
        sent = {name: decode(data) for name, data in originals.items()}
        is_work = {message.kind for message in sent.values()} == {"work"}
        if is_work:
            sent = {name: replace(message, arrays={**message.arrays, **self.arrays(message)})
                    for name, message in sent.items()}
        replies = super().broadcast({name: encode(message) for name, message in sent.items()}, **times)
        answers = {name: decode(data) for name, data in replies.items()}
        self.refusals += [answer for answer in answers.values() if answer.kind == "refusal"]
        masked = [answer.arrays["masked"] for answer in answers.values() if "masked" in answer.arrays]
        if is_work and len(masked) == len(sent):
            self.sums[next(iter(sent.values())).round] = sum(masked[1:], masked[0])
        return {name: encode(replace(answer, facts={**answer.facts, "answers": identity_of_message(originals[name])}))
                for name, answer in answers.items()}


class Steps(MadeUp):
    """Half-spaces in the age, each next to the one before: what changes in the sums is the rows between."""

    thresholds = np.linspace(-2.5, -1.0, ROUNDS)

    def arrays(self, message):
        weight, bias = (next(name for name in message.arrays if name.startswith("payload") and part in name)
                        for part in ("weight", "bias"))
        return {weight: np.array([[STEEP, 0.0]], np.float32),
                bias: np.array([-STEEP * self.thresholds[message.round]], np.float32)}


def rows_from_steps(consortium, sums):
    """How many training rows the differences of the sums give, with both columns."""
    rows = []
    for name, file in consortium.files.items():
        frame, versions = pd.read_csv(file.table), TableVersions(consortium.folder / name / VERSIONS, 5)
        train = frame.iloc[versions.rows(frame, file.table, 0.2, 0.3).splits["train"]]
        columns = json.loads((consortium.folder / name / "mine-1" / "encoding.json").read_text())["numbers"]
        rows += [np.stack([(train[c["name"]] - c["mean"]) / c["deviation"] for c in columns], axis=1)]
    rows, found = np.concatenate(rows), set()
    sent = -STEEP * Steps.thresholds.astype(np.float32)
    biases = [(sums[t].view(np.int64) / 2.0**29)[0] - len(rows) * sent[t] for t in range(ROUNDS)]
    for t in range(1, ROUNDS):
        bias = biases[t] - biases[t - 1]
        if abs(abs(bias) - RATE) < 0.02 * RATE:  # one row, with the error of float32 in the sum
            weights = np.diff([(sums[s].view(np.int64) / 2.0**29)[1:3] for s in (t - 1, t)], axis=0)[0]
            errors = np.abs(rows - weights / bias).max(axis=1)
            found |= {int(errors.argmin())} if errors.min() < 0.05 else set()
    return len(found)


@pytest.mark.when_changed
def test_steps_in_secure_sums_give_no_row(tmp_path, monkeypatch):
    """Made-up models and sums of all sites: the differences of successive sums are single rows, and no name of a site.

    A site refuses a model at which the losses of fewer than two and a half rows are curved.
    """
    pytest.importorskip("Crypto")
    found, rng = {}, np.random.default_rng(5)
    frames = {site: pd.DataFrame({"age": rng.normal(55, 14, 200).round(2), "crp": rng.normal(20, 6, 200).round(2),
                                  "ill": rng.choice(["no", "yes"], 200)}) for site in ("aachen", "berlin")}
    for name, rule in {"without": lambda *arguments: None, "with": site_run.check_curvatures}.items():
        monkeypatch.setattr(site_run, "check_curvatures", rule)
        (tmp_path / name).mkdir()
        consortium, kept = Consortium(tmp_path / name, text=EXPERIMENT), []
        for site, frame in frames.items():
            file = consortium.files[site]
            frame.to_csv(file.table, index=False)
            consortium.files[site] = replace(file, limits=Limits(min_sites=2))
        outcome = consortium.serve(transport=lambda handlers, kept=kept: kept.append(Steps(handlers)) or kept[-1])
        if name == "with":
            assert outcome["status"] == "stopped"
            assert not kept[0].sums
            assert {tuple(refusal.facts["limits"]) for refusal in kept[0].refusals} == {("min_cell",)}
        else:
            found = rows_from_steps(consortium, kept[0].sums)
    assert found >= 3


class Saturated(MadeUp):
    """A logistic regression with coefficients so large that all probabilities are 0 or 1."""

    threshold = 0.0

    def arrays(self, message):
        return {name: np.array([-1e6 * self.threshold, 1e6]) for name, array in message.arrays.items()
                if name.startswith("payload") and array.shape == (2,) and array.dtype == np.float64}


@pytest.mark.when_changed
def test_saturated_coefficients_in_two_secure_sums_give_no_row(tmp_path, monkeypatch):
    """X'WX is zero, so that no cell has few rows, and the sum of the slopes of two plans differs by one row."""
    pytest.importorskip("Crypto")
    frame = table(120, more=0).round({"age": 2})
    ages, rows = np.unique(frame["age"], return_counts=True)
    alone = int(np.flatnonzero(rows == 1)[60])
    between = [(ages[alone - 1] + ages[alone]) / 2, (ages[alone] + ages[alone + 1]) / 2]
    kept, differences = [], {}
    for name, rule in {"without": lambda *arguments: None, "with": regression_guard.check_curvatures}.items():
        monkeypatch.setattr(regression_guard, "check_curvatures", rule)
        hospitals = Hospitals(tmp_path / name, frame, {"formula": "ill ~ age"}, policy=FEDERATION, limits=Limits(),
                              privacy={"secure_sums": True})
        slopes = []
        for number, threshold in enumerate(between):
            monkeypatch.setattr(Saturated, "threshold", threshold)
            outcome = hospitals.serve(run=f"run-{number}",
                                      transport=lambda handlers: kept.append(Saturated(handlers)) or kept[-1])
            assert outcome["status"] == "stopped"
            if 0 in kept[-1].sums:
                numbers = kept[-1].sums[0][:-1].view(np.int64).reshape(-1, LIMBS) @ 2.0**-np.array(FRACTIONS)
                slopes.append(numbers[1:3])
        if name == "without":
            differences = np.diff(slopes, axis=0)[0]
        else:
            assert not slopes
    assert abs(differences[0]) == pytest.approx(1, abs=1e-6)
    assert differences[1] / differences[0] == pytest.approx(ages[alone], abs=1e-6)
