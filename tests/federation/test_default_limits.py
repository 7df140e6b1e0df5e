"""The experiments that the package ships and those of the documentation, at sites with the default limits."""

import json
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

import resolvent as rv
from federation.harness import DOCS, tutorial_text
from resolvent.comparisons.experiment.experiment_file import ExperimentFile, experiments
from resolvent.errors import InputError
from resolvent.federation.lead.rehearsal import prepare_rehearsal
from resolvent.federation.protocol.experiment import experiment_of_file
from resolvent.federation.protocol.files import SiteFile, read_site
from resolvent.federation.protocol.limits import (
    LIMITS,
    NO_LIMITS,
    PROFILES,
    Asked,
    Limits,
    Usage,
    read_refusal,
    reasons_to_refuse,
)
from resolvent.federation.protocol.policy import FEDERATION
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, outgoing
from resolvent.federation.site import table_versions
from resolvent.federation.site.dry_run import dry_run

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


def test_a_check_has_the_splits_of_the_runs_that_follow(tmp_path):
    def leverages():
        with dry_run(file, "aachen", experiment_of_file(plan), tmp_path / "runs") as dry:
            assert dry.prepare() == []
            return dry.run.span.leverages

    (plan := tmp_path / "wine.yaml").write_text(WINE.replace("kind}", "kind, features: [x, z]}"))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 2)), columns=["x", "z"]).assign(kind=rng.choice(["a", "b"], 200))
    frame.to_csv(tmp_path / "table.csv", index=False)
    file = SiteFile(table=str(tmp_path / "table.csv"))
    np.testing.assert_array_equal(leverages(), leverages())


@pytest.mark.when_changed
def test_every_shipped_experiment_is_judged(tmp_path):
    """Sites with about 60 rows have few of each digit, and others too few in all: the docs say what to do."""
    assert {*experiments()} == {"digits", "splitting"}
    with pytest.raises(InputError, match="a rehearsal needs data of parties"):
        prepare_rehearsal(ExperimentFile.load("splitting"))  # a problem without rows: no site has any
    rehearsal = prepare_rehearsal(ExperimentFile.load("digits", ["evaluate_every=60"]))  # too many scores are refused
    party = rehearsal.plan.table.party
    experiment = replace(rehearsal.plan, policy=FEDERATION)
    tables = [frame.drop(columns=party) for _, frame in rehearsal.frame.groupby(party)]
    for number, code, limit in ((14, "limits", "max_parameters_per_row"), (2, "rare", "min_cell"),
                                (29, "rare", "min_cell")):
        refusal = refusal_of(experiment, tables[number], tmp_path)
        assert str(refusal.code) == code
        assert f"limits.{limit}: {LIMITS[limit].why}" in str(refusal)


def tutorial_experiment(folder):
    """The experiment of the tutorial, as its page has it."""
    (folder / "mine.yaml").write_text(tutorial_text())
    return experiment_of_file(str(folder / "mine.yaml"))


def patients(rows):
    rng = np.random.default_rng(0)
    age = rng.normal(60, 12, rows)
    return pd.DataFrame({"age": age, "ward": rng.choice(["east", "west"], rows),
                         "readmitted": np.where(age + rng.normal(0, 9, rows) > 60, "yes", "no")})


def test_the_experiment_of_the_tutorial_is_within_the_default_limits(tmp_path):
    """A model of 4 inputs and 2 classes needs 24 training rows for its 8 parameters."""
    assert refusal_of(tutorial_experiment(tmp_path), patients(60), tmp_path) is None


@pytest.mark.when_changed
@pytest.mark.parametrize(("changes", "limits", "expected"), [
    ({}, {}, ["max_parameters_per_row"]),
    ({"{label: kind}": "{label: kind, features: [alcohol, hue, proline]}"}, {}, []),
    ({SOLVER: "{name: DPSGD, learning_rate: 0.1, batch_size: 10, steps: 5, noise_multiplier: 1.0}"}, {}, []),
    ({}, {"clip": 1.0, "noise": 1.0}, []), ({}, {"max_parameters_per_row": 1.5}, ["max_leverage"]),
    ({}, {"max_parameters_per_row": 1.5, "max_leverage": 1.0}, []),
], ids=["as it is", "fewer features", "differential privacy", "noise of the site", "another limit", "other limits"])
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
        assert all(f"limits.{name}: {LIMITS[name].why}" in str(refusal) for name in expected)
        assert ("42 parameters" in str(refusal)) == (expected == ["max_parameters_per_row"])
        page = " ".join((DOCS / "federation-security.md").read_text("utf-8").split())
        assert "a table of 36 training rows and a model of 42 parameters" in page


def test_every_limit_has_a_meaning_and_a_reason_and_can_be_read_in_a_refusal():
    """A limit with a check has the sentence that a lead reads; its default is that of the profile *clinic*."""
    assert [*LIMITS] == [*asdict(Limits())]
    assert PROFILES["clinic"] == Limits()
    wrong = []
    for name, limit in LIMITS.items():
        refusal = Refusal(RefusalCode.LIMITS, "", limits={name: 7})
        sentence = read_refusal(json.loads(json.dumps(outgoing(refusal, "aachen"))))[1]
        is_read = "the experiment is beyond the site's limits" not in sentence
        if (limit.name, limit.default) != (name, getattr(Limits(), name)) or not (limit.meaning and limit.why):
            wrong.append(name)
        if is_read != bool(limit.sentence) or (limit.check is not None and not limit.sentence):
            wrong.append(name)
    assert wrong == []


PLAN = Asked(sites=2, labels=("ill",), in_a_sum=False, needed=Usage(3, 6, 1, 2, 5.0, 1), scored_rows=10,
             used={("total", "all"): Usage(8, 8, 8, 8, 8.0, 8), ("lead", "of a lead"): Usage(4, 4, 4, 4, 4.0)})
METHOD = Asked(method="fedavg", algorithm=rv.fedavg(rv.SGD(0.1, batch_size=5, steps=3)), rounds=3, samples=18,
               in_a_sum=False, parameters=9, is_network=True, is_encoded=True)
BEYOND = {  # limit -> a value beyond which the plan is, and one within which it is
    "algorithms": (("local",), ("fedavg",)), "solvers": (("GD",), ("SGD",)), "labels": (("age",), ("ill", "age")),
    "max_rounds": (2, 3), "max_total_rounds": (10, 11), "max_total_replies": (13, 14), "max_total_jobs": (8, 9),
    "max_total_refusals": (8, 9),
    "max_scores": (0.9, 1.0), "max_total_epsilon": (12.9, 13.0), "max_lead_rounds": (6, 7),
    "max_lead_replies": (9, 10), "max_lead_jobs": (4, 5), "max_lead_scores": (5, 6), "max_lead_epsilon": (8.9, 9.0),
    "max_local_steps": (2, 3), "min_rows": (19, 18), "min_cell": (7, 6), "min_batch": (5, 4), "min_sites": (3, 2),
    "networks": (False, True), "max_parameters_per_row": (0.74, 0.75), "clip": (1.0, None),
    "secure_sums": (True, False),
}


def test_each_limit_refuses_what_is_beyond_it_and_nothing_within():
    """Each is judged by itself, at the edge of what it allows."""
    assert {*BEYOND} == {name for name, limit in LIMITS.items() if limit.check is not None}
    wrong = {}
    for name, (too_small, enough) in BEYOND.items():
        found = [[*reasons_to_refuse(replace(NO_LIMITS, **{name: value}), PLAN, METHOD)]
                 for value in (too_small, enough)]
        if found != [[name], []]:
            wrong[name] = found
    assert wrong == {}


def test_a_profile_is_a_line_and_the_file_of_a_site_changes_it(tmp_path):
    path = tmp_path / "site.yaml"
    expected = {"open": NO_LIMITS, "clinic": Limits(), "strict": PROFILES["strict"]}
    for name, limits in expected.items():
        path.write_text(f"table: t.csv\nprofile: {name}\n")
        assert (read_site(path).limits, read_site(path).limits.changes(name)) == (limits, {})
    path.write_text("table: t.csv\nprofile: strict\nlimits: {min_cell: 7, max_total_jobs: null}\n")
    assert read_site(path).limits == replace(PROFILES["strict"], min_cell=7, max_total_jobs=None)
    assert read_site(path).limits.changes("strict") == {"max_total_jobs": None, "min_cell": 7}
    path.write_text("table: t.csv\nprofile: lax\n")
    with pytest.raises(InputError, match=r"site\.yaml:2: profile"):
        read_site(path)
    for limit in ("min_rows", "min_cell", "min_batch"):  # stricter from profile to profile
        values = [getattr(limits, limit) for limits in expected.values()]
        assert values == sorted({*values}), limit
