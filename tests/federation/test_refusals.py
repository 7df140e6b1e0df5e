"""Refusals are codes: malformed tables make a site send no text of an error, and the server writes the sentences."""

import json
import logging
import os
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nightly
import resolvent
from federation.harness import (
    EXPERIMENT,
    SITES,
    Consortium,
    answer_of,
    limits,
    pooled_table,
    request_bytes,
    signed,
    signed_sizes,
)
from resolvent.comparisons.runs.record import read_record
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.experiment import experiment_from_text, experiment_of_file
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.job import plan_digest
from resolvent.federation.protocol.limits import read_refusal
from resolvent.federation.protocol.names import digest_of_sources, library_version
from resolvent.federation.protocol.plan_files import plan_of_file
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, outgoing, refusing
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.protocol.transport import TransportError
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.site import Site
from resolvent.federation.site.table import SiteTable
from resolvent.tables.encoding_files import to_plain
from resolvent.tables.table_options import TableOptions

SECRET = "Zaphod Beeblebrox"
NUMBER = "8374652910"  # a number of a patient, which no other text has


class Wiretap(InProcess):
    """A transport that remembers every byte that leaves a site."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.left = []

    def broadcast(self, messages, **rules):
        try:
            replies = super().broadcast(messages, **rules)
        except InputError as error:  # an engine sends no text of an exception
            raise TransportError(type(error).__name__) from None
        self.left += replies.values()
        return replies


def _lines(frame):
    return frame.to_csv(index=False).splitlines()


def _with_cell(column, value, rows=1):
    def change(frame):
        frame[column] = frame[column].astype(object)
        frame.loc[frame.index[3:3 + rows], column] = value
        return "\n".join(_lines(frame))

    return change


def _with_line(text, position=4):
    def change(frame):
        lines = _lines(frame)
        lines.insert(position, text)
        return "\n".join(lines)

    return change


def _mostly_numbers(frame):
    frame["pulse"] = [f"{n}.5" for n in range(len(frame))]
    frame.loc[5, "pulse"] = f"pos. ({SECRET}, ward 3)"
    return "\n".join(_lines(pd.concat([frame] * 6).assign(pulse=lambda f: [*f["pulse"][:-80], *map(str, range(80))])))


def _free_text(frame):
    frame["ward"] = [f"{SECRET} {n}" for n in range(len(frame))]
    return "\n".join(_lines(frame))


def _many_categories(frame):
    frame = pd.concat([frame] * 4, ignore_index=True)
    frame["ward"] = [f"{SECRET} {n}" for n in range(len(frame))]
    return "\n".join(_lines(frame))


def _first_line_is_a_row(frame):
    return "\n".join([f"{SECRET},{NUMBER},3", *_lines(frame)[1:]])


def _open_quotation(frame):
    return "\n".join(['age,ill,"ward', f"44.5,yes,{SECRET}", *_lines(frame)[1:]])


def _open_quotation_in_a_name(frame):
    return "\n".join(['age,"ward', f'44.5,{SECRET}",ill', *_lines(frame)[1:]])


MALFORMED = {
    "a word among numbers": _with_cell("age", f"pos. ({SECRET}, ward 3)"),
    "mostly numbers": _mostly_numbers,
    "free text": _free_text,
    "many categories": _many_categories,
    "a rare level": _with_cell("ward", SECRET),
    "a rare class": _with_cell("ill", SECRET),
    "a label without text": _with_cell("ill", ""),
    "a missing value": _with_cell("age", ""),
    "a date": _with_cell("age", f"2020-01-01 {SECRET}"),
    "dates": lambda frame: "\n".join(_lines(frame.assign(ward="2020-01-01"))),
    "a huge number": _with_cell("age", f"{NUMBER}e300"),
    "infinity": _with_cell("age", "-inf"),
    "a whole number of 400 digits": _with_cell("age", NUMBER * 40),
    "two decimal marks": _with_cell("age", f"{NUMBER},5"),
    "a line with more values": _with_line(f"44.5,east,yes,{SECRET},{NUMBER}"),
    "a line with fewer values": _with_line(f"{NUMBER}"),
    "an open quotation mark": _with_line(f'44.5,"{SECRET},yes'),
    "an open quotation mark in the first line": _open_quotation,
    "a name with rows": _open_quotation_in_a_name,
    "no names": _first_line_is_a_row,
    "a title": _with_line(f"Patients of {SECRET}", 0),
    "a title without a comma": _with_line(SECRET.replace(" ", ""), 0),
    "two columns of a name": lambda frame: "\n".join(["age,ill,ill", *_lines(frame)[1:]]),
    "a null character": _with_line(f"44.5,{SECRET}\0,yes"),
    "another character encoding": lambda frame: "\n".join(_lines(frame)).encode() + f"\n44,{SECRET} \xe4,yes".encode(
        "latin-1"),
    "no rows": lambda frame: _lines(frame)[0],
    "nothing": lambda frame: "",
    "another format": lambda frame: f"PK\x03\x04{SECRET}",
    "tabs": lambda frame: "\n".join(_lines(frame)).replace(",", "\t") + f"\n{SECRET}",
    "other separators": lambda frame: "\n".join(_lines(frame)).replace(",", ";") + f"\n{SECRET},{NUMBER}",
}
SETTINGS = ("label: ill, missing: impute", "label: ill", "label: ward", "label: age, task: regression",
            "label: ill, features: [age]", "label: ill, weight: age", "label: ill, features: [ward, pulse]")
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


@cache
def _encodings(label):
    """Encodings that a server has of other sites, or has made up."""
    settings = TableOptions("site", label, missing="impute", task="regression" if label == "age" else "auto")
    report = SiteTable(pooled_table().drop(columns="site"), settings, "x", 0).report()
    plain = to_plain(agree({"x": read_plain(TableReport, report.plain(), "x")}, settings).encoding)
    wrong = [plain, {**plain, "categories": [{"name": "age", "imputed": "a", "levels": ["a"]}]},
             {**plain, "numbers": [{"name": "ward", "imputed": 0.0}]},
             # a deviation so small that inputs overflow
             *({**plain, "numbers": [{**number, "deviation": 1e-300}]} for number in plain["numbers"])]
    if plain["categories"]:
        ward = plain["categories"][0]
        wrong += [{**plain, "categories": [{**ward, "levels": [*ward["levels"], SECRET]}]},
                  {**plain, "categories": [{**ward, "levels": ward["levels"][:1], "imputed": ward["levels"][0]}]}]
    return wrong


@nightly.parametrize("case", MALFORMED, per_commit=10, others=nightly.WHEN_CHANGED)
def test_no_cell_of_a_malformed_table_leaves_the_site(case, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)  # the texts are in the site's log
    content = MALFORMED[case](pooled_table().drop(columns="site").head(60))
    table = tmp_path / "patients.csv"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    site = Site("aachen", tmp_path / "runs", SiteFile(table=str(table), limits=limits(min_rows=1)),
                verify=lambda content, signature: "lead", identity=local_identities(SITES)["aachen"])
    transport, refused, plan = Wiretap({"aachen": site.handle}), [], [None]
    rows = dict.fromkeys(SITES, 40)

    def ask(kind, **content):
        request = request_bytes(kind, run="mine", plan=plan[-1], **content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas and the library warn at the site
            transport.broadcast({"aachen": request}, deadline=None, quorum=1, grace=0.0)
        answer = answer_of(transport.left[-1])
        rows["aachen"] = answer.get("table", {"rows": rows})["rows"].get("train", rows["aachen"])
        refused.append(answer.get("refused"))

    # At night all settings; a commit has the first two, and one of the others in turn.
    others = SETTINGS[2:] if "RESOLVENT_NIGHTLY" in os.environ else [SETTINGS[2 + [*MALFORMED].index(case) % 5]]
    for settings in [*SETTINGS[:2], *others]:
        (tmp_path / "mine.yaml").write_text(ONE_METHOD.replace("label: ill", settings))
        text = experiment_of_file(str(tmp_path / "mine.yaml")).text
        plan.append(plan_digest("mine", text, None, None))
        ask("describe", experiment=text, party=0, version=library_version(), sites=[*SITES])
        if refused[-1] is None:
            encodings = _encodings(settings.split(",")[0].removeprefix("label: "))
            for encoding in encodings if settings == SETTINGS[0] else encodings[1:]:
                ask("prepare", encoding=encoding, decide_by=None, weights=None, sizes=signed_sizes(plan[-1], rows))
            ask("finish")
    site.close()
    assert any(refused)
    for words in (SECRET, SECRET.split()[0], NUMBER, str(tmp_path)):
        for data in transport.left:
            assert words.lower() not in bytes(data).decode("utf-8", "replace").lower()
            assert json.dumps(words)[1:-1] not in bytes(data).decode("utf-8", "replace")
    for refusal in filter(None, refused):
        assert {*refusal} == {"code", "column", "limits"}
        assert refusal["column"] in (None, "ill", "ward", "age", "pulse")
        assert refusal["limits"] == {}


@pytest.mark.when_changed
def test_a_rare_level_leaves_in_no_byte_of_a_whole_run(tmp_path):
    """The report, the agreement, the replies, the scores and the judgement."""
    consortium = Consortium(tmp_path)
    table = tmp_path / "berlin.csv"
    lines = table.read_text().splitlines()
    lines[5] = lines[5].replace("east", SECRET).replace("west", SECRET)
    table.write_text("\n".join(lines))
    sites = {site: consortium.site(site) for site in SITES}
    transport = Wiretap({name: site.handle for name, site in sites.items()})
    job = signed(consortium.job())
    outcome = serve_federation(job, experiment_from_text(job.experiment, job.run), transport, tmp_path / "server",
                               tmp_path / "out", Watch(lambda event: None))
    for site in sites.values():
        site.close()
    assert outcome == {"status": "complete"}
    assert len(transport.left) > 20
    assert not any(SECRET.split()[0].encode() in bytes(data) for data in transport.left)
    assert read_record(tmp_path / "out").data.notes == [
        "berlin has levels with fewer rows than its min_cell, in 'ward': in training these rows have no level"]


@pytest.mark.when_changed
@nightly.parametrize(("test", "splits", "judged"), [(0.1, {"train"}, ("berlin",)),
                                                    (0.2, {"train", "test"}, SITES)], others=nightly.WHEN_CHANGED)
def test_scores_and_judgements_on_few_rows_stay_at_the_site(tmp_path, test, splits, judged):
    """The site has 3 validation rows, and 6 or 3 test rows."""
    aachen = {"limits": limits(min_cell=4), "validation": 0.1, "test": test}
    consortium = Consortium(tmp_path, {"aachen": aachen}, text=ONE_METHOD)
    assert consortium.serve()["status"] == "complete"
    metrics = consortium.metrics()
    assert {*metrics[(metrics["metric"] == "accuracy") & (metrics["party"] == 0)]["split"]} == splits
    assert tuple(site["name"] for site in read_record(tmp_path / "out").plain()["sites"]) == judged


def test_the_log_of_a_site_names_the_line_of_its_file_also_in_a_regression(tmp_path, caplog):
    table = tmp_path / "patients.csv"
    table.write_text("age,ill\n" + "".join(f"{40 + i},{i % 2}\n" for i in range(20)) + "unknown,0\n")
    (tmp_path / "mine.yaml").write_text("data: {party: site}\nregression: {formula: ill ~ age}\n")
    site = Site("aachen", tmp_path / "runs", SiteFile(table=str(table), limits=limits(min_cell=1)),
                verify=lambda content, signature: "lead", identity=local_identities(SITES)["aachen"])
    reply = answer_of(site.handle(request_bytes(
        "describe", run="mine", experiment=plan_of_file(str(tmp_path / "mine.yaml")).text, party=0, sites=[*SITES],
        version=library_version())))
    assert "refused" in reply
    assert "column 'age': 20 of 21 values are numbers, and 'unknown' in row 22 is not" in caplog.text


def test_checkouts_of_one_version_are_told_apart(tmp_path):
    """A changed line and a changed name of a file; line ends, which Git changes, and other files do not count."""
    (tmp_path / "part.py").write_bytes(b"a = 1\nb = 2\n")
    first = digest_of_sources(tmp_path)
    (tmp_path / "note.txt").write_text("")
    (tmp_path / "part.py").write_bytes(b"a = 1\r\nb = 2\r\n")
    assert digest_of_sources(tmp_path) == first
    (tmp_path / "part.py").write_bytes(b"a = 1\nb = 3\n")
    changed = digest_of_sources(tmp_path)
    (tmp_path / "part.py").rename(tmp_path / "other.py")
    assert len({first, changed, digest_of_sources(tmp_path)}) == 3
    assert digest_of_sources(Path(resolvent.__file__).parent) in library_version()


def test_the_text_is_in_the_log_of_the_site(tmp_path, caplog):
    table = tmp_path / "patients.csv"
    table.write_text("age,ill\n1,yes\n,no\n")
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    text = experiment_of_file(str(tmp_path / "mine.yaml")).text
    site = Site("aachen", tmp_path / "runs", SiteFile(table=str(table), limits=limits(min_cell=1)),
                verify=lambda content, signature: "lead", identity=local_identities(SITES)["aachen"])
    reply = answer_of(site.handle(request_bytes("describe", run="mine", experiment=text, party=0, sites=[*SITES],
                                                 version=library_version())))
    assert reply == {"refused": {"code": "missing values", "column": "age", "limits": {}}}
    assert "row 3, column 'age': the value is missing" in caplog.text


@pytest.mark.parametrize("error", [
    ValueError(SECRET), KeyError(SECRET), InputError(SECRET), MemoryError(SECRET), FileNotFoundError(2, SECRET, SECRET),
    UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET), np.linalg.LinAlgError(SECRET), type(
        SECRET.replace(" ", ""), (RuntimeError,), {})(SECRET), Refusal(RefusalCode.VALUES, SECRET, column="age")])
def test_no_error_has_a_text_that_leaves(error, caplog):
    sent = outgoing(error, "aachen")
    assert SECRET.split()[0] not in json.dumps(sent)
    code, sentence = read_refusal(json.loads(json.dumps(sent)))
    assert code == sent["code"]
    assert sentence.startswith(f"refused ({code}): ")
    assert SECRET in caplog.text or "Zaphod" in caplog.text


def test_errors_within_a_block_are_refusals_with_the_column_of_the_block():
    with pytest.raises(Refusal, match=SECRET) as refused, refusing(RefusalCode.VALUES, "age"):
        raise InputError(SECRET)
    assert (refused.value.code, refused.value.column) == ("values", "age")


@pytest.mark.parametrize("content", [None, 3, [], {}, {"code": "x" * 9999}, {"code": "values", "column": [1]},
                                     {"code": "limits", "limits": {"max_rounds": {"a": "b" * 9999}, "x": 1}}])
def test_a_refusal_that_is_none_is_read_without_an_error(content):
    assert len(read_refusal(content)[1]) < 500


def test_a_refusal_names_limits_with_their_values():
    refusal = Refusal(RefusalCode.LIMITS, "for the site", limits={"max_rounds": 7, "solvers": ("SGD", "GD")})
    assert read_refusal(json.loads(json.dumps(outgoing(refusal, "aachen"))))[1] == (
        "refused (limits): the site allows at most 7 rounds of a method; the site allows the solvers SGD, GD; the "
        "site's log has the details")


def test_bytes_that_are_no_message_are_not_read(tmp_path):
    with pytest.raises(InputError):
        Consortium(tmp_path).site("aachen").handle(b"request\n[]")
