"""Eleven attacks from inside a federation, each of which once brought back rows, labels or noise.

Those on a site go through its messages: the attacker is a lead, a server, or another site. Those on the noise of
private algorithms and on the server's sum have tests elsewhere, which are listed.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nightly
from federation.harness import EXPERIMENT, SOLVER, answer_of, request_bytes, signed_sizes
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.job import plan_digest
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.names import library_version
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.site.site import Site
from resolvent.federation.site.table_versions import TableVersions
from resolvent.tables.column_encodings import CategoryColumn, LabelEncoding, NumberColumn
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.encoding_files import to_plain

TESTS = Path(__file__).parents[1]
ELSEWHERE = {
    "noise from the seed of the experiment file": (
        "federation/test_private_federation.py",
        "test_whoever_has_the_experiment_cannot_subtract_the_noise_of_the_server"),
    "no noise in a round without parties": (
        "federation/test_private_federation.py", "test_a_round_without_parties_releases_noise_over_a_network"),
    "a noise that is used twice": (
        "algorithms/test_noise_keys.py", "test_the_two_models_of_an_interpolation_have_different_noise"),
    "noise on the grid of float32": (
        "math/test_gaussian_noise.py", "test_the_grid_of_floating_point_noise_shows_who_is_in_a_sum"),
    "a reply of 3e38": ("federation/test_norms.py", "test_the_lead_reads_which_site_sent_a_huge_reply"),
    "a malformed cell that a refusal quotes": (
        "federation/test_refusals.py", "test_no_cell_of_a_malformed_table_leaves_the_site"),
}


COMBINED = {row["attack"]: row["test"].removeprefix("tests/").split("::") for row in json.loads(
    (TESTS.parent / "benchmarks" / "attacks.json").read_text("utf-8"))["rows"]}


@pytest.mark.parametrize("attack", [*ELSEWHERE, *COMBINED])
def test_an_attack_that_is_tested_elsewhere_still_is(attack):
    file, name = (ELSEWHERE | COMBINED)[attack]
    assert f"def {name}(" in (TESTS / file).read_text("utf-8")


MINIBATCHES = "{name: SGD, learning_rate: 0.1, batch_size: 10, epochs: 1}"


class Target:
    """A site with a table that the attacker does not know, and the attacker's requests to it."""

    def __init__(self, folder, limits=None, rows=120):
        rng = np.random.default_rng(5)
        age = rng.normal(50, 12, rows).round(2)
        self.frame = pd.DataFrame({
            "age": age, "pulse": rng.integers(50, 110, rows), "ward": rng.choice(["east", "west"], rows),
            "ill": np.where(age + rng.normal(0, 5, rows) > 50, "yes", "no")})
        self.folder, self.path, self.limits = folder, folder / "patients.csv", limits or Limits()
        self.runs = 0
        self.write(self.frame)

    def write(self, frame):
        frame.to_csv(self.path, index=False)

    def ask(self, data, **request):
        """The answer to a request of a new run, by a process that has just been started; without its signature."""
        site, answer = self._describe(data, **request)
        site.close()
        return {name: value for name, value in answer.items() if name != "size"}

    def _describe(self, data, party=0, seed=0, solver=MINIBATCHES, sites=("aachen", "berlin", "celle"),
                  model="logistic", more=""):
        self.runs += 1
        text = EXPERIMENT.replace("{label: ill, test: 0.3}", data).replace(SOLVER, solver).replace("logistic", model)
        site = Site("aachen", self.folder / "runs", SiteFile(table=str(self.path), limits=self.limits),
                    verify=lambda content, signature: "lead",
                identity=local_identities(("aachen", "berlin", "celle"))["aachen"])
        return site, answer_of(site.handle(request_bytes(
            "describe", run=f"run-{self.runs}", party=party, version=library_version(), sites=list(sites),
            experiment=experiment_from_text(f"{text}seed: {seed}\n{more}", "x").text)))

    def prepare(self, model="logistic", data="{label: ill}", weights=None, **request):
        """The answer when the rounds are prepared."""
        site, described = self._describe(data, model=model, **request)
        assert "table" in described, described
        answer = answer_of(site.handle(request_bytes(
            "prepare", run=f"run-{self.runs}", plan=site._plan, encoding=_encoding(["east", "west"]), decide_by=None,
            weights=weights, sizes=signed_sizes(site._plan, {
                "aachen": described["table"]["rows"]["train"], "berlin": 50, "celle": 60}))))
        site.close()
        return answer

    def sums(self, data="{label: ill}", **request):
        """Column -> number, sum and sum of squares over the training rows, from an answer."""
        columns = self.ask(data, **request)["table"]["columns"]
        return {c["name"]: np.array([c["count"], c["count"] * c["mean"], c["squares"] + c["count"] * c["mean"] ** 2])
                for c in columns if c["kind"] == "number"}


def test_statistics_of_other_splits_are_those_of_the_first_split(tmp_path):
    """The lead asks for column statistics with other shares, seeds and numbers of the site, and subtracts."""
    target = Target(tmp_path)
    first = target.ask("{label: ill}")
    assert first["table"]["rows"] == {"train": 72, "validation": 24, "test": 24}
    for request in ({"data": "{label: ill, test: 0.3025}"}, {"data": "{label: ill, validation: 0, test: 0}"},
                    {"data": "{label: ill, seed: 7}"}, {"data": "{label: ill}", "seed": 3},
                    {"data": "{label: ill}", "party": 2, "sites": ("berlin", "celle", "aachen")}):
        assert target.ask(**request) == first
    whole = target.frame["age"]
    assert not np.isclose(target.sums()["age"][1], whole.sum())


def test_the_order_of_the_rows_and_a_new_name_of_the_file_change_no_answer(tmp_path):
    target = Target(tmp_path)
    first = target.ask("{label: ill}")
    target.write(target.frame.sample(frac=1, random_state=1))
    assert target.ask("{label: ill}") == first
    target.path = tmp_path / "patients-december.csv"
    target.write(target.frame.assign(note=range(120)))
    assert target.ask("{label: ill, exclude: [note]}") == first


@pytest.mark.parametrize("change", ["a row is added", "a row is removed", "a cell is corrected", "a gap is filled in"])
def test_two_versions_do_not_differ_by_a_patient(change, tmp_path):
    """Whoever subtracts the answers before and after has a sum over at least five rows, or nothing."""
    target = Target(tmp_path)
    if change == "a gap is filled in":
        target.write(target.frame.assign(pulse=target.frame["pulse"].where(target.frame.index != 3)))
    data = "{label: ill, missing: impute}"
    before = target.sums(data)
    changed = target.frame.copy()
    if change == "a row is added":
        changed.loc[len(changed)] = [33.25, 71, "east", "no"]
    elif change == "a row is removed":
        changed = changed.drop(index=range(2))
    elif change == "a cell is corrected":
        changed.loc[7, "age"] = 99.5
    target.write(changed)
    after = target.sums(data)
    if change == "a row is added":
        assert {name: values.tolist() for name, values in before.items()} == {
            name: values.tolist() for name, values in after.items()}
        return
    for name, values in before.items():
        missing = values[0] - after[name][0]
        assert missing == 0 or missing >= 5
        assert missing or np.array_equal(values, after[name])


def test_enough_new_rows_are_a_new_version(tmp_path):
    target = Target(tmp_path)
    before = target.sums()
    new = target.frame.head(5).assign(age=[20.5, 21.5, 22.5, 23.5, 24.5])
    target.write(pd.concat([target.frame, new.head(4)]))
    assert target.sums()["age"].tolist() == before["age"].tolist()
    target.write(pd.concat([target.frame, new]))
    difference = target.sums()["age"] - before["age"]
    np.testing.assert_allclose(difference, [5, new["age"].sum(), (new["age"] ** 2).sum()], rtol=1e-9)
    target.write(target.frame)  # the earlier version gets its earlier answer
    assert target.sums()["age"].tolist() == before["age"].tolist()


def test_a_removed_patient_is_never_used_again(tmp_path):
    """Several withdrawals, one after the other: every version differs from every other one by at least five rows."""
    target = Target(tmp_path)
    answers = [target.sums()["age"]]
    for last in (119, 112, 100):
        target.write(target.frame.head(last))
        answer = target.ask("{label: ill}")
        if "refused" not in answer:
            answers.append(target.sums()["age"])
    for i, first in enumerate(answers):
        for second in answers[:i]:
            assert first[0] == second[0] or abs(first[0] - second[0]) >= 5
    assert len(answers) > 1


def test_a_column_that_is_lost_is_no_new_table(tmp_path):
    """A table whose rows cannot be compared with those of earlier answers is refused."""
    target = Target(tmp_path)
    target.ask("{label: ill}")
    target.write(target.frame.drop(columns="pulse").head(119))
    assert target.ask("{label: ill}")["refused"]["code"] == "table"


def test_two_values_of_a_column_stay_at_the_site(tmp_path):
    """Mean and sum of squares of two numbers are the numbers."""
    target = Target(tmp_path)
    target.write(target.frame.assign(pulse=target.frame["pulse"].where(target.frame.index < 4)))
    pulse = next(c for c in target.ask("{label: ill, missing: impute}")["table"]["columns"] if c["name"] == "pulse")
    assert (pulse["count"], pulse["mean"], pulse["squares"]) == (0, 0.0, 0.0)


def test_few_gaps_are_not_counted(tmp_path):
    target = Target(tmp_path)
    target.write(target.frame.assign(pulse=target.frame["pulse"].where(target.frame.index >= 3)))
    answer = target.ask("{label: ill, missing: impute}")["table"]
    assert [c["count"] for c in answer["columns"] if c["name"] == "pulse"] == [answer["rows"]["train"]]


def test_the_sum_of_all_rows_does_not_tell_the_number_of_rare_ones(tmp_path):
    """Three rows of a rare level: the number of all rows minus those of the named levels is at least five, or zero."""
    target = Target(tmp_path)
    ward = target.frame["ward"].to_numpy(copy=True)
    ward[:3], ward[3:60] = "ICU", "north"
    target.write(target.frame.assign(ward=ward))
    answer = target.ask("{label: ill}")["table"]
    levels = next(c for c in answer["columns"] if c["name"] == "ward")["levels"]
    assert "ICU" not in levels
    hidden = answer["rows"]["train"] - sum(levels.values())
    assert hidden == 0 or hidden >= 5


def test_a_guess_of_a_rare_level_changes_no_answer(tmp_path):
    """The server prepares the site with encodings that name the level, and that do not."""
    target = Target(tmp_path)
    ward = target.frame["ward"].to_numpy(copy=True)
    ward[:2] = "ICU"
    target.write(target.frame.assign(ward=ward))
    text = experiment_from_text(EXPERIMENT, "x").text
    site = Site("aachen", tmp_path / "runs", SiteFile(table=str(target.path), limits=Limits(min_sites=2)),
                verify=lambda content, signature: "lead", identity=local_identities(("aachen", "berlin"))["aachen"])
    answers = []
    for run, levels in {"a": ["east", "west"], "b": ["ICU", "east", "west"], "c": ["Mars", "east", "west"]}.items():
        described = answer_of(site.handle(request_bytes("describe", run=run, party=0, experiment=text,
                                                        version=library_version(), sites=["aachen", "berlin"])))
        plan = plan_digest(run, text, None, None)
        sizes = signed_sizes(plan, {"aachen": described["table"]["rows"]["train"], "berlin": 50})
        answers.append(answer_of(site.handle(request_bytes(
            "prepare", run=run, plan=plan, encoding=_encoding(levels), decide_by=None, weights=None, sizes=sizes))))
    site.close()
    assert answers[0] == answers[1] == answers[2] == {"score": "accuracy"}


def test_one_permitted_round_with_one_row_is_not_permitted(tmp_path):
    """A step with a minibatch of one row: the update of the weights, divided by that of the bias, is the row."""
    answer = Target(tmp_path).ask("{label: ill}", solver="{name: SGD, learning_rate: 1.0, batch_size: 1, steps: 1}")
    assert answer == {"refused": {"code": "limits", "column": None, "limits": {"min_batch": 5}}}


@pytest.mark.parametrize("min_cell", [1, 5])
@pytest.mark.parametrize("data", [
    "{label: name, features: [notes]}", "{label: ill, features: [notes]}", "{label: ill}",
    "{label: name, features: [age]}", "{label: ill, features: [age, notes], rare: other}"])
def test_names_and_free_text_stay_at_the_site(data, min_cell, tmp_path):
    """The site names no level in its answers, even if it allows numbers about single rows."""
    target = Target(tmp_path, Limits(min_cell=min_cell))
    target.write(target.frame.assign(name=[f"Name {k}" for k in range(120)],
                                     notes=[f"note {k % 60}" for k in range(120)]))
    refused = target.ask(data)["refused"]
    assert refused["code"] in ("column not allowed", "values", *["rare"] * (min_cell == 5))
    assert refused["column"] in ("name", "notes")


@pytest.mark.when_changed
def test_a_model_that_can_memorise_the_rows_leaves_with_noise_only(tmp_path):
    """An update of a network with a hidden layer, of 72 training rows."""
    target = Target(tmp_path)
    model = "{name: mlp, width: 64}"
    for limits, names in ((Limits(), ["networks", "max_parameters_per_row"]), (Limits(clip=1.0, noise=1.0), []),
                          (Limits(networks=True), ["max_parameters_per_row"]),
                          (Limits(max_parameters_per_row=10), ["networks"]),
                          (Limits(max_parameters_per_row=10, networks=True), [])):
        target.limits = limits
        refused = target.prepare(model).get("refused", {})
        assert refused.get("code") == ("limits" if names else None)
        assert [*refused.get("limits", {})] == names


@pytest.mark.parametrize(("noise", "code"), [(1e-6, "limits"), (8.0, None)])
def test_noise_that_hides_nothing_is_none(noise, code, tmp_path):
    """The lead adds noise in name only, so that a network with more parameters than rows would leave."""
    solver = f"{{name: DPSGD, learning_rate: 0.1, clip: 1.0, noise_multiplier: {noise}, batch_size: 10, steps: 7}}"
    answer = Target(tmp_path).prepare("{name: mlp, width: 64}", solver=solver)
    assert answer.get("refused", {}).get("code") == code


def test_weights_do_not_pick_out_a_patient(tmp_path):
    """A column that is 1 for one patient and 0 for all others as the weight: each update is that of the patient."""
    target = Target(tmp_path)
    target.write(target.frame.assign(rare=np.arange(120) == 7, stays=np.arange(120) % 3 + 1))
    data = "{label: ill, weight: rare, exclude: [stays]}"
    for weight in ("rare", "stays"):
        refused = target.ask(data.replace("weight: rare", f"weight: {weight}"))["refused"]
        assert (refused["code"], refused["column"]) == ("column not allowed", weight)
    target.limits = Limits(features=("age", "pulse", "ward", "rare", "stays"))
    factors = {"no": 1.0, "yes": 1.0}
    assert target.prepare(data="{label: ill, weight: stays, exclude: [rare]}", weights=factors) == {"score": "accuracy"}
    assert target.prepare(data=data, weights=factors)["refused"]["limits"] == {"min_rows": 20}


def test_weights_of_classes_do_not_pick_out_a_few(tmp_path):
    """Eight patients of one class have nearly all of the weight."""
    target = Target(tmp_path)
    target.write(target.frame.assign(ill=np.where(np.arange(120) % 15 == 0, "yes", "no")))
    plan = "{name: SGD, learning_rate: 0.1, batch_size: 60, epochs: 1}"
    plan = {"solver": plan, "more": "class_weight: balanced\n"}
    assert target.prepare(weights={"no": 1.0, "yes": 1.0}, **plan) == {"score": "accuracy"}
    assert target.prepare(weights={"no": 1e-9, "yes": 15.0}, **plan)["refused"]["limits"] == {"min_rows": 20}
    assert target.prepare(weights={"no": 1.0, "yes": 1.0})["refused"]["code"] == "not in the plan"


@nightly.diagonal(("kind", "rows"), ["yes or no", "recoded", "number"], [1, 4])
def test_two_labels_do_not_differ_by_a_patient(kind, rows, tmp_path):
    """The update for one label minus that for the other is that of the patients in whom they differ."""
    target, rng = Target(tmp_path), np.random.default_rng(2)
    first = pd.Series(rng.permutation(120) / 7 if kind == "number" else np.where(np.arange(120) % 2 == 0, "yes", "no"))
    third = rng.permutation(first)
    for start in range(100):  # until one of the rows is a training row
        changed, second = np.arange(start, start + rows), first.copy()
        second[changed] = second[changed] + 1.5 if kind == "number" else second[changed].map({"yes": "no", "no": "yes"})
        second = second.map({"yes": 0, "no": 1}) if kind == "recoded" else second
        target.write(target.frame.assign(first=first, second=second, third=third))
        versions = TableVersions(tmp_path / "runs" / "table.versions", 5)
        if np.isin(changed, versions.rows(pd.read_csv(target.path), str(target.path), 0.2, 0.2).splits["train"]).any():
            break
    for label, code in (("first", None), ("second", "limits"), ("third", None), ("first", None)):
        answer = target.ask(f"{{label: {label}, features: [age, pulse, ward]}}")
        assert answer.get("refused", {}).get("code") == code, label


@pytest.mark.parametrize(("number", "is_used"), [(1, False), (4, False), (60, True)])
def test_the_mean_of_an_indicator_does_not_count_few_rows(number, is_used, tmp_path):
    """A column of 0 and 1: the mean times the number of rows is the number of ones."""
    target = Target(tmp_path)
    target.write(target.frame.assign(rare=(np.arange(120) < number).astype(int)))
    assert (target.sums()["rare"][1] > 0) == is_used


def test_a_site_lists_what_may_take_part(tmp_path):
    """Columns and levels that are not listed are as if they were absent; a label that is not listed is refused."""
    target = Target(tmp_path, Limits(features=("age", "ward"), labels=("ill",), levels={"ward": ["east"]}))
    columns = {c["name"]: c for c in target.ask("{label: ill}")["table"]["columns"]}
    assert [*columns] == ["age", "ward"]
    assert [*columns["ward"]["levels"]] == ["east"]
    assert target.ask("{label: ill, features: [age, pulse]}")["refused"] == {
        "code": "column not allowed", "column": "pulse", "limits": {}}
    assert target.ask("{label: ward}")["refused"]["limits"] == {"labels": ["ill"]}


def test_a_run_with_too_few_sites_is_refused(tmp_path):
    for sites in (("aachen", "berlin"), ("aachen",) * 3):
        assert Target(tmp_path).ask("{label: ill}", sites=sites)["refused"]["limits"] == {"min_sites": 3}


def _encoding(levels):
    return to_plain(TableEncoding(
        "site", (LabelEncoding("ill", "text", "classification", ("no", "yes")),),
        (NumberColumn("age", 50.0, 50.0, 12.0), NumberColumn("pulse", 80.0, 80.0, 17.0)),
        (CategoryColumn("ward", "east", tuple(levels)),), (), "refuse", (), "refuse"))
