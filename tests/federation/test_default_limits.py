"""The experiments that the package ships and those of the documentation, at sites with the default limits."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from resolvent.comparisons.experiment.experiment_file import ExperimentFile, experiments
from resolvent.errors import InputError
from resolvent.federation.lead.rehearsal import prepare_rehearsal
from resolvent.federation.protocol.experiment import experiment_of_file
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import WHY, Limits
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.site import table_versions
from resolvent.federation.site.dry_run import dry_run

DOCS = Path(__file__).parents[2] / "docs"
SOLVER = "{name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}"
WINE = f"""
data: {{label: kind}}
model: logistic
solver: {SOLVER}
algorithms: {{FedAvg: fedavg}}
rounds: 3
"""


def refusal_of(experiment, frame, folder, **limits):
    """The refusal of a site with the default limits and these changes; None if it takes part."""
    table = folder / "table.parquet"
    frame.to_parquet(table, index=False)
    file = SiteFile(table=str(table), limits=replace(Limits(), **limits))
    try:
        with dry_run(file, "aachen", experiment, None) as dry:
            assert dry.prepare() == []
    except Refusal as error:
        return error
    return None


@pytest.mark.when_changed
def test_every_shipped_experiment_is_judged(tmp_path):
    """Sites with about 60 rows have few of each digit, and others too few in all: the docs say what to do."""
    assert {*experiments()} == {"digits", "splitting"}
    with pytest.raises(InputError, match="a rehearsal needs data of parties"):
        prepare_rehearsal(ExperimentFile.load("splitting"))  # a problem without rows: no site has any
    rehearsal = prepare_rehearsal(ExperimentFile.load("digits"))
    party = rehearsal.experiment.table.party
    experiment = replace(rehearsal.experiment, is_rehearsal=False)
    tables = [frame.drop(columns=party) for _, frame in rehearsal.frame.groupby(party)]
    for number, code, limit in ((14, "limits", "max_parameters_per_row"), (2, "rare", "min_cell"),
                                (29, "rare", "min_cell")):
        refusal = refusal_of(experiment, tables[number], tmp_path)
        assert str(refusal.code) == code
        assert f"limits.{limit}: {WHY[limit]}" in str(refusal)


def tutorial_experiment(folder):
    """The experiment of the tutorial, as its page has it."""
    page = (DOCS / "federation-tutorial.md").read_text("utf-8")
    text = next(block for block in re.findall(r"```yml\n(.*?)```", page, re.DOTALL) if "title: Readmission" in block)
    (folder / "mine.yaml").write_text(text)
    return experiment_of_file(str(folder / "mine.yaml"))


def patients(rows):
    rng = np.random.default_rng(0)
    age = rng.normal(60, 12, rows)
    return pd.DataFrame({"age": age, "ward": rng.choice(["east", "west"], rows),
                         "readmitted": np.where(age + rng.normal(0, 9, rows) > 60, "yes", "no")})


def test_the_experiment_of_the_tutorial_is_within_the_default_limits(tmp_path):
    """A model of 4 inputs and 2 classes needs 24 training rows for its 8 parameters."""
    assert refusal_of(tutorial_experiment(tmp_path), patients(60), tmp_path) is None


@pytest.mark.parametrize(("changes", "limits", "expected"), [
    ({}, {}, ["max_parameters_per_row"]),
    ({"{label: kind}": "{label: kind, features: [alcohol, hue, proline]}"}, {}, []),
    ({SOLVER: "{name: DPSGD, learning_rate: 0.1, batch_size: 10, steps: 5, noise_multiplier: 1.0}"}, {}, []),
    ({}, {"clip": 1.0, "noise": 1.0}, []), ({}, {"max_parameters_per_row": 1.5}, []),
], ids=["as it is", "fewer features", "differential privacy", "noise of the site", "another limit"])
def test_a_small_table_takes_part_in_each_of_the_ways_that_the_docs_have(changes, limits, expected, tmp_path,
                                                                         monkeypatch):
    """60 rows of the wines of one cellar, 13 features and 3 classes: 42 parameters for 36 training rows."""
    monkeypatch.setattr(table_versions, "stored_secret", lambda path, length: bytes(length))  # the same split each time
    wine, text = load_wine(as_frame=True), WINE
    frame = wine.data.assign(kind=np.array(["a", "b", "c"])[wine.target]).sample(60, random_state=0)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.yaml").write_text(text)
    refusal = refusal_of(experiment_of_file(str(tmp_path / "mine.yaml")), frame, tmp_path, **limits)
    assert [*(() if refusal is None else refusal.limits)] == expected
    if refusal is not None:
        assert all(f"limits.{name}: {WHY[name]}" in str(refusal) for name in expected)
        assert "42 parameters" in str(refusal)
        page = " ".join((DOCS / "federation-security.md").read_text("utf-8").split())
        assert "a table of 36 training rows and a model of 42 parameters" in page


def test_every_default_has_a_reason():
    assert [*WHY] == [*asdict(Limits())]
