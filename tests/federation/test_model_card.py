"""Model cards and data sheets: their figures are those of the run, they are signed, and no name breaks the page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from shutil import copytree, ignore_patterns
from types import SimpleNamespace

import numpy as np
import pytest

from federation.harness import SITES, Consortium, lead_note, lead_of
from resolvent.cli import lead as commands
from resolvent.comparisons.runs.record import read_metrics, read_record
from resolvent.comparisons.runs.report import write_report
from resolvent.data.files.digests import DamagedFileError
from resolvent.errors import InputError
from resolvent.federation.lead.model_card import model_card, write_model_card
from resolvent.federation.protocol import kits, results
from resolvent.federation.protocol.cards import CARD_FORMATS, card_text, check_card, write_card
from resolvent.federation.protocol.kits import KitNote
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.results import share_warnings
from resolvent.federation.site.journal import Journal


def files_of(folder):
    """The names of all files in a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


class Page(HTMLParser):
    """The tags, attributes and cells of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.cells = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    """A federation of two sites, and the signed card in the lead's run folder."""
    folder = tmp_path_factory.mktemp("card")
    consortium = Consortium(folder)
    assert consortium.serve()["status"] == "complete"
    job, note = consortium.job(), lead_note(name="lead@example.org")
    run = read_record(folder / "out"), read_metrics(folder / "out")
    write_report(folder / "out", *run)
    write_model_card(folder / "out", *run, job=job, lead=note.name, experiment=consortium.experiment, sign=note.sign)
    return SimpleNamespace(consortium=consortium, job=job, folder=folder / "out",
                           content=json.loads((folder / "out" / "model-card.json").read_text("utf-8")))


@pytest.mark.when_changed
def test_the_figures_are_those_of_the_run(card):
    summary, metrics = read_record(card.folder).plain(), card.consortium.metrics()
    content = card.content
    assert content["plan"]["digest"] == card.job.plan
    assert content["plan"]["sites"] == list(SITES)
    assert content["finding"] == summary["finding"]
    assert content["files"].items() >= summary["files"].items()
    assert {*content["files"], *(f"model-card.{suffix}" for suffix in (*CARD_FORMATS, "signature.json"))} == files_of(
        card.folder)
    assert content["versions"] == summary["versions"]
    assert [row["training"] for row in content["rows"].values()] == summary["data"]["train"]
    for label, facts in summary["methods"].items():
        assert all(content["methods"][label][key] == facts[key] for key in content["methods"][label])
        assert content["final_scores"][label] == facts["final"]
    for site in summary["sites"]:
        assert content["decisions"][site["name"]]["own"] == site["advice"]["own"]
        assert content["scores"][site["name"]] == site["scores"]
        assert content["gains_over_training_alone"][site["name"]] == site["gains"]
    norms = metrics[(metrics["metric"] == "update_norm") & (metrics["method"] == "FedAvg")]
    for number, site in enumerate(SITES):
        values = norms[norms["party"] == number]["value"]
        assert content["norms_of_updates"][f"FedAvg, {site}"] == {
            "rounds": 3, "median": float(np.median(values)), "largest": float(values.max()), "not_finite": 0}
    assert content["privacy"]["FedAvg"] == {"epsilon": None, "of": "no differential privacy in the plan"}


@pytest.mark.when_changed
def test_the_page_and_the_text_show_the_same_facts(card):
    page = Page((card.folder / "model-card.html").read_text("utf-8"))
    text = (card.folder / "model-card.md").read_text("utf-8").replace("\\", "")
    for fact in (card.job.plan, *card.content["methods"]["FedAvg"]["digests"], card.content["finding"],
                 *(f"{part['largest']:.4g}" for part in card.content["norms_of_updates"].values())):
        assert any(fact in cell for cell in page.cells), fact
        assert fact in text
    assert not page.tags & {"script", "img", "link", "iframe", "object", "a"}
    assert not [value for name, value in page.attributes if name in ("src", "href", "style") or name.startswith("on")]


def test_an_interval_that_is_not_defined_is_one_dash():
    card = {"title": "Card", "scores": {"Ulm": {"alone": [None] * 3, "FedAvg": [0.5, 0.25, 1.0]}}}
    page, text = Page(card_text(card, "html")), card_text(card, "md")
    assert page.cells.count("–") == 1
    assert page.cells[-1].strip() == "0.5 [0.25, 1]"
    assert "–, –" not in text


def test_a_site_has_a_data_sheet_with_its_limits(card):
    folder = card.consortium.folder / SITES[0] / "mine-1"
    content = json.loads((folder / "data-sheet.json").read_text("utf-8"))
    assert content["plan"] == card.job.plan
    assert content["limits"]["min_rows"]["value"] == 10
    assert content["rows"] == {"train": 15, "validation": 6, "test": 9}
    assert content["journal"]["rounds_of_all_experiments"] == 6  # of alone and FedAvg
    assert "min_batch" in (folder / "data-sheet.html").read_text("utf-8")


def test_the_command_names_who_has_signed(card, monkeypatch, capsys):
    monkeypatch.setattr(kits, "KitNote", lambda kit: SimpleNamespace(verify=lead_of))
    commands.card(card.folder, kit=card.folder)
    assert re.search(rf"lead@example.org has signed .* {card.job.plan}", " ".join(capsys.readouterr().out.split()))
    with pytest.raises(InputError, match="the kit of a participant"):
        commands.card(card.folder)


def check_site(folder):
    """As ``resolvent site ledger`` does."""
    journal = Journal(folder.parent / JOURNAL)
    journal.check_runs()
    assert len([*journal.check_files()]) == 1


@pytest.mark.parametrize("of_site", [False, True], ids=["lead", "site"])
def test_a_changed_bit_is_noticed_in_every_file_of_a_finished_run(card, of_site):
    """The report, the summary, the tables and models, the card and its signature: no file is left out."""
    folder = card.consortium.folder / SITES[0] / "mine-1" if of_site else card.folder
    unnoticed, names = [], files_of(folder)
    expected = {"report.html", "journals.json", "models/FedAvg/server.safetensors", "model-card.signature.json"}
    if of_site:
        expected = {"encoding.json", "journal.head", "data-sheet.html"}
    assert expected | {"summary.json", "metrics.parquet"} <= names

    def check():
        check_site(folder) if of_site else check_card(folder, "model-card", lead_of)

    for path in (folder / name for name in sorted(names)):
        content = path.read_bytes()
        for position in {len(content) // 3, max(len(content) - 3, 0)} if content else ():
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1:])
            try:
                check()
            except InputError:
                continue
            unnoticed.append((path.name, position))
        path.write_bytes(content)
    assert unnoticed == []
    check()


def test_the_lead_knows_the_head_of_each_journal(card):
    heads = json.loads((card.folder / "journals.json").read_text())
    assert {*heads} == {*SITES}
    for site, head in heads.items():
        journal = Journal(card.consortium.folder / site / JOURNAL)
        assert journal.continues(head)
        journal.entries[:] = journal.entries[:-3]  # as if it had been shortened
        assert not journal.continues(head)


def test_a_card_that_nobody_has_signed_is_not_valid(card, tmp_path):
    write_card(tmp_path, "model-card", card.content, lambda content: {"signature": "by another"})
    with pytest.raises(InputError, match="not signed"):
        check_card(tmp_path, "model-card", lead_of)
    write_card(tmp_path, "model-card", card.content)
    with pytest.raises(InputError, match="no signature"):
        check_card(tmp_path, "model-card", lead_of)


def test_a_card_is_signed_with_the_key_of_the_lead(card, tmp_path):
    """With the keys and certificates of kits: any kit of the federation checks it, and that of another refuses it."""
    pytest.importorskip("cryptography")
    from resolvent.federation.engines.flower.kits import make_flower_kits

    folders = [make_flower_kits(tmp_path / name, name=name, address="x", sites=SITES, lead="l@x.org") for name in "ab"]
    content = card.content | {"files": {}}
    write_card(tmp_path, "model-card", content, KitNote(folders[0]["l@x.org"]).sign)
    assert check_card(tmp_path, "model-card", KitNote(folders[0]["aachen"]).verify) == ("l@x.org", content)
    with pytest.raises(InputError, match="no valid signature"):
        check_card(tmp_path, "model-card", KitNote(folders[1]["aachen"]).verify)
    page = tmp_path / "model-card.html"
    page.write_text(page.read_text("utf-8").replace("aachen", "aacheN", 1), encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"model-card\.html"):
        check_card(tmp_path, "model-card", KitNote(folders[0]["aachen"]).verify)


def test_a_hostile_name_is_a_text_on_the_page():
    names = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a|b\n# c", "&lt;", "[x](javascript:1)"]
    content = {"title": names[0], names[1]: names[0], "sites": {name: {name: name} for name in names},
               "list": {"one": names}}
    page = Page(card_text(content, "html"))
    assert not page.tags & {"script", "img", "a"}
    assert [cell for cell in page.cells if cell == names[0]]
    lines = card_text(content, "md").splitlines()
    assert not any("<" in line or re.search(r"(?<!\\)[\[`*]", line) for line in lines)
    assert len({line.replace("\\|", "").count("|") for line in lines if line.startswith("|")} - {0}) <= 2


def test_small_numbers_of_rows_are_not_named(card):
    record = read_record(card.folder)
    changed = replace(record, data=replace(record.data, test=[3, 0]))
    rows = model_card(card.folder, changed, read_metrics(card.folder), None, "", None)["rows"]
    assert [row["test"] for row in rows.values()] == ["fewer than 5", 0]


def test_the_card_of_a_run_without_a_plan(card, tmp_path, capsys):
    """A simulated run has a card without a signature; that of a federated run is not replaced."""
    with pytest.raises(InputError, match="has signed"):
        commands.card(card.folder)
    copytree(card.folder, tmp_path / "run", ignore=ignore_patterns("model-card*"))
    commands.card(tmp_path / "run")
    assert "model-card.html" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "model-card.json").read_text("utf-8"))["plan"] == {}


def test_the_report_has_the_share_of_each_site(card):
    """As that of a simulation: it is the weight that a site's number of rows gives it."""
    train = read_record(card.folder).data.train
    page = (card.folder / "report.html").read_text("utf-8")
    assert re.findall(r"<td>([\d.]+ %)</td></tr>", page)[-len(SITES):] == [
        f"{100 * rows / sum(train):.1f} %" for rows in train]
    assert "The numbers are what the sites say." in page


def test_a_site_that_outweighs_all_others_is_in_the_warnings(card, monkeypatch):
    """Of two sites one always has half; with secure sums no number of rows is known."""
    sites = ("aachen", "berlin", "celle")
    found = [share_warnings(sites[:len(train)], train) for train in ((30, 30, 60), (1, 99), (0, 0, 0))]
    assert found == [[], [], []]
    (line,) = share_warnings(sites, (20, 30, 1000))
    assert line.startswith("celle says that it has 95 % of the training rows, so that it outweighs")
    monkeypatch.setattr(results, "share_warnings", lambda sites, train: [f"{[*sites]} {[*train]}"])
    assert card.consortium.serve(card.consortium.job(run="mine-2"), results="out-2")["status"] == "complete"
    record = read_record(card.consortium.folder / "out-2")
    assert f"{[*SITES]} {[*record.data.train]}" in record.warnings
