"""A server that asks for the scores of models of its own making: how many rows the answers give, by the real messages.

The models are half-spaces in the age: those older than a threshold are ill. The number of right answers changes by one
from a threshold to the next where one test row lies between them, up or down with its label: the row's age and label.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from federation.harness import Consortium
from federation.secure_parts import Certified
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.names import JOURNAL, VERSIONS
from resolvent.federation.protocol.wire import decode, encode
from resolvent.federation.site import table_versions
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.scores import rounded_at_random
from resolvent.federation.site.table_versions import TableVersions

ROWS, TEST, ROUNDS = 200, 60, 20
PLAIN = """
data: {label: ill, features: [age], levels: {ill: ["no", "yes"]}}
model: logistic
solver: {name: GD, learning_rate: 0.1, steps: 1}
algorithms: {FedAvg: fedavg}
evaluate_every: 1
"""
CLINIC = Limits(min_sites=2)
SUMS = "privacy: {secure_sums: true, min_sites: 2, threshold: 0.5}\n"


def federation(folder, rounds, kind=Consortium, more="", **changes):
    """Two sites of 200 rows, whose labels nothing predicts."""
    consortium, rng = kind(folder, text=f"{PLAIN}rounds: {rounds}\n{more}"), np.random.default_rng(5)
    for name, file in consortium.files.items():
        frame = pd.DataFrame({"age": rng.normal(55, 14, ROWS).round(2), "ill": rng.choice(["no", "yes"], ROWS)})
        frame.to_csv(file.table, index=False)
        consortium.files[name] = replace(file, limits=replace(CLINIC, **changes))
    return consortium


class HalfSpaces(InProcess):
    """Sends another model to be scored, and keeps the answers of berlin, for each threshold."""

    thresholds: tuple[float, ...] = ()

    def __init__(self, handlers):
        super().__init__(handlers)
        self.accuracies = {}

    def broadcast(self, messages, **times):
        changed = {name: self._changed(bytes(message)) for name, message in messages.items()}
        replies = super().broadcast(changed, **times)
        reply = decode(replies["berlin"])
        if reply.kind == "scores" and "personal" in reply.facts:
            self.accuracies[reply.round] = reply.facts["personal"]["accuracy"]["test"]
        return replies

    def _changed(self, data):
        message = decode(data)
        if message.kind != "evaluate":
            return data
        threshold, steepness = self.thresholds[message.round - 1], 4000.0
        arrays = {key: np.full_like(array, steepness if "weight" in key else -steepness * threshold)
                  if array.dtype.kind == "f" else array for key, array in message.arrays.items()}
        return encode(replace(message, arrays=arrays))


def attack(consortium, rounds, results="out"):
    """The outcome, the thresholds in standard deviations, and the accuracies after each round."""
    HalfSpaces.thresholds = tuple(np.linspace(-2.2, -0.9, rounds))
    transports = []

    def transport(handlers):
        transports.append(HalfSpaces(handlers))
        return transports[-1]

    outcome = consortium.serve(transport=transport, results=results)
    return outcome, transports[-1].accuracies


def recovered(consortium, accuracies, rows=TEST):
    """How many test rows of berlin the accuracies give: one row between two thresholds, and its label.

    Of guessed labels as many would be wrong as right: those that are wrong are subtracted.
    """
    column = json.loads((consortium.folder / "berlin" / "mine-1" / "encoding.json").read_text())["numbers"][0]
    path = consortium.files["berlin"].table
    table, versions = pd.read_csv(path), TableVersions(consortium.folder / "berlin" / VERSIONS, 5)
    test = table.iloc[versions.rows(table, path, 0.2, 0.3).splits["test"]]
    ages, found, wrong = (test["age"] - column["mean"]) / column["deviation"], 0, 0
    for t, (low, high) in enumerate(pairwise(HalfSpaces.thresholds), 1):
        step = (accuracies.get(t + 1, np.nan) - accuracies.get(t, np.nan)) * rows
        if abs(abs(step) - 1) < 0.01:
            labels = [*test["ill"][(ages > low) & (ages <= high)]]
            is_right = labels == ["yes" if step < 0 else "no"]
            found, wrong = found + is_right, wrong + (not is_right)
    return found - wrong


def test_half_spaces_give_no_rows(tmp_path, monkeypatch):
    """Exact scores of 20 half-spaces give rows, rounded ones none; the sites store no model but the one scored last."""
    monkeypatch.setattr(table_versions, "stored_secret", lambda path, length: bytes(length))  # the same test rows
    found = {}
    for name, changes in {"exact": {"min_cell": 1, "score_digits": None}, "rounded": {}}.items():
        (tmp_path / name).mkdir()
        consortium = federation(tmp_path / name, ROUNDS, max_scores=None, **changes)
        outcome, accuracies = attack(consortium, ROUNDS)
        assert (outcome["status"], len(accuracies)) == ("stopped", ROUNDS)
        assert "berlin has not stored its models of FedAvg: refused (not in the plan)" in outcome["message"]
        found[name] = recovered(consortium, accuracies)
        if name == "rounded":
            np.testing.assert_allclose(np.array([*accuracies.values()]) * 12 % 1, 0, atol=1e-12)  # steps of five rows
    assert found["exact"] >= 3
    assert found["rounded"] == 0


@pytest.mark.parametrize(("kind", "allowed"), [(Consortium, 13), (Certified, 26)], ids=["plain", "secure"])
def test_a_plan_with_as_many_evaluations_as_could_be_solved_is_refused(kind, allowed, tmp_path):
    """40 validation rows allow 13 scores, and 26 of two sites in secure sums; all plans count together."""
    more = SUMS if kind is Certified else ""
    outcome = federation(tmp_path, allowed + 1, kind, more).serve()
    assert outcome["status"] == "refused"
    assert "berlin: refused (limits): the site allows 0.333" in outcome["message"]
    consortium = federation(tmp_path, 2, kind, more)
    assert consortium.serve(consortium.job(run="second")) == {"status": "complete"}
    journal = Journal(tmp_path / "berlin" / JOURNAL)
    journal.rows = journal.latest("scores")["rows"]
    assert journal.usage().scores == 2
    if kind is Certified:  # the mean of two sites, each with steps of five of 60 test rows
        metrics = consortium.metrics()
        means = metrics["value"][(metrics["metric"] == "mean_accuracy") & (metrics["split"] == "test")].to_numpy()
        assert len(means) == 2
        np.testing.assert_allclose(means * 24, np.round(means * 24), atol=1e-4)
    consortium = federation(tmp_path, allowed - 1, kind, more)
    outcome = consortium.serve(consortium.job(run="third"))
    assert outcome["status"] == "refused"


def test_a_rounded_score_is_the_score_on_average_and_hides_single_rows():
    """A row changes the probability of an answer by at most one over min_cell."""
    for rows, cell in ((24, 5), (100, 5), (3000, 5), (100, 10)):
        answers = {}
        for right in (0, rows // 3, rows // 3 + 1, rows):
            drawn = np.array([rounded_at_random(right / rows, rows, cell) for _ in range(4000)])
            step = 1 / math.floor(1 / max(cell / rows, rows**-0.5 / 4))
            assert drawn.mean() == pytest.approx(right / rows, abs=6 * step / 2 / 4000**0.5 + 1e-12)
            assert len({*drawn.tolist()}) <= 2
            np.testing.assert_allclose(drawn / step, np.round(drawn / step), atol=1e-9)
            answers[right] = drawn
        first, second = answers[rows // 3], answers[rows // 3 + 1]
        most = max(abs((first == value).mean() - (second == value).mean()) for value in {*first, *second})
        assert most <= 1 / cell + 6 / 4000**0.5
    assert {rounded_at_random(value, 24, 5, (0.0, 4.0)) for value in (0.0, 4.0)} == {0.0, 4.0}
