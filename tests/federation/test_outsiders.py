"""The tutorial of three hospitals as it is typed, and attacks with its commands, over NVIDIA FLARE and Flower.

Every participant has a folder of its own and the default limits. The lead of the attacks has a valid kit and signs the
plans; two sites run the plans of this lead without a person, so that only the limits are between the plan and the rows.
"""

import json
import shutil
from contextlib import ExitStack

import pandas as pd
import pytest

from federation.harness import sent
from federation.typed_commands import ENGINES, SITES, Federation, table
from resolvent.comparisons.runs.record import read_record

pytestmark = [pytest.mark.nightly, ENGINES]


@pytest.fixture(scope="module")
def federation(engine, tmp_path_factory):
    with ExitStack() as stack:
        parts = Federation(tmp_path_factory.mktemp(engine), engine, stack)
        for k, site in enumerate(SITES):
            table(k).to_csv(parts.folder / site / "patients.csv", index=False)
            rule = () if site == "celle" else ("--set", f"approval={{leads: [{parts.lead}]}}")
            parts.run(site, "site", "new", "patients.csv", *rule)
        shutil.copy(parts.folder / "lead" / "mine.yaml", parts.folder / "aachen")
        shown = parts.run("aachen", "site", "check", "kit", "site.yaml", "mine.yaml")
        assert shown.endswith("Nothing has left the site.")
        parts.serve()
        for site in SITES:
            parts.start_site(site)
        yield parts


def approve(federation):
    """A person in Celle approves the plan that waits."""
    shown = federation.run("celle", "site", "plans", "kit")
    plan = shown.rpartition(": waiting")[0].rpartition(" ")[2]
    assert len(plan) == 12
    federation.run("celle", "site", "approve", "kit", plan[:6])


def test_the_tutorial_is_typed_with_an_approval(federation):
    """Celle decides about each plan; the run waits for it, and is complete afterwards."""
    waiting = federation.federate("runs/hearts", fails=True)
    assert "celle: refused (waits for approval)" in waiting
    assert not (federation.folder / "celle" / "kit" / "runs" / "table.versions").exists()
    approve(federation)
    federation.federate("runs/hearts")
    summary = read_record(federation.folder / "lead" / "runs" / "hearts").plain()
    assert summary["data"]["parties"] == list(SITES)
    (run,) = (p.parent for p in (federation.folder / "berlin" / "kit" / "runs").glob("*/encoding.json"))
    shutil.copy(federation.folder / "berlin" / "patients.csv", federation.folder / "berlin" / "new_patients.csv")
    federation.run("berlin", "model", "predict", run, "new_patients.csv", "--method", "FedAvg", "--site", "berlin")
    assert len(pd.read_csv(federation.folder / "berlin" / "predictions.csv")) == 90
    used = "6 rounds, 6 replies, 1 jobs, 4 evaluations"
    assert used in federation.run("berlin", "site", "ledger", "kit", "--out", "ledger.html")
    assert "<script" not in (federation.folder / "berlin" / "ledger.html").read_text()


def test_other_splits_and_seeds_have_the_first_answer(federation):
    """The differences of the answers of a site are zero."""
    for number, change in enumerate(("data.test=0.3025", "seed=7")):
        assert "celle: refused (waits for approval)" in federation.federate(f"runs/split-{number}", change, fails=True)
    for site in ("aachen", "berlin"):
        answers = [answer for answer in federation.answers(site) if "refused" not in answer]
        assert len(answers) >= 3
        assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(("changes", "reason", "knows_model"), [
    (["solver.batch_size=1"], "limits", False),
    (["solver={name: SGD, learning_rate: 0.0001, batch_size: 6, steps: 1}"], "limits", True),
    (["data.label=name", "data.exclude=[notes]"], "rare", False),
    (["data.features=[notes]", "data.exclude=null"], "column not allowed", False),
    (["data.weight=age"], "column not allowed", False),
    (["model={name: mlp, width: 64}"], "limits", True)],
    ids=["one row", "a small step", "names", "notes", "weights", "a large model"])
def test_what_describes_single_rows_stays_at_the_sites(changes, reason, knows_model, federation):
    """The number of parameters is known after the agreement on the encoding, which Celle has to approve first."""
    out = f"runs/attack-{abs(hash(tuple(changes)))}"
    said = federation.federate(out, *changes, fails=True)
    if knows_model:
        assert "celle: refused (waits for approval)" in said
        approve(federation)
        said = federation.federate(out, *changes, fails=True)
    assert f"aachen, berlin: refused ({reason})" in said
    for site in SITES:
        runs = federation.folder / site / "kit" / "runs"
        text = json.dumps(sent(runs))
        assert "Name " not in text
        assert "note " not in text
