"""What the server receives in a run with secure sums: every message, compared with that of a run with other rows."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from federation.harness import EXPERIMENT, SITES, Consortium, answer_of, limits, read_request
from federation.schema_tables import SETTINGS, pooled_table, site_tables
from federation.secure_parts import SECURE
from resolvent.comparisons.runs.record import read_record
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.table_sums import integers_of, names_only, pooled, pooled_from_integers
from resolvent.federation.protocol.wire import decode
from resolvent.tables.encoding_files import read_encoding

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

TEXT = SECURE.replace("rounds: 3", "rounds: 2\nmetrics: [ROCAUC]").replace("evaluate_every: 3", "evaluate_every: 1")
MASKED = {"masked", "shares", "commitment"}  # random without the keys; the others follow from keys and signatures
KEYS = {"card", "signature", "answers", "own", "seeds",
        "sent", "journal"}  # a digest of what the server has sent, and a keyed one of the journal


class Listener(InProcess):
    """A transport that keeps what each site is sent and what it answers."""

    def __init__(self, handlers):
        super().__init__(handlers)
        self.heard = []

    def broadcast(self, messages, **times):
        replies = super().broadcast(messages, **times)
        self.heard += [(name, bytes(messages[name]), replies[name]) for name in messages]
        return replies


def view(folder, change=lambda table: table, text=TEXT):
    """What the server hears from berlin in a run: kind and content of every answer, and the outcome."""
    wide = {"limits": limits(max_leverage_in_sums=None, max_parameters_per_row=None)}
    consortium = Consortium(folder, dict.fromkeys(SITES, wide), text=text)
    path = folder / "berlin.csv"
    frame = consortium.frame[consortium.frame["site"] == "berlin"].drop(columns="site")
    change(frame).to_csv(path, index=False)
    transports = []

    def transport(handlers):
        transports.append(Listener(handlers))
        return transports[-1]

    assert consortium.serve(transport=transport) == {"status": "complete"}
    return [contents(message, reply) for name, message, reply in transports[-1].heard if name == "berlin"]


def contents(message, reply):
    """(kind, facts and arrays without keys and masks, lengths of the masks)."""
    if (request := read_request(message)) is not None:
        answer = answer_of(reply)
        return request["kind"], {key: value for key, value in answer.items() if key not in KEYS}, ()
    head = decode(reply)
    open_facts = {key: value for key, value in head.facts.items() if key not in KEYS | MASKED}
    if head.kind == "revealed":
        open_facts.pop("shares", None)
    lengths = tuple((name, array.shape, array.dtype.str) for name, array in head.arrays.items() if name == "masked")
    arrays = {name: array.tobytes() for name, array in head.arrays.items() if name != "masked"}
    return head.kind, open_facts | arrays, lengths


def other_rows(table):
    """A tenth more rows, other values, and other shares of levels and classes."""
    rng = np.random.default_rng(5)
    more = table.sample(len(table) + 4, replace=True, random_state=1).reset_index(drop=True)
    return more.assign(age=rng.normal(30, 20, len(more)), ward=rng.choice(["east", "west"], len(more), p=[0.8, 0.2]),
                       ill=rng.choice(["yes", "no"], len(more), p=[0.3, 0.7]))


@pytest.mark.when_changed
@pytest.mark.parametrize(("folds", "sums"), [
    # One sum of the table; for the methods alone and FedAvg two evaluations; for FedAvg two rounds.
    (1, 1 + 2 * 2 + 2),
    # Sums of the table and of three folds; for FedAvg two rounds in each; one of the scores at the end.
    (3, 1 + 3 + 3 * 2 + 1)])
def test_no_message_that_the_server_receives_depends_on_the_rows_of_a_site(folds, sums, tmp_path):
    """But for masked integers, shares of the masks' seeds, and keys."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    text = f"{TEXT}folds: {folds}\n"
    first, second = view(tmp_path / "a", text=text), view(tmp_path / "b", other_rows, text)
    assert first == second
    kinds = [kind for kind, _, _ in first]
    # A sum of two sites has both of them: nothing is revealed after the replies.
    assert {*kinds} - {"scores"} == {"describe", "accepted", "reply", "prepare", "ready", "stored", "finish"}
    assert ("scores" in kinds) == (folds == 1)
    assert sum(len(masked) for _, _, masked in first) == sums


@pytest.mark.when_changed
def test_the_means_that_the_server_learns_are_those_of_the_sites(tmp_path):
    """And the encoding is that of the run without secure sums, to the bit."""
    (tmp_path / "secure").mkdir()
    (tmp_path / "plain").mkdir()
    assert Consortium(tmp_path / "secure", text=TEXT, policy=REHEARSAL).serve() == {"status": "complete"}
    text = TEXT[:TEXT.index("privacy:")]
    assert Consortium(tmp_path / "plain", text=text, policy=REHEARSAL).serve() == {"status": "complete"}
    encodings = [read_encoding(tmp_path / kind / "aachen" / "mine-1" / "encoding.json") for kind in ("secure", "plain")]
    assert encodings[0] == encodings[1]
    metrics = pd.read_parquet(tmp_path / "secure" / "out" / "metrics.parquet")
    assert metrics[metrics["metric"] != "update_norm"]["party"].isna().all()
    scores = pd.concat([pd.read_parquet(tmp_path / "secure" / site / "mine-1" / "metrics.parquet") for site in SITES])
    names = {*scores[scores["split"] == "test"]["metric"]}
    assert len(names) == 2 * 3  # loss, accuracy and area under the curve, of personal models and of the shared one
    for label in ("FedAvg", "alone"):
        for name in names if label == "FedAvg" else ("accuracy", "loss"):
            of_sites = scores[(scores["method"] == label) & (scores["metric"] == name) & (scores["split"] == "test")]
            mean = metrics[(metrics["method"] == label) & (metrics["metric"] == f"mean_{name}")
                           & (metrics["split"] == "test") & (metrics["round"] == 2)]
            np.testing.assert_allclose(mean["value"], [of_sites["value"].mean()], atol=1e-6)
    summary = json.dumps(read_record(tmp_path / "secure" / "out").plain())
    assert "over the sites is alone" in summary
    assert "Secure sums hide that of each site" in summary


@pytest.mark.parametrize("missing", ["ward", "ill"])
def test_levels_that_are_not_listed_are_refused(missing, tmp_path):
    listed = {"ward": "ward: [east, west]", "ill": "ill: [no, yes]"}
    text = EXPERIMENT.replace("label: ill", f"label: ill, levels: {{{listed['ill' if missing == 'ward' else 'ward']}}}")
    outcome = Consortium(tmp_path, text=text + "privacy: {secure_sums: true, min_sites: 2}\n").serve()
    assert outcome["status"] == "refused"
    assert f"(levels not listed): column '{missing}': secure sums hide which levels a site has" in outcome["message"]


@pytest.mark.when_changed
def test_a_table_that_has_changed_gets_no_second_sum(tmp_path):
    consortium = Consortium(tmp_path, text=TEXT)
    assert consortium.serve() == {"status": "complete"}
    frame = consortium.frame[consortium.frame["site"] == "berlin"].drop(columns="site")
    other_rows(frame).to_csv(tmp_path / "berlin.csv", index=False)
    outcome = consortium.serve()
    assert outcome["status"] == "refused"
    assert "the table has changed since the run began" in outcome["message"]


def test_the_pooled_report_is_the_same_from_reports_and_from_the_sum_of_integers():
    """Numbers of 40 orders of magnitude, missing values, hidden levels: every bit, in every order of the sites."""
    frame = pooled_table()
    frame["tiny"], frame["huge"] = frame["age"] * 1e-18, frame["age"] * 1e20 + 1e25
    frame.loc[frame.index[::7], "pulse"] = np.nan
    settings = replace(SETTINGS, missing="impute", levels={"ward": ["east", "north", "west"], "ill": ["no", "yes"]})
    tables = site_tables(frame, settings, min_cell=3)
    reports = {site: table.report(with_weights=True) for site, table in tables.items()}
    names = [names_only(report, settings.levels, ["ill"]) for report in reports.values()]
    assert names[0] == names[1] == names[2]
    vectors = [integers_of(report, names[0]) for report in reports.values()]
    masks = np.random.default_rng(0).integers(0, 2**63, (2, len(vectors[0])), dtype=np.uint64) * np.uint64(3)
    total = (vectors[0] + masks[0]) + (vectors[1] - masks[0] + masks[1]) + (vectors[2] - masks[1])
    assert pooled_from_integers(total, names[1]) == pooled([*reports.values()]) == pooled([*reports.values()][::-1])
    assert agree(dict(zip(reports, names, strict=True)), settings, pooled([*reports.values()])) == agree(
        reports, settings)
    too_large = replace(reports["aachen"], columns=(replace(reports["aachen"].columns[0], mean=1e39),
                                                    *reports["aachen"].columns[1:]))
    with pytest.raises(InputError, match="change its unit"):
        integers_of(too_large, names[0])


@pytest.mark.nightly
def test_without_secure_sums_the_comparison_sees_the_rows(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    text = TEXT[:TEXT.index("privacy:")]
    first, second = view(tmp_path / "a", text=text), view(tmp_path / "b", other_rows, text=text)
    differ = {a[0] for a, b in zip(first, second, strict=True) if a != b}
    assert {"describe", "ready", "scores", "finish"} <= differ
