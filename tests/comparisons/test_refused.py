"""An attack in an experiment file, and the warning about refused replies."""

import json

import numpy as np
import pytest

from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.judgement.verdict import refusals
from resolvent.errors import InputError

ATTACKED = """\
data: {name: digits, parties: 6, classes_per_party: 5, test: 0.5}
model: logistic
solver: {name: SGD, learning_rate: 0.05, batch_size: 20, epochs: 1}
algorithms:
  broken: {name: attacked, inner: fedavg, attack: nan, parties: [2, 4], share: 0}
  turned:
    name: attacked
    inner: {name: robust, aggregator: {name: bulyan, share: 0.1}}
    attack: {name: sign_flip, scale: 2}
    share: 0.1
participation: {name: uniform, cohort: 5}
rounds: 4
evaluate_every: 2
"""


@pytest.mark.filterwarnings("ignore:turned. Bulyan")
@pytest.mark.when_changed
def test_refused_replies_are_named_on_the_terminal_in_the_summary_and_in_the_report(call, tmp_path):
    (tmp_path / "attacked.yaml").write_text(ATTACKED)
    outcome = call("run", "attacked.yaml", cwd=tmp_path, columns=400)
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "runs" / "attacked"
    summary = json.loads((folder / "summary.json").read_text())
    refused = summary["methods"]["broken"]["refused"]
    names = summary["data"]["parties"]
    assert set(refused) == {names[2], names[4]}
    assert all(1 <= times <= 4 for times in refused.values())
    assert summary["methods"]["turned"]["refused"] == {}
    (warning,) = summary["warnings"]
    assert warning.startswith(f"broken: {sum(refused.values())} replies that were not finite, or far longer than the "
                              "median, did not count, of ")
    for party, times in refused.items():
        assert f"{party} ({times})" in warning
    assert f"1. {warning}" in " ".join(outcome.out.split())
    assert f"<li>{warning}</li>" in (folder / "report.html").read_text()
    assert np.isfinite(summary["methods"]["broken"]["final"]["global mean"])


@pytest.mark.parametrize(("counts", "text"), [
    ({"a": 1}, "FedAvg: 1 reply that was not finite, or far longer than the median, did not count, of a (1); "),
    ({"a": 1, "b": 3}, "far longer than the median, did not count, of b (3) and a (1); "),
    ({f"p{k}": 1 for k in range(12)}, "p8 (1), p9 (1) and 2 more; "),
])
def test_the_sentence(counts, text):
    assert text in refusals("FedAvg", counts)


def test_without_refusals_there_is_none(finished):
    assert refusals("A", {}) is None
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary["warnings"] == []


def test_wrong_part_is_refused_with_its_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(ATTACKED.replace("share: 0.1", "share: 0.3"))
    with pytest.raises(InputError, match=r"mine.yaml:8: algorithms.turned.inner.aggregator: Bulyan\(share=0.3\)"):
        ExperimentFile.load(str(path)).build()
