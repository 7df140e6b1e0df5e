"""Folds between sites: what a site answers, when it refuses them, and that nobody else chooses their rows."""

import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from federation.harness import EXPERIMENT, SITES, SOLVER, Consortium, answer_of, limits, read_request, sent
from federation.secure_parts import SECURE
from resolvent.comparisons.runs.record import read_record
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.experiment import experiment_from_text, experiment_of_file
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.protocol.names import JOURNAL, VERSIONS
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.refusals import Refusal
from resolvent.federation.protocol.wire import decode, encode
from resolvent.federation.site import table as site_table
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.table import FoldOfTable, read_site_table

WIDE = limits(max_leverage=None, max_leverage_in_sums=None, max_parameters_per_row=None)


def consortium_with(folder, of_aachen, text="folds: 3\n"):
    return Consortium(folder, {"aachen": {"limits": of_aachen}, "berlin": {"limits": WIDE}}, text=EXPERIMENT + text)


@pytest.mark.when_changed
def test_a_site_answers_once_for_a_method_about_all_of_its_rows(tmp_path):
    """The rounds of folds have no scores; the judgement has all rows, and counts as one score of each method."""
    consortium = consortium_with(tmp_path, WIDE)
    assert consortium.serve() == {"status": "complete"}
    lead = read_record(tmp_path / "out")
    assert (lead.folds, [site.test_rows for site in lead.judged.values()]) == (3, [30, 40])
    assert lead.federation is not None
    assert len([*Journal(tmp_path / "aachen" / JOURNAL).of("scores")]) == 2  # two methods
    assert not [entry for entry in sent(tmp_path / "aachen") if entry.get("kind") == "scores"]
    metrics = consortium.metrics()
    scores = metrics[(metrics["split"] == "test") & (metrics["metric"] == lead.score)]
    assert len(scores) == 4  # a number for each site and method
    assert {*metrics["fold"]} == {0, 1, 2}


@pytest.mark.when_changed
@pytest.mark.parametrize(("of_aachen", "folds", "reason"), [
    (limits(), 3, "leverage"), (replace(WIDE, min_cell=3), 15, "folds")])
def test_a_site_that_refuses_folds_has_one_split_with_the_reason(of_aachen, folds, reason, tmp_path):
    """The answers in folds have three times the columns, which 30 rows do not bear; or a fold has two rows, fewer than
    min_cell. The methods are run on one split at all sites."""
    consortium = consortium_with(tmp_path, of_aachen, f"folds: {folds}\n")
    assert consortium.serve() == {"status": "complete"}
    lead = read_record(tmp_path / "out")
    (note,) = [line for line in lead.data.notes if "one split instead of folds" in line]
    assert note.partition(": ")[2].startswith("aachen: refused")
    assert reason in note
    assert lead.folds == read_record(tmp_path / "berlin" / "mine-1").folds == 1
    assert [site.test_rows for site in lead.judged.values()] == [9, 12]
    assert any("one split instead of folds" in line for line in read_record(tmp_path / "aachen" / "mine-1").data.notes)


def rows_of_folds(consortium, folds, **changes):
    """[folds, rows] the ages of the rows that train in each fold of a site, in the order of the file."""
    text = consortium.experiment.text
    settings = replace(experiment_from_text(text, "mine").table, **changes)
    tables = [read_site_table(consortium.files["aachen"], settings, "aachen", 0, folder=consortium.folder / VERSIONS,
                              fold=FoldOfTable(number, folds, 0)) for number in range(folds)]
    return tables, [{*table._frame["age"].iloc[table._train]} for table in tables]


def test_folds_follow_from_the_secret_of_the_site(tmp_path):
    """Not from the seed, the label or the order of the rows; another number of folds, and a changed table, get none."""
    consortium = consortium_with(tmp_path, WIDE)
    tables, trained = rows_of_folds(consortium, 3)
    first = [rows["train"] + rows["validation"] for rows in (table.row_counts for table in tables)]
    tested = [table.numbers[start:][~table.is_repeated[start:]] for start, table in zip(first, tables, strict=True)]
    assert sorted(np.concatenate(tested)) == [*range(30)]
    frame = consortium.frame[consortium.frame["site"] == "aachen"].drop(columns="site")
    path = tmp_path / "aachen.csv"
    frame.iloc[::-1].to_csv(path, index=False)
    assert rows_of_folds(consortium, 3, label="ward", features=["age"])[1] == trained
    with pytest.raises(Refusal, match="answered about this table in 3 folds"):
        rows_of_folds(consortium, 2)
    frame.iloc[4:].to_csv(path, index=False)
    with pytest.raises(Refusal, match="rows of an earlier version"):
        rows_of_folds(consortium, 3)
    other = consortium_with(tmp_path / "other" if (tmp_path / "other").mkdir() is None else tmp_path, WIDE)
    assert rows_of_folds(other, 3)[1] != trained


@pytest.mark.when_changed
def test_epsilon_adds_up_over_folds(tmp_path):
    """The run of every fold is counted, as if all of its rows were in all of them."""
    private = "{name: DPSGD, learning_rate: 0.1, batch_size: 10, steps: 2, noise_multiplier: 4.0}"
    pytest.importorskip("dp_accounting")
    text, spent = EXPERIMENT.replace("alone: local, ", "").replace(SOLVER, private), []
    for folds in (1, 3):
        folder = tmp_path / str(folds)
        folder.mkdir()
        consortium = Consortium(folder, {"aachen": {"limits": WIDE}, "berlin": {"limits": WIDE}},
                                text=f"{text}folds: {folds}\n")
        assert consortium.serve() == {"status": "complete"}
        spent.append(sum(entry["epsilon"] for entry in Journal(folder / "aachen" / JOURNAL).of("epsilon")))
    assert spent[1] > 2 * spent[0] > 0


def test_folds_that_do_not_go_with_several_seeds_are_refused_at_the_file(tmp_path):
    with pytest.raises(InputError, match="folds: 3: in a federation folds do not go with several seeds"):
        consortium_with(tmp_path, NO_LIMITS, "folds: 3\nseeds: 2\n")


@pytest.mark.when_changed
def test_in_secure_sums_each_site_judges_all_of_its_rows_and_the_lead_has_the_mean(tmp_path):
    """Evidence, scores and models of a site are those of the run without secure sums, up to their rounding."""
    records = {}
    for name, text in {"plain": SECURE[:SECURE.index("privacy:")], "secure": SECURE}.items():
        (tmp_path / name).mkdir()
        consortium = Consortium(tmp_path / name, text=f"{text}folds: 3\n", policy=REHEARSAL)
        assert consortium.serve() == {"status": "complete"}
        records[name] = [read_record(tmp_path / name / folder) for folder in ("out", *(f"{s}/mine-1" for s in SITES))]
    lead, *of_sites = records["secure"]
    assert (lead.folds, lead.judged) == (3, {})
    for plain, secure, rows in zip(records["plain"][1:], of_sites, (30, 40), strict=True):
        (expected,), (site,) = plain.judged.values(), secure.judged.values()
        assert site.test_rows == expected.test_rows == rows
        assert site.scores == expected.scores
        for label, of_method in expected.facts.evidence.items():
            for kind, numbers in of_method.items():
                np.testing.assert_allclose(site.facts.evidence[label][kind], numbers, rtol=1e-6, atol=1e-6)
    metrics = consortium.metrics()
    means = metrics[(metrics["split"] == "test")].set_index("method")["value"]
    assert {*metrics["metric"][metrics["split"] == "test"]} == {"mean_accuracy"}
    for label in ("alone", "FedAvg"):
        expected = np.mean([site.scores[label].value for record in of_sites for site in record.judged.values()])
        np.testing.assert_allclose(means[label], expected, atol=1e-6)


class LeavesOut(InProcess):
    """A server that asks for the sums of the folds without a site: with those of the tables, they give its rows."""

    answers: ClassVar[list] = []

    def broadcast(self, messages, **times):
        heads = {name: decode(bytes(message)) for name, message in messages.items()}
        if {head.kind for head in heads.values()} == {"sum"} and next(iter(heads.values())).phase > 0:
            fewer = [name for name in heads if name != "aachen"]
            asked = {name: encode(replace(heads[name], facts={**heads[name].facts, "asked": fewer})) for name in fewer}
            self.answers.extend(decode(reply) for reply in super().broadcast(asked, **times).values())
        return super().broadcast(messages, **times)


@pytest.mark.when_changed
def test_a_sum_of_folds_is_over_all_sites_or_there_is_none(tmp_path):
    """Over the others alone, the numbers of a site would be the difference to the sums of the whole tables."""
    consortium = Consortium(tmp_path, {site: {"limits": WIDE} for site in SITES}, text=f"{SECURE}folds: 3\n")
    LeavesOut.answers.clear()
    assert consortium.serve(transport=LeavesOut) == {"status": "complete"}
    assert [answer.kind for answer in LeavesOut.answers] == ["refusal"] * 4  # three folds, and the scores


class AsksForFolds(InProcess):
    """A server that asks for the sum of a fold although a site refuses folds."""

    answers: ClassVar[dict] = {}

    def broadcast(self, messages, **times):
        replies = super().broadcast(messages, **times)
        heads = {name: decode(bytes(message)) for name, message in messages.items()}
        if {(head.kind, head.phase) for head in heads.values()} == {("sum", 0)}:
            asked = {name: encode(replace(head, phase=1)) for name, head in heads.items()}
            self.answers.update({name: decode(reply).kind for name, reply in super().broadcast(asked, **times).items()})
        return replies


@pytest.mark.when_changed
def test_a_site_that_refuses_folds_is_in_no_sum_of_a_fold(tmp_path):
    """So that its masks stay in the sum of the others; the run has one split, and says why."""
    files = {"aachen": {"limits": replace(WIDE, min_cell=3)}, "berlin": {"limits": WIDE}}
    consortium = Consortium(tmp_path, files, text=f"{SECURE}folds: 15\n")
    assert consortium.serve(transport=AsksForFolds) == {"status": "complete"}
    assert AsksForFolds.answers == {"aachen": "refusal", "berlin": "reply"}
    lead = read_record(tmp_path / "out")
    assert lead.folds == 1
    (note,) = [line for line in lead.data.notes if "one split instead of folds" in line]
    assert "aachen: refused" in note


class Reports(InProcess):
    """A curious server, which keeps what the sites say about their tables."""

    kept: ClassVar[dict] = {}

    def broadcast(self, messages, **times):
        replies = super().broadcast(messages, **times)
        for name, message in messages.items():
            request = read_request(bytes(message))
            if request is not None and request["kind"] == "describe":
                self.kept[request["run"], name] = answer_of(replies[name])
        return replies


@pytest.mark.when_changed
def test_as_many_folds_as_rows_give_no_row(tmp_path, monkeypatch):
    """Each fold trains on all rows but one: their sums of a column are the rows, by a linear system."""
    for name, rules in {"without": False, "with": True}.items():
        (tmp_path / name).mkdir()
        consortium = consortium_with(tmp_path / name, WIDE if rules else NO_LIMITS, "folds: 30\n")
        consortium.files = {site: replace(file, validation=0.0) for site, file in consortium.files.items()}
        consortium.serve(transport=Reports)
        folds = Reports.kept["mine-1", "aachen"]["folds"]
        if rules:
            assert folds == []
            continue
        columns = [next(column for column in fold["columns"] if column["name"] == "age") for fold in folds]
        sums = np.array([column["count"] * column["mean"] for column in columns])
        ages = consortium.frame["age"][consortium.frame["site"] == "aachen"]
        np.testing.assert_allclose(np.sort(sums.sum() / 29 - sums), np.sort(ages), rtol=1e-9)


@pytest.mark.when_changed
def test_two_labels_in_folds_do_not_differ_by_a_patient(tmp_path, monkeypatch):
    """The counts of the classes in the folds differ where the patient trains: not in the fold that tests her."""
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
        consortium = consortium_with(tmp_path / name, WIDE)
        path = tmp_path / name / "aachen.csv"
        frame = pd.read_csv(path)
        frame["other"] = [*frame["ill"][:4], "no" if frame["ill"][4] == "yes" else "yes", *frame["ill"][5:]]
        for site in SITES:
            other = pd.read_csv(consortium.files[site].table)
            (frame if site == "aachen" else other.assign(other=other["ill"])).to_csv(
                consortium.files[site].table, index=False)
        if name == "without":
            monkeypatch.setattr(site_table, "check_label", lambda *arguments: None)
        for label in ("ill", "other"):
            file = tmp_path / name / f"{label}.yaml"
            file.write_text(EXPERIMENT.replace("label: ill", f"label: {label}, features: [age, ward]") + "folds: 3\n")
            consortium.experiment = experiment_of_file(str(file))
            job = consortium.job(run=label)
            outcome = consortium.serve(job, transport=Reports, results=label)
        if name == "with":
            assert outcome["status"] == "refused"
            continue
        monkeypatch.undo()
        counts = [[fold["labels"][0]["classes"]["yes"] for fold in Reports.kept[label, "aachen"]["folds"]]
                  for label in ("ill", "other")]
        changes = np.subtract(*counts)
        assert {*np.abs(changes).tolist()} == {0, 1}  # the label of the patient, and the fold that tests her


@pytest.mark.when_changed
def test_folds_beside_one_split_do_not_come_near_a_row(tmp_path):
    """One plan on one split and one in folds: their training rows overlap in small groups, which the guard sees."""
    def leverage_after(run, largest, text="folds: 3\n"):
        consortium = consortium_with(tmp_path, limits(max_leverage=largest, max_parameters_per_row=None), text)
        assert consortium.serve(consortium.job(run=run), results=run) == {"status": "complete"}
        shutil.rmtree(tmp_path / "server")
        return max(entry["leverage"] for entry in Journal(tmp_path / "aachen" / JOURNAL).of("columns"))

    of_split = leverage_after("split", 1.0, text="")  # it depends on the site's secret, which divides the rows
    assert leverage_after("with", of_split) == of_split
    assert read_record(tmp_path / "with").folds == 1
    assert leverage_after("without", 1.0) > of_split + 0.05
    assert read_record(tmp_path / "without").folds == 3
