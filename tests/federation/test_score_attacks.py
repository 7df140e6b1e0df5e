"""A server that asks for the scores of models of its own making: how many rows the answers give, by the real messages.

The models are half-spaces in the age: those older than a threshold are ill. The number of right answers changes by one
from a threshold to the next where one test row lies between them, up or down with its label: the row's age and label.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from federation.harness import SITES, Consortium
from resolvent.comparisons.judgement.advice import SiteEvidence
from resolvent.comparisons.judgement.site_judgement import SiteCalibration, SiteFacts, SiteJudgement
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import EvaluationReport, read_event
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.names import JOURNAL, VERSIONS
from resolvent.federation.protocol.stores import ServerStore
from resolvent.federation.protocol.wire import decode, encode, identity_of_message
from resolvent.federation.site import table_versions
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.scores import rounded_at_random, rounded_judgement, scores_of_model
from resolvent.federation.site.table_versions import TableVersions
from resolvent.predict.intervals import Interval

ROWS, ROUNDS = 200, 20
PLAIN = """
data: {label: ill, features: [age], levels: {ill: ["no", "yes"]}}
model: logistic
solver: {name: GD, learning_rate: 0.1, steps: 1}
algorithms: {FedAvg: fedavg}
evaluate_every: 1
"""
CLINIC = Limits(min_sites=2)
SUMS = "privacy: {secure_sums: true, min_sites: 2, threshold: 0.5}\n"


def federation(folder, rounds, more="", **changes):
    """Two sites of 200 rows, whose labels nothing predicts."""
    consortium, rng = Consortium(folder, text=f"{PLAIN}rounds: {rounds}\n{more}"), np.random.default_rng(5)
    for name, file in consortium.files.items():
        frame = pd.DataFrame({"age": rng.normal(55, 14, ROWS).round(2), "ill": rng.choice(["no", "yes"], ROWS)})
        frame.to_csv(file.table, index=False)
        consortium.files[name] = replace(file, limits=replace(CLINIC, **changes))
    return consortium


def answer_to(message, reply):
    """A reply as if it answered the message that the server meant to send."""
    answer = decode(reply)
    return encode(replace(answer, facts={**answer.facts, "answers": identity_of_message(message)}))


class HalfSpaces(InProcess):
    """Sends another model to be scored, and keeps the answers of berlin, for each threshold."""

    thresholds: tuple[float, ...] = ()

    def __init__(self, handlers):
        super().__init__(handlers)
        self.accuracies = {}

    def broadcast(self, messages, **times):
        originals = {name: bytes(message) for name, message in messages.items()}
        replies = super().broadcast({name: self._changed(data) for name, data in originals.items()}, **times)
        reply = decode(replies["berlin"])
        if reply.kind == "scores" and "personal" in reply.facts:
            self.accuracies[reply.round] = reply.facts["personal"]["accuracy"]["test"]
        return {name: answer_to(originals[name], data) for name, data in replies.items()}

    def _changed(self, data):
        message = decode(data)
        if message.kind != "evaluate":
            return data
        threshold, steepness = self.thresholds[message.round - 1], 4000.0
        arrays = {key: np.full_like(array, steepness if "weight" in key else -steepness * threshold)
                  if array.dtype.kind == "f" else array for key, array in message.arrays.items()}
        return encode(replace(message, arrays=arrays))


def attack(consortium, rounds, results="out"):
    """The outcome, and the accuracies after each round: those of berlin, in secure sums the means of both sites."""
    HalfSpaces.thresholds = tuple(np.linspace(-2.2, -0.9, rounds))
    transports = []

    def transport(handlers):
        transports.append(HalfSpaces(handlers))
        return transports[-1]

    outcome = consortium.serve(transport=transport, results=results)
    with ServerStore(consortium.folder / "server" / "stores" / "00") as store:
        reports = [report for report in map(read_event, store.entries()) if isinstance(report, EvaluationReport)]
    means = {report.round: value for report in reports for name, split, value in report.means
             if (name, split) == ("mean_accuracy", "test")}
    return outcome, transports[-1].accuracies or means


def recovered(consortium, accuracies, sites):
    """How many test rows the mean accuracies of sites give: a row that is alone between two thresholds, and its label.

    Of guessed labels as many would be wrong as right: those that are wrong are subtracted.
    """
    ages, labels, found, wrong = [], [], 0, 0
    for site in sites:
        column = json.loads((consortium.folder / site / "mine-1" / "encoding.json").read_text())["numbers"][0]
        path = consortium.files[site].table
        table, versions = pd.read_csv(path), TableVersions(consortium.folder / site / VERSIONS, 5)
        test = table.iloc[versions.rows(table, path, 0.2, 0.3).splits["test"]]
        ages += [*(test["age"] - column["mean"]) / column["deviation"]]
        labels += [*test["ill"]]
    for t, (low, high) in enumerate(pairwise(HalfSpaces.thresholds), 1):
        step = (accuracies.get(t + 1, np.nan) - accuracies.get(t, np.nan)) * len(ages)
        between = [label for age, label in zip(ages, labels, strict=True) if low < age <= high]
        if abs(abs(step) - 1) < 0.01 and len(between) == 1:
            is_right = between == ["yes" if step < 0 else "no"]
            found, wrong = found + is_right, wrong + (not is_right)
    return found - wrong


@pytest.mark.parametrize("privacy", [pytest.param("", id="plain"), pytest.param(
    SUMS, marks=pytest.mark.when_changed, id="secure")])
def test_half_spaces_give_no_rows(privacy, tmp_path, monkeypatch):
    """Exact scores of 20 half-spaces give rows, rounded ones none; the sites store no model but the one scored last."""
    monkeypatch.setattr(table_versions, "stored_secret", lambda path, length: bytes(length))  # the same test rows
    found, is_summed = {}, bool(privacy)
    for name, changes in {"exact": {"min_cell": 1}, "rounded": {}}.items():
        (tmp_path / name).mkdir()
        consortium = federation(tmp_path / name, ROUNDS, privacy, max_scores=None, **changes)
        outcome, accuracies = attack(consortium, ROUNDS)
        assert (outcome["status"], len(accuracies)) == ("stopped", ROUNDS)
        assert "berlin has not stored its models of FedAvg: refused (not in the plan)" in outcome["message"]
        found[name] = recovered(consortium, accuracies, SITES if is_summed else ["berlin"])
        if name == "rounded":  # steps of five rows
            multiples = np.array([*accuracies.values()]) * 12 * (1 + is_summed)
            np.testing.assert_allclose(multiples, np.round(multiples), atol=1e-4)
    assert found["exact"] >= 3
    assert found["rounded"] == 0


def test_the_judgement_at_the_end_is_rounded_at_random_and_right_on_average():
    """Its errors include those of rounding; the same models have the same answer."""
    evidence = SiteEvidence(0.05, 0.03**2, ROWS, 0.9, 0.3**2, 0.004, 0.01)
    site = SiteJudgement(0, "a", ROWS, 0, {"m": Interval(0.71, 0.6, 0.82)}, {"m": Interval(0.04, -0.03, 0.11)},
                         variances={"m": 0.036**2}, facts=SiteFacts(0.69, {"m": 0.6}, {"m": {"shared": evidence}}, {
                             "m": SiteCalibration(Interval(0.1, -0.2, 0.4), Interval(0.9, 0.3, 1.5))}))
    drawings = [rounded_judgement(site, 5, str(secret).encode(), is_share=True) for secret in range(500)]
    assert rounded_judgement(site, 5, b"0", is_share=True) == drawings[0] != drawings[1]
    numbers = {
        "score": (lambda of: of.scores["m"].value, 0.71, 1.0), "gain": (lambda of: of.gains["m"].value, 0.04, 1.0),
        "loss": (lambda of: of.facts.losses["m"], 0.6, 0.69),
        "skill": (lambda of: of.facts.evidence["m"]["shared"].gain, 0.05, 1.0),
        "slope": (lambda of: of.facts.evidence["m"]["shared"].slope, 0.9, 16.0),
        "calibration": (lambda of: of.facts.calibrations["m"].intercept.value, 0.1, 8.0)}
    for name, (read, value, scale) in numbers.items():
        drawn, step = np.array([read(of) for of in drawings]), scale / 40  # of the scale, five of 200 rows
        assert drawn.mean() == pytest.approx(value, abs=6 * step / 2 / 500**0.5), name
        np.testing.assert_allclose(drawn / step, np.round(drawn / step), atol=1e-9, err_msg=name)
    errors = np.array([of.facts.evidence["m"]["shared"].variance**0.5 for of in drawings])
    assert errors.mean() == pytest.approx(math.hypot(0.03, 1 / 80), abs=1e-3)
    assert all(-1 <= end <= 1 for of in drawings for end in (*of.gains["m"], *of.scores["m"]))


def test_one_model_has_one_answer_under_every_name_and_beside_every_other_method():
    """The mean of many drawings would be the exact score: of 40 names or 40 other methods there is one drawing."""
    def judgement(labels, other):
        end, own = Interval(0.7167, 0.59, 0.82), Interval(other, other - 0.1, other + 0.1)
        gain = Interval(0.04, -0.03, 0.11)
        return SiteJudgement(0, "a", ROWS, 0, dict.fromkeys(labels, end) | {"other": own}, dict.fromkeys(labels, gain),
                             variances=dict.fromkeys(labels, 0.036**2),
                             facts=SiteFacts(0.69, dict.fromkeys(labels, 0.6131) | {"other": other}, {}, {}))

    labels = [f"FedAvg {k}" for k in range(40)]
    answers = [rounded_judgement(judgement(labels, 0.5 + k / 100), 5, b"secret", is_share=True) for k in range(40)]
    for read in (lambda of: of.scores, lambda of: of.gains, lambda of: of.variances, lambda of: of.facts.losses):
        assert len({read(answer)[label] for answer in answers for label in labels}) == 1
    assert len({answer.scores["other"] for answer in answers}) > 10


@pytest.mark.when_changed
@pytest.mark.parametrize(("privacy", "allowed"), [("", 13), (SUMS, 26)], ids=["plain", "secure"])
def test_a_plan_with_as_many_evaluations_as_could_be_solved_is_refused(privacy, allowed, tmp_path):
    """40 validation rows allow 13 scores, and 26 of two sites in secure sums; all plans count together."""
    outcome = federation(tmp_path, allowed + 1, privacy).serve()
    assert outcome["status"] == "refused"
    assert "berlin: refused (limits): the site allows 0.333" in outcome["message"]
    consortium = federation(tmp_path, 2, privacy)
    assert consortium.serve(consortium.job(run="second")) == {"status": "complete"}
    journal = Journal(tmp_path / "berlin" / JOURNAL)
    journal.rows = journal.latest("scores")["rows"]
    assert journal.usage().scores == 2
    if privacy:  # the mean of two sites, each with steps of five of 60 test rows
        metrics = consortium.metrics()
        means = metrics["value"][(metrics["metric"] == "mean_accuracy") & (metrics["split"] == "test")].to_numpy()
        assert len(means) == 2
        np.testing.assert_allclose(means * 24, np.round(means * 24), atol=1e-4)
    consortium = federation(tmp_path, allowed - 1, privacy)
    outcome = consortium.serve(consortium.job(run="third"))
    assert outcome["status"] == "refused"


def test_models_that_agree_on_all_rows_have_one_answer():
    """Of a mean of many answers, half of the answers that a table allows give the count of right rows exactly."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 1)), rng.integers(0, 2, 100)
    data = rv.FederatedData.from_arrays([x], [y], classes=["0", "1"], validation=0.2, test=0.6)
    problem = rv.problems.LearningProblem(rv.models.logistic(1, 2), data)

    def answers(scale, threshold, secret):
        model = jax.tree.map(lambda leaf: jnp.full(leaf.shape, scale if leaf.ndim > 1 else -scale * threshold),
                             problem.model.init(jax.random.key(0)))
        return scores_of_model(problem, model, None, 5, secret=secret)["accuracy"]["test"]

    thresholds, drawn = np.linspace(-1, 1, 5), {}
    for scale in (100.0, 250.0):
        drawn[scale] = [[answers(scale, threshold, bytes([k])) for k in range(20)] for threshold in thresholds]
    assert drawn[100.0] == drawn[250.0]
    assert max(len({*of_sites}) for of_sites in drawn[100.0]) == 2  # another site draws anew


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
